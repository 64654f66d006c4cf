// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * F007: an event of a CPU that asks for record 22 gets none if it asks for no other side-band record.
 *
 * Two events of the CPU have defer_output. One of them has `task`, too, which makes it one of the events that
 * perf_iterate_sb() finds. Requests in system calls are answered to that one only.
 *
 * gcc -O2 -static -o f007 f007.c; run it as root. It exits with 0 where the kernel is right, 1 where it is not, and
 * 2 where that could not be tried.
 */
#define _GNU_SOURCE
#include <err.h>
#include <linux/perf_event.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CALLS 10
#define RING (128 << 10)		/* bytes, behind a control page */
#define DEFERRED_RECORD 22		/* PERF_RECORD_CALLCHAIN_DEFERRED */
#define DEFER_CALLCHAIN (1ULL << 38)	/* among the flags of struct perf_event_attr */
#define DEFER_OUTPUT (1ULL << 39)

static int open_event(struct perf_event_attr *attr, uint64_t more_flags, pid_t pid, int cpu)
{
	int fd;

	attr->size = sizeof(*attr);
	((uint64_t *)attr)[5] |= more_flags;
	fd = syscall(SYS_perf_event_open, attr, pid, cpu, -1, 0);
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

/* How many records 22 there are. */
static unsigned int answers(struct perf_event_mmap_page *ring)
{
	unsigned int count = 0;

	for (uint64_t at = 0; at < ring->data_head && at < RING;) {
		struct perf_event_header *record = (void *)((char *)ring + 4096 + at);

		count += record->type == DEFERRED_RECORD;
		at += record->size ? record->size : RING;
	}
	return count;
}

int main(void)
{
	struct perf_event_attr dummy = { .type = PERF_TYPE_SOFTWARE, .config = PERF_COUNT_SW_DUMMY };
	struct perf_event_attr call = { .kprobe_func = (uintptr_t)"__x64_sys_getppid", .sample_period = 1,
		.sample_type = PERF_SAMPLE_CALLCHAIN };
	struct perf_event_mmap_page *alone, *beside;
	unsigned int tried, wrong, got, due;
	cpu_set_t first;
	int fd;

	if (getpid() == 1) {		/* the only program of a machine that is made for it */
		mkdir("/sys", 0755);
		mount("sysfs", "/sys", "sysfs", 0, NULL);
	}
	CPU_ZERO(&first);
	CPU_SET(0, &first);
	if (sched_setaffinity(0, sizeof(first), &first))
		err(2, "sched_setaffinity");
	alone = map(open_event(&dummy, DEFER_OUTPUT, -1, 0));
	dummy.task = 1;
	fd = open_event(&dummy, DEFER_OUTPUT, -1, 0);
	beside = map(fd);
	call.type = kprobe_type();
	output_to(open_event(&call, DEFER_CALLCHAIN, -1, 0), fd);
	for (int i = 0; i < CALLS; i++)
		syscall(SYS_getppid);

	got = answers(alone);
	due = answers(beside);
	tried = due >= CALLS;
	wrong = tried && got < due;
	printf("F007: %s: the event without other side-band records has %u of %u records 22\n",
	       wrong ? "not ok" : tried ? "ok" : "not tried", got, due);
	if (getpid() == 1) {
		fflush(stdout);
		reboot(RB_AUTOBOOT);
	}
	return wrong ? 1 : tried ? 0 : 2;
}
