//! What is done to the machine, as written: each action with the keys that say when.

pub(super) mod boundaries;
pub(super) mod check;
mod common;
mod exits;
pub mod places;
pub(super) mod resolve;
pub mod schedule;
pub mod trigger;
mod when;

pub use schedule::{Schedule, SchedulePoint};
pub use trigger::{Event, Exit, LabRecord, MarkKind, Place, RecordKind, TaskKind};

use schemars::JsonSchema;
use serde::Deserialize;

use super::located::{At, Location};
use super::names::Names;
use super::units::{Number, Time};

/// One thing that is done to the machine.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Injection {
    /// A non-maskable interrupt into one vCPU.
    Nmi(At<Nmi>),
    /// An overflow of the synthetic performance counter that the guest has enabled in one vCPU,
    /// with its non-maskable interrupt.
    PmuOverflow(At<Nmi>),
    /// A function of the kernel fails: it returns a value as soon as it is called.
    Fail(At<Fail>),
    /// An interrupt by the local APIC of one vCPU.
    Irq(At<Irq>),
    /// A vCPU stands still from now on, until it is thawed.
    Freeze(At<Freeze>),
    /// A vCPU that is frozen goes on.
    Thaw(At<Thaw>),
    /// A variable of the kernel gets another value.
    Poke(At<Poke>),
    /// A frame pointer on a workload thread's stack leads nowhere, until the iteration ends.
    Corrupt(At<Corrupt>),
    /// A workload thread may run on one CPU only from now on.
    Migrate(At<Migrate>),
    /// A workload thread gets a signal, of which the handler does nothing.
    Signal(At<Signal>),
    /// The walk of a workload thread's stack waits when it comes to a page, until it is released.
    BlockFault(At<BlockFault>),
    /// The page that blocks is let go.
    ReleaseFault(At<ReleaseFault>),
    /// In the next iteration of a workload thread a page of its stack is not mapped while it is in
    /// its system call.
    Unmap(At<Unmap>),
    /// In the next iteration of a workload thread a page of its stack is in memory no more when its
    /// system call is made, and has to be read again.
    PageOut(At<PageOut>),
    /// In the next iteration of a workload thread a page of its stack is one of a file that has been
    /// truncated.
    Truncate(At<Truncate>),
    /// The process of a workload thread's iteration is killed.
    Kill(At<Kill>),
    /// The process of a workload thread's next iteration executes another program instead of its
    /// system call.
    Exec(At<Exec>),
}

/// The keys that say when, borrowed from an action.
#[derive(Debug, Clone, Copy)]
pub(super) struct When<'a> {
    /// Where the action is written.
    pub location: Location,
    pub name: Option<&'a At<String>>,
    pub at: Option<&'a At<Place>>,
    pub on: Option<&'a At<Event>>,
    pub delay: Option<&'a At<Time>>,
    pub every: Option<&'a At<Time>>,
    pub after: Option<&'a At<Names>>,
    pub first: Option<&'a At<u64>>,
    pub hit: Option<&'a At<u64>>,
    pub repeat: Option<&'a At<u64>>,
    pub count: Option<&'a At<u64>>,
    pub vcpus: Option<&'a At<Vec<At<u8>>>>,
    pub vcpu: Option<&'a At<u8>>,
    pub thread: Option<&'a At<u32>>,
    pub task: Option<&'a At<TaskKind>>,
    pub in_nmi: Option<&'a At<bool>>,
    pub times: Option<&'a At<u32>>,
    pub sweep: Option<&'a At<bool>>,
    pub target: Option<&'a At<u8>>,
}

