//! A trial with everything resolved: an executor needs nothing else and guesses nothing.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unwindlab_abi::Command;
use unwindlab_abi::plan::GuestPlan;

use super::exit::ExitPlan;

/// One trial, resolved from a scenario and a kernel, as it is sent to the KVM host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialPlan {
    /// The scenario's name, for messages.
    pub scenario: String,
    /// Content hash of the kernel to boot; the executor finds the image by it.
    pub kernel: String,
    /// vCPUs, 1 to 8.
    pub vcpus: u8,
    /// Guest RAM in MiB.
    pub memory_mib: u32,
    /// Words appended to the harness's own kernel command line.
    pub cmdline: String,
    /// The machine's performance counters.
    pub pmu: PmuPlan,
    /// The agent's part.
    pub guest: GuestPlan,
    /// Injections, in the order of the scenario.
    pub injections: Vec<InjectionPlan>,
    /// How long the workload runs on.
    pub settle: Settle,
    /// When to give up.
    pub limits: Limits,
    /// Kernel addresses that the executor needs for every scenario.
    pub symbols: KernelAddresses,
    /// Random preemptions, in trials of their own.
    pub explore: Option<ExplorePlan>,
    /// Which returns to user mode to note; none: they are not noted.
    #[serde(default)]
    pub witness: Option<WitnessPlan>,
    /// Which mutant the kernel is to be, if it has many.
    #[serde(default)]
    pub choice: Option<ChoicePlan>,
}

/// How long a workload runs on behind the last injection, or its start if there is none, until it is told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Settle {
    /// It is not told to: it ends by itself.
    ItEnds,
    /// So many milliseconds by the KVM host's clock, up to ten times as many where no thread of it comes on.
    Ms(u64),
    /// Until each thread of it has come on; so many milliseconds at most where one of them has.
    Iterations {
        /// Milliseconds.
        most_ms: u64,
    },
}

/// Which mutant a kernel that has many is to be, and where it notes what it executes. Both are variables of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChoicePlan {
    /// The address of the number, 4 bytes.
    pub variable: u64,
    /// The mutant; 0: none.
    pub number: u32,
    /// The address of the notes, a byte for each place: 1 where it was executed.
    pub reached: u64,
    /// How many places there are.
    pub places: u32,
}

/// How returns to user mode are noted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WitnessPlan {
    /// The addresses of the kernel's instructions that return to user mode.
    pub sites: Vec<u64>,
    /// Most returns to note.
    pub most: u32,
    /// Offset of a task's `pid`, if it is known; otherwise it is found out from the first workload
    /// threads.
    pub task_pid: Option<u64>,
}

/// An exploration: trials with random preemptions (see `runner::explore`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplorePlan {
    /// Seed of all choices.
    pub seed: u64,
    /// Number of trials.
    pub trials: u32,
    /// Preemptions in each trial.
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
    /// Synthetic ones of the VMM, whose overflows are injected.
    Synthetic {
        /// Addresses of the kernel's `RDPMC` instructions.
        rdpmc: Vec<u64>,
    },
    /// Those of the KVM host.
    Host,
}

/// When to give up, in milliseconds of the KVM host's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// From the start of the machine to the agent's `Ready`.
    pub boot_ms: u64,
    /// From `Ready`, or the last injection for which the guest came to its place, to the end.
    pub run_ms: u64,
}

impl Limits {
    /// From `Ready` to the end, however often the guest comes to a place: how fast it does is the machine's doing.
    #[must_use]
    pub const fn run_ms_in_all(&self) -> u64 {
        self.run_ms.saturating_mul(4)
    }
}

/// Addresses and per-CPU offsets from the kernel's symbol table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelAddresses {
    /// Offset of the per-CPU `current_task` from the CPU's GS base; it identifies the running
    /// task.
    pub current_task: u64,
    /// Address of `prb` (kernel/printk/printk.c), the pointer to the kernel's message ring, if
    /// exactly one symbol has that name.
    pub printk: Option<u64>,
    /// Address of `entry_SYSENTER_compat`, to which `sysenter` leads, if the workload executes
    /// that.
    #[serde(default)]
    pub sysenter: Option<u64>,
}

