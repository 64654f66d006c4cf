// SPDX-License-Identifier: GPL-2.0-only
/*
 * The lab client: uses unwind_deferred_*() as several tracers would, and logs the results.
 *
 * It decides nothing: ioctls tell it who makes a request and when, and the reader of the log
 * judges the results (include/linux/unwindlab.h). Switched off, it is three static branches.
 */
#include <linux/delay.h>
#include <linux/interrupt.h>
#include <linux/irq_work.h>
#include <linux/kprobes.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/nmi.h>
#include <linux/rwsem.h>
#include <linux/sched.h>
#include <linux/sched/clock.h>
#include <linux/sched/task.h>
#include <linux/sched/task_stack.h>
#include <linux/smp.h>
#include <linux/uaccess.h>
#include <linux/unwind_deferred.h>
#include <linux/unwindlab.h>
#include <linux/vmalloc.h>

#include <trace/events/sched.h>
#include <trace/events/syscalls.h>

#include <asm/apic.h>
#include <asm/entry-common.h>
#include <asm/irq_regs.h>
#include <asm/nmi.h>

#define NO_CLIENT	0xffff
/* Registrations before a struct unwind_work is reused: a late callback must find its own. */
#define WORKS		16
#define TARGETS		1024
#define MAX_PAGES	32768

DEFINE_STATIC_KEY_FALSE(unwindlab_key);

/* ------------------------------------------------------------------ the log */

static struct unwindlab_control *lab_control;
static struct unwindlab_slot *lab_slots;
static u64 lab_capacity;
/* Slots from here on are reserved for what follows from earlier requests. */
static u64 lab_enough;
static atomic64_t *lab_head;

static __always_inline bool lab_room(void)
{
	return lab_head && (u64)raw_atomic64_read(lab_head) < lab_enough;
}

/*
 * For any context, even without RCU watching: one atomic add and plain stores.
 */
static __always_inline struct unwindlab_slot *lab_reserve(u64 *at)
{
	*at = raw_atomic64_fetch_add(1, lab_head);
	return *at < lab_capacity ? &lab_slots[*at] : NULL;
}

static __always_inline void lab_commit(u32 *commit, u64 at)
{
	barrier();
	/* Stores are not reordered with other stores on x86. */
	WRITE_ONCE(*commit, (u32)at + 1);
}

static __always_inline void lab_publish(const struct unwindlab_slot *from, u64 *slot)
{
	struct unwindlab_slot *to;
	u64 at;

	to = lab_reserve(&at);
	if (slot)
		*slot = at;
	if (!to)
		return;
	to->kind = from->kind;
	to->context = from->context;
	to->flags = from->flags;
	to->time = from->time;
	to->tid = from->tid;
	to->task = from->task;
	to->entry = from->entry;
	to->cpu = from->cpu;
	to->client = from->client;
	to->gen = from->gen;
	to->ret = from->ret;
	to->cookie = from->cookie;
	to->a = from->a;
	to->b = from->b;
	lab_commit(&to->commit, at);
}

/* -------------------------------------------------------------- the targets */

struct lab_target {
	struct task_struct	*task;
	u32			number;
	u32			tid;
	u32			tgid;
	u32			entry;
	bool			leaving;
	/* Something has been logged since the last return. */
	bool			seen;
	u8			nesting;
	u64			enter_time;
	/* Hash and number of the frames last logged. */
	u64			frames;
};

#define GONE	((struct task_struct *)1)

static struct lab_target lab_targets[TARGETS];
static DEFINE_RAW_SPINLOCK(lab_targets_lock);
static u32 lab_numbers;
static u32 lab_count;

static __always_inline unsigned int lab_hash(struct task_struct *task)
{
	return ((unsigned long)task >> 6) * 0x9e3779b1u >> 16 & (TARGETS - 1);
}

static __always_inline struct lab_target *lab_find(struct task_struct *task)
{
	unsigned int at = lab_hash(task), n;

	for (n = 0; n < TARGETS; n++) {
		struct lab_target *target = &lab_targets[(at + n) & (TARGETS - 1)];
		struct task_struct *found = READ_ONCE(target->task);

		if (found == task)
			return target;
		if (!found)
			return NULL;
	}
	return NULL;
}

