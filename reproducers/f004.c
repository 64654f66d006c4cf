// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * F004: the request of a task's own event is not answered when the task exits.
 *
 * Children exit. An event of the child asks for its deferred user stack in exit_group(), from which it does not return:
 * unwind_deferred_task_exit() has to answer. It does so behind perf_event_exit_task(), which has taken the child's events
 * away, so that no record 22 is written. A request in a system call before shows that others are answered.
 *
 * gcc -O2 -static -o f004 f004.c; run it as root. It exits with 0 where the kernel is right, 1 where it is not, and
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
#include <sys/wait.h>
#include <unistd.h>

#define CHILDREN 10
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

/* The samples of a child that exits, and the records 22 that answer them. */
static void watch_exit(unsigned int *samples, unsigned int *answers)
{
	struct perf_event_attr output = { .type = PERF_TYPE_SOFTWARE, .config = PERF_COUNT_SW_DUMMY, .task = 1 };
	const char *functions[] = { "__x64_sys_getppid", "__x64_sys_exit_group" };
	struct perf_event_mmap_page *ring;
	int go[2], all;
	pid_t child;

	if (pipe(go))
		err(2, "pipe");
	child = fork();
	if (!child) {
		char byte;

		if (read(go[0], &byte, 1) == 1)
			syscall(SYS_getppid);
		_exit(0);
	}
	all = open_event(&output, DEFER_OUTPUT, child, -1);
	ring = map(all);
	for (int i = 0; i < 2; i++) {
		struct perf_event_attr call = { .type = kprobe_type(), .kprobe_func = (uintptr_t)functions[i],
			.sample_period = 1, .sample_type = PERF_SAMPLE_CALLCHAIN };

		output_to(open_event(&call, DEFER_CALLCHAIN, child, -1), all);
	}
	if (write(go[1], "", 1) != 1 || waitpid(child, NULL, 0) != child)
		err(2, "the child");
	for (uint64_t at = 0; at < ring->data_head && at < RING;) {
		struct perf_event_header *record = (void *)((char *)ring + 4096 + at);

		*samples += record->type == PERF_RECORD_SAMPLE;
		*answers += record->type == DEFERRED_RECORD;
		at += record->size ? record->size : RING;
	}
}

int main(void)
{
	unsigned int samples = 0, answers = 0, tried, wrong;

	if (getpid() == 1) {		/* the only program of a machine that is made for it */
		mkdir("/sys", 0755);
		mount("sysfs", "/sys", "sysfs", 0, NULL);
	}
	for (int i = 0; i < CHILDREN; i++)
		watch_exit(&samples, &answers);
	tried = samples == 2 * CHILDREN && answers >= CHILDREN;
	wrong = tried && answers < samples;
	printf("F004: %s: %u of %u requests, half of them in exit_group(), have no record 22\n",
	       wrong ? "not ok" : tried ? "ok" : "not tried", samples - answers, samples);
	if (getpid() == 1) {
		fflush(stdout);
		reboot(RB_AUTOBOOT);
	}
	return wrong ? 1 : tried ? 0 : 2;
}