/// One line of a scenario's `inject`, or one point of its `schedule`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InjectionPlan {
    /// Its name in messages.
    pub name: String,
    /// When and where to make it.
    pub trigger: TriggerPlan,
    /// Indices of earlier injections. Each time all of them have been made, this one may be made
    /// once.
    pub after: Vec<u32>,
    /// What to do.
    pub action: ActionPlan,
    /// The vCPU to do it to; none: the one that met the trigger.
    pub target: Option<u8>,
}

/// What an injection does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ActionPlan {
    /// Inject one NMI into the vCPU.
    Nmi,
    /// Overflow the performance counter that the guest has enabled, with its NMI.
    PmuOverflow,
    /// Make the function that is about to be called return a value instead.
    Fail {
        /// The value.
        returns: i64,
    },
    /// Raise one interrupt by the vCPU's local APIC.
    Irq {
        /// Its vector.
        vector: u8,
    },
    /// Stop the vCPU until it is thawed.
    Freeze {
        /// Longest time in milliseconds. After it all vCPUs go on and the trial is ended.
        limit_ms: u64,
    },
    /// Let the vCPU go on.
    Thaw,
    /// Stop the vCPU until [`ActionPlan::EndPreemption`], or until the time is over.
    Preempt {
        /// Longest time in milliseconds.
        limit_ms: u64,
    },
    /// Let the vCPU go on, if it is stopped.
    EndPreemption,
    /// Write a variable of the kernel.
    Poke(PokePlan),
    /// Make a frame pointer of the thread that met the trigger invalid until its iteration ends.
    Corrupt {
        /// The frame, from 1; the frame pointer is saved beside its return address.
        frame: u32,
        /// The invalid value.
        with: Corruption,
    },
    /// Have the agent's helper do something to a workload thread.
    Guest {
        /// What to do.
        command: Command,
        /// The thread; none: the one that met the trigger.
        thread: Option<u32>,
    },
    /// Pass a point of a schedule in its turn. A vCPU that is early waits.
    Pass {
        /// The point's number in the schedule, from 0.
        turn: u32,
        /// Number of points in the schedule.
        of: u32,
        /// Longest wait, as for [`ActionPlan::Freeze`].
        limit_ms: u64,
    },
}

/// An invalid value of a frame pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Corruption {
    /// The address of its own frame.
    Loop,
    /// An address above the stack, where nothing is mapped.
    Wild,
    /// An address that is not a multiple of the word size.
    Unaligned,
}

/// A variable of the kernel and its new value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PokePlan {
    /// The variable's address; for a per-CPU variable its offset from the CPU's GS base.
    pub address: u64,
    /// The CPU whose copy is written; none if the variable is not per-CPU.
    pub cpu: Option<u8>,
    /// Size: 1, 2, 4 or 8.
    pub bytes: u8,
    /// The new value.
    pub value: u64,
}

/// When an injection is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TriggerPlan {
    /// A task is about to execute an instruction, or has accessed a field.
    Arrival(ArrivalPlan),
    /// Periodically, wherever the vCPU executes.
    Rate {
        /// Microseconds between two injections into the same vCPU.
        period_us: u64,
        /// Injections per vCPU.
        count: u64,
        /// The vCPUs.
        vcpus: Vec<u8>,
        /// Whether the time grows as long as the workload does not come on.
        #[serde(default)]
        backs_off: bool,
    },
    /// Some time after the start of the workload or after the injection that it follows. Time 0
    /// means in the same stop of the vCPU.
    Delay {
        /// Microseconds.
        micros: u64,
        /// How often, if it follows an injection that is made often.
        repeat: u64,
    },
    /// The harness sees an event.
    Event {
        /// The event.
        event: EventPlan,
        /// The number of the first such event that counts, from 1.
        hit: u64,
        /// At how many consecutive events.
        repeat: u64,
    },
}

