//! What the trace proves about kernel entries. A cookie alone is never the proof.
//!
//! Two records of a task are of one entry if no user instruction retired between them, and of
//! different ones if the task left the kernel in between, its exit work included. What proves it:
//!
//! * The witness ([`super::returns`]): the VMM notes each return to user mode with what had been
//!   written by then. No return between two records: one entry. A return is not enough for the
//!   opposite: what is asked for behind the exit work, where interrupts stay off, or by an NMI in
//!   user mode, is answered by the entry that its self-interrupt makes, before a user instruction
//!   retires. So it takes one return more than those that go without exit work.
//! * The kernel chain of a sample ([`origin`]) says in which kind of entry it was made, and how far
//!   in it.
//! * The `raw_syscalls` markers. `sys_enter` is written once near the start of a system call (not
//!   if a tracer or seccomp denies it), `sys_exit` once after its body and before the exit work
//!   (include/linux/entry-common.h, `syscall_exit_work`); a new task begins with a `sys_exit`.
//!   Between a `sys_exit` and the next marker of a task, or between two `sys_enter`, a `syscall`
//!   instruction was executed in user mode. Between a `sys_enter` and the `sys_exit` that follows
//!   it none was. One `sys_enter` between two records proves different entries only if the first
//!   was past its own, one `sys_exit` only if the second is before its own. No marker between
//!   proves nothing outside of such a pair: an answer after the `sys_exit` may be one after the
//!   return.
//! * The injection log (see [`super::injections`]). A workload thread begins an iteration in user
//!   mode.
//! * The lab client's log has its own count of returns ([`super::lab`]).
//!
//! For a violation it is enough that a right kernel cannot show it. So [`OneEntry`] also has the
//! requests before the answer to the first of them: a right kernel answers on the way out of the
//! entry. A wrong one may not, so this is no evidence that anything holds.
//!
//! A request after the exit path's reset may get a new cookie. That window lies after `sys_exit`,
//! so no bracket of markers contains it, and the kernel does not reset while an answer is pending.

mod code;
mod one_entry;
mod origin;
mod relation;
mod separated;
#[cfg(test)]
mod tests;

pub(crate) use code::Code;
pub use code::{EntryCode, KernelText};
pub(crate) use one_entry::OneEntry;
pub(crate) use origin::Origin;
pub(crate) use relation::{Relation, Together};
