//! Measurements: what the command asks of the KVM host, and what the KVM host answers.

use serde::{Deserialize, Serialize};

use super::{MachineSpec, TrialPlan};

/// A VMM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Vmm {
    /// This program's.
    Ours,
    /// QEMU's machine type `microvm`.
    Qemu,
}

/// One measurement to make on the KVM host. The answer is [`MeasuredFigures`] or [`NotMeasured`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Measurement {
    /// Start a VMM, wait for the agent's first word, read the process's memory use, end it.
    Start {
        /// The VMM.
        vmm: Vmm,
        /// The machine it runs.
        machine: MachineSpec,
    },
    /// Start a VMM and save the machine at the agent's first word. Then, repeatedly, let the
    /// machine run for a while, stop it, and restore it.
    Restore {
        /// The VMM.
        vmm: Vmm,
        /// The machine it runs.
        machine: MachineSpec,
        /// Number of restores.
        times: u32,
        /// Milliseconds that the machine runs before each restore.
        run_ms: u64,
    },
    /// Boot a machine for one trial, run the trial, and drop the machine.
    Trial(Box<TrialPlan>),
}

/// What was measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MeasuredFigures {
    /// Of [`Measurement::Start`].
    Started {
        /// Microseconds from the start of the process to the agent's first word.
        micros: u64,
        /// Resident memory of the process without the guest's RAM, in KiB.
        beyond_kib: u64,
        /// Resident memory that is the guest's RAM, in KiB.
        guest_kib: u64,
        /// The part of `beyond_kib` that no file backs.
        anonymous_kib: u64,
    },
    /// Of [`Measurement::Restore`].
    Restored {
        /// Microseconds of each restore.
        micros: Vec<u64>,
        /// Pages that each restore copied, if the VMM reports them.
        copied: Vec<u64>,
        /// The part of `micros` that one request takes, in microseconds, for a VMM that is
        /// controlled through a channel.
        asking: Option<u64>,
    },
    /// Of [`Measurement::Trial`].
    Tried {
        /// Microseconds from the start of the boot to the end of the trial.
        micros: u64,
    },
}

/// Why a measurement was not made, in one line. Text, because it crosses the channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{0}")]
pub struct NotMeasured(pub String);
