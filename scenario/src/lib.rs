//! Scenarios: [`library`] finds the files, [`parse`] reads one, [`check`] finds its errors, and
//! [`resolve`] makes it a [`unwindlab_engine::plan::TrialPlan`] for a kernel.

mod asking;
pub mod check;
pub mod error;
mod events;
mod explore;
pub mod inject;
pub mod lab;
mod lacks;
pub mod library;
pub mod located;
pub mod model;
mod names;
pub mod parse;
mod perf_tool;
pub mod place;
mod program;
pub mod resolve;
pub mod schema;
pub mod template;
pub mod tracefs;
pub mod units;
pub mod user_returns;

pub use error::{ScenarioError, ScenarioErrors};
pub use library::{Library, Loaded};
pub use model::Scenario;
pub use resolve::{
    KernelSymbols, RdpmcError, ResolveError, SourceLines, UnsupportedKernel, near, resolve,
};
