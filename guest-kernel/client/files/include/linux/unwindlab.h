/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The interface of the lab client: its ioctls, and the layout of its log.
 *
 * All of it is little-endian. The log is mapped with mmap() at offset 0: one page with struct
 * unwindlab_control, then the slots. It is filled once, from the first slot to the last. Records
 * that come after the last slot are counted and lost.
 */
#ifndef _LINUX_UNWINDLAB_H
#define _LINUX_UNWINDLAB_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define UNWINDLAB_VERSION	1
#define UNWINDLAB_MAGIC		0x424c5755	/* "UWLB" */
/* Clients that can be registered at once: more than the kernel has bits for. */
#define UNWINDLAB_CLIENTS	64
/* Places that UNWINDLAB_PLACE takes. */
#define UNWINDLAB_PLACES	4

/* The points at which clients request an unwind. */
enum unwindlab_point {
	UNWINDLAB_AT_SYS_ENTER,		/* at the start of a target's system call */
	UNWINDLAB_AT_SYS_EXIT,		/* at its end, before the exit work */
	UNWINDLAB_AT_NMI,		/* any NMI with a target current */
	UNWINDLAB_AT_POKE,		/* UNWINDLAB_POKE from another CPU */
	UNWINDLAB_AT_DEATH,		/* in do_exit() of a target, PF_EXITING set */
	UNWINDLAB_POINTS,
};

/* The context of a request. Bits (1 << context) in unwindlab_ask.contexts. */
enum unwindlab_context {
	UNWINDLAB_TASK,
	UNWINDLAB_SOFTIRQ,
	UNWINDLAB_HARDIRQ,
	UNWINDLAB_NMI,
};

/* All clients in the mask make count requests in a row, in each context in turn. */
struct unwindlab_ask {
	__u64	clients;
	__u32	contexts;
	__u32	count;
};

#define UNWINDLAB_ASK_CANCELLED	1	/* cancelled clients go on making requests */
#define UNWINDLAB_LOG_ALL	2	/* all returns to user mode, not only those after an event */

struct unwindlab_config {
	struct unwindlab_ask	ask[UNWINDLAB_POINTS];
	__u64	nested_in;	/* from inside the callbacks of these clients ... */
	__u64	nested;		/* ... these ask */
	__u32	delay_us;	/* minimum duration of a callback */
	__u32	flags;
};

struct unwindlab_poke {
	__u32	cpu;
	__u32	context;
	__u32	count;
	__u32	pad;
};

/* Any instruction at which the kernel takes a kprobe. */
struct unwindlab_place {
	char	symbol[64];
	__u32	offset;
	__u32	count;
	__u64	clients;
};

#define UNWINDLAB_SETUP		_IOW('U', 1, __u32)	/* pages of slots; once, before mmap */
#define UNWINDLAB_TARGET	_IOW('U', 2, __u32)	/* a tid; its children are targets too */
#define UNWINDLAB_REGISTER	_IOW('U', 3, __u32)	/* a client */
#define UNWINDLAB_CANCEL	_IOW('U', 4, __u32)	/* a client */
#define UNWINDLAB_CONFIG	_IOW('U', 5, struct unwindlab_config)
#define UNWINDLAB_START		_IO('U', 6)
#define UNWINDLAB_STOP		_IO('U', 7)
#define UNWINDLAB_POKE		_IOW('U', 8, struct unwindlab_poke)
#define UNWINDLAB_PLACE		_IOW('U', 9, struct unwindlab_place)	/* before START */

struct unwindlab_control {
	__u32	magic;
	__u32	version;
	__u64	slots;		/* number of slots */
	__u64	head;		/* records so far; those beyond slots are lost */
};

enum unwindlab_kind {
	UNWINDLAB_K_TARGET = 1,	/* a = tgid, b = the parent's number */
	UNWINDLAB_K_REQUEST,	/* a = head before the request, b = interrupted ip, or the place's */
	UNWINDLAB_K_CALLBACK,	/* a = nr, b = hash of the frames */
	UNWINDLAB_K_CALLED,	/* the callback ends; a = slot of its begin */
	UNWINDLAB_K_FRAMES,	/* struct unwindlab_frames */
	UNWINDLAB_K_RETURN,	/* to user mode; a = time of the entry, b = user ip, cookie =
				   orig_ax of the entry: negative for an interrupt */
	UNWINDLAB_K_MIGRATE,	/* a = from, b = to */
	UNWINDLAB_K_EXIT,	/* sched_process_exit of a target */
	UNWINDLAB_K_FREE,	/* its task_struct is freed */
	UNWINDLAB_K_REGISTERED,	/* ret = result of unwind_deferred_init() */
	UNWINDLAB_K_CANCEL,	/* unwind_deferred_cancel() is called */
	UNWINDLAB_K_CANCELLED,	/* and has returned */
	UNWINDLAB_K_START,
	UNWINDLAB_K_STOP,
};

#define UNWINDLAB_F_EXITING	1	/* PF_EXITING was set */
#define UNWINDLAB_F_LEAVING	2	/* between the exit work and user mode */
#define UNWINDLAB_F_USER	4	/* the NMI or interrupt hit user mode */
#define UNWINDLAB_F_NESTED	8	/* from inside a callback */
#define UNWINDLAB_F_WAS_CANCELLED 16	/* by a client that is known to be cancelled */
#define UNWINDLAB_F_IRQS_OFF	32	/* the NMI hit the kernel with interrupts off */
#define UNWINDLAB_F_WORKER	64	/* PF_USER_WORKER: never in user mode */

/*
 * 64 bytes. commit is slot + 1, and written last: a slot without it is incomplete. entry is the
 * number of the target's returns to user mode so far: the same for all records of one stay in the
 * kernel, and for requests of NMIs in user mode before it.
 */
struct unwindlab_slot {
	__u8	kind;
	__u8	context;
	__u16	flags;
	__u32	commit;
	__u64	time;		/* local_clock() */
	__u32	tid;
	__u32	task;		/* number of the target, from 1; 0: none */
	__u32	entry;
	__u16	cpu;
	__u16	client;		/* 0xffff: none */
	__u32	gen;		/* registration of the client, from 1 */
	__s32	ret;
	__u64	cookie;
	__u64	a;
	__u64	b;
};

#define UNWINDLAB_FRAMES	5

/* The frames that a callback got, unless the target's last ones had the same hash. */
struct unwindlab_frames {
	__u8	kind;
	__u8	count;		/* frames here */
	__u16	cpu;
	__u32	commit;
	__u64	callback;	/* slot of UNWINDLAB_K_CALLBACK */
	__u32	first;		/* number of the first one here */
	__u32	task;
	__u64	frames[UNWINDLAB_FRAMES];
};

#endif /* _LINUX_UNWINDLAB_H */
