//! What to sweep.

use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::campaign::kernel::KernelChoice;
use crate::campaign::replay_file::ReplayPlace;
use crate::host::choice::KvmHost;
use unwindlab_engine::plan::{ChoicePlan, Shard};
use unwindlab_scenario::place::KernelPlace;

/// Machines that work side by side, if the request says nothing else.
const JOBS: u32 = 2;

/// What to sweep, on which kernel, and how.
#[derive(Debug, Clone)]
pub struct SweepRequest {
    /// The path whose boundaries are tried.
    pub path: PathRequest,
    /// The kernel under test.
    pub kernel: KernelChoice,
    /// Where KVM comes from.
    pub kvm_host: KvmHost,
    /// Which boundaries are tried.
    pub points: PointChoice,
    /// Whether there is a second NMI in each trial.
    pub pairs: Option<PairChoice>,
    /// How the trials are made.
    pub options: SweepOptions,
}

/// Where a path begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathRequest {
    /// The scenario: a file, or a name of the library.
    pub scenario: PathBuf,
    /// Where the path begins in it.
    pub start: PathOrigin,
}

/// Where a path begins in its scenario.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PathOrigin {
    /// At the scenario's first NMI at an instruction, or its first interrupt in user mode.
    #[default]
    Request,
    /// At the instruction of the request, without making it.
    WithoutRequest,
    /// Elsewhere.
    From(PathPlace),
}

/// Where a path begins that does not begin at its scenario's request: `user`, `user:2`, `handler`,
/// or a place in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathPlace {
    /// Behind this instruction, without a request.
    Kernel(KernelPlace),
    /// At the last user instruction before an iteration enters the kernel for the n-th time,
    /// without a request.
    User(NonZeroU32),
    /// At the scenario's request, at the first instruction of its NMI's handler.
    Handler,
}

/// The prefix of [`PathPlace::User`].
const USER: &str = "user";
/// [`PathPlace::Handler`].
const HANDLER: &str = "handler";

/// Not a place where a path can begin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected an instruction such as `__x64_sys_getppid+0x10`, a line of the source such as \
     `kernel/unwind/deferred.c:123`, `user`, `user:2` or `handler`"
)]
pub struct PathPlaceError;

impl FromStr for PathPlace {
    type Err = PathPlaceError;

    fn from_str(text: &str) -> Result<Self, PathPlaceError> {
        let entry = match text.strip_prefix(USER) {
            Some("") => Some(NonZeroU32::MIN),
            Some(rest) => rest.strip_prefix(':').and_then(|it| it.parse().ok()),
            None => None,
        };
        match entry {
            Some(entry) => Ok(Self::User(entry)),
            None if text == HANDLER => Ok(Self::Handler),
            None => text.parse().map(Self::Kernel).map_err(|_| PathPlaceError),
        }
    }
}

impl fmt::Display for PathPlace {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel(place) => place.fmt(out),
            Self::User(NonZeroU32::MIN) => out.write_str(USER),
            Self::User(entry) => write!(out, "{USER}:{entry}"),
            Self::Handler => out.write_str(HANDLER),
        }
    }
}

/// Which boundaries of a path are tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PointChoice {
    /// Those in some functions.
    In {
        /// Their names; everywhere where there are none.
        functions: Vec<String>,
        /// Each instruction only the first time that it is executed.
        once: bool,
        /// Also those for which the next one stands.
        each: bool,
    },
    /// These points.
    Numbered(Vec<PointNumber>),
    /// Where the NMIs of a replay file came.
    Replayed(ReplayedPoint),
}

/// A point by its number in the path: `17`, or `17:4` for a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PointNumber {
    /// The boundary's number.
    pub number: u32,
    /// The number of the second NMI's boundary, counted from the first.
    pub second: Option<u32>,
}

