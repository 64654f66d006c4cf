//! What an executor records of one trial, undecoded.
//!
//! Decoding, judging and reporting a trial need nothing else, so a stored recording can be judged
//! again.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use unwindlab_abi::message::{EventAnnounce, Program, RingAnnounce, ThreadAnnounce, UserSymbol};
use unwindlab_abi::plan::Tracing;
use unwindlab_abi::{Observation, SurveyedPlace};

use super::lab::LabLog;
use super::tracefs::TracefsLog;
use super::user_mode::UserModeLog;
use super::witness::Witness;

/// One trial as it was recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recording {
    /// `uname -r` of the guest; empty if the guest never sent it.
    pub release: String,
    /// vCPUs of the machine.
    pub vcpus: u32,
    /// The events that the plan asks for.
    pub tracing: Option<Tracing>,
    /// What the plan writes to which file below `/proc/sys/kernel`.
    #[serde(default)]
    pub sysctls: Vec<(String, String)>,
    /// The rings that were announced.
    pub rings: Vec<RingAnnounce>,
    /// The events that were opened.
    pub events: Vec<EventAnnounce>,
    /// Everything each ring held, in ring order, by ring number: whole records up to the last
    /// one read.
    pub ring_bytes: Vec<RingBytes>,
    /// The log of the kernel's lab client, if it was announced.
    pub lab: Option<LabLog>,
    /// What unwinding in user mode wrote, if it was set up.
    #[serde(default)]
    pub user_mode: Option<UserModeLog>,
    /// What instances of tracefs held, if there were any.
    #[serde(default)]
    pub tracefs: Option<TracefsLog>,
    /// Returns to user mode, if they were noted.
    #[serde(default)]
    pub witness: Option<Witness>,
    /// Workload threads and their stacks.
    pub threads: Vec<ThreadAnnounce>,
    /// Names of user text.
    pub user_symbols: Vec<UserSymbol>,
    /// The stacks that are known at every instruction of the workload.
    #[serde(default)]
    pub program: Program,
    /// Injections, in the order they were made.
    pub injections: Vec<Injection>,
    /// Calls of kernel functions that were made to fail, in order.
    #[serde(default)]
    pub failures: Vec<Injection>,
    /// Everything else that was done, in order, besides NMIs and calls that failed.
    #[serde(default)]
    pub actions: Vec<Injection>,
    /// How often the places of injections were passed.
    #[serde(default)]
    pub points: Vec<Point>,
    /// Waits for a page of a thread's stack, in order.
    #[serde(default)]
    pub blocks: Vec<Block>,
    /// A vCPU that nothing let go on in time.
    #[serde(default)]
    pub stood_still: Option<StoodStill>,
    /// What else the agent observed.
    #[serde(default)]
    pub observations: Vec<Observation>,
    /// What the workload passed in the kernel, if that was asked for.
    #[serde(default)]
    pub survey: Vec<SurveyedPlace>,
    /// The text that the distribution's perf printed of its own recording, if it recorded.
    #[serde(default)]
    pub perf_script: Option<String>,
    /// Progress counters by thread, read from guest memory when the first injection was made
    /// and when the trial ended.
    pub progress: Vec<ThreadProgress>,
    /// Kernel log lines, as the agent read them after the workload.
    pub kernel_log: String,
    /// Everything the guest wrote to its serial console.
    pub console: String,
    /// What the KVM host printed before it was lost: the outer machine's console, or a process's errors. It says nothing of
    /// the kernel under test.
    #[serde(default)]
    pub host_console: String,
    /// How the machine died that was started before this one, before it had come to its agent.
    #[serde(default)]
    pub restarted: Option<String>,
    /// Which places of a kernel with many mutants were executed in the trial, a byte each: 0 or 1. Empty for any other
    /// kernel.
    #[serde(default)]
    pub reached: Vec<u8>,
    /// The same before the trial: in the boot.
    #[serde(default)]
    pub reached_before: Vec<u8>,
    /// How the trial ended.
    pub end: TrialEnd,
    /// The file that the distribution's perf wrote, if it recorded.
    #[serde(default)]
    pub perf_data: Option<Vec<u8>>,
}

