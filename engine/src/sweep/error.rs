//! Why a sweep cannot go on.

use std::fmt;

use unwindlab_oracle::trace::recording::TrialEnd;

use super::engine::NoMachine;
use super::worker::MAX_MISSED;
use crate::driver::{DriverError, Happening};
use crate::plan::sweep::Point;

/// A path does not come to user mode.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoPath {
    /// It is longer than any path may be.
    #[error(
        "more than {longest} instructions from the request, and still in the kernel, at {place:#x}"
    )]
    TooLong { longest: u32, place: u64 },
    /// It ends somewhere else.
    #[error("the emulated KVM host lost the machine in the middle of the path")]
    Lost,
    /// An instruction in a signal handler raises an exception: a single step, which a path takes there, would be seen by
    /// the kernel.
    #[error("the instruction at {place:#x}, in a signal handler, raises an exception")]
    Raised { place: u64 },
}

/// What the guest is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Come to the beginning of an iteration.
    BeforePath,
    /// Come to where the path begins.
    ToPath,
    /// Execute the path, step by step.
    OnPath,
    /// Run other tasks until the path's is back.
    Away,
    /// Come to an instruction.
    To(u64),
    /// Complete a trial.
    Trial,
}

impl fmt::Display for Phase {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BeforePath => write!(out, "before the path begins"),
            Self::ToPath => write!(out, "on the way to the path"),
            Self::OnPath => write!(out, "in the middle of the path"),
            Self::Away => write!(out, "while the path's task is away"),
            Self::To(address) => write!(out, "on the way to {address:#x}"),
            Self::Trial => write!(out, "in a trial"),
        }
    }
}

/// A sweep cannot go on: the fault of the harness, the KVM host, or what was asked for.
#[derive(Debug, thiserror::Error)]
pub(super) enum SweepError {
    /// The guest cannot be driven.
    #[error(transparent)]
    Driver(DriverError),
    /// There is no machine.
    #[error(transparent)]
    NoMachine(NoMachine),
    /// There is no path.
    #[error(transparent)]
    NoPath(#[from] NoPath),
    /// The path is to begin at a place in user mode that the agent does not announce.
    #[error("the workload has no symbol `{symbol}`")]
    NoSymbol { symbol: String },
    /// No iteration enters the kernel that often.
    #[error(
        "an iteration of the workload does not enter the kernel {number} times: begin at an earlier \
         entry"
    )]
    NoEntry { number: u32 },
    /// The first instruction of the path is a return or an indirect branch.
    #[error("the instruction at {place:#x} can lead anywhere: begin the sweep at another")]
    LeadsAnywhere { place: u64 },
    /// No iteration came to the beginning.
    #[error(
        "{iterations} iterations of the workload ended before they came to {}: begin the sweep where \
         the workload comes by (--from)", hex(.places)
    )]
    IterationEnded { places: Vec<u64>, iterations: u32 },
    /// The thread does not stay on its vCPU.
    #[error("the thread went to another vCPU: give it one of its own")]
    OtherVcpu,
    /// Something happened that has no place there.
    #[error("{happening:?} {phase}")]
    Stray {
        happening: Box<Happening>,
        phase: Phase,
    },
    /// The guest is over.
    #[error("the guest ended {phase}: {end:?}")]
    GuestEnded { end: TrialEnd, phase: Phase },
    /// Nothing happens any more.
    #[error("the guest is silent {phase}")]
    Silent { phase: Phase },
    /// The sweep was broken off.
    #[error("nobody listens any more")]
    Unheard,
    /// A restore did not put back all of the machine.
    #[error(
        "point {point}: put back, the machine is not what it was: {}", .differences.join(", ")
    )]
    NotRestored {
        point: Point,
        differences: Vec<String>,
    },
    /// Point after point is not met again: that is the fault of the machine, not of the path.
    #[error(
        "{MAX_MISSED} points in a row were not met again, the last is {last}: the machine is not \
         what it was; go on with --resume"
    )]
    TooManyMissed { last: Point },
}

impl SweepError {
    /// Whether the guest, or the KVM host with it, went another way than the path's. It can be put
    /// back, and go again.
    pub(super) const fn is_another_way(&self) -> bool {
        matches!(
            self,
            Self::NoPath(_) | Self::Stray { .. } | Self::GuestEnded { .. } | Self::Silent { .. }
        )
    }
}

fn hex(places: &[u64]) -> String {
    let places: Vec<String> = places.iter().map(|place| format!("{place:#x}")).collect();
    places.join(" or ")
}

impl<E: Into<DriverError>> From<E> for SweepError {
    fn from(error: E) -> Self {
        Self::Driver(error.into())
    }
}
