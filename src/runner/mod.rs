//! Plan to recording: boots the machine, makes the injections, reads the rings.

pub mod plan;
pub mod progress;

pub use plan::TrialPlan;
pub use progress::{Stage, TrialProgress};
