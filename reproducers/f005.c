// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * F005: a client that requested nothing is called while it is being cancelled.
 *
 * perf never cancels. A kernel that unwindlab builds has clients that do what they are told (guest-kernel/client). One of them
 * makes requests in each system call of a thread. The other one, which makes none, is registered and cancelled again and again
 * on another CPU. Four hardware breakpoints at a time make the function that calls clients slow at four addresses, so that
 * some cancellations come right there. (A kprobe would not do: its frame overwrites the word that is read beside the bits.)
 * It takes up to a minute, and 2 CPUs.
 *
 * gcc -O2 -static -I guest-kernel/client/files/include -o f005 f005.c; run it as root. It exits with 0 where the kernel is
 * right, 1 where it is not, and 2 where that could not be tried.
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <linux/hw_breakpoint.h>
#include <linux/perf_event.h>
#include <linux/unwindlab.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
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

#define SILENT 0			/* the client that makes no request, and the one that does */
#define ASKS 1
#define TIMES 25			/* cancellations with the same breakpoints */
#define LOG_PAGES 8192			/* of the clients' log, behind a control page */
#define LONGEST 0x180			/* bytes of the function */

static const char *const SYSTEMS[][2] = { { "/dev", "devtmpfs" }, { "/sys", "sysfs" }, { "/proc", "proc" } };
static int client;
static atomic_int tid, stop;

static void tell(unsigned long command, void *what, const char *name)
{
	if (ioctl(client, command, what))
		err(2, "%s", name);
}

static void stay_on(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		err(2, "CPU %d", cpu);
}

static void *calls(void *nothing)
{
	stay_on(1);
	tid = gettid();
	while (!stop)
		syscall(SYS_getppid);
	return nothing;
}

/* The address of a function of the kernel. */
static uint64_t address_of(const char *function)
{
	FILE *file = fopen("/proc/kallsyms", "r");
	unsigned long address;
	char name[128];

	while (file && fscanf(file, "%lx %*c %127s%*[^\n]", &address, name) == 2)
		if (!strcmp(name, function) && address)
			return address;
	errx(2, "/proc/kallsyms has no %s", function);
}

/* The next address of an instruction, if it is one, becomes slow: a handler on a stack of its own. */
static int breakpoint(uint64_t address)
{
	struct perf_event_attr attr = { .type = PERF_TYPE_BREAKPOINT, .size = sizeof(attr), .bp_type = HW_BREAKPOINT_X,
		.bp_addr = address, .bp_len = sizeof(long), .sample_period = 1U << 31 };
	int fd = syscall(SYS_perf_event_open, &attr, tid, -1, -1, 0);

	if (fd < 0)
		err(2, "a breakpoint");
	return fd;
}

/* The clients begin, with an empty log. It is what patches the kernel, so it is done seldom. */
static void begin(struct unwindlab_control *log, struct unwindlab_slot *slots)
{
	struct unwindlab_config config = { .ask[UNWINDLAB_AT_SYS_ENTER] = {
		.clients = 1 << ASKS, .contexts = 1 << UNWINDLAB_TASK, .count = 1 } };
	unsigned int asks = ASKS, target = tid;

	memset(slots, 0, (log->head < log->slots ? log->head : log->slots) * sizeof(*slots));
	log->head = 0;
	tell(UNWINDLAB_REGISTER, &asks, "UNWINDLAB_REGISTER");
	tell(UNWINDLAB_CONFIG, &config, "UNWINDLAB_CONFIG");
	tell(UNWINDLAB_TARGET, &target, "UNWINDLAB_TARGET");
	tell(UNWINDLAB_START, NULL, "UNWINDLAB_START");
}

/* Registers and cancels the client that makes no request, with four addresses of the function slow. */
static unsigned int cancel_at(uint64_t at)
{
	unsigned int silent = SILENT, times;
	int slow[4];

	for (int i = 0; i < 4; i++)
		slow[i] = breakpoint(at + i);
	for (times = 0; times < TIMES; times++) {
		tell(UNWINDLAB_REGISTER, &silent, "UNWINDLAB_REGISTER");
		tell(UNWINDLAB_CANCEL, &silent, "UNWINDLAB_CANCEL");
	}
	for (int i = 0; i < 4; i++)
		close(slow[i]);
	return times;
}

/* How often the silent client was called, by the slots from *seen on that are written to their end. */
static unsigned int called(struct unwindlab_control *log, struct unwindlab_slot *slots, uint64_t *seen)
{
	unsigned int wrong = 0;

	for (; *seen < log->slots && __atomic_load_n(&slots[*seen].commit, __ATOMIC_ACQUIRE) == *seen + 1; ++*seen)
		wrong += slots[*seen].kind == UNWINDLAB_K_CALLBACK && slots[*seen].client == SILENT;
	return wrong;
}

/* The clients stop: how often the silent client was called up to there. */
static unsigned int end(struct unwindlab_control *log, struct unwindlab_slot *slots, uint64_t *seen)
{
	unsigned int wrong;

	tell(UNWINDLAB_STOP, NULL, "UNWINDLAB_STOP");
	wrong = called(log, slots, seen);
	if (!wrong && *seen < log->head)
		errx(2, "the log is full, or a record of it was never finished");
	return wrong;
}

int main(void)
{
	unsigned int pages = LOG_PAGES, cancelled = 0, wrong = 0;
	struct unwindlab_control *log;
	uint64_t function, at, seen = 0;
	struct unwindlab_slot *slots;
	pthread_t thread;

	for (int i = 0; getpid() == 1 && i < 3; i++) {	/* the only program of a machine that is made for it */
		mkdir(SYSTEMS[i][0], 0755);
		mount(SYSTEMS[i][1], SYSTEMS[i][0], SYSTEMS[i][1], 0, NULL);
	}
	client = open("/dev/unwindlab", O_RDWR | O_CLOEXEC);
	if (client < 0)
		err(2, "/dev/unwindlab");
	stay_on(0);
	tell(UNWINDLAB_SETUP, &pages, "UNWINDLAB_SETUP");
	log = mmap(NULL, (1ULL + LOG_PAGES) * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, client, 0);
	if (log == MAP_FAILED)
		err(2, "mmap of the log");
	slots = (struct unwindlab_slot *)((char *)log + 4096);
	if (pthread_create(&thread, NULL, calls, NULL))
		errx(2, "no thread");
	while (!tid)
		usleep(1000);
	function = address_of("process_unwind_deferred");

	begin(log, slots);
	for (at = 0; at < LONGEST && !wrong; at += 4) {
		if (log->head >= log->slots / 2) {
			wrong = end(log, slots, &seen);
			begin(log, slots);
			seen = 0;
		}
		cancelled += cancel_at(function + at);
		wrong += called(log, slots, &seen);
		/* A client that has little room for what follows makes no request: what was not seen was not tried. */
		if (!wrong && log->head >= log->slots / 8 * 7)
			errx(2, "the log is full");
	}
	wrong += end(log, slots, &seen);
	stop = 1;

	printf("F005: %s: a client that made no request is called %u times in %u cancellations, up to +%#lx\n",
	       wrong ? "not ok" : "ok", wrong, cancelled, (unsigned long)at);
	if (getpid() == 1) {
		fflush(stdout);
		reboot(RB_AUTOBOOT);
	}
	return wrong ? 1 : 0;
}
