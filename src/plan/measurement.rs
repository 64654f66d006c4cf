//! What crosses to the KVM host for a measurement, and what comes back.

use serde::{Deserialize, Serialize};

use super::{InfraError, MachineSpec, TrialPlan};

/// A VMM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Vmm {
    /// This program's.
    Ours,
    /// QEMU's machine type `microvm`.
    Qemu,
}

/// One measurement, to be carried out on the KVM host. Answered by [`Measured`] or
/// [`MeasurementError`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Start a VMM, wait for the agent's first word, look at the process's memory, end it.
    Start {
        /// Which.
        vmm: Vmm,
        /// With which machine.
        machine: MachineSpec,
    },
    /// Start a VMM, save the machine at the agent's first word, and then again and again let it run for a
    /// while, stop it, and put it back.
    Restore {
        /// Which.
        vmm: Vmm,
        /// With which machine.
        machine: MachineSpec,
        /// How often.
        times: u32,
        /// Milliseconds that it runs each time.
        run_ms: u64,
    },
    /// Boot a machine for one trial, make that, and drop the machine.
    Trial(Box<TrialPlan>),
}

/// What was measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Measured {
    /// Of [`Order::Start`].
    Started {
        /// From the start of the process to the agent's first word, in microseconds.
        micros: u64,
        /// Resident memory of the process but for the guest's RAM, in KiB.
        beyond_kib: u64,
        /// Resident memory that is the guest's RAM, in KiB.
        guest_kib: u64,
        /// Part of `beyond_kib` that is of no file.
        anonymous_kib: u64,
    },
    /// Of [`Order::Restore`].
    Restored {
        /// Of each restore, in microseconds.
        micros: Vec<u64>,
        /// Pages that each copied, where the VMM tells.
        copied: Vec<u64>,
        /// What asking costs, in microseconds, where the VMM is asked through a channel; part of
        /// `micros`.
        asking: Option<u64>,
    },
    /// Of [`Order::Trial`].
    Tried {
        /// From nothing to the end of the trial, in microseconds.
        micros: u64,
    },
}

/// A measurement could not be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{reason}")]
pub struct MeasurementError {
    /// Why, in one line.
    pub reason: String,
}

impl From<InfraError> for MeasurementError {
    fn from(error: InfraError) -> Self {
        Self {
            reason: error.reason,
        }
    }
}
