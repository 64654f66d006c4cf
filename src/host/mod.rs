//! Choosing and starting the KVM host: where a trial's machine gets its KVM from, and what is put
//! into the machines.

pub mod agent;
pub mod channel;
pub mod choice;
pub mod closure;
pub mod console;
pub mod cpio;
pub mod deterministic;
pub mod doctor;
pub mod emulated;
pub mod first_cpu;
pub mod init;
pub mod initramfs;
pub mod lab;
pub mod native;
mod outbox;
pub mod perf_tool;

use crate::runner::TrialProgress;

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
