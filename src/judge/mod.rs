//! What decides: [`verdict`] the outcome of a trial, [`sweep`] the failures of a sweep, [`result`] holds what was decided.

mod counts;
mod expect;
pub mod kept;
pub mod outcome;
mod overflows;
mod perf_tool;
pub mod result;
pub mod snapshot;
pub mod sweep;
pub mod verdict;

pub use counts::Counts;
pub use outcome::{Outcome, exit_code};
pub use result::ScenarioResult;
pub use verdict::{Case, Judge, MatchFinding};