static __always_inline void lab_describe(struct unwindlab_slot *slot, u8 kind,
					 struct lab_target *target)
{
	slot->kind = kind;
	slot->context = UNWINDLAB_TASK;
	slot->flags = 0;
	slot->time = local_clock_noinstr();
	slot->tid = target ? target->tid : 0;
	slot->task = target ? target->number : 0;
	slot->entry = target ? target->entry : 0;
	slot->cpu = raw_smp_processor_id();
	slot->client = NO_CLIENT;
	slot->gen = 0;
	slot->ret = 0;
	slot->cookie = 0;
	slot->a = 0;
	slot->b = 0;
	if (target && READ_ONCE(target->leaving))
		slot->flags |= UNWINDLAB_F_LEAVING;
}

static void lab_log(u8 kind, struct lab_target *target, u64 a, u64 b)
{
	struct unwindlab_slot slot;

	preempt_disable_notrace();
	lab_describe(&slot, kind, target);
	slot.a = a;
	slot.b = b;
	lab_publish(&slot, NULL);
	preempt_enable_notrace();
}

static int lab_add(struct task_struct *task, u32 parent)
{
	unsigned int at = lab_hash(task), n;
	struct lab_target *target;
	unsigned long flags;
	int ret = -ENOSPC;

	raw_spin_lock_irqsave(&lab_targets_lock, flags);
	if (lab_find(task)) {
		ret = 0;
		goto out;
	}
	/* Failing searches must end, so the table is never full. */
	if (lab_count >= TARGETS / 2)
		goto out;
	for (n = 0; n < TARGETS; n++) {
		target = &lab_targets[(at + n) & (TARGETS - 1)];
		if (target->task && target->task != GONE)
			continue;
		target->number = ++lab_numbers;
		target->tid = task_pid_nr(task);
		target->tgid = task_tgid_nr(task);
		target->entry = 0;
		target->leaving = false;
		target->seen = false;
		target->nesting = 0;
		target->frames = 0;
		target->enter_time = 0;
		lab_log(UNWINDLAB_K_TARGET, target, target->tgid, parent);
		smp_store_release(&target->task, task);
		lab_count++;
		ret = 0;
		break;
	}
out:
	raw_spin_unlock_irqrestore(&lab_targets_lock, flags);
	return ret;
}

static void lab_remove(struct task_struct *task)
{
	struct lab_target *target;
	unsigned long flags;

	raw_spin_lock_irqsave(&lab_targets_lock, flags);
	target = lab_find(task);
	if (target) {
		lab_log(UNWINDLAB_K_FREE, target, 0, 0);
		WRITE_ONCE(target->task, GONE);
		lab_count--;
	}
	raw_spin_unlock_irqrestore(&lab_targets_lock, flags);
}

/* ------------------------------------------------- entry from and return to user mode */

noinstr void unwindlab_user_enter(struct pt_regs *regs)
{
	struct lab_target *target = lab_find(current);

	if (target)
		target->enter_time = local_clock_noinstr();
}

noinstr void unwindlab_user_leave(void)
{
	struct lab_target *target = lab_find(current);

	if (target)
		WRITE_ONCE(target->leaving, true);
}

static bool lab_log_all;

noinstr void unwindlab_user_left(void)
{
	struct lab_target *target = lab_find(current);
	struct unwindlab_slot slot;

	if (!target)
		return;
	if (READ_ONCE(target->seen) || READ_ONCE(lab_log_all)) {
		WRITE_ONCE(target->seen, false);
		lab_describe(&slot, UNWINDLAB_K_RETURN, target);
		slot.flags = 0;
		slot.a = target->enter_time;
		slot.b = task_pt_regs(current)->ip;
		slot.cookie = task_pt_regs(current)->orig_ax;
		lab_publish(&slot, NULL);
	}
	/* An NMI before the next line counts as leaving, one after the second as in user mode. */
	WRITE_ONCE(target->entry, target->entry + 1);
	WRITE_ONCE(target->leaving, false);
}

/* ------------------------------------------------------------------ the clients */

struct lab_client;

struct lab_work {
	struct unwind_work	work;
	u16			client;
	u32			gen;
};

