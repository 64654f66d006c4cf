// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * F010: a request of a uprobe is answered when the uprobe has changed the user registers.
 *
 * Two events have a uprobe on the first instruction of leaf(), "push %rbp". One of them takes its call chain at once, the other
 * one defers it. The two chains are to be the same.
 *
 * gcc -O2 -static -o f010 f010.c; run it as root. It exits with 0 where the kernel is right, 1 where it is not, and
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
#define OURS (DEPTH + 3)		/* leaf(), descend(), main(); the C library has no frame pointers */
#define USER ((uint64_t)-512)		/* PERF_CONTEXT_USER */
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

/* What the last record of a type has behind its header. */
static uint64_t *last_record(struct perf_event_mmap_page *ring, unsigned int type)
{
	uint64_t *last = NULL;

	for (uint64_t at = 0; at < ring->data_head && at < RING;) {
		struct perf_event_header *record = (void *)((char *)ring + 4096 + at);

		if (record->type == type)
			last = (uint64_t *)(record + 1);
		at += record->size ? record->size : RING;
	}
	return last;
}

/* The user addresses of a sample's call chain, which are behind a marker; how many there are. */
static uint64_t user_part(uint64_t **sample)
{
	uint64_t *chain = *sample + 1, *end = chain + **sample;

	while (chain < end && *chain != USER)
		chain++;
	*sample = chain + 1;
	return chain < end ? end - chain - 1 : 0;
}

int main(void)
{
	extern char __executable_start;
	struct perf_event_attr output = { .type = PERF_TYPE_SOFTWARE, .config = PERF_COUNT_SW_DUMMY, .task = 1 };
	struct perf_event_attr probe = { .uprobe_path = (uintptr_t)"/proc/self/exe", .sample_period = 1,
		.probe_offset = (char *)leaf - &__executable_start, .sample_type = PERF_SAMPLE_CALLCHAIN };
	struct perf_event_mmap_page *ring, *twins;
	uint64_t *sample, *answer, now = 0, later = 0;
	unsigned int tried, wrong;
	int all;

	if (getpid() == 1) {		/* the only program of a machine that is made for it */
		mkdir("/sys", 0755);
		mount("sysfs", "/sys", "sysfs", 0, NULL);
		mkdir("/proc", 0555);
		mount("proc", "/proc", "proc", 0, NULL);
	}
	all = open_event(&output, DEFER_OUTPUT);
	ring = map(all);
	probe.type = type_of("uprobe");
	twins = map(open_event(&probe, 0));
	output_to(open_event(&probe, DEFER_CALLCHAIN), all);
	descend(DEPTH);

	sample = last_record(twins, PERF_RECORD_SAMPLE);
	answer = last_record(ring, DEFERRED_RECORD);
	tried = sample && answer;
	if (tried) {
		now = user_part(&sample);
		later = answer[1];
		answer += 2;
		tried = now >= OURS;
	}
	wrong = tried && (later < OURS || memcmp(sample, answer, OURS * sizeof(*sample)));
	printf("F010: %s: %lu addresses at once, %lu deferred", wrong ? "not ok" : tried ? "ok" : "not tried",
	       (unsigned long)now, (unsigned long)later);
	if (wrong)
		printf("; the first are %#lx, %#lx and %#lx, %#lx", (unsigned long)sample[0], (unsigned long)sample[1],
		       (unsigned long)answer[0], (unsigned long)answer[1]);
	printf("\n");
	if (getpid() == 1) {
		fflush(stdout);
		reboot(RB_AUTOBOOT);
	}
	return wrong ? 1 : tried ? 0 : 2;
}
