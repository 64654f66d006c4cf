//! What the KVM host reports while a trial runs.

use serde::{Deserialize, Serialize};

/// How far a trial is. Sent when the stage changes and at least twice a second: silence means
/// that the KVM host itself is stuck.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialProgress {
    /// The current stage.
    pub stage: Stage,
    /// Milliseconds since the machine was started, by the KVM host's clock.
    pub elapsed_ms: u64,
    /// Injections made.
    pub injected: u64,
    /// Injections planned.
    pub planned: u64,
}

/// The stages of a trial, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// The guest kernel boots; the agent has not said hello.
    Booting,
    /// The agent opens the events and starts the threads.
    Preparing,
    /// Events are on, the workload runs, injections are made.
    Running,
    /// The workload was told to stop.
    Stopping,
}

impl Stage {
    /// The word shown to the user.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Booting => "booting",
            Self::Preparing => "preparing",
            Self::Running => "running",
            Self::Stopping => "stopping",
        }
    }
}
