//! The KVM hosts, and what is put into their machines: [`native`] runs trials on this kernel's KVM, [`emulated`] in a Linux in QEMU,
//! [`emulated_intel`] in one in Bochs.
//!
//! Each is a [`process`] that touches guests so that the command does not. The command's side: `conversation` is an order and its answers,
//! `console` what the process prints. The process's side: `serve`, with `self_test`. Both speak the language of [`channel`], and measure
//! their clocks (`timekeeping`). `waiting` is whether they got a CPU.

pub mod channel;
mod closure;
mod console;
mod conversation;
pub mod emulated;
pub mod emulated_intel;
pub mod native;
pub mod perf_tool;
pub mod process;
mod self_test;
mod serve;
mod timekeeping;
mod waiting;

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
