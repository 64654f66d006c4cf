//! Who carries out a trial: the seam between the command line and the KVM host.

use super::TrialProgress;
use super::plan::TrialPlan;
use crate::trace::Recording;

/// Carries out trials, one after the other, on one KVM host.
pub trait Executor {
    /// One line on which KVM host is used, and why.
    fn host(&self) -> String;

    /// Carries out one trial to its end, whatever that is: a guest that panics or hangs is a
    /// recording that says so.
    ///
    /// # Errors
    /// [`HostError`] only where the KVM host itself failed; the executor is of no use after it.
    fn run(
        &mut self,
        plan: &TrialPlan,
        progress: &mut dyn FnMut(&TrialProgress),
    ) -> Result<Recording, HostError>;
}

/// The KVM host failed. Nothing is known about the kernel under test.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct HostError {
    /// One line: what failed and what to do.
    pub what: String,
    /// The outer machine's console, where there is one.
    pub console: String,
}
