// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * F012: the request of a worker is accepted, and answered with a stack of another task.
 *
 * perf makes no requests in workers of io_uring, which are never in user mode. A kernel that unwindlab builds has a client that
 * does what it is told (guest-kernel/client): it makes a request whenever a worker begins with an operation.
 *
 * gcc -O2 -static -I guest-kernel/client/files/include -o f012 f012.c; run it as root. It exits with 0 where the kernel is
 * right, 1 where it is not, and 2 where that could not be tried.
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/unwindlab.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define OPERATIONS 10
#define PAGES 16			/* of the client's log, behind a control page */

static int client;

static void tell(unsigned long command, void *what, const char *name)
{
	if (ioctl(client, command, what))
		err(2, "%s", name);
}

static void *map(size_t length, int fd, off_t offset)
{
	void *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, offset);

	if (at == MAP_FAILED)
		err(2, "mmap");
	return at;
}

/* Operations that do nothing, one after the other, each in a worker. */
static void make_workers_work(void)
{
	struct io_uring_params params = { 0 };
	int ring = syscall(SYS_io_uring_setup, 1, &params);
	struct io_uring_sqe *operation;
	char *queue;

	if (ring < 0)
		err(2, "io_uring_setup");
	queue = map(params.sq_off.array + params.sq_entries * sizeof(unsigned int), ring, IORING_OFF_SQ_RING);
	operation = map(params.sq_entries * sizeof(*operation), ring, IORING_OFF_SQES);
	for (int i = 0; i < OPERATIONS; i++) {
		*operation = (struct io_uring_sqe){ .opcode = IORING_OP_NOP, .flags = IOSQE_ASYNC };
		atomic_fetch_add((atomic_uint *)(queue + params.sq_off.tail), 1);
		if (syscall(SYS_io_uring_enter, ring, 1, i + 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1)
			err(2, "io_uring_enter");
	}
}

int main(void)
{
	struct unwindlab_place place = { .symbol = "io_wq_submit_work", .count = 1, .clients = 1 };
	unsigned int pages = PAGES, number = 0, tid = gettid(), asked = 0, wrong = 0, tried;
	struct unwindlab_control *log;
	struct unwindlab_slot *slots;

	if (getpid() == 1) {		/* the only program of a machine that is made for it */
		mkdir("/dev", 0755);
		mount("dev", "/dev", "devtmpfs", 0, NULL);
	}
	client = open("/dev/unwindlab", O_RDWR | O_CLOEXEC);
	if (client < 0)
		err(2, "/dev/unwindlab");
	tell(UNWINDLAB_SETUP, &pages, "UNWINDLAB_SETUP");
	log = map((1 + PAGES) * 4096, client, 0);
	slots = (struct unwindlab_slot *)((char *)log + 4096);
	tell(UNWINDLAB_REGISTER, &number, "UNWINDLAB_REGISTER");
	tell(UNWINDLAB_PLACE, &place, "UNWINDLAB_PLACE");
	tell(UNWINDLAB_TARGET, &tid, "UNWINDLAB_TARGET");
	tell(UNWINDLAB_START, NULL, "UNWINDLAB_START");
	make_workers_work();
	tell(UNWINDLAB_STOP, NULL, "UNWINDLAB_STOP");

	for (__u64 i = 0; i < log->head && i < log->slots; i++) {
		if (__atomic_load_n(&slots[i].commit, __ATOMIC_ACQUIRE) != i + 1)
			continue;	/* not written to its end */
		if (slots[i].kind == UNWINDLAB_K_REQUEST && slots[i].flags & UNWINDLAB_F_WORKER) {
			asked++;
			wrong += slots[i].ret >= 0;
		}
	}
	tried = asked >= OPERATIONS;
	printf("F012: %s: %u of %u requests of workers are accepted\n",
	       wrong ? "not ok" : tried ? "ok" : "not tried", wrong, asked);
	if (getpid() == 1) {
		fflush(stdout);
		reboot(RB_AUTOBOOT);
	}
	return wrong ? 1 : tried ? 0 : 2;
}
