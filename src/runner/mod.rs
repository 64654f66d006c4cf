//! Plan to recording: boots the machine, makes the injections, reads the rings.

pub mod plan;

pub use plan::TrialPlan;
