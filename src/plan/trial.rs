//! A trial with everything resolved: what an executor needs, and nothing it has to guess.

use serde::{Deserialize, Serialize};
use unwindlab_abi::Command;
use unwindlab_abi::plan::GuestPlan;

use super::exit::ExitPlan;

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
    /// The machine's performance counters.
    pub pmu: PmuPlan,
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
    /// Where vCPUs are to be preempted at random, in trials of their own.
    pub explore: Option<ExplorePlan>,
}

/// An exploration: trials with random preemptions (see `runner::explore`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplorePlan {
    /// What the choices follow from.
    pub seed: u64,
    /// How many trials.
    pub trials: u32,
    /// Preemptions in each.
    pub preemptions: u32,
    /// Instructions at which a vCPU may be stopped.
    pub places: Vec<u64>,
}

/// Which performance counters the machine has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PmuPlan {
    /// None.
    #[default]
    None,
    /// The VMM's, whose overflows are injected.
    Synthetic {
        /// Addresses of the kernel's `RDPMC` instructions.
        rdpmc: Vec<u64>,
    },
    /// The host's.
    Host,
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
    /// Address of the pointer to the ring of the kernel's messages (`prb`, kernel/printk/printk.c), where it has one symbol
    /// of that name.
    pub printk: Option<u64>,
}

/// One line of a scenario's `inject`, or one point of its `schedule`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InjectionPlan {
    /// What it is called in messages.
    pub name: String,
    /// When and where.
    pub trigger: TriggerPlan,
    /// Indices of earlier injections: each time that all of them are made, this one may be once.
    pub after: Vec<u32>,
    /// What.
    pub action: ActionPlan,
    /// The vCPU that it is done to; none: the one that met the trigger.
    pub target: Option<u8>,
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ActionPlan {
    /// One NMI into the vCPU.
    Nmi,
    /// One overflow of the performance counter that the guest has enabled, and its NMI.
    PmuOverflow,
    /// The function that is about to be called returns this instead.
    Fail {
        /// The value.
        returns: i64,
    },
    /// One interrupt by the vCPU's local APIC.
    Irq {
        /// Its vector.
        vector: u8,
    },
    /// The vCPU stands still until thawed.
    Freeze {
        /// Longest time; then all is let go and the trial wound up. Milliseconds.
        limit_ms: u64,
    },
    /// The vCPU goes on.
    Thaw,
    /// The vCPU stands still until [`ActionPlan::EndPreemption`], or for so long.
    Preempt {
        /// Milliseconds.
        limit_ms: u64,
    },
    /// The vCPU goes on, if it stands still.
    EndPreemption,
    /// A variable of the kernel gets another value.
    Poke(PokePlan),
    /// A frame pointer of the thread that met the trigger leads nowhere until its iteration ends.
    Corrupt {
        /// Beside the return address of this frame, from 1.
        frame: u32,
        /// What it becomes.
        with: Corruption,
    },
    /// The agent's helper does something to a workload thread.
    Guest {
        /// What.
        command: Command,
        /// Which; none: the one that met the trigger.
        thread: Option<u32>,
    },
    /// A point of a schedule: passed in its turn; a vCPU that is early stands still.
    Pass {
        /// Which point of the schedule, from 0.
        turn: u32,
        /// How many points the schedule has.
        of: u32,
        /// As for [`ActionPlan::Freeze`].
        limit_ms: u64,
    },
}

/// What becomes of a frame pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Corruption {
    /// It leads to its own frame.
    Loop,
    /// It leads to where nothing is mapped.
    Wild,
    /// It leads into the middle of a word.
    Unaligned,
}

/// Which variable, and its new value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PokePlan {
    /// Its address, or what to add to a CPU's GS base for the address of its copy.
    pub address: u64,
    /// The CPU whose copy is meant; none for a variable there is one of.
    pub cpu: Option<u8>,
    /// 1, 2, 4 or 8.
    pub bytes: u8,
    /// The value.
    pub value: u64,
}

