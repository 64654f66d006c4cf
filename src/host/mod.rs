//! Choosing and starting the KVM host: where a trial's machine gets its KVM from.

pub mod channel;
pub mod console;
pub mod emulated;
pub mod init;
pub mod initramfs;

use crate::runner::{TrialPlan, TrialProgress};
use crate::trace::Recording;

/// Whoever can run trials: the native KVM host in this process, or an outer machine.
pub trait Executor {
    /// Runs one trial to its end, whatever that is: a guest that panics or hangs is a recording
    /// that says so.
    ///
    /// # Errors
    /// [`HostError`] only when the KVM host itself failed; the executor is of no use after it.
    fn run(
        &mut self,
        plan: &TrialPlan,
        progress: &mut dyn FnMut(&TrialProgress),
    ) -> Result<Recording, HostError>;
}

/// The KVM host failed. Nothing is known about the kernel under test.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct HostError {
    /// One line: what failed and what to do.
    pub what: String,
    /// The outer machine's console, where there is one.
    pub console: String,
}