struct lab_client {
	/* Held while it is registered or cancelled. */
	struct mutex		mutex;
	/* Registered now. NULL as soon as its cancellation begins. */
	struct lab_work		*active;
	/* The one cancelled last. */
	struct lab_work		*cancelled;
	u32			gens;
	struct lab_work		works[WORKS];
};

static struct lab_client lab_clients[UNWINDLAB_CLIENTS];
static struct unwindlab_config lab_config;
/*
 * Everything that ioctls have set, except pokes. Clients are registered and cancelled by readers: the kernel
 * must bear that they do so at the same time.
 */
static DECLARE_RWSEM(lab_sem);
static bool lab_on;

static void lab_ask_one(struct lab_target *target, unsigned int number, unsigned int context,
			u16 flags, u64 ip)
{
	struct lab_client *client = &lab_clients[number];
	struct unwindlab_slot slot;
	struct lab_work *work;
	/* No cookie. The log shows whether a refused request leaves it, instead of 0. */
	u64 cookie = ~0ull, begin;
	int ret;

	if (!lab_room())
		return;
	/* The CPU that is logged is the one that made the cookie. */
	preempt_disable_notrace();
	work = READ_ONCE(client->active);
	if (!work && lab_config.flags & UNWINDLAB_ASK_CANCELLED) {
		work = READ_ONCE(client->cancelled);
		flags |= UNWINDLAB_F_WAS_CANCELLED;
	}
	if (work) {
		if (current->flags & PF_EXITING)
			flags |= UNWINDLAB_F_EXITING;
		if (current->flags & PF_USER_WORKER)
			flags |= UNWINDLAB_F_WORKER;
		WRITE_ONCE(target->seen, true);
		begin = raw_atomic64_read(lab_head);
		ret = unwind_deferred_request(&work->work, &cookie);
		lab_describe(&slot, UNWINDLAB_K_REQUEST, target);
		slot.context = context;
		slot.flags |= flags;
		slot.client = number;
		slot.gen = work->gen;
		slot.ret = ret;
		slot.cookie = cookie;
		slot.a = begin;
		slot.b = ip;
		lab_publish(&slot, NULL);
	}
	preempt_enable_notrace();
}

static void lab_ask_mask(struct lab_target *target, u64 mask, u32 count, unsigned int context,
			 u16 flags, u64 ip)
{
	unsigned int number;
	u32 n;

	for (n = 0; n < count; n++)
		for (number = 0; number < UNWINDLAB_CLIENTS; number++)
			if (mask >> number & 1)
				lab_ask_one(target, number, context, flags, ip);
}

/* Makes the requests of a point in the current context. */
static void lab_ask_here(unsigned int point, u32 count, unsigned int context,
			 struct pt_regs *regs)
{
	struct lab_target *target = lab_find(current);
	const struct unwindlab_ask *ask = &lab_config.ask[point];
	u16 flags = 0;

	if (regs && user_mode(regs))
		flags = UNWINDLAB_F_USER;
	else if (regs && !(regs->flags & X86_EFLAGS_IF))
		flags = UNWINDLAB_F_IRQS_OFF;
	if (target)
		lab_ask_mask(target, ask->clients, count, context, flags, regs ? regs->ip : 0);
}

/* Frames differ between tasks and depths, so any mixing function will do. */
static u64 lab_frames_hash(const struct unwind_stacktrace *trace)
{
	u64 hash = 0xcbf29ce484222325ull;
	unsigned int n;

	for (n = 0; n < trace->nr; n++)
		hash = (hash ^ trace->entries[n]) * 0x100000001b3ull;
	return hash;
}

static void lab_log_frames(struct lab_target *target, const struct unwind_stacktrace *trace,
			   u64 callback)
{
	unsigned int first, n;

	for (first = 0; first < trace->nr; first += UNWINDLAB_FRAMES) {
		struct unwindlab_frames *to;
		u64 at;

		to = (struct unwindlab_frames *)lab_reserve(&at);
		if (!to)
			return;
		to->kind = UNWINDLAB_K_FRAMES;
		to->count = min(trace->nr - first, (unsigned int)UNWINDLAB_FRAMES);
		to->cpu = raw_smp_processor_id();
		to->callback = callback;
		to->first = first;
		to->task = target->number;
		for (n = 0; n < to->count; n++)
			to->frames[n] = trace->entries[first + n];
		lab_commit(&to->commit, at);
	}
}