/// An instruction, and which task must be about to execute it; or an access, and which task must have
/// made it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrivalPlan {
    /// The instruction or the access.
    pub place: CodePlace,
    /// The first iteration of the workload (arm mark) that counts, from 1.
    pub first: u64,
    /// Which arrival within the iteration, from 1.
    pub hit: u64,
    /// In how many iterations.
    pub repeat: u64,
    /// How many times in a row at each arrival; each further one when the handler of the one
    /// before has returned to the instruction.
    pub times: u32,
    /// In the n-th iteration, inject n - 1 instruction boundaries after the arrival. This ends
    /// early if an iteration ends before it comes to its boundary.
    pub sweep: bool,
    /// The tasks whose arrivals count.
    pub by: TaskFilter,
    /// The vCPU on which arrivals count; none: any.
    pub vcpu: Option<u8>,
    /// Only arrivals inside an NMI handler count, instead of only those outside.
    pub in_nmi: bool,
    /// The trial does not wait for it and does not fail without it.
    pub optional: bool,
}

impl ArrivalPlan {
    /// The first arrival of a workload thread, once, in any iteration.
    #[must_use]
    pub const fn first(place: CodePlace) -> Self {
        Self {
            place,
            first: 1,
            hit: 1,
            repeat: 1,
            times: 1,
            sweep: false,
            by: TaskFilter::Workload,
            vcpu: None,
            in_nmi: false,
            optional: false,
        }
    }
}

/// The tasks whose arrivals at a place count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskFilter {
    /// Workload threads, between their arm mark and the next one.
    Workload,
    /// This workload thread, likewise.
    Thread(u32),
    /// Every task, at any time; there are no iterations then.
    Any,
}

/// An event that the harness sees from outside the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventPlan {
    /// A record of this `PERF_RECORD_*` type in a perf ring.
    Record(u32),
    /// A record of this kind in the log of the lab client.
    Lab(u8),
    /// A mark of a workload thread, by [`unwindlab_abi::mark`].
    Mark(u8),
    /// An exit of a vCPU.
    Exit(ExitPlan),
}

impl EventPlan {
    /// Whether `seen` is the awaited event.
    #[must_use]
    pub fn covers(&self, seen: &Self) -> bool {
        match (self, seen) {
            (Self::Exit(exit), Self::Exit(seen)) => exit.covers(seen),
            _ => self == seen,
        }
    }
}

impl TriggerPlan {
    /// Whether it may end with fewer injections than planned: the code decides how far a sweep
    /// goes.
    #[must_use]
    pub const fn may_end_early(&self) -> bool {
        matches!(self, Self::Arrival(ArrivalPlan { sweep: true, .. }))
    }

    /// Whether an arrival may end before all its injections are made, and so not count. An
    /// interrupt at a boundary of a burst may return past the breakpoint (TCG pushes RF with
    /// one), and then the iteration ends before the rest is due.
    #[must_use]
    pub const fn may_break_off(&self) -> bool {
        matches!(self, Self::Arrival(ArrivalPlan { times: 2.., .. }))
    }

    /// Whether the guest has to come to a place, or do something: time alone does not make it due.
    #[must_use]
    pub const fn waits_for_the_guest(&self) -> bool {
        matches!(self, Self::Arrival(_) | Self::Event { .. })
    }

    /// How many injections it makes; an upper limit if it may end early.
    #[must_use]
    pub fn injections(&self) -> u64 {
        match self {
            Self::Arrival(at) => at.repeat.saturating_mul(u64::from(at.times)),
            Self::Rate { count, vcpus, .. } => count.saturating_mul(vcpus.len() as u64),
            Self::Delay { repeat, .. } | Self::Event { repeat, .. } => *repeat,
        }
    }
}

/// Where a vCPU stops for an arrival.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CodePlace {
    /// Kernel text, resolved from the kernel's symbols.
    Kernel {
        /// Virtual address.
        address: u64,
    },
    /// User text, resolved by the symbols that the agent announces.
    User {
        /// Symbol name.
        symbol: String,
        /// Bytes from its start.
        offset: u64,
    },
    /// Behind an instruction that accesses a field of the workload thread's `task_struct`.
    TaskField {
        /// Bytes from the start of the `task_struct`.
        offset: u64,
        /// Number of bytes: 1, 2, 4 or 8.
        bytes: u8,
        /// Whether reads count too.
        reads: bool,
    },
}
