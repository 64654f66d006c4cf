//! Plan to recording: boots the machine, makes the injections, reads the rings.

mod actions;
mod arrivals;
pub mod boot;
mod commands;
mod corrupt;
mod delays;
pub mod error;
pub mod executor;
pub mod exits;
pub mod explore;
mod frozen;
mod guest_memory;
pub mod interrupt;
pub mod plan;
pub mod progress;
mod rate;
pub(crate) mod session;
mod sightings;
mod stops;
pub mod trial;
pub(crate) mod vcpu;
pub(crate) mod watch;

pub use executor::{Executor, InfraError, Progress};
pub use interrupt::Interrupt;
pub use plan::TrialPlan;
pub use progress::{Stage, TrialProgress};
