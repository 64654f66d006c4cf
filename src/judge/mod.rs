//! Decides outcomes: [`verdict`] that of a trial, [`recorded`] that of a recording of perf's own, [`sweep`] the
//! failures of a sweep, [`soak`] how often trials fail at most. [`result`] holds what was decided.

mod counts;
mod designs;
mod expect;
pub mod flaky;
mod invariants;
mod known;
pub mod outcome;
mod overflows;
mod perf_tool;
mod program;
pub mod recorded;
pub mod requests;
pub mod result;
pub mod snapshot;
pub mod soak;
pub mod sweep;
pub mod sweep_record;
pub mod unit_record;
pub mod verdict;

pub use counts::Counts;
pub use designs::designs;
pub use invariants::{Judge, JudgeLimit};
pub use known::{FindingInImage, MatchFinding};
pub use outcome::{Outcome, exit_code};
pub use result::{Reached, ScenarioResult};
pub use verdict::Case;

#[cfg(test)]
pub(crate) mod tests;
