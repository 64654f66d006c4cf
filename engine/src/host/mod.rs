//! The KVM hosts, and what is put into their machines: [`native`] runs trials in this process,
//! [`emulated`] sends them to a Linux in QEMU.

mod closure;
pub mod emulated;
pub mod native;
pub mod perf_tool;

use crate::plan::TrialProgress;

/// A running trial's progress in a few words.
fn progress_line(scenario: &str, progress: &TrialProgress) -> String {
    let TrialProgress {
        stage,
        injected,
        planned,
        ..
    } = progress;
    format!(
        "{scenario}: {}, {injected} of {planned} injections",
        stage.word()
    )
}
