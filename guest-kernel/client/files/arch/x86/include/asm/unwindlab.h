/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tells the lab client when a task enters and leaves the kernel.
 *
 * asm/entry-common.h includes this at its end. It wraps three functions that the generic entry
 * code calls by these names, so no line of the generic code changes. Their names and places in
 * the entry and exit path are the same from 6.17 to 7.x.
 */
#ifndef _ASM_X86_UNWINDLAB_H
#define _ASM_X86_UNWINDLAB_H

#ifdef CONFIG_UNWINDLAB

#include <linux/jump_label.h>

struct pt_regs;

DECLARE_STATIC_KEY_FALSE(unwindlab_key);

void unwindlab_user_enter(struct pt_regs *regs);
void unwindlab_user_leave(void);
void unwindlab_user_left(void);

/* First after the entry from user mode: no instrumentation, and RCU may not be watching. */
static __always_inline void unwindlab_enter_from_user_mode(struct pt_regs *regs)
{
	arch_enter_from_user_mode(regs);
	if (static_branch_unlikely(&unwindlab_key))
		unwindlab_user_enter(regs);
}
#undef arch_enter_from_user_mode
#define arch_enter_from_user_mode unwindlab_enter_from_user_mode

/* After the exit work loop, before unwind_reset_info(): from here on only NMIs can come. */
static __always_inline void
unwindlab_exit_to_user_mode_prepare(struct pt_regs *regs, unsigned long ti_work)
{
	if (static_branch_unlikely(&unwindlab_key))
		unwindlab_user_leave();
	arch_exit_to_user_mode_prepare(regs, ti_work);
}
#undef arch_exit_to_user_mode_prepare
#define arch_exit_to_user_mode_prepare unwindlab_exit_to_user_mode_prepare

/* Last before user mode, after unwind_reset_info(): RCU may have stopped watching. */
static __always_inline void unwindlab_exit_to_user_mode(void)
{
	arch_exit_to_user_mode();
	if (static_branch_unlikely(&unwindlab_key))
		unwindlab_user_left();
}
#undef arch_exit_to_user_mode
#define arch_exit_to_user_mode unwindlab_exit_to_user_mode

#endif /* CONFIG_UNWINDLAB */

#endif /* _ASM_X86_UNWINDLAB_H */
