// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * F014: perf's own chain has wrong callers where uretprobes share the place of one return address.
 *
 * leaf() is called through a stub that jumps to it, so that both return to the same address. It makes a system call, in
 * which an event takes the user stack at once: once as it is, and once with a uretprobe open on the stub, on leaf() and on
 * its callers. The two chains are to be the same.
 *
 * gcc -O2 -static -o f014 f014.c; run it as root. It exits with 0 where the kernel is right, 1 where it is not, and
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
#define MOST 32				/* addresses of a chain */
#define RING (128 << 10)		/* bytes, behind a control page */

static int open_event(struct perf_event_attr *attr)
{
	int fd;

	attr->size = sizeof(*attr);
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

__attribute__((noinline, used)) long leaf(void)
{
	return syscall(SYS_getppid) + 1;
}

long stub(void);
__asm__(".pushsection .text\n"
	".globl stub\n"
	"stub:	jmp leaf\n"
	".popsection\n");

__attribute__((noinline)) long descend(int depth)
{
	return (depth ? descend(depth - 1) : stub()) + 1;
}

/* The user addresses of the last sample in a ring, the innermost first; 0 if there is none. */
static unsigned int last_chain(struct perf_event_mmap_page *ring, uint64_t *ips)
{
	unsigned int nr = 0;

	for (uint64_t at = 0; at < ring->data_head && at < RING;) {
		struct perf_event_header *record = (void *)((char *)ring + 4096 + at);
		uint64_t *chain = (uint64_t *)(record + 1);	/* the number of addresses, and those */

		if (record->type == PERF_RECORD_SAMPLE) {
			nr = 0;
			for (uint64_t i = 1; i <= chain[0] && nr < MOST; i++) {
				if (chain[i] < PERF_CONTEXT_MAX)	/* not a marker */
					ips[nr++] = chain[i];
			}
		}
		at += record->size ? record->size : RING;
	}
	return nr;
}

int main(void)
{
	extern char __executable_start;
	struct perf_event_attr call = { .kprobe_func = (uintptr_t)"__x64_sys_getppid", .sample_period = 1,
		.sample_type = PERF_SAMPLE_CALLCHAIN, .exclude_callchain_kernel = 1 };
	char *probed[] = { (char *)stub, (char *)leaf, (char *)descend };
	struct perf_event_mmap_page *ring;
	uint64_t chains[2][MOST], *without = chains[0], *with = chains[1];
	unsigned int wrong = 0, tried, first = 0, nr[2] = { 0, 0 };

	if (getpid() == 1) {		/* the only program of a machine that is made for it */
		mkdir("/sys", 0755);
		mount("sysfs", "/sys", "sysfs", 0, NULL);
		mkdir("/proc", 0555);
		mount("proc", "/proc", "proc", 0, NULL);
	}
	call.type = type_of("kprobe");
	ring = map(open_event(&call));
	for (unsigned int round = 0; round < 2; round++) {
		for (unsigned int i = 0; round && i < sizeof(probed) / sizeof(*probed); i++) {
			struct perf_event_attr probe = { .config = 1 /* on the return */, .sample_period = 1,
				.uprobe_path = (uintptr_t)"/proc/self/exe", .probe_offset = probed[i] - &__executable_start };

			probe.type = type_of("uprobe");
			open_event(&probe);
		}
		descend(DEPTH);
		nr[round] = last_chain(ring, chains[round]);
	}

	tried = nr[0] > DEPTH + 2 && nr[1] == nr[0] && nr[0] < MOST;
	for (unsigned int i = nr[0]; tried && i-- > 0;) {
		if (with[i] != without[i]) {
			wrong++;
			first = i;
		}
	}
	printf("F014: %s: %u of %u addresses differ with uretprobes", wrong ? "not ok" : tried ? "ok" : "not tried", wrong,
	       tried ? nr[0] : 0);
	if (wrong)
		printf(": %#lx in place of %#lx", (unsigned long)with[first], (unsigned long)without[first]);
	printf("\n");
	if (getpid() == 1) {
		fflush(stdout);
		reboot(RB_AUTOBOOT);
	}
	return wrong ? 1 : tried ? 0 : 2;
}
