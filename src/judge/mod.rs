//! Decides outcomes: [`verdict`] that of a trial, [`sweep`] the failures of a sweep. [`result`]
//! holds what was decided.

mod counts;
mod expect;
pub mod outcome;
mod overflows;
mod perf_tool;
pub mod requests;
pub mod result;
pub mod snapshot;
pub mod sweep;
pub mod sweep_record;
pub mod verdict;

pub use counts::Counts;
pub use outcome::{Outcome, exit_code};
pub use result::ScenarioResult;
pub use verdict::{Case, FindingInImage, Judge, MatchFinding};

#[cfg(test)]
pub(crate) mod tests;
