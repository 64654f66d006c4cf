// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * F003: a client that requested nothing is called in the place of one that was cancelled during the walk.
 *
 * perf never cancels. A kernel that unwindlab builds has a client that does what it is told (guest-kernel/client). It makes a
 * request in a system call of a thread whose frame pointer leads to a page that is not there. The walk waits for that page
 * (userfaultfd), until the client has been cancelled and another one registered, which takes its place. Then the page comes.
 *
 * gcc -O2 -static -I guest-kernel/client/files/include -o f003 f003.c; run it as root. It exits with 0 where the kernel is
 * right, 1 where it is not, and 2 where that could not be tried.
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <linux/unwindlab.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOG_PAGES 16			/* of the client's log, behind a control page */
#define STACK (64 << 10)		/* bytes of the thread's stack, below the page that is not there */

static int client;
static char *page;
static atomic_int tid, go, done;

static void tell(unsigned long command, void *what, const char *name)
{
	if (ioctl(client, command, what))
		err(2, "%s", name);
}

/* One system call, whose caller is read where there is no page yet. */
static void *call(void *nothing)
{
	long number = SYS_getppid;

	tid = gettid();
	while (!go)
		;
	asm volatile("push %%rbp\n\tmov %1, %%rbp\n\tsyscall\n\tpop %%rbp"
		     : "+a"(number) : "r"(page + 2048) : "rcx", "r11", "memory");
	done = 1;
	while (go)
		;
	return nothing;
}

static int watch_page(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register range = { .range = { .start = (unsigned long)page, .len = 4096 },
		.mode = UFFDIO_REGISTER_MODE_MISSING };
	int faults = syscall(SYS_userfaultfd, O_CLOEXEC);

	if (faults < 0 || ioctl(faults, UFFDIO_API, &api) || ioctl(faults, UFFDIO_REGISTER, &range))
		err(2, "userfaultfd");
	return faults;
}

int main(void)
{
	struct unwindlab_config config = { .ask[UNWINDLAB_AT_SYS_ENTER] = {
		.clients = 1, .contexts = 1 << UNWINDLAB_TASK, .count = 1 } };
	unsigned int pages = LOG_PAGES, number = 0, target, asked = 0, registered = 0, requests = 0, wrong = 0, tried;
	struct uffdio_zeropage come = { .range.len = 4096 };
	struct unwindlab_control *log;
	struct unwindlab_slot *slots;
	struct uffd_msg fault;
	pthread_attr_t attr;
	pthread_t thread;
	int faults;

	if (getpid() == 1) {		/* the only program of a machine that is made for it */
		mkdir("/dev", 0755);
		mount("dev", "/dev", "devtmpfs", 0, NULL);
	}
	client = open("/dev/unwindlab", O_RDWR | O_CLOEXEC);
	if (client < 0)
		err(2, "/dev/unwindlab");
	tell(UNWINDLAB_SETUP, &pages, "UNWINDLAB_SETUP");
	log = mmap(NULL, (1 + LOG_PAGES) * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, client, 0);
	/* The page is above the stack, as callers' frames are. */
	page = mmap(NULL, STACK + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (log == MAP_FAILED || page == MAP_FAILED)
		err(2, "mmap");
	slots = (struct unwindlab_slot *)((char *)log + 4096);
	pthread_attr_init(&attr);
	pthread_attr_setstack(&attr, page, STACK);
	page += STACK;
	faults = watch_page();
	if (pthread_create(&thread, &attr, call, NULL))
		errx(2, "no thread");
	while (!tid)
		usleep(1000);
	target = tid;

	tell(UNWINDLAB_REGISTER, &number, "UNWINDLAB_REGISTER");
	tell(UNWINDLAB_CONFIG, &config, "UNWINDLAB_CONFIG");
	tell(UNWINDLAB_TARGET, &target, "UNWINDLAB_TARGET");
	tell(UNWINDLAB_START, NULL, "UNWINDLAB_START");
	go = 1;
	if (read(faults, &fault, sizeof(fault)) != sizeof(fault))
		err(2, "a fault");
	tell(UNWINDLAB_CANCEL, &number, "UNWINDLAB_CANCEL");
	tell(UNWINDLAB_REGISTER, &number, "UNWINDLAB_REGISTER");
	come.range.start = (unsigned long)page;
	if (ioctl(faults, UFFDIO_ZEROPAGE, &come))
		err(2, "UFFDIO_ZEROPAGE");
	while (!done)
		usleep(1000);
	tell(UNWINDLAB_STOP, NULL, "UNWINDLAB_STOP");
	go = 0;

	for (__u64 i = 0; i < log->head && i < log->slots; i++) {
		if (__atomic_load_n(&slots[i].commit, __ATOMIC_ACQUIRE) != i + 1)
			continue;	/* not written to its end */
		struct unwindlab_slot *slot = &slots[i];
		int second = slot->gen == 2;

		asked += slot->kind == UNWINDLAB_K_REQUEST && !second && slot->ret >= 0;
		requests += slot->kind == UNWINDLAB_K_REQUEST && second;
		registered += slot->kind == UNWINDLAB_K_REGISTERED && second && !slot->ret;
		wrong += slot->kind == UNWINDLAB_K_CALLBACK && second && !requests;
	}
	tried = asked && registered;
	printf("F003: %s: a client that made no request is called %u times in place of one that was cancelled\n",
	       wrong ? "not ok" : tried ? "ok" : "not tried", wrong);
	if (getpid() == 1) {
		fflush(stdout);
		reboot(RB_AUTOBOOT);
	}
	return wrong ? 1 : tried ? 0 : 2;
}
