// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * F001: a request in the middle of unwind_reset_info() is answered with cookie 0.
 *
 * An event asks for the deferred user stack in each of many system calls. A hardware breakpoint on the task's unwind_mask asks
 * again each fifth time that is written. As an NMI, its handler comes behind the instruction that wrote, whatever that is. A
 * call writes the mask four times, so that each of the four has its turn. The last one is the exchange in
 * unwind_reset_info(), behind which the cookie is wiped although the request was accepted: the record 22 that answers it
 * has cookie 0, which no sample has.
 *
 * gcc -O2 -static -o f001 f001.c; run it as root. It exits with 0 where the kernel is right, 1 where it is not, and
 * 2 where that could not be tried.
 */
#include <err.h>
#include <linux/hw_breakpoint.h>
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CALLS 200
#define RING (128 << 10)		/* bytes, behind a control page */
#define DEFERRED_RECORD 22		/* PERF_RECORD_CALLCHAIN_DEFERRED */
#define DEFER_CALLCHAIN (1ULL << 38)	/* among the flags of struct perf_event_attr */
#define DEFER_OUTPUT (1ULL << 39)
#define REG_DI 5			/* PERF_REG_X86_DI */

static int open_event(struct perf_event_attr *attr, uint64_t more_flags)
{
	int fd;

	attr->size = sizeof(*attr);
	((uint64_t *)attr)[5] |= more_flags;
	fd = syscall(SYS_perf_event_open, attr, 0, -1, -1, 0);
	if (fd < 0)
		err(2, "perf_event_open, type %u", attr->type);
	return fd;
}

static struct perf_event_mmap_page *map(int fd)
{
	void *ring = mmap(NULL, 4096 + RING, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (ring == MAP_FAILED)
		err(2, "mmap of a ring");
	return ring;
}

/* Has the records of an event written to the ring of another one. */
static void output_to(int fd, int other)
{
	if (ioctl(fd, PERF_EVENT_IOC_SET_OUTPUT, other))
		err(2, "PERF_EVENT_IOC_SET_OUTPUT");
}

static unsigned int kprobe_type(void)
{
	FILE *file = fopen("/sys/bus/event_source/devices/kprobe/type", "r");
	unsigned int type;

	if (!file || fscanf(file, "%u", &type) != 1)
		errx(2, "no kprobes");
	fclose(file);
	return type;
}

int main(void)
{
	struct perf_event_attr output = { .type = PERF_TYPE_SOFTWARE, .config = PERF_COUNT_SW_DUMMY, .task = 1 };
	struct perf_event_attr call = { .kprobe_func = (uintptr_t)"__x64_sys_getppid", .sample_period = 1,
		.sample_type = PERF_SAMPLE_CALLCHAIN };
	struct perf_event_attr work = { .kprobe_func = (uintptr_t)"unwind_deferred_task_work", .sample_period = 1,
		.sample_type = PERF_SAMPLE_REGS_INTR, .sample_regs_intr = 1 << REG_DI };
	struct perf_event_attr mask = { .type = PERF_TYPE_BREAKPOINT, .bp_type = HW_BREAKPOINT_W,
		.bp_len = HW_BREAKPOINT_LEN_8, .sample_period = 5, .sample_type = PERF_SAMPLE_CALLCHAIN };
	struct perf_event_mmap_page *ring, *works;
	int all, call_fd, work_fd, mask_fd, answers = 0, wrong = 0, asked = -1 - CALLS, tried;

	if (getpid() == 1) {		/* the only program of a machine that is made for it */
		mkdir("/sys", 0755);
		mount("sysfs", "/sys", "sysfs", 0, NULL);
	}
	call.type = work.type = kprobe_type();
	all = open_event(&output, DEFER_OUTPUT);
	ring = map(all);
	call_fd = open_event(&call, DEFER_CALLCHAIN);
	output_to(call_fd, all);

	/* The task work of the task is the third word of its unwind_info, behind mask and cache: 16 bytes behind the mask. */
	work_fd = open_event(&work, 0);
	works = map(work_fd);
	syscall(SYS_getppid);
	close(work_fd);
	if (works->data_head < 24)
		errx(2, "a request had no task work");
	/* A sample: its header, the ABI of the registers, DI. */
	mask.bp_addr = ((uint64_t *)((char *)works + 4096))[2] - 16;
	mask_fd = open_event(&mask, DEFER_CALLCHAIN);
	output_to(mask_fd, all);
	for (int i = 0; i < CALLS; i++)
		syscall(SYS_getppid);
	close(mask_fd);
	close(call_fd);

	for (uint64_t at = 0; at < ring->data_head && at < RING;) {
		struct perf_event_header *record = (void *)((char *)ring + 4096 + at);

		if (record->type == DEFERRED_RECORD) {
			answers++;
			wrong += ((uint64_t *)(record + 1))[0] == 0;
		}
		asked += record->type == PERF_RECORD_SAMPLE;
		at += record->size ? record->size : RING;
	}
	tried = answers >= CALLS && asked >= CALLS / 2;
	printf("F001: %s: %d of %d records 22 have cookie 0, behind %d requests of the breakpoint\n",
	       wrong ? "not ok" : tried ? "ok" : "not tried", wrong, answers, asked);
	if (getpid() == 1) {
		fflush(stdout);
		reboot(RB_AUTOBOOT);
	}
	return wrong ? 1 : tried ? 0 : 2;
}
