//! A trial with everything resolved: what an executor needs, and nothing it has to guess.

use serde::{Deserialize, Serialize};
use unwindlab_abi::plan::GuestPlan;

/// One trial. Made from a scenario and a kernel; crosses to the KVM host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialPlan {
    /// The scenario's name, for messages.
    pub scenario: String,
    /// Content hash of the kernel to boot, by which the executor finds its image.
    pub kernel: String,
    /// vCPUs, 1 to 8.
    pub vcpus: u8,
    /// Guest RAM in MiB.
    pub memory_mib: u32,
    /// Words added to the harness's own kernel command line.
    pub cmdline: String,
    /// The agent's part.
    pub guest: GuestPlan,
    /// Injections, in the order of the scenario.
    pub injections: Vec<InjectionPlan>,
    /// Run on for this long after the last injection (or after the start where there is none)
    /// before the workload is told to stop. Milliseconds of the KVM host's clock.
    pub settle_ms: u64,
    /// When to give up.
    pub limits: Limits,
    /// Kernel addresses the executor needs whatever the scenario injects.
    pub symbols: KernelAddresses,
}

/// When to give up; all in milliseconds of the KVM host's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// From the start of the machine to the agent's `Ready`.
    pub boot_ms: u64,
    /// From `Ready` to the end.
    pub run_ms: u64,
}

/// Addresses and per-CPU offsets from the kernel's symbol table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelAddresses {
    /// Offset of the per-CPU `current_task` from the CPU's GS base: tells which task runs.
    pub current_task: u64,
}

/// One line of a scenario's `inject`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InjectionPlan {
    /// When and where.
    pub trigger: TriggerPlan,
    /// What.
    pub action: ActionPlan,
}

/// What is done to the vCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ActionPlan {
    /// One NMI into the vCPU that met the trigger.
    Nmi,
    /// The function that is about to be called returns this instead.
    Fail {
        /// The value.
        returns: i64,
    },
}

/// When an injection is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TriggerPlan {
    /// A workload thread, between its arm mark and its next one, is about to execute the
    /// instruction at `place`.
    Arrival {
        /// The instruction.
        place: Place,
        /// Which iteration of the workload (arm mark) is the first that counts, from 1.
        first: u64,
        /// Which arrival within the iteration, from 1.
        hit: u64,
        /// In how many iterations.
        repeat: u64,
        /// How many times in a row at each arrival: the second when the first one's handler has
        /// returned to the instruction, and so on.
        times: u32,
        /// In the n-th of the iterations, n - 1 instruction boundaries after the arrival. It ends
        /// early when an iteration does before it comes to the boundary that is due.
        sweep: bool,
    },
    /// Periodically, wherever the vCPU is.
    Rate {
        /// Microseconds between two injections into the same vCPU.
        period_us: u64,
        /// Injections per vCPU.
        count: u64,
        /// The vCPUs.
        vcpus: Vec<u8>,
    },
}

impl TriggerPlan {
    /// Whether it may end with fewer injections than it is allowed: how far a sweep has to go, the
    /// code decides.
    #[must_use]
    pub const fn may_end_early(&self) -> bool {
        matches!(self, Self::Arrival { sweep: true, .. })
    }

    /// How many injections it makes, at most if it may end early.
    #[must_use]
    pub fn injections(&self) -> u64 {
        match self {
            Self::Arrival { repeat, times, .. } => repeat.saturating_mul(u64::from(*times)),
            Self::Rate { count, vcpus, .. } => count.saturating_mul(vcpus.len() as u64),
        }
    }
}

/// An instruction in the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// Kernel text, resolved from the kernel's symbols.
    Kernel {
        /// Virtual address.
        address: u64,
    },
    /// User text, resolved from the symbols that the agent announces.
    User {
        /// Symbol name.
        symbol: String,
        /// Bytes from its start.
        offset: u64,
    },
}
