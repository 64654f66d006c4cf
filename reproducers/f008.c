// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * F008: perf_event_max_contexts_per_stack cuts the cookie off, and leaves the marker before it.
 *
 * The sysctl is set to 2, as many as a chain with a kernel and a user part needs. Chains of requests then end with
 * PERF_CONTEXT_USER_DEFERRED, behind which the cookie should be.
 *
 * gcc -O2 -static -o f008 f008.c; run it as root. It exits with 0 where the kernel is right, 1 where it is not, and
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
#include <unistd.h>

#define CALLS 10
#define LIMIT "/proc/sys/kernel/perf_event_max_contexts_per_stack"
#define USER_DEFERRED ((uint64_t)-640)	/* PERF_CONTEXT_USER_DEFERRED */
#define RING (128 << 10)		/* bytes, behind a control page */
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

/* Sets the sysctl, which no event with a call chain may have open; its value before. */
static int limit_contexts(int limit)
{
	FILE *file = fopen(LIMIT, "r+");
	int before;

	if (!file || fscanf(file, "%d", &before) != 1)
		err(2, LIMIT);
	rewind(file);
	if (fprintf(file, "%d\n", limit) < 0 || fclose(file))
		err(2, LIMIT);
	return before;
}

int main(void)
{
	struct perf_event_attr output = { .type = PERF_TYPE_SOFTWARE, .config = PERF_COUNT_SW_DUMMY, .task = 1 };
	struct perf_event_attr call = { .kprobe_func = (uintptr_t)"__x64_sys_getppid", .sample_period = 1,
		.sample_type = PERF_SAMPLE_CALLCHAIN };
	unsigned int tried, wrong = 0, samples = 0, marked = 0;
	struct perf_event_mmap_page *ring;
	int before, all, fd;

	if (getpid() == 1) {		/* the only program of a machine that is made for it */
		mkdir("/sys", 0755);
		mount("sysfs", "/sys", "sysfs", 0, NULL);
		mkdir("/proc", 0555);
		mount("proc", "/proc", "proc", 0, NULL);
	}
	before = limit_contexts(2);
	all = open_event(&output, DEFER_OUTPUT, 0, -1);
	ring = map(all);
	call.type = kprobe_type();
	fd = open_event(&call, DEFER_CALLCHAIN, 0, -1);
	output_to(fd, all);
	for (int i = 0; i < CALLS; i++)
		syscall(SYS_getppid);
	close(fd);
	limit_contexts(before);

	for (uint64_t at = 0; at < ring->data_head && at < RING;) {
		struct perf_event_header *record = (void *)((char *)ring + 4096 + at);
		uint64_t *chain = (uint64_t *)(record + 1);	/* its length, then its entries */

		if (record->type == PERF_RECORD_SAMPLE) {
			samples++;
			for (uint64_t i = 1; i <= chain[0]; i++)
				marked += chain[i] == USER_DEFERRED;
			wrong += chain[0] && chain[chain[0]] == USER_DEFERRED;
		}
		at += record->size ? record->size : RING;
	}
	tried = samples >= CALLS;
	printf("F008: %s: %u of %u chains end with the marker, without a cookie; %u have one\n",
	       wrong ? "not ok" : tried ? "ok" : "not tried", wrong, samples, marked);
	if (getpid() == 1) {
		fflush(stdout);
		reboot(RB_AUTOBOOT);
	}
	return wrong ? 1 : tried ? 0 : 2;
}
