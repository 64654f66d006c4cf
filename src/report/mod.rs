//! Results as text, JSON, JUnit and HTML.
//!
//! - `run`: [`table`], [`mod@known`] and [`failure`] for people, [`tap`], [`json`], [`junit`], [`kcidb`] and [`github`] for machines,
//!   [`artifacts`], [`perf_data`] and [`trace_events`] for the files that stay, each an [`output_file`]
//! - `check`: [`recording`]; `report`: [`bug_report`]
//! - `soak`: [`soak`]; `doctor`: [`self_test`]
//! - `sweep`: [`mod@sweep`], with [`coverage`] of the source
//! - `sweep --requests`: [`requests`]
//! - `setups`: [`setups`]
//! - `replay`: the [`instructions`] around a point
//! - `variants`: [`figures`] and their [`comparison`]; `mutants`: [`matrix`], with `--generate`
//!   [`mutation`]; [`costs`];
//!   `bench`: [`mod@bench`]
//! - [`html`]: a report as one file for a browser, of `run`, `sweep`, `mutants` and `variants`
//!
//! [`names`] gives addresses their symbols in all of them.

pub mod answers;
pub mod artifacts;
pub mod bench;
pub mod bug_report;
pub mod chains;
pub mod comparison;
pub mod costs;
pub mod coverage;
pub mod designs;
pub mod explain;
pub mod failure;
pub mod figures;
pub mod github;
pub mod html;
pub mod instructions;
pub mod json;
pub mod junit;
pub mod kcidb;
pub mod known;
pub mod matrix;
pub mod mutation;
pub mod names;
pub mod output_file;
pub mod perf_data;
mod plain;
pub mod recording;
pub mod requests;
pub mod self_test;
pub mod setups;
pub mod soak;
pub mod sweep;
pub mod table;
pub mod tap;
pub mod timeline;
pub mod trace_events;

#[cfg(test)]
mod tests;