static void lab_callback(struct unwind_work *unwind, struct unwind_stacktrace *trace, u64 cookie)
{
	struct lab_work *work = container_of(unwind, struct lab_work, work);
	struct lab_target *target = lab_find(current);
	struct unwindlab_slot slot;
	u64 hash, begin;

	/* The log is gone or not there yet: registered, but not asked. */
	if (!lab_head)
		return;
	hash = lab_frames_hash(trace);
	preempt_disable_notrace();
	if (target)
		WRITE_ONCE(target->seen, true);
	lab_describe(&slot, UNWINDLAB_K_CALLBACK, target);
	if (!target)
		slot.tid = task_pid_nr(current);
	if (current->flags & PF_EXITING)
		slot.flags |= UNWINDLAB_F_EXITING;
	slot.client = work->client;
	slot.gen = work->gen;
	slot.cookie = cookie;
	slot.a = trace->nr;
	slot.b = hash;
	lab_publish(&slot, &begin);
	if (target && trace->nr && target->frames != hash) {
		target->frames = hash;
		lab_log_frames(target, trace, begin);
	}
	preempt_enable_notrace();

	if (target && lab_config.nested_in >> work->client & 1)
		lab_ask_mask(target, lab_config.nested, 1, UNWINDLAB_TASK, UNWINDLAB_F_NESTED, 0);
	if (lab_config.delay_us)
		udelay(lab_config.delay_us);

	preempt_disable_notrace();
	slot.kind = UNWINDLAB_K_CALLED;
	slot.time = local_clock_noinstr();
	slot.cpu = raw_smp_processor_id();
	slot.a = begin;
	slot.b = 0;
	lab_publish(&slot, NULL);
	preempt_enable_notrace();
}

static int lab_register(unsigned int number)
{
	struct lab_client *client;
	struct unwindlab_slot slot;
	struct lab_work *work;
	int ret;

	if (number >= UNWINDLAB_CLIENTS)
		return -EINVAL;
	client = &lab_clients[number];
	if (client->active)
		return -EEXIST;
	work = &client->works[client->gens % WORKS];
	work->client = number;
	work->gen = ++client->gens;
	ret = unwind_deferred_init(&work->work, lab_callback);
	preempt_disable();
	lab_describe(&slot, UNWINDLAB_K_REGISTERED, NULL);
	slot.client = number;
	slot.gen = work->gen;
	slot.ret = ret;
	lab_publish(&slot, NULL);
	preempt_enable();
	if (!ret)
		smp_store_release(&client->active, work);
	/* The result is in the log. Here it only matters that the kernel was called. */
	return 0;
}

static int lab_cancel(unsigned int number)
{
	struct lab_client *client;
	struct unwindlab_slot slot;
	struct lab_work *work;

	if (number >= UNWINDLAB_CLIENTS)
		return -EINVAL;
	client = &lab_clients[number];
	work = client->active;
	if (!work)
		return -ENOENT;
	WRITE_ONCE(client->active, NULL);
	preempt_disable();
	lab_describe(&slot, UNWINDLAB_K_CANCEL, NULL);
	slot.client = number;
	slot.gen = work->gen;
	lab_publish(&slot, NULL);
	preempt_enable();

	unwind_deferred_cancel(&work->work);
	/* NULL is allowed and does nothing. */
	unwind_deferred_cancel(NULL);

	preempt_disable();
	slot.kind = UNWINDLAB_K_CANCELLED;
	slot.time = local_clock_noinstr();
	slot.cpu = raw_smp_processor_id();
	lab_publish(&slot, NULL);
	preempt_enable();
	smp_store_release(&client->cancelled, work);
	return 0;
}

/* --------------------------------------------------- asking in every context */

struct lab_cpu {
	struct irq_work		irq;
	struct tasklet_struct	tasklet;
	/* The point + 1 that waits for the context; 0: none. */
	int			hardirq;
	int			softirq;
	int			nmi;
	u32			count;
};

