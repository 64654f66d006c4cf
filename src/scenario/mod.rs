//! YAML to plan: [`parse`] reads a file, [`check`] finds what is wrong in it, [`resolve`] makes
//! it a [`crate::runner::TrialPlan`] for one kernel, [`library`] finds the files.

pub mod check;
pub mod error;
mod events;
mod explore;
pub mod inject;
pub mod lab;
pub mod library;
pub mod located;
pub mod model;
mod names;
pub mod parse;
mod perf_tool;
pub mod place;
pub mod resolve;
pub mod schema;
pub mod units;

pub use error::{ScenarioError, ScenarioErrors};
pub use library::{Library, Loaded};
pub use model::Scenario;
pub use resolve::{KernelSymbols, ResolveError, SourceLines, near, resolve};

#[cfg(test)]
mod tests;
