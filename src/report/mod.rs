//! Verdicts to people and machines: [`judge`] decides, [`result`] holds what was decided,
//! [`table`] and [`failure`] show it, [`json`] and [`junit`] write it.

pub mod artifacts;
pub mod bench;
pub mod comparison;
pub mod counts;
mod expect;
pub mod failure;
pub mod figures;
pub mod instructions;
pub mod json;
pub mod judge;
pub mod junit;
pub mod listing;
pub mod matrix;
pub mod names;
pub mod outcome;
mod overflows;
mod perf_tool;
pub mod replay;
pub mod result;
pub mod snapshot;
pub mod sweep;
pub mod table;

pub use judge::{Case, Judge, MatchFinding};
pub use outcome::{Outcome, exit_code};
pub use result::ScenarioResult;

#[cfg(test)]
mod tests;