static DEFINE_PER_CPU(struct lab_cpu, lab_cpus);

static void lab_irq(struct irq_work *work)
{
	struct lab_cpu *cpu = this_cpu_ptr(&lab_cpus);
	int point = xchg(&cpu->hardirq, 0);

	if (point)
		lab_ask_here(point - 1, cpu->count, UNWINDLAB_HARDIRQ, get_irq_regs());
}

static void lab_tasklet(struct tasklet_struct *tasklet)
{
	struct lab_cpu *cpu = this_cpu_ptr(&lab_cpus);
	int point = xchg(&cpu->softirq, 0);

	if (point)
		lab_ask_here(point - 1, cpu->count, UNWINDLAB_SOFTIRQ, NULL);
}

static int lab_nmi(unsigned int type, struct pt_regs *regs)
{
	struct lab_cpu *cpu = this_cpu_ptr(&lab_cpus);
	int point;

	if (!READ_ONCE(lab_on))
		return NMI_DONE;
	point = xchg(&cpu->nmi, 0);
	if (point)
		lab_ask_here(point - 1, cpu->count, UNWINDLAB_NMI, regs);
	else
		lab_ask_here(UNWINDLAB_AT_NMI, lab_config.ask[UNWINDLAB_AT_NMI].count,
			     UNWINDLAB_NMI, regs);
	/* While it is on, all NMIs come from the harness. */
	return NMI_HANDLED;
}

/* A self-interrupt comes at once, except for the delay of the interrupt controller. */
static void lab_wait_for(int *pending)
{
	int patience = 1000000;

	while (READ_ONCE(*pending) && --patience)
		cpu_relax();
	WRITE_ONCE(*pending, 0);
}

static void lab_ask(unsigned int point)
{
	const struct unwindlab_ask *ask = &lab_config.ask[point];
	struct lab_cpu *cpu;

	if (!ask->clients || !lab_room() || !lab_find(current))
		return;
	if (ask->contexts & BIT(UNWINDLAB_TASK))
		lab_ask_here(point, ask->count, UNWINDLAB_TASK, NULL);
	if (ask->contexts & BIT(UNWINDLAB_SOFTIRQ)) {
		local_bh_disable();
		cpu = this_cpu_ptr(&lab_cpus);
		cpu->count = ask->count;
		WRITE_ONCE(cpu->softirq, point + 1);
		tasklet_hi_schedule(&cpu->tasklet);
		/* Runs it, on top of this task. */
		local_bh_enable();
	}
	preempt_disable();
	cpu = this_cpu_ptr(&lab_cpus);
	cpu->count = ask->count;
	if (ask->contexts & BIT(UNWINDLAB_HARDIRQ)) {
		WRITE_ONCE(cpu->hardirq, point + 1);
		irq_work_queue(&cpu->irq);
		lab_wait_for(&cpu->hardirq);
	}
	if (ask->contexts & BIT(UNWINDLAB_NMI)) {
		WRITE_ONCE(cpu->nmi, point + 1);
		__apic_send_IPI(smp_processor_id(), NMI_VECTOR);
		lab_wait_for(&cpu->nmi);
	}
	preempt_enable();
}

static void lab_poked(void *data)
{
	const struct unwindlab_poke *poke = data;
	struct lab_cpu *cpu = this_cpu_ptr(&lab_cpus);

	if (poke->context == UNWINDLAB_HARDIRQ) {
		lab_ask_here(UNWINDLAB_AT_POKE, poke->count, UNWINDLAB_HARDIRQ, get_irq_regs());
		return;
	}
	cpu->count = poke->count;
	WRITE_ONCE(cpu->softirq, UNWINDLAB_AT_POKE + 1);
	/* Runs when the interrupt returns. */
	tasklet_hi_schedule(&cpu->tasklet);
}

