//! The trait through which the command line uses a KVM host.

use super::TrialPlan;
use super::measurement::{MeasuredFigures, Measurement, NotMeasured};
use super::self_test::SelfTestMessage;
use super::sweep::{Message, SweepPlan};
use unwindlab_oracle::trace::Recording;
use unwindlab_oracle::trace::recording::TrialEnd;

pub use unwindlab_guest_kernel::Progress;

/// Carries out trials, one after the other, on one KVM host.
pub trait Executor {
    /// One line that names the KVM host and says why it was chosen.
    fn host(&self) -> String;

    /// Machines that were started for it and died before a guest had executed anything.
    fn deaths(&self) -> usize {
        0
    }

    /// Carries out one trial. Whatever the *guest* does, a panic or a hang included, is a
    /// [`Recording`].
    ///
    /// # Errors
    /// [`InfraError`] if the harness or the KVM host failed.
    fn run(&mut self, plan: &TrialPlan, progress: &dyn Progress) -> Result<Recording, InfraError>;

    /// Carries out a sweep. `take` gets its messages and returns whether to go on.
    ///
    /// # Errors
    /// [`InfraError`] if the harness or the KVM host failed, or `take` returned false.
    fn sweep(
        &mut self,
        plan: &SweepPlan,
        take: &mut dyn FnMut(Message) -> bool,
    ) -> Result<(), InfraError>;

    /// A guest stood still in its boot. Says whether this host may have done it; then nothing that was saved of it is used again.
    fn distrust(&mut self) -> bool {
        false
    }

    /// Keeps the KVM host as it is, so that the next command need not boot one, where that is possible and worth its while.
    ///
    /// # Errors
    /// [`InfraError`] if it is lost over this.
    fn keep(&mut self, _progress: &dyn Progress) -> Result<(), InfraError> {
        Ok(())
    }

    /// Carries out one measurement. The inner result tells what was measured, or why nothing was.
    ///
    /// # Errors
    /// [`InfraError`] if the harness or the KVM host failed.
    fn bench(
        &mut self,
        _measurement: &Measurement,
    ) -> Result<Result<MeasuredFigures, NotMeasured>, InfraError> {
        Err(InfraError {
            reason: "this KVM host cannot make measurements".to_owned(),
            console: String::new(),
        })
    }

    /// Makes the VMM's own checks. `take` gets its messages and returns whether to go on.
    ///
    /// # Errors
    /// [`InfraError`] if the KVM host is lost, or `take` returned false.
    fn self_test(
        &mut self,
        _take: &mut dyn FnMut(SelfTestMessage) -> bool,
    ) -> Result<(), InfraError> {
        Err(InfraError {
            reason: "this KVM host cannot test itself".to_owned(),
            console: String::new(),
        })
    }
}

/// The harness or the KVM host failed; this says nothing about the kernel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct InfraError {
    /// One line: what failed, and what to do about it.
    pub reason: String,
    /// The outer machine's console, if there is an outer machine.
    pub console: String,
}

/// What is known of a trial that was lost with its KVM host.
impl From<InfraError> for Recording {
    fn from(error: InfraError) -> Self {
        Self {
            host_console: error.console,
            end: TrialEnd::Infra {
                reason: error.reason,
            },
            ..Self::default()
        }
    }
}
