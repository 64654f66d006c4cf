//! What the trace proves about kernel entries. A cookie alone is never the proof.
//!
//! A trace has no record of the return to user mode. That user instructions ran between two
//! records of a task, or that none did, is proved by one of these:
//!
//! * The `raw_syscalls` markers. `sys_enter` is written once near the start of a system call,
//!   `sys_exit` once after its body and before the exit work (include/linux/entry-common.h,
//!   `syscall_exit_work`). Between a `sys_exit` and the next `sys_enter` of a task, or between
//!   two `sys_enter`, a `syscall` instruction was executed in user mode. Between a `sys_enter`
//!   and the `sys_exit` that follows it none was.
//! * The injection log (see [`super::injections`]). A workload thread begins an iteration in user
//!   mode. And two injections of one line of the scenario in one iteration of a thread are made
//!   at one arrival at one kernel instruction: the handler of the first returned to that
//!   instruction, which had not been executed when the second came. (A D of the task between them
//!   shows that it was executed after all; then nothing is proved.)
//! * The answer. The kernel writes it on the way out of the entry in which it was requested (M1
//!   and S4 check that), so the task did not leave between S(c) and D(c), and other requests in
//!   between are of that entry. The self-IPI's entry follows an S(c) in user mode, or after the
//!   exit path's reset, at once, and has the same cookie.
//!
//! A request after the exit path's reset may get a new cookie. That window lies after `sys_exit`,
//! so no bracket of markers contains it, and the kernel does not reset while an answer is pending.
//! An arrival may lie in it, but then all its requests are made in the same state.

mod one_entry;
mod separated;

pub(crate) use one_entry::OneEntry;