/// Where the NMIs of a replay file came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayedPoint {
    /// Content hash of the kernel it failed on. In another kernel every boundary of the function is
    /// tried.
    pub kernel: String,
    /// The first NMI's boundary.
    pub first: ReplayPlace,
    /// The second NMI's.
    pub second: Option<ReplayPlace>,
}

/// Which second NMIs are tried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PairChoice {
    /// Also those behind first NMIs that leave the same machine behind.
    pub all: bool,
}

/// How the trials of a sweep are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SweepOptions {
    /// Machines that work side by side.
    pub jobs: u32,
    /// The time for trials, if it is limited.
    pub budget: Option<Duration>,
    /// A file for what was tried and found, and where an earlier sweep left it.
    pub resume: Option<PathBuf>,
    /// The part of the points to try, if not all.
    pub shard: Option<Shard>,
    /// Let the other vCPUs run on the way to a point.
    pub others_run: bool,
    /// Whether returns to user mode are noted; `None`: as the scenario says.
    pub witness: Option<bool>,
    /// Compare the whole machine with its checkpoint after each restore.
    pub check_restores: bool,
    /// Write a replay file for each distinct failure.
    pub keeps_replays: bool,
    /// Which mutant the kernel is to be, if it has many.
    pub choice: Option<ChoicePlan>,
}

impl SweepRequest {
    /// A sweep of every boundary of a path, of the stock kernel.
    #[must_use]
    pub fn of(path: PathRequest) -> Self {
        Self {
            path,
            kernel: KernelChoice::default(),
            kvm_host: KvmHost::default(),
            points: PointChoice::default(),
            pairs: None,
            options: SweepOptions::default(),
        }
    }
}

impl PathRequest {
    /// The path that begins at this scenario's request.
    #[must_use]
    pub fn of(scenario: impl Into<PathBuf>) -> Self {
        Self {
            scenario: scenario.into(),
            start: PathOrigin::default(),
        }
    }
}

impl PathOrigin {
    /// Whether the scenario's request may be made. A path from another place never makes it.
    pub(in crate::campaign) fn allows_request(&self) -> bool {
        *self != Self::WithoutRequest
    }

    pub(in crate::campaign) fn from(&self) -> Option<&PathPlace> {
        match self {
            Self::From(place) => Some(place),
            Self::Request | Self::WithoutRequest => None,
        }
    }
}

impl Default for PointChoice {
    fn default() -> Self {
        Self::In {
            functions: Vec::new(),
            once: false,
            each: false,
        }
    }
}

impl Default for SweepOptions {
    fn default() -> Self {
        Self {
            jobs: JOBS,
            budget: None,
            resume: None,
            shard: None,
            others_run: false,
            witness: None,
            check_restores: false,
            keeps_replays: false,
            choice: None,
        }
    }
}

/// A point's number has the wrong form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("found `{0}`, expected a number, or two with a colon")]
pub struct PointNumberError(String);

impl FromStr for PointNumber {
    type Err = PointNumberError;

    fn from_str(text: &str) -> Result<Self, PointNumberError> {
        let number = |text: &str| {
            let number = text.parse();
            number.map_err(|_| PointNumberError(text.to_owned()))
        };
        Ok(match text.split_once(':') {
            None => Self {
                number: number(text)?,
                second: None,
            },
            Some((first, second)) => Self {
                number: number(first)?,
                second: Some(number(second)?),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_are_written() {
        let user = |entry| PathPlace::User(NonZeroU32::new(entry).unwrap());
        let read = |text: &str| text.parse::<PathPlace>().unwrap();
        assert_eq!(read("user"), user(1));
        assert_eq!(read("user:3"), user(3));
        assert_eq!(read("handler"), PathPlace::Handler);
        assert!(matches!(read("user_mode"), PathPlace::Kernel(_)));
        assert!(matches!(read("handler+0x4"), PathPlace::Kernel(_)));
        for text in ["user", "user:3", "handler", "do_exit+0x10"] {
            assert_eq!(read(text).to_string(), text);
        }
        assert!("user:0".parse::<PathPlace>().is_err());
    }
}
