// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * F006: a request that an NMI overtakes returns the client's bit, cut to an int.
 *
 * A client asks in each system call, and has a kprobe in unwind_deferred_request(), at one instruction after the other. The
 * int3 of the kprobe is as an NMI: its handler makes a request of the same client, in the middle of the other one. Where that
 * comes between the look at the mask and the exchange, it returns 0, and the other one is to return 1.
 *
 * For a kernel with the client of unwindlab (guest-kernel/client). gcc -O2 -static -I guest-kernel/client/files/include -o f006
 * f006.c; run it as root. It exits with 0 where the kernel is right, 1 where it is not, and 2 where that could not be tried.
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <linux/unwindlab.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGES 64			/* of slots */
#define BYTES 0x180			/* of the function, at whose instructions a kprobe is tried */

static int client;

static void tell(unsigned long command, void *what, const char *name)
{
	if (ioctl(client, command, what))
		err(2, "%s", name);
}

/* Without this the kernel may replace the int3 by a jump, which is not as an NMI. */
static void keep_int3(void)
{
	int file = open("/proc/sys/debug/kprobes-optimization", O_WRONLY);

	if (file >= 0 && write(file, "0", 1) != 1)
		err(2, "kprobes-optimization");
	close(file);
}

int main(void)
{
	struct unwindlab_config config = { .ask[UNWINDLAB_AT_SYS_ENTER] = {
		.clients = 1, .contexts = 1 << UNWINDLAB_TASK, .count = 1 } };
	unsigned int pages = PAGES, number = 0, tid = gettid(), overtaken = 0, wrong = 0, instructions = 0;
	struct unwindlab_control *log;
	struct unwindlab_slot *slots;
	int returned = 1;

	if (getpid() == 1) {		/* the only program of a machine that is made for it */
		mkdir("/dev", 0755);
		mount("dev", "/dev", "devtmpfs", 0, NULL);
		mkdir("/proc", 0755);
		mount("proc", "/proc", "proc", 0, NULL);
	}
	keep_int3();
	client = open("/dev/unwindlab", O_RDWR | O_CLOEXEC);
	if (client < 0)
		err(2, "/dev/unwindlab");
	tell(UNWINDLAB_SETUP, &pages, "UNWINDLAB_SETUP");
	log = mmap(NULL, (1 + PAGES) * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, client, 0);
	if (log == MAP_FAILED)
		err(2, "mmap of the log");
	slots = (struct unwindlab_slot *)((char *)log + 4096);
	tell(UNWINDLAB_CONFIG, &config, "UNWINDLAB_CONFIG");
	tell(UNWINDLAB_TARGET, &tid, "UNWINDLAB_TARGET");

	for (unsigned int offset = 0; offset < BYTES && !wrong; offset++) {
		struct unwindlab_place place = { .symbol = "unwind_deferred_request", .offset = offset,
			.count = 1, .clients = 1 };
		int in_nmi = -1;
		__u64 from;

		if (ioctl(client, UNWINDLAB_PLACE, &place))
			continue;		/* no instruction begins there */
		instructions++;
		from = log->head;
		tell(UNWINDLAB_REGISTER, &number, "UNWINDLAB_REGISTER");
		tell(UNWINDLAB_START, NULL, "UNWINDLAB_START");
		syscall(SYS_getppid);
		tell(UNWINDLAB_STOP, NULL, "UNWINDLAB_STOP");
		for (__u64 i = from; i < log->head && i < log->slots; i++) {
			if (__atomic_load_n(&slots[i].commit, __ATOMIC_ACQUIRE) != i + 1)
				continue;	/* not written to its end */
			if (slots[i].kind == UNWINDLAB_K_RETURN)
				in_nmi = -1;
			if (slots[i].kind != UNWINDLAB_K_REQUEST)
				continue;
			if (slots[i].context == UNWINDLAB_NMI) {
				in_nmi = slots[i].ret;
			} else if (in_nmi == 0) {
				overtaken++;
				returned = slots[i].ret;
				wrong += returned != 1;
			}
		}
	}
	printf("F006: %s: of %u requests that the int3 at one of %u instructions overtook, %u returned %d\n",
	       wrong ? "not ok" : overtaken ? "ok" : "not tried", overtaken, instructions, wrong ? wrong : overtaken, returned);
	if (getpid() == 1) {
		fflush(stdout);
		reboot(RB_AUTOBOOT);
	}
	return wrong ? 1 : overtaken ? 0 : 2;
}
