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
//!   at one arrival at one kernel instruction: the handler of the first returned to it, and it
//!   had not been executed when the second came. (A D of the task between them shows that it was
//!   executed after all; then nothing is proved.)
//! * The answer. It is written on the way out of the entry that it was asked for in (that it is,
//!   M1 and S4 check), so between S(c) and D(c) the task did not leave, and other requests
//!   meanwhile are of that entry. An S(c) in user mode, or behind the exit path's reset, is
//!   followed by the self-IPI's entry at once, which has the same cookie.
//!
//! The window after the exit path's reset, in which a request may get a new cookie, lies behind
//! `sys_exit`, so no bracket of markers holds it; and no reset is done while an answer is
//! pending. An arrival may lie in it, but then all its requests are made in the same state.

mod one_entry;
mod separated;

pub(crate) use one_entry::OneEntry;
