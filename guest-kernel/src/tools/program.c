/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program without frame pointers, as a compiler writes it. Each function is
 * called at one place, so that the callers of each are known.
 */
#define OWN __attribute__((noipa, used))

static volatile long words[8] = { 3, 1, 4, 1, 5, 9, 2, 6 };

/* No frame. */
OWN static long c_leaf(long a, long b)
{
	return (a ^ b << 3) + words[2] * a;
}

/* Local variables, and a way out before they are there. */
OWN static long c_locals(long a)
{
	volatile long local[40];

	if (a == words[7] << 40)
		return 1;
	local[0] = a;
	local[39] = words[1];
	return c_leaf(local[39], local[0]) + local[0];
}

/* All registers that a callee saves. */
OWN static long c_saves(long a)
{
	long b = words[0], c = words[1], d = words[2];
	long e = words[3], f = words[4], g = words[5];
	long sum = c_locals(a + b);

	words[7] = 6;
	return sum + a * b - c * d + e * f - g + (b ^ c ^ d ^ e ^ f ^ g);
}

/* A stack pointer of its own alignment. */
OWN static long c_aligned(long a)
{
	volatile long local[8] __attribute__((aligned(64)));

	local[0] = a;
	return c_saves(local[0] + 1) + local[0];
}

/* As much stack as it is told. */
OWN static long c_variable(long bytes)
{
	volatile char *local = __builtin_alloca(bytes + words[1]);

	local[0] = 1;
	return c_aligned(bytes) + local[0];
}

/* Arguments on the stack. */
OWN static long c_arguments(long a, long b, long c, long d, long e, long f,
			    long g, long h, long i)
{
	return c_variable(a + b + c + d + e + f + g) + h * i;
}

OWN long c_main(void)
{
	long more = words[6];

	return c_arguments(1, 2, 3, 4, 5, 6, more, words[7], more + 1) == more;
}

/*
 * Several times around, so that whoever goes through it by instructions stays in
 * it. The data is there before, because a page fault would lead out of it.
 */
__asm__(
	"\t.text\n"
	"\t.globl\t_start\n"
	"\t.type\t_start, @function\n"
	"_start:\n"
	"\t.cfi_startproc\n"
	"\t.cfi_undefined rip\n"
	"\tmovabs\t$0x0123456789abcdef, %rbp\n"
	"\torq\t$0, words(%rip)\n"
	"\tmov\t$8, %r12d\n"
	"c_begin:\n"
	"\tnop\n"
	"1:\n"
	"\tcall\tc_main\n"
	"\tdec\t%r12d\n"
	"\tjnz\t1b\n"
	"\tmov\t$231, %eax\n"
	"\txor\t%edi, %edi\n"
	"\tsyscall\n"
	"\tud2\n"
	"\t.cfi_endproc\n"
	"\t.size\t_start, . - _start\n"
);
