//! Injections as written: each action with the keys that say when it happens.

pub(super) mod boundaries;
pub(super) mod check;
mod common;
mod exits;
pub mod places;
pub(super) mod resolve;
pub mod schedule;
pub mod trigger;
pub mod watch;
mod when;

pub use schedule::{Schedule, SchedulePoint};
pub use trigger::{Event, Exit, LabRecord, MarkKind, RecordKind, TaskKind, TriggerPlace};
pub use watch::{FieldAccess, TaskField, WatchedField};

use schemars::JsonSchema;
use serde::Deserialize;

use super::located::{At, Location};
use super::names::NameList;
use super::units::{Number, Time};
use unwindlab_engine::plan::Corruption;

/// One thing to do to the machine.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Injection {
    /// Inject a non-maskable interrupt into one vCPU.
    Nmi(At<Nmi>),
    /// Overflow the synthetic performance counter that the guest has enabled on one vCPU, with its
    /// non-maskable interrupt.
    PmuOverflow(At<Nmi>),
    /// Make a kernel function fail: it returns a value as soon as it is called.
    Fail(At<Fail>),
    /// Raise an interrupt by the local APIC of one vCPU.
    Irq(At<Irq>),
    /// Stop a vCPU until it is thawed.
    Freeze(At<Freeze>),
    /// Let a frozen vCPU go on.
    Thaw(At<Thaw>),
    /// Write a variable of the kernel.
    Poke(At<Poke>),
    /// Make a frame pointer on a workload thread's stack invalid until the iteration ends.
    Corrupt(At<Corrupt>),
    /// Bind a workload thread to one CPU.
    Migrate(At<Migrate>),
    /// Send a workload thread a signal, whose handler does nothing.
    Signal(At<Signal>),
    /// Block the next access to a page of a workload thread's stack, the walk's included, until the
    /// page is released.
    BlockFault(At<BlockFault>),
    /// Release the blocked page.
    ReleaseFault(At<ReleaseFault>),
    /// Unmap a page of a workload thread's stack during the system call of its next iteration.
    Unmap(At<Unmap>),
    /// Page out a page of a workload thread's stack before the system call of its next iteration.
    PageOut(At<PageOut>),
    /// Replace a page of a workload thread's stack, in its next iteration, by a page of a file that
    /// is truncated before the system call.
    Truncate(At<Truncate>),
    /// Kill the process of a workload thread's iteration.
    Kill(At<Kill>),
    /// Have the process of a workload thread's next iteration execute another program instead of
    /// its system call.
    Exec(At<Exec>),
}

/// The keys of an action that say when it happens.
#[derive(Debug, Clone, Copy)]
pub(super) struct When<'a> {
    /// Where the file contains the action.
    pub location: Location,
    pub name: Option<&'a At<String>>,
    pub at: Option<&'a At<TriggerPlace>>,
    pub on: Option<&'a At<Event>>,
    pub delay: Option<&'a At<Time>>,
    pub every: Option<&'a At<Time>>,
    pub after: Option<&'a At<NameList>>,
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
    pub backs_off: Option<&'a At<bool>>,
    pub target: Option<&'a At<u8>>,
}

/// Declares an action with its own keys and those that say when it happens.
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
            /// A name, for `after` in other injections and for messages.
            pub name: Option<At<String>>,
            /// Do it when a workload thread is about to execute this instruction, or has just
            /// accessed this field.
            pub at: Option<At<TriggerPlace>>,
            /// Do it when this event is seen.
            pub on: Option<At<Event>>,
            /// Do it this long after the start of the workload, or after the injection that `after`
            /// names.
            pub delay: Option<At<Time>>,
            /// Do it periodically, wherever the vCPU executes.
            pub every: Option<At<Time>>,
            /// Do it once for each time that the earlier injection with this name is made; for
            /// several names: each time that all of them have been made once more. `at` and `on`
            /// count from there. Without another trigger: in the same stop of the vCPU.
            pub after: Option<At<NameList>>,
            /// With `at`: the first iteration of the workload that counts, from 1 (default 1).
            #[schemars(range(min = 1))]
            pub first: Option<At<u64>>,
            /// With `at`: the number of the arrival in its iteration; with `on`: the number of the
            /// event; from 1 (default 1).
            #[schemars(range(min = 1))]
            pub hit: Option<At<u64>>,
            /// With `at`: in how many iterations; otherwise: how often (default 1).
            #[schemars(range(min = 1))]
            pub repeat: Option<At<u64>>,
            /// With `every`: how often on each vCPU.
            #[schemars(range(min = 1))]
            pub count: Option<At<u64>>,
            /// With `every`: the vCPUs (default: all).
            pub vcpus: Option<At<Vec<At<u8>>>>,
            /// With `at`: count only arrivals on this vCPU.
            pub vcpu: Option<At<u8>>,
            /// With `at`: count only arrivals of this workload thread.
            pub thread: Option<At<u32>>,
            /// With `at`: the tasks whose arrivals count (default: workload threads in an
            /// iteration).
            pub task: Option<At<TaskKind>>,
            /// With `at`: count only arrivals inside an NMI handler (default: only those outside).
            pub in_nmi: Option<At<bool>>,
            /// The vCPU to do it to (default: the one that met `at` or `on`, otherwise vCPU 0).
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
                    backs_off: action!(@backs_off self $($times)?),
                }
            }
        }
    };
    (@times $self:ident several) => { $self.times.as_ref() };
    (@times $self:ident) => { None };
    (@sweep $self:ident several) => { $self.sweep.as_ref() };
    (@sweep $self:ident) => { None };
    (@backs_off $self:ident several) => { $self.backs_off.as_ref() };
    (@backs_off $self:ident) => { None };
}

