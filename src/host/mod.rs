//! Choosing and starting the KVM host: where a trial's machine gets its KVM from, and what is put
//! into the machines.

pub mod channel;
pub mod choice;
pub mod closure;
pub mod console;
pub mod deterministic;
pub mod doctor;
pub mod emulated;
pub mod first_cpu;
pub mod init;
pub mod initramfs;
pub mod kernel_request;
pub mod native;
mod outbox;
pub mod perf_tool;
pub mod provider;
pub mod this_machine;

use crate::plan::TrialProgress;

/// A running trial's progress in a few words.
fn told(scenario: &str, progress: &TrialProgress) -> String {
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