static int lab_poke(struct unwindlab_poke *poke)
{
	struct lab_cpu *cpu;

	if (poke->cpu >= nr_cpu_ids || !cpu_online(poke->cpu) || !READ_ONCE(lab_on))
		return -EINVAL;
	switch (poke->context) {
	case UNWINDLAB_NMI:
		cpu = per_cpu_ptr(&lab_cpus, poke->cpu);
		cpu->count = poke->count;
		WRITE_ONCE(cpu->nmi, UNWINDLAB_AT_POKE + 1);
		preempt_disable();
		__apic_send_IPI(poke->cpu, NMI_VECTOR);
		preempt_enable();
		return 0;
	case UNWINDLAB_HARDIRQ:
	case UNWINDLAB_SOFTIRQ:
		return smp_call_function_single(poke->cpu, lab_poked, poke, 1);
	default:
		return -EINVAL;
	}
}

/* ------------------------------------------------------ asking at any instruction */

struct lab_place {
	struct kprobe		probe;
	struct unwindlab_place	at;
};

static struct lab_place lab_places[UNWINDLAB_PLACES];
static unsigned int lab_place_count;

/* A worker is made without the tracepoint of fork: it is a target if its process has one. */
static struct lab_target *lab_find_worker(void)
{
	u32 tgid = task_tgid_nr(current);
	unsigned int n;

	if (in_nmi() || !(current->flags & PF_USER_WORKER))
		return NULL;
	for (n = 0; n < TARGETS; n++) {
		struct task_struct *task = READ_ONCE(lab_targets[n].task);

		if (task && task != GONE && lab_targets[n].tgid == tgid)
			return lab_add(current, lab_targets[n].number) ? NULL : lab_find(current);
	}
	return NULL;
}

static int lab_at_place(struct kprobe *probe, struct pt_regs *regs)
{
	const struct lab_place *place = container_of(probe, struct lab_place, probe);
	struct lab_target *target;
	unsigned int context = in_nmi() ? UNWINDLAB_NMI :
			       in_hardirq() ? UNWINDLAB_HARDIRQ :
			       in_serving_softirq() ? UNWINDLAB_SOFTIRQ : UNWINDLAB_TASK;
	u16 flags = regs->flags & X86_EFLAGS_IF ? 0 : UNWINDLAB_F_IRQS_OFF;

	if (!READ_ONCE(lab_on) || !lab_room())
		return 0;
	target = lab_find(current) ?: lab_find_worker();
	if (target)
		lab_ask_mask(target, place->at.clients, place->at.count, context, flags,
			     (unsigned long)probe->addr);
	return 0;
}

static int lab_place(const struct unwindlab_place __user *from)
{
	struct lab_place *place;
	int ret;

	if (lab_on)
		return -EBUSY;
	if (lab_place_count >= UNWINDLAB_PLACES)
		return -ENOSPC;
	place = &lab_places[lab_place_count];
	memset(place, 0, sizeof(*place));
	if (copy_from_user(&place->at, from, sizeof(place->at)))
		return -EFAULT;
	if (strnlen(place->at.symbol, sizeof(place->at.symbol)) == sizeof(place->at.symbol))
		return -EINVAL;
	place->probe.symbol_name = place->at.symbol;
	place->probe.offset = place->at.offset;
	place->probe.pre_handler = lab_at_place;
	ret = register_kprobe(&place->probe);
	if (!ret)
		lab_place_count++;
	return ret;
}

static void lab_leave_places(void)
{
	while (lab_place_count)
		unregister_kprobe(&lab_places[--lab_place_count].probe);
}

/* ------------------------------------------------------------- the tracepoints */

static void lab_sys_enter(void *data, struct pt_regs *regs, long id)
{
	lab_ask(UNWINDLAB_AT_SYS_ENTER);
}

static void lab_sys_exit(void *data, struct pt_regs *regs, long ret)
{
	lab_ask(UNWINDLAB_AT_SYS_EXIT);
}

static void lab_migrate(void *data, struct task_struct *task, int to)
{
	struct lab_target *target = lab_find(task);

	if (target)
		lab_log(UNWINDLAB_K_MIGRATE, target, task_cpu(task), to);
}

static void lab_fork(void *data, struct task_struct *parent, struct task_struct *child)
{
	struct lab_target *target = lab_find(parent);

	if (target)
		lab_add(child, target->number);
}

static void lab_exit(void *data, struct task_struct *task, bool group_dead)
{
	struct lab_target *target = lab_find(task);

	if (!target)
		return;
	lab_log(UNWINDLAB_K_EXIT, target, 0, 0);
	lab_ask(UNWINDLAB_AT_DEATH);
}

