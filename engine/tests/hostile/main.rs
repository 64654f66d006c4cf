//! A guest that attacks what runs it: each attack has the outcome that docs/hostile-guest.md says, none is taken for a
//! pass, for a skip that counts as good, or for the host's failure.
//!
//! Needs /dev/kvm; the guest has no kernel, so any will do.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "an integration test is a test module as a whole"
)]

mod attacks;
mod guest;
mod plan;
mod scribbled;

use std::collections::HashMap;
use std::path::Path;

use unwindlab_engine::host::native::{MachineBuilder, Native};
use unwindlab_oracle::trace::recording::{Recording, TrialEnd};

use plan::{HOSTILE, plan};

/// A KVM host for the program in a file.
fn host(program: &Path) -> Native {
    let kvm =
        unwindlab_vmm::open_kvm().unwrap_or_else(|error| panic!("this test needs KVM: {error}"));
    let kernels = HashMap::from([(HOSTILE.to_owned(), program.to_owned())]);
    Native::new(MachineBuilder::new(kvm, kernels, None).unwrap(), None)
}

/// The outcome that follows from a recording, and why. A trial that completed is judged; its rings are what this guest
/// can break.
fn outcome(recording: &Recording) -> (&'static str, String) {
    let corrupt = recording
        .ring_bytes
        .iter()
        .find_map(|it| it.corrupt.clone());
    match (&recording.end, corrupt) {
        (TrialEnd::Completed, Some(why)) => ("fail", why),
        (TrialEnd::Completed, None) => ("judged", String::new()),
        (TrialEnd::Unsupported { reason }, _) => ("guest-skip", reason.clone()),
        (TrialEnd::HostLacks { reason }, _) => ("skip", reason.clone()),
        (TrialEnd::Misbehaved { what }, _) => ("guest-misbehaved", what.clone()),
        (TrialEnd::Panic { line }, _) => ("guest-panic", line.clone()),
        (TrialEnd::Hang { .. }, _) => ("hang", String::new()),
        (TrialEnd::Timeout, _) => ("timeout", String::new()),
        (TrialEnd::BootError { reason, .. }, _) => ("boot-error", reason.clone()),
        (TrialEnd::Infra { reason }, _) => ("infra-error", reason.clone()),
        (TrialEnd::Silent { line }, _) => ("infra-error", line.clone()),
        (TrialEnd::Starved { .. }, _) => ("infra-error", "starved".to_owned()),
        (TrialEnd::Unknown, _) => ("infra-error", "unknown".to_owned()),
    }
}

/// The most memory that this process ever had, in KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|it| it.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
