// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * F009: a deferred chain has the trampoline of a uretprobe in place of the caller.
 *
 * leaf() makes a system call, in which an event asks for the deferred user stack: once as it is, and once with a
 * uretprobe open on leaf(). The two chains are to be the same.
 *
 * gcc -O2 -static -o f009 f009.c; run it as root. It exits with 0 where the kernel is right, 1 where it is not, and
 * 2 where that could not be tried.
 */
#pragma GCC optimize ("no-omit-frame-pointer", "no-optimize-sibling-calls")
#include <err.h>
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DEPTH 4
#define RING (128 << 10)		/* bytes, behind a control page */
#define DEFERRED_RECORD 22		/* PERF_RECORD_CALLCHAIN_DEFERRED */
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

/* The type of the events of a kind of probe. */
static unsigned int type_of(const char *kind)
{
	char path[64];
	unsigned int type;
	FILE *file;

	snprintf(path, sizeof(path), "/sys/bus/event_source/devices/%s/type", kind);
	file = fopen(path, "r");
	if (!file || fscanf(file, "%u", &type) != 1)
		errx(2, "no events of type %s", kind);
	fclose(file);
	return type;
}

static __attribute__((noinline)) long leaf(void)
{
	return syscall(SYS_getppid) + 1;
}

static __attribute__((noinline)) long descend(int depth)
{
	return (depth ? descend(depth - 1) : leaf()) + 1;
}

/* The last record 22 of a ring: its cookie, the number of addresses, the addresses. */
static uint64_t *last_answer(struct perf_event_mmap_page *ring)
{
	uint64_t *last = NULL;

	for (uint64_t at = 0; at < ring->data_head && at < RING;) {
		struct perf_event_header *record = (void *)((char *)ring + 4096 + at);

		if (record->type == DEFERRED_RECORD)
			last = (uint64_t *)(record + 1);
		at += record->size ? record->size : RING;
	}
	return last;
}

int main(void)
{
	extern char __executable_start;
	struct perf_event_attr output = { .type = PERF_TYPE_SOFTWARE, .config = PERF_COUNT_SW_DUMMY, .task = 1 };
	struct perf_event_attr call = { .kprobe_func = (uintptr_t)"__x64_sys_getppid", .sample_period = 1,
		.sample_type = PERF_SAMPLE_CALLCHAIN };
	struct perf_event_attr probe = { .config = 1 /* on the return */, .uprobe_path = (uintptr_t)"/proc/self/exe",
		.probe_offset = (char *)leaf - &__executable_start, .sample_period = 1 };
	struct perf_event_mmap_page *ring;
	unsigned int wrong = 0, tried;
	uint64_t *chains[2], *without, *with, at = 0;
	int all;

	if (getpid() == 1) {		/* the only program of a machine that is made for it */
		mkdir("/sys", 0755);
		mount("sysfs", "/sys", "sysfs", 0, NULL);
		mkdir("/proc", 0555);
		mount("proc", "/proc", "proc", 0, NULL);
	}
	all = open_event(&output, DEFER_OUTPUT);
	ring = map(all);
	call.type = type_of("kprobe");
	output_to(open_event(&call, DEFER_CALLCHAIN), all);
	probe.type = type_of("uprobe");

	for (int i = 0; i < 2; i++) {
		if (i)
			open_event(&probe, 0);
		descend(DEPTH);
		chains[i] = last_answer(ring);
	}
	without = chains[0];
	with = chains[1];
	tried = without && with != without && without[1] > DEPTH && with[1] == without[1];
	for (uint64_t i = 2; tried && i < 2 + with[1]; i++) {
		if (with[i] != without[i]) {
			wrong++;
			at = i;
		}
	}
	printf("F009: %s: %u of %lu addresses differ with a uretprobe", wrong ? "not ok" : tried ? "ok" : "not tried", wrong,
	       (unsigned long)(tried ? with[1] : 0));
	if (wrong)
		printf(": %#lx in place of %#lx", (unsigned long)with[at], (unsigned long)without[at]);
	printf("\n");
	if (getpid() == 1) {
		fflush(stdout);
		reboot(RB_AUTOBOOT);
	}
	return wrong ? 1 : tried ? 0 : 2;
}
