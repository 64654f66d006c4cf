//! unwindlab: finds out whether a Linux kernel with deferred user-space unwinding is right.
//!
//! The way of the data, one folder an arrow: [`scenario`] (YAML to plan), [`host`] (choosing and
//! starting the KVM host), [`runner`] (plan to recording), [`trace`] (recording to events),
//! [`invariant`] (events to verdicts), [`report`] (verdicts to people and machines); [`cli`]
//! drives them. [`bench`](mod@bench) measures what is promised.

pub mod bench;
pub mod bisect;
pub mod cli;
pub mod host;
pub mod invariant;
pub mod report;
pub mod runner;
pub mod scenario;
pub mod sweep;
mod text;
pub mod trace;