/// When an injection is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TriggerPlan {
    /// A task is about to execute an instruction.
    Arrival(ArrivalPlan),
    /// Periodically, wherever the vCPU is.
    Rate {
        /// Microseconds between two injections into the same vCPU.
        period_us: u64,
        /// Injections per vCPU.
        count: u64,
        /// The vCPUs.
        vcpus: Vec<u8>,
    },
    /// Some time after the start of the workload, or after the injection it is to follow; with
    /// none, in the same stop of the vCPU.
    Delay {
        /// Microseconds.
        micros: u64,
        /// How often, where it follows one that is made often.
        repeat: u64,
    },
    /// Something is seen from outside.
    Event {
        /// What.
        event: EventPlan,
        /// Which one of its kind, from 1.
        hit: u64,
        /// At how many, one after the other.
        repeat: u64,
    },
}

/// An instruction, and who must be about to execute it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrivalPlan {
    /// The instruction.
    pub place: Place,
    /// Which iteration of the workload (arm mark) is the first that counts, from 1.
    pub first: u64,
    /// Which arrival within the iteration, from 1.
    pub hit: u64,
    /// In how many iterations.
    pub repeat: u64,
    /// How many times in a row at each arrival: the second when the first one's handler has
    /// returned to the instruction, and so on.
    pub times: u32,
    /// In the n-th of the iterations, n - 1 instruction boundaries after the arrival. It ends
    /// early when an iteration does before it comes to the boundary that is due.
    pub sweep: bool,
    /// Whose arrivals count.
    pub by: By,
    /// On which vCPU; none: on any.
    pub vcpu: Option<u8>,
    /// Inside an NMI's handler instead of outside of one.
    pub in_nmi: bool,
    /// The trial does not wait for it, and nothing is amiss where it is not made.
    pub optional: bool,
}

impl ArrivalPlan {
    /// The first arrival of a workload thread, once, in whichever iteration has one.
    #[must_use]
    pub const fn first(place: Place) -> Self {
        Self {
            place,
            first: 1,
            hit: 1,
            repeat: 1,
            times: 1,
            sweep: false,
            by: By::Workload,
            vcpu: None,
            in_nmi: false,
            optional: false,
        }
    }
}

/// Whose arrivals at a place count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum By {
    /// Those of workload threads between their arm mark and the next one.
    Workload,
    /// Those of this one.
    Thread(u32),
    /// Every task's, at any time; there are no iterations then.
    Any,
}

/// What can be seen from outside of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventPlan {
    /// A record of this `PERF_RECORD_*` type in a ring of perf.
    Record(u32),
    /// A record of this kind in the log of the lab client.
    Lab(u8),
    /// A mark of a workload thread, by [`unwindlab_abi::mark`].
    Mark(u8),
    /// An exit of a vCPU.
    Exit(ExitPlan),
}

impl EventPlan {
    /// Whether `seen` is what is waited for.
    #[must_use]
    pub fn covers(&self, seen: &Self) -> bool {
        match (self, seen) {
            (Self::Exit(exit), Self::Exit(seen)) => exit.covers(seen),
            _ => self == seen,
        }
    }
}

impl TriggerPlan {
    /// Whether it may end with fewer injections than it is allowed: how far a sweep has to go, the
    /// code decides.
    #[must_use]
    pub const fn may_end_early(&self) -> bool {
        matches!(self, Self::Arrival(ArrivalPlan { sweep: true, .. }))
    }

    /// Whether an arrival may end before all its injections are made, and count for nothing: an
    /// interrupt at a boundary of a burst may return to it past the breakpoint (TCG pushes RF with
    /// one), and the iteration is over before the rest is due.
    #[must_use]
    pub const fn may_break_off(&self) -> bool {
        matches!(self, Self::Arrival(ArrivalPlan { times: 2.., .. }))
    }

    /// How many injections it makes, at most if it may end early.
    #[must_use]
    pub fn injections(&self) -> u64 {
        match self {
            Self::Arrival(at) => at.repeat.saturating_mul(u64::from(at.times)),
            Self::Rate { count, vcpus, .. } => count.saturating_mul(vcpus.len() as u64),
            Self::Delay { repeat, .. } | Self::Event { repeat, .. } => *repeat,
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
