//! unwindlab finds out whether a Linux kernel with deferred user-space unwinding is right.
//!
//! The folders, lowest first. Each uses only what stands above it in this list;
//! `tests/layers.rs` reads the list from here and the imports from the files.
//!
//! - [`text`]: text from outside, fit to print
//! - [`interrupt`]: Ctrl-C
//! - [`plan`]: what crosses between the command and the KVM host
//! - [`scenario`]: YAML to plans
//! - [`judge`]: what decides an outcome
//! - [`driver`]: a guest and its agent, driven from outside
//! - [`runner`]: trials
//! - [`sweep`]: trials at every instruction of a path, from checkpoints
//! - [`mod@bench`]: measurements
//! - [`host`]: choosing and starting the KVM host
//! - [`report`]: results as text, JSON, JUnit and HTML
//! - [`bisect`]: the search for the first bad commit
//! - [`cli`]: arguments in, text and exit codes out

pub mod bench;
pub mod bisect;
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
