//! Plan to recording: boots the machine, makes the injections, reads the rings.

pub mod executor;
pub mod interrupt;
pub mod plan;
pub mod progress;

pub use executor::{Executor, HostError};
pub use interrupt::Interrupt;
pub use plan::TrialPlan;
pub use progress::{Stage, TrialProgress};