action! {
    /// A non-maskable interrupt.
    Nmi {
        /// With `at`: number of NMIs at each arrival (default 1). The first comes at the
        /// instruction, each other one at an instruction boundary that follows, when the handler of
        /// the previous NMI has returned.
        #[schemars(range(min = 1))]
        times: Option<At<u32>>,
        /// With `at`: try one instruction boundary after the other. In the first iteration the NMI
        /// comes at the instruction, in each later iteration one boundary further. This ends after
        /// `repeat` iterations, or when an iteration ends before it comes to its boundary.
        sweep: Option<At<bool>>,
        /// With `every`: double the time after every 8 in which some thread of the workload ended
        /// no iteration, up to 128 times of it; begin with it again when all have ended one.
        backs_off: Option<At<bool>>,
    }
    several
}

action! {
    /// An interrupt by the local APIC.
    Irq {
        /// The vector: 0xfd is the kernel's rescheduling interrupt, 0xec its timer interrupt.
        #[schemars(range(min = 16))]
        vector: At<Number>,
    }
}

action! {
    /// Stop a vCPU.
    Freeze {
        /// Longest time (default 10 s). After it all vCPUs go on, and the trial ends as a failure.
        limit: Option<At<Time>>,
    }
}

action! {
    /// Let a vCPU go on.
    Thaw {}
}

action! {
    /// Write a variable of the kernel.
    Poke {
        /// The variable's symbol.
        variable: At<String>,
        /// For a per-CPU variable: the CPU whose copy is written.
        cpu: Option<At<u8>>,
        /// The variable's size: 1, 2, 4 (default) or 8.
        bytes: Option<At<u8>>,
        /// The new value.
        value: At<Number>,
    }
}

action! {
    /// Make a frame pointer invalid.
    Corrupt {
        /// The frame, from 1, beside whose return address the frame pointer is saved; it is the
        /// last frame of a walk. 0: the register.
        frame: At<u32>,
        /// The invalid value.
        with: At<Corruption>,
    }
}

action! {
    /// Bind a thread to a CPU.
    Migrate {
        /// The CPU.
        to: At<u8>,
        /// The workload thread (default: the one that met the trigger).
        of: Option<At<u32>>,
    }
}

action! {
    /// Send SIGUSR1.
    Signal {
        /// The workload thread (default: the one that met the trigger).
        of: Option<At<u32>>,
    }
}

action! {
    /// Block accesses to a page, by userfaultfd.
    BlockFault {
        /// The page is the one that contains this frame of the stack, from 1: the return address
        /// that a walk reads for it.
        #[schemars(range(min = 1))]
        frame: At<u32>,
        /// The workload thread (default: the one that met the trigger).
        of: Option<At<u32>>,
    }
}

action! {
    /// Release the blocked page.
    ReleaseFault {
        /// The workload thread (default: the one that met the trigger).
        of: Option<At<u32>>,
    }
}

action! {
    /// Unmap a page.
    Unmap {
        /// The page is the one that contains this frame of the stack, from 1: the return address
        /// that a walk reads for it.
        #[schemars(range(min = 1))]
        frame: At<u32>,
        /// The workload thread (default: the one that met the trigger).
        of: Option<At<u32>>,
    }
}

action! {
    /// Page out a page.
    PageOut {
        /// The page is the one that contains this frame of the stack, from 1: the return address
        /// that a walk reads for it.
        #[schemars(range(min = 1))]
        frame: At<u32>,
        /// The workload thread (default: the one that met the trigger).
        of: Option<At<u32>>,
    }
}

action! {
    /// Replace a page by one of a truncated file.
    Truncate {
        /// The page is the one that contains this frame of the stack, from 1: the return address
        /// that a walk reads for it.
        #[schemars(range(min = 1))]
        frame: At<u32>,
        /// The workload thread (default: the one that met the trigger).
        of: Option<At<u32>>,
    }
}

action! {
    /// Send SIGKILL.
    Kill {
        /// The workload thread (default: the one that met the trigger).
        of: Option<At<u32>>,
    }
}

action! {
    /// Execute another program.
    Exec {
        /// The workload thread (default: the one that met the trigger).
        of: Option<At<u32>>,
    }
}

/// Make a function fail when a workload thread calls it.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Fail {
    /// The function.
    pub function: At<String>,
    /// The value that it returns.
    pub returns: At<i64>,
    /// A name, for `after` in other injections and for messages.
    pub name: Option<At<String>>,
    /// Do it once for each time that the earlier injection with this name is made.
    pub after: Option<At<NameList>>,
    /// The first iteration of the workload that counts, from 1 (default 1).
    #[schemars(range(min = 1))]
    pub first: Option<At<u64>>,
    /// The number of the call in its iteration, from 1 (default 1).
    #[schemars(range(min = 1))]
    pub hit: Option<At<u64>>,
    /// In how many iterations (default 1).
    #[schemars(range(min = 1))]
    pub repeat: Option<At<u64>>,
    /// Count only calls by this workload thread.
    pub thread: Option<At<u32>>,
}
