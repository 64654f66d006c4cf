//! unwindlab finds out whether a Linux kernel with deferred user-space unwinding is right.
//!
//! The folders, lowest first. Each uses only what stands above it in this list;
//! `tests/layers.rs` reads the list from here and the imports from the files.
//!
//! - [`text`]: text from outside, fit to print
//! - [`interrupt`]: the user's Ctrl-C
//! - [`plan`]: what crosses between the command and the KVM host
//! - [`scenario`]: YAML to plans
//! - [`judge`]: what decides an outcome
//! - [`driver`]: a guest and its agent, driven from outside
//! - [`runner`]: makes trials
//! - [`sweep`]: trials at every instruction of a path, from checkpoints
//! - [`mod@bench`]: measurements of what is promised
//! - [`host`]: choosing and starting the KVM host
//! - [`report`]: results as text, JSON, JUnit and HTML
//! - [`campaign`]: what the commands do: typed requests in, events and summaries out
//! - [`cli`]: arguments to requests, events to text and exit codes

pub mod bench;
pub mod campaign;
pub mod cli;
pub mod driver;
pub mod host;
pub mod interrupt;
pub mod judge;
pub mod plan;
pub mod report;
pub mod runner;
pub mod scenario;
pub mod sweep;
pub mod text;
