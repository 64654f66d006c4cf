//! Who carries out a trial: the seam between the command line and the KVM host.

use super::TrialPlan;
use super::measurement::{Measured, MeasurementError, Order};
use super::sweep::{Message, SweepPlan};
use unwindlab_oracle::trace::Recording;

pub use unwindlab_guest_kernel::Progress;

/// Carries out trials, one after the other, on one KVM host.
pub trait Executor {
    /// One line on which KVM host is used, and why.
    fn host(&self) -> String;

    /// Carries out one trial. Whatever the *guest* does, a panic or a hang included, is a
    /// [`Recording`].
    ///
    /// # Errors
    /// [`InfraError`] where the harness or the KVM host failed.
    fn run(&mut self, plan: &TrialPlan, progress: &dyn Progress) -> Result<Recording, InfraError>;

    /// Carries out a sweep. `take` gets its messages, and says whether to go on.
    ///
    /// # Errors
    /// [`InfraError`] where the harness or the KVM host failed, or `take` did not want more.
    fn sweep(
        &mut self,
        plan: &SweepPlan,
        take: &mut dyn FnMut(Message) -> bool,
    ) -> Result<(), InfraError>;

    /// Carries out one measurement.
    ///
    /// # Errors
    /// [`MeasurementError`] where it could not be made.
    fn bench(&mut self, _order: &Order) -> Result<Measured, MeasurementError> {
        Err(MeasurementError {
            reason: "nothing can be measured on this KVM host".to_owned(),
        })
    }
}

/// The harness or the KVM host failed; nothing can be said about the kernel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct InfraError {
    /// One line: what failed, and what to do.
    pub reason: String,
    /// The outer machine's console, where there is one.
    pub console: String,
}
