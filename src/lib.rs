//! unwindlab finds out whether a Linux kernel with deferred user-space unwinding is right.
//!
//! What runs where KVM is lies in [`unwindlab_engine`], what judges a trace in
//! [`unwindlab_oracle`]. [`unwindlab_scenario`] makes plans of YAML. Here is the command.
//!
//! The folders, lowest first. Each uses only what stands above it in this list;
//! `tests/layers.rs` reads the list from here and the imports from the files.
//!
//! - [`judge`]: what decides an outcome
//! - [`setup`]: set-ups of perf, and what must come of each
//! - [`mod@bench`]: measurements of what is promised
//! - [`host`]: choosing and starting the KVM host
//! - [`report`]: results as text, JSON, JUnit and HTML
//! - [`campaign`]: what the commands do: typed requests in, events and summaries out
//! - [`cli`]: arguments to requests, events to text and exit codes

pub mod bench;
pub mod campaign;
pub mod cli;
pub mod host;
pub mod judge;
pub mod report;
pub mod setup;
