//! Choosing and starting the KVM host: where a trial's machine gets its KVM from, and what is put
//! into the machines.
//!
//! [`choice`] asks the probe, [`this_machine`] starts the host that it names: `native`, which
//! runs trials in this process, or [`emulated`], which sends them to a Linux in QEMU.

mod cached_kernel;
pub mod choice;
mod closure;
mod doctor;
pub mod emulated;
pub mod kernel_request;
mod native;
mod perf_tool;
pub mod provider;
pub mod this_machine;

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