/// Declares an action with keys of its own and those that say when.
macro_rules! action {
    (
        $(#[$doc:meta])*
        $name:ident { $($(#[$own_doc:meta])* $own:ident: $type:ty,)* }
        $($times:ident)?
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Deserialize, JsonSchema)]
        #[serde(rename_all = "kebab-case", deny_unknown_fields)]
        pub struct $name {
            $($(#[$own_doc])* pub $own: $type,)*
            /// What it is called by others that come `after` it, and in messages.
            pub name: Option<At<String>>,
            /// When a workload thread is about to execute this instruction.
            pub at: Option<At<Place>>,
            /// When this is seen.
            pub on: Option<At<Event>>,
            /// So long after the start of the workload, or after the injection that `after` names.
            pub delay: Option<At<Time>>,
            /// Periodically, wherever the vCPU is.
            pub every: Option<At<Time>>,
            /// Once each time that an earlier injection of this name is made (of several: that each of
            /// them is made once more); what `at` and `on` count, they count from there. Alone: at the
            /// same moment.
            pub after: Option<At<Names>>,
            /// With `at`: the first iteration of the workload that counts, from 1 (default 1).
            #[schemars(range(min = 1))]
            pub first: Option<At<u64>>,
            /// With `at`: which arrival within an iteration; with `on`: which one; from 1
            /// (default 1).
            #[schemars(range(min = 1))]
            pub hit: Option<At<u64>>,
            /// With `at`: in how many iterations; else how often (default 1).
            #[schemars(range(min = 1))]
            pub repeat: Option<At<u64>>,
            /// With `every`: how many, for each vCPU.
            #[schemars(range(min = 1))]
            pub count: Option<At<u64>>,
            /// With `every`: the vCPUs (default: all).
            pub vcpus: Option<At<Vec<At<u8>>>>,
            /// With `at`: only arrivals on this vCPU count.
            pub vcpu: Option<At<u8>>,
            /// With `at`: only arrivals of this workload thread count.
            pub thread: Option<At<u32>>,
            /// With `at`: whose arrivals count (default: those of workload threads in an
            /// iteration).
            pub task: Option<At<TaskKind>>,
            /// With `at`: only arrivals inside an NMI's handler count (default: only those outside
            /// of one).
            pub in_nmi: Option<At<bool>>,
            /// The vCPU that it is done to (default: the one where `at` or `on` was met, else
            /// vCPU 0).
            pub target: Option<At<u8>>,
        }

        impl At<$name> {
            pub(super) fn when(&self) -> When<'_> {
                When {
                    location: self.location(),
                    name: self.name.as_ref(),
                    at: self.at.as_ref(),
                    on: self.on.as_ref(),
                    delay: self.delay.as_ref(),
                    every: self.every.as_ref(),
                    after: self.after.as_ref(),
                    first: self.first.as_ref(),
                    hit: self.hit.as_ref(),
                    repeat: self.repeat.as_ref(),
                    count: self.count.as_ref(),
                    vcpus: self.vcpus.as_ref(),
                    vcpu: self.vcpu.as_ref(),
                    thread: self.thread.as_ref(),
                    task: self.task.as_ref(),
                    in_nmi: self.in_nmi.as_ref(),
                    target: self.target.as_ref(),
                    times: action!(@times self $($times)?),
                    sweep: action!(@sweep self $($times)?),
                }
            }
        }
    };
    (@times $self:ident several) => { $self.times.as_ref() };
    (@times $self:ident) => { None };
    (@sweep $self:ident several) => { $self.sweep.as_ref() };
    (@sweep $self:ident) => { None };
}

action! {
    /// A non-maskable interrupt.
    Nmi {
        /// With `at`: how many NMIs at each arrival (default 1): the first at the instruction, the
        /// others at the instruction boundaries that follow, each when the handler of the one before
        /// has returned.
        #[schemars(range(min = 1))]
        times: Option<At<u32>>,
        /// With `at`: go through the code that is executed from there: in the first of the iterations
        /// the NMI comes at the instruction, in the next at the instruction boundary that follows, and
        /// so on, one further each time. It ends after `repeat` iterations, or when an iteration is
        /// over before it comes to the boundary that is due.
        sweep: Option<At<bool>>,
    }
    several
}

action! {
    /// An interrupt by the local APIC.
    Irq {
        /// Its vector: 0xfd is the kernel's rescheduling interrupt, 0xec its timer's.
        #[schemars(range(min = 16))]
        vector: At<Number>,
    }
}

action! {
    /// A vCPU stands still.
    Freeze {
        /// Longest time (default 2 s): then all is let go, the trial is wound up, and fails.
        limit: Option<At<Time>>,
    }
}

action! {
    /// A vCPU goes on.
    Thaw {}
}

action! {
    /// A variable of the kernel.
    Poke {
        /// Its symbol.
        variable: At<String>,
        /// The CPU whose copy is meant, for a per-CPU variable.
        cpu: Option<At<u8>>,
        /// Its size: 1, 2, 4 (default) or 8.
        bytes: Option<At<u8>>,
        /// What it is to hold.
        value: At<Number>,
    }
}

action! {
    /// A frame pointer.
    Corrupt {
        /// It is saved beside the return address of this frame, the last that a walk shows; 0: the
        /// register.
        frame: At<u32>,
        /// What it becomes.
        with: At<Corruption>,
    }
}

/// What becomes of a frame pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Corruption {
    /// It leads to its own frame.
    Loop,
    /// It leads above the stack, where nothing is mapped.
    Wild,
    /// It leads into the middle of a word.
    Unaligned,
}

action! {
    /// Another CPU.
    Migrate {
        /// The CPU.
        to: At<u8>,
        /// The workload thread (default: the one that met the trigger).
        of: Option<At<u32>>,
    }
}

action! {
    /// SIGUSR1.
    Signal {
        /// The workload thread (default: the one that met the trigger).
        of: Option<At<u32>>,
    }
}

action! {
    /// A page that blocks, by userfaultfd.
    BlockFault {
        /// It holds this frame of the stack, from 1: the return address that a walk reads for it.
        #[schemars(range(min = 1))]
        frame: At<u32>,
        /// The workload thread (default: the one that met the trigger).
        of: Option<At<u32>>,
    }
}

action! {
    /// The page that blocks.
    ReleaseFault {
        /// The workload thread (default: the one that met the trigger).
        of: Option<At<u32>>,
    }
}

action! {
    /// A page that is gone.
    Unmap {
        /// It holds this frame of the stack, from 1: the return address that a walk reads for it.
        #[schemars(range(min = 1))]
        frame: At<u32>,
        /// The workload thread (default: the one that met the trigger).
        of: Option<At<u32>>,
    }
}

action! {
    /// A page that is out of memory.
    PageOut {
        /// It holds this frame of the stack, from 1: the return address that a walk reads for it.
        #[schemars(range(min = 1))]
        frame: At<u32>,
        /// The workload thread (default: the one that met the trigger).
        of: Option<At<u32>>,
    }
}

action! {
    /// A page of a file without bytes.
    Truncate {
        /// It holds this frame of the stack, from 1: the return address that a walk reads for it.
        #[schemars(range(min = 1))]
        frame: At<u32>,
        /// The workload thread (default: the one that met the trigger).
        of: Option<At<u32>>,
    }
}

action! {
    /// SIGKILL.
    Kill {
        /// The workload thread (default: the one that met the trigger).
        of: Option<At<u32>>,
    }
}

action! {
    /// Another program.
    Exec {
        /// The workload thread (default: the one that met the trigger).
        of: Option<At<u32>>,
    }
}

/// Which function fails, and how, when a workload thread calls it.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Fail {
    /// The function.
    pub function: At<String>,
    /// What it returns.
    pub returns: At<i64>,
    /// What it is called by others that come `after` it, and in messages.
    pub name: Option<At<String>>,
    /// Once each time that an earlier injection of this name is made.
    pub after: Option<At<Names>>,
    /// The first iteration of the workload that counts, from 1 (default 1).
    #[schemars(range(min = 1))]
    pub first: Option<At<u64>>,
    /// Which call within an iteration, from 1 (default 1).
    #[schemars(range(min = 1))]
    pub hit: Option<At<u64>>,
    /// In how many iterations (default 1).
    #[schemars(range(min = 1))]
    pub repeat: Option<At<u64>>,
    /// Only calls by this workload thread count.
    pub thread: Option<At<u32>>,
}