static void lab_free(void *data, struct task_struct *task)
{
	lab_remove(task);
}

static int lab_watch(void)
{
	int ret;

	ret = register_trace_sched_process_free(lab_free, NULL);
	if (ret)
		return ret;
	ret = register_trace_sched_process_fork(lab_fork, NULL);
	if (ret)
		goto no_fork;
	ret = register_trace_sched_process_exit(lab_exit, NULL);
	if (ret)
		goto no_exit;
	ret = register_trace_sched_migrate_task(lab_migrate, NULL);
	if (ret)
		goto no_migrate;
	ret = register_trace_sys_enter(lab_sys_enter, NULL);
	if (ret)
		goto no_enter;
	ret = register_trace_sys_exit(lab_sys_exit, NULL);
	if (ret)
		goto no_sys_exit;
	ret = register_nmi_handler(NMI_LOCAL, lab_nmi, 0, "unwindlab");
	if (ret)
		goto no_nmi;
	return 0;

no_nmi:
	unregister_trace_sys_exit(lab_sys_exit, NULL);
no_sys_exit:
	unregister_trace_sys_enter(lab_sys_enter, NULL);
no_enter:
	unregister_trace_sched_migrate_task(lab_migrate, NULL);
no_migrate:
	unregister_trace_sched_process_exit(lab_exit, NULL);
no_exit:
	unregister_trace_sched_process_fork(lab_fork, NULL);
no_fork:
	unregister_trace_sched_process_free(lab_free, NULL);
	return ret;
}

/* ------------------------------------------------------------------ the device */

static int lab_setup(u32 pages)
{
	struct unwindlab_control *control;

	if (lab_control)
		return -EBUSY;
	if (!pages || pages > MAX_PAGES)
		return -EINVAL;
	control = vmalloc_user((1ul + pages) * PAGE_SIZE);
	if (!control)
		return -ENOMEM;
	lab_slots = (void *)control + PAGE_SIZE;
	lab_capacity = pages * PAGE_SIZE / sizeof(*lab_slots);
	lab_enough = lab_capacity - lab_capacity / 8;
	control->magic = UNWINDLAB_MAGIC;
	control->version = UNWINDLAB_VERSION;
	control->slots = lab_capacity;
	/* For lab_mmap(), which does not take the semaphore. */
	smp_store_release(&lab_control, control);
	smp_store_release(&lab_head, (atomic64_t *)&control->head);
	return 0;
}

static int lab_target_tid(u32 tid)
{
	struct task_struct *task;
	int ret;

	task = find_get_task_by_vpid(tid);
	if (!task)
		return -ESRCH;
	ret = lab_add(task, 0);
	put_task_struct(task);
	return ret;
}

static int lab_start(void)
{
	int ret;

	if (lab_on)
		return -EBUSY;
	WRITE_ONCE(lab_log_all, lab_config.flags & UNWINDLAB_LOG_ALL);
	lab_log(UNWINDLAB_K_START, NULL, 0, 0);
	/* Before any request: from the first request on every return counts. */
	static_branch_enable(&unwindlab_key);
	WRITE_ONCE(lab_on, true);
	ret = lab_watch();
	if (ret) {
		WRITE_ONCE(lab_on, false);
		static_branch_disable(&unwindlab_key);
	}
	return ret;
}

static int lab_stop(void)
{
	unsigned int number;

	if (!lab_on)
		return -EINVAL;
	unregister_trace_sys_exit(lab_sys_exit, NULL);
	unregister_trace_sys_enter(lab_sys_enter, NULL);
	unregister_trace_sched_migrate_task(lab_migrate, NULL);
	unregister_trace_sched_process_exit(lab_exit, NULL);
	unregister_trace_sched_process_fork(lab_fork, NULL);
	unregister_trace_sched_process_free(lab_free, NULL);
	tracepoint_synchronize_unregister();
	WRITE_ONCE(lab_on, false);
	lab_leave_places();
	unregister_nmi_handler(NMI_LOCAL, "unwindlab");
	for (number = 0; number < UNWINDLAB_CLIENTS; number++)
		if (lab_clients[number].active)
			lab_cancel(number);
	static_branch_disable(&unwindlab_key);
	lab_log(UNWINDLAB_K_STOP, NULL, 0, 0);
	return 0;
}

