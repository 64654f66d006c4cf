// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * F011: a request behind the exit work that is not an NMI's is answered in the next entry.
 *
 * The thread sleeps. On its way back to user mode the kernel calls switch_fpu_return(), behind its last look at the work
 * flags, and an event there asks for the deferred user stack. Then the thread makes another system call, in which a second
 * event takes a sample. The record 22 that answers the request has to come before that sample: between the two, the thread
 * was in user mode.
 *
 * gcc -O2 -static -o f011 f011.c; run it as root. It exits with 0 where the kernel is right, 1 where it is not, and
 * 2 where that could not be tried.
 */
#include <err.h>
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 20
#define RING (128 << 10)		/* bytes, behind a control page */
#define DEFERRED_RECORD 22		/* PERF_RECORD_CALLCHAIN_DEFERRED */
#define DEFERRED_MARKER ((uint64_t)-640)	/* PERF_CONTEXT_USER_DEFERRED; the cookie follows */
#define DEFER_CALLCHAIN (1ULL << 38)	/* among the flags of struct perf_event_attr */
#define DEFER_OUTPUT (1ULL << 39)

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

/* The cookie of a sample of a chain; 0 where it has none. */
static uint64_t cookie_of(const uint64_t *chain)
{
	for (uint64_t i = 1; i < chain[0]; i++)
		if (chain[i] == DEFERRED_MARKER)
			return chain[i + 1];
	return 0;
}

int main(void)
{
	struct perf_event_attr output = { .type = PERF_TYPE_SOFTWARE, .config = PERF_COUNT_SW_DUMMY, .task = 1 };
	struct perf_event_attr behind = { .kprobe_func = (uintptr_t)"switch_fpu_return", .sample_period = 1,
		.sample_type = PERF_SAMPLE_CALLCHAIN };
	struct perf_event_attr next = { .kprobe_func = (uintptr_t)"__x64_sys_getppid", .sample_period = 1,
		.sample_type = PERF_SAMPLE_TID };
	struct timespec nap = { .tv_nsec = 2000000 };
	struct perf_event_mmap_page *ring;
	unsigned int calls = 0, asked = 0, late = 0, tried;
	uint64_t pending = 0, answered = 0;
	int all, behind_fd, next_fd;

	if (getpid() == 1) {		/* the only program of a machine that is made for it */
		mkdir("/sys", 0755);
		mount("sysfs", "/sys", "sysfs", 0, NULL);
	}
	behind.type = next.type = kprobe_type();
	all = open_event(&output, DEFER_OUTPUT);
	ring = map(all);
	behind_fd = open_event(&behind, DEFER_CALLCHAIN);
	output_to(behind_fd, all);
	next_fd = open_event(&next, 0);
	output_to(next_fd, all);
	for (int i = 0; i < ROUNDS; i++) {
		nanosleep(&nap, NULL);
		syscall(SYS_getppid);
	}
	close(behind_fd);
	close(next_fd);

	for (uint64_t at = 0; at < ring->data_head && at < RING;) {
		struct perf_event_header *record = (void *)((char *)ring + 4096 + at);
		uint64_t *fields = (uint64_t *)(record + 1);

		if (record->type == PERF_RECORD_SAMPLE && record->size == 16) {	/* TID: the next system call */
			calls++;
			late += pending != 0;
			pending = 0;
		} else if (record->type == PERF_RECORD_SAMPLE) {
			pending = cookie_of(fields);
			if (pending == answered)	/* again behind the answer, before user mode: the same stack */
				pending = 0;
			asked += pending != 0;
		} else if (record->type == DEFERRED_RECORD) {
			answered = fields[0];
			if (pending == answered)
				pending = 0;
		}
		at += record->size ? record->size : RING;
	}
	tried = calls == ROUNDS && asked >= ROUNDS / 2;
	printf("F011: %s: %u of %u requests behind the exit work are not answered before the next system call\n",
	       tried && late ? "not ok" : tried ? "ok" : "not tried", late, asked);
	if (getpid() == 1) {
		fflush(stdout);
		reboot(RB_AUTOBOOT);
	}
	return !tried ? 2 : late ? 1 : 0;
}
