//! Set-ups of perf: every way to ask for deferred unwinds and to receive them that the ABI of
//! `perf_event_open` has, as combinations of the levels of factors.
//!
//! - [`factors`]: what varies
//! - [`rules`]: which combinations are no set-ups
//! - [`array`]: few set-ups that have every pair (or triple) of levels
//! - [`session`]: a set-up as the events of a trial
//! - [`judge`]: what must come of a set-up, and what did
//! - [`refusals`]: events that the kernel must refuse
//! - [`summary`]: what came of all

pub mod array;
mod entries;
mod expect;
pub mod factors;
pub mod judge;
#[cfg(test)]
mod judge_tests;
pub mod refusals;
pub mod rules;
pub mod session;
pub mod summary;

pub use array::{Strength, setups};
pub use factors::{Factor, Setup};
