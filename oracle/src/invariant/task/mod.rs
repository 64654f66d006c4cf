//! X: the life cycle of tasks: exit, fork, exec, kernel threads.

pub(super) mod lab_log;
pub(super) mod x1_exit_answered;
pub(super) mod x2_exiting_refused;
pub(super) mod x3_fork_clean;
pub(super) mod x4_exec;
pub(super) mod x5_kernel_threads;
pub(super) mod x6_early_answer;
pub(super) mod x7_no_leak;