static long lab_ioctl_client(unsigned int command, void __user *from)
{
	struct lab_client *client;
	u32 number;

	if (get_user(number, (u32 __user *)from))
		return -EFAULT;
	if (!lab_head || number >= UNWINDLAB_CLIENTS)
		return -EINVAL;
	client = &lab_clients[number];
	guard(mutex)(&client->mutex);
	return command == UNWINDLAB_REGISTER ? lab_register(number) : lab_cancel(number);
}

static long lab_ioctl_locked(unsigned int command, unsigned long argument)
{
	void __user *from = (void __user *)argument;
	u32 number;

	switch (command) {
	case UNWINDLAB_START:
		return lab_head ? lab_start() : -EINVAL;
	case UNWINDLAB_STOP:
		return lab_stop();
	case UNWINDLAB_PLACE:
		return lab_place(from);
	case UNWINDLAB_CONFIG:
		if (lab_on)
			return -EBUSY;
		return copy_from_user(&lab_config, from, sizeof(lab_config)) ? -EFAULT : 0;
	}
	if (get_user(number, (u32 __user *)from))
		return -EFAULT;
	if (command == UNWINDLAB_SETUP)
		return lab_setup(number);
	if (!lab_head)
		return -EINVAL;
	return command == UNWINDLAB_TARGET ? lab_target_tid(number) : -ENOTTY;
}

static long unwindlab_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	void __user *from = (void __user *)argument;
	struct unwindlab_poke poke;

	switch (command) {
	case UNWINDLAB_POKE:
		if (copy_from_user(&poke, from, sizeof(poke)))
			return -EFAULT;
		return lab_poke(&poke);
	case UNWINDLAB_REGISTER:
	case UNWINDLAB_CANCEL:
		scoped_guard(rwsem_read, &lab_sem)
			return lab_ioctl_client(command, from);
	}
	guard(rwsem_write)(&lab_sem);
	return lab_ioctl_locked(command, argument);
}

static int lab_mmap(struct file *file, struct vm_area_struct *vma)
{
	/*
	 * Without the semaphore: an ioctl that holds it may fault and take mmap_lock, which is held
	 * here. It is not needed either: what is set up once is never freed.
	 */
	struct unwindlab_control *control = smp_load_acquire(&lab_control);

	return control ? remap_vmalloc_range(vma, control, vma->vm_pgoff) : -EINVAL;
}

static const struct file_operations lab_fops = {
	.owner		= THIS_MODULE,
	.unlocked_ioctl	= unwindlab_ioctl,
	.mmap		= lab_mmap,
};

static struct miscdevice lab_device = {
	.minor	= MISC_DYNAMIC_MINOR,
	.name	= "unwindlab",
	.fops	= &lab_fops,
	.mode	= 0600,
};

static int __init lab_init(void)
{
	unsigned int number;
	int cpu;

	BUILD_BUG_ON(sizeof(struct unwindlab_slot) != 64);
	BUILD_BUG_ON(sizeof(struct unwindlab_frames) != 64);
	for_each_possible_cpu(cpu) {
		struct lab_cpu *here = per_cpu_ptr(&lab_cpus, cpu);

		here->irq = IRQ_WORK_INIT_HARD(lab_irq);
		tasklet_setup(&here->tasklet, lab_tasklet);
	}
	for (number = 0; number < UNWINDLAB_CLIENTS; number++)
		mutex_init(&lab_clients[number].mutex);
	return misc_register(&lab_device);
}
device_initcall(lab_init);

/*
 * Where members of a task are, as offset and size: the host reads it from the image, because a
 * kernel like this is usually built without BTF.
 */
#define TASK_MEMBER(name, member)					\
	extern const u32 unwindlab_task_##name[2];			\
	const u32 unwindlab_task_##name[2] __used = {			\
		offsetof(struct task_struct, member),			\
		sizeof_field(struct task_struct, member),		\
	}

TASK_MEMBER(pid, pid);
TASK_MEMBER(real_parent, real_parent);
TASK_MEMBER(unwind_info_id, unwind_info.id);
