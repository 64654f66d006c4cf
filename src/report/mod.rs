//! Results as text, JSON, JUnit and HTML.
//!
//! - `run`: [`table`], [`mod@known`] and [`failure`] for people, [`json`] and [`junit`] for machines,
//!   [`artifacts`] for the files that stay
//! - `sweep`: [`mod@sweep`], with [`coverage`] of the source and its [`listing`]
//! - `sweep --requests`: [`requests`]
//! - `setups`: [`setups`]
//! - `replay`: the [`instructions`] around a point
//! - `variants`: [`figures`] and their [`comparison`]; `mutants`: [`matrix`]; [`costs`];
//!   `bench`: [`mod@bench`]
//!
//! [`names`] gives addresses their symbols in all of them.

pub mod artifacts;
pub mod bench;
pub mod comparison;
pub mod costs;
pub mod coverage;
pub mod failure;
pub mod figures;
pub mod instructions;
pub mod json;
pub mod junit;
pub mod known;
pub mod listing;
pub mod matrix;
pub mod names;
pub mod requests;
pub mod setups;
pub mod sweep;
pub mod table;

#[cfg(test)]
mod tests;
