// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * F002: the request of a cancelled client is accepted, in the place of another client.
 *
 * perf never cancels. A kernel that unwindlab builds has a client that does what it is told (guest-kernel/client): it is
 * cancelled, and goes on making requests at the start of each system call.
 *
 * gcc -O2 -static -I guest-kernel/client/files/include -o f002 f002.c; run it as root. It exits with 0 where the kernel is
 * right, 1 where it is not, and 2 where that could not be tried.
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

#define CALLS 10
#define PAGES 16			/* of the client's log, behind a control page */

static int client;

static void tell(unsigned long command, void *what, const char *name)
{
	if (ioctl(client, command, what))
		err(2, "%s", name);
}

int main(void)
{
	struct unwindlab_config config = { .flags = UNWINDLAB_ASK_CANCELLED, .ask[UNWINDLAB_AT_SYS_ENTER] = {
		.clients = 1, .contexts = 1 << UNWINDLAB_TASK, .count = 1 } };
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
	log = mmap(NULL, (1 + PAGES) * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, client, 0);
	if (log == MAP_FAILED)
		err(2, "mmap of the log");
	slots = (struct unwindlab_slot *)((char *)log + 4096);
	tell(UNWINDLAB_REGISTER, &number, "UNWINDLAB_REGISTER");
	tell(UNWINDLAB_CONFIG, &config, "UNWINDLAB_CONFIG");
	tell(UNWINDLAB_TARGET, &tid, "UNWINDLAB_TARGET");
	tell(UNWINDLAB_START, NULL, "UNWINDLAB_START");
	tell(UNWINDLAB_CANCEL, &number, "UNWINDLAB_CANCEL");
	for (int i = 0; i < CALLS; i++)
		syscall(SYS_getppid);
	tell(UNWINDLAB_STOP, NULL, "UNWINDLAB_STOP");

	for (__u64 i = 0; i < log->head && i < log->slots; i++) {
		if (__atomic_load_n(&slots[i].commit, __ATOMIC_ACQUIRE) != i + 1)
			continue;	/* not written to its end */
		if (slots[i].kind == UNWINDLAB_K_REQUEST && slots[i].flags & UNWINDLAB_F_WAS_CANCELLED) {
			asked++;
			wrong += slots[i].ret >= 0;
		}
	}
	tried = asked >= CALLS;
	printf("F002: %s: %u of %u requests of a cancelled client are accepted\n",
	       wrong ? "not ok" : tried ? "ok" : "not tried", wrong, asked);
	if (getpid() == 1) {
		fflush(stdout);
		reboot(RB_AUTOBOOT);
	}
	return wrong ? 1 : tried ? 0 : 2;
}