impl Recording {
    /// Hash of everything in it, in hexadecimal: two recordings with one hash are the same.
    #[must_use]
    pub fn sha256(&self) -> Option<String> {
        let bytes = postcard::to_allocvec(self).ok()?;
        let digest = Sha256::digest(&bytes);
        Some(digest.iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// The bytes that one ring produced over the whole trial.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingBytes {
    /// The ring's number.
    pub ring: u32,
    /// Where in the ring the first of them begins, counted as `data_head` is.
    #[serde(default)]
    pub begin: u64,
    /// Record after record, wrap removed.
    pub bytes: Vec<u8>,
    /// Set when the control page held an impossible value (a head behind the tail or more than a
    /// ring ahead of it): nothing after that is trusted.
    pub corrupt: Option<String>,
}

/// One injection that was made and confirmed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Injection {
    /// Index of the injection in the scenario.
    pub spec: u32,
    /// The vCPU.
    pub vcpu: u32,
    /// Where the vCPU stood: the NMI is taken before this instruction.
    pub rip: u64,
    /// Current privilege level there: 0 or 3.
    pub cpl: u8,
    /// Workload thread known to be current there, where the trigger was armed by one.
    pub thread: Option<u32>,
    /// How many iterations (arm marks) that thread had begun, where known.
    pub iteration: Option<u64>,
    /// The vCPU stood there for this injection, not in the handler of an NMI and not right after
    /// an `sti`: an NMI is taken before this very instruction.
    #[serde(default)]
    pub exact: bool,
    /// An interrupt was pending in the vCPU: the CPU takes it when the NMI's handler has returned,
    /// if interrupts are on there.
    #[serde(default)]
    pub interrupt_waits: bool,
    /// The stack pointer where the vCPU stood.
    #[serde(default)]
    pub stack_pointer: u64,
}

/// How often the place of one injection was passed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Point {
    /// Index of the injection in the scenario.
    pub spec: u32,
    /// The arrival that the plan asks for.
    pub hit: u64,
    /// Iterations of workload threads in which arrivals counted.
    pub iterations: u64,
    /// Arrivals in the iteration with the fewest.
    pub least: u64,
    /// Arrivals in the iteration with the most.
    pub most: u64,
    /// Arrivals so far in iterations that have not ended.
    pub unfinished: u64,
    /// Arrivals that did not count: of other tasks, on other vCPUs, inside an NMI's handler.
    pub others: u64,
    /// A sweep came to its end: an iteration was over before the next boundary came.
    #[serde(default)]
    pub swept: bool,
}

/// A wait for a page of a thread's stack that the harness made block.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Block {
    /// The thread whose stack the page is of.
    pub thread: u32,
    /// The thread was in an iteration, in which its own code does not touch the page: the kernel
    /// did.
    pub in_kernel: bool,
    /// Every thread's progress when the wait began. Where the release has a delay, that of the other threads is of the end of
    /// that delay.
    pub progress_before: Vec<u64>,
    /// The same right before the host let the page go; empty if it never did.
    pub progress_after: Vec<u64>,
    /// Records in every ring when the wait began.
    pub records_before: Vec<usize>,
    /// The same right before the host let the page go.
    pub records_after: Vec<usize>,
}

/// How far one workload thread got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ThreadProgress {
    /// The thread.
    pub thread: u32,
    /// Its counter at the first injection.
    pub at_first_injection: u64,
    /// Its counter after the last injection, before the stop word was written.
    pub at_last_injection: u64,
    /// Its counter at the end.
    pub at_end: u64,
}

/// Where a vCPU stood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VcpuPlace {
    /// The vCPU.
    pub vcpu: u32,
    /// The next instruction's address.
    pub rip: u64,
    /// Current privilege level: 0 or 3.
    pub cpl: u8,
    /// An interrupt is pending.
    #[serde(default)]
    pub interrupt_waits: bool,
    /// Its stack pointer.
    #[serde(default)]
    pub stack_pointer: u64,
}

/// A vCPU that an injection made stand still, and that nothing let go on in time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoodStill {
    /// The vCPU.
    pub vcpu: u8,
    /// For how long, in milliseconds.
    pub ms: u64,
    /// The injection's name.
    pub by: String,
    /// Where all vCPUs were then.
    pub places: Vec<VcpuPlace>,
}

/// How a trial ended, before anything is judged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TrialEnd {
    /// The agent said goodbye.
    Completed,
    /// The kernel under test lacks the feature, says the agent.
    Unsupported {
        /// In the agent's words.
        reason: String,
    },
    /// This KVM host lacks what the trial needs.
    HostLacks {
        /// What.
        reason: String,
    },
    /// The guest did what no agent does: it did not keep to the protocol or to its plan.
    Misbehaved {
        /// What it did.
        what: String,
    },
    /// The guest kernel panicked or oopsed.
    Panic {
        /// The line that says so.
        line: String,
    },
    /// The guest died without a word, or of an `int3` that its kernel had taken away, on a KVM host that may have done it.
    Silent {
        /// How.
        line: String,
    },
    /// No vCPU made progress, or the workload did not end in time.
    Hang {
        /// Where every vCPU stood.
        places: Vec<VcpuPlace>,
    },
    /// The same, on a KVM host that waited for a CPU nearly all of the time: a guest that gets none comes no further, whatever
    /// its kernel does.
    Starved {
        /// Where every vCPU stood.
        places: Vec<VcpuPlace>,
        /// Of the time in which the host's threads wanted a CPU, how many percent they waited for one.
        percent: u64,
    },
    /// The trial's time ran out while the guest was still making progress.
    Timeout,
    /// The guest never reached the agent's `Ready`.
    BootError {
        /// Why.
        reason: String,
        /// Where every vCPU stood, if it still ran.
        places: Vec<VcpuPlace>,
    },
    /// The harness or the KVM host failed; nothing can be said about the kernel.
    #[default]
    Unknown,
    /// The harness or the KVM host failed, and how.
    Infra {
        /// Why.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_recording_has_another_hash() {
        let of = |vcpus| {
            let recording = Recording {
                vcpus,
                ..Recording::default()
            };
            recording.sha256().unwrap()
        };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        let is_hash = of(1).len() == 64 && of(1).bytes().all(|it| it.is_ascii_hexdigit());
        assert!(is_hash, "{}", of(1));
    }
}
