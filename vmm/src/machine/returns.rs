//! Notes of the guest's returns to user mode.

use super::Machine;
use crate::returns::{PlantError, ReturnNote, ReturnWatch};
use crate::threads::{PauseError, ResumeError};

/// Why returns cannot be noted, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum ReturnWatchError {
    /// The code is not as expected.
    #[error(transparent)]
    Plant(#[from] PlantError),
    /// A vCPU cannot be stopped.
    #[error(transparent)]
    Pause(#[from] PauseError),
    /// A vCPU cannot be resumed.
    #[error(transparent)]
    Resume(#[from] ResumeError),
}

impl Machine {
    /// From now on notes each return of the kernel to user mode, of all vCPUs, without stopping
    /// them. Two bytes of each such instruction are replaced meanwhile; a checkpoint has the
    /// original ones, and so has code that is read through a vCPU. Running vCPUs are stopped for a
    /// moment. No breakpoint may be at one of the instructions that has a trap
    /// ([`set_breakpoints`](Self::set_breakpoints)); later ones there are the CPU's own.
    ///
    /// A vCPU that is about to return in another way than user mode is entered as a rule stops with
    /// [`Stop::StrangeReturn`](crate::Stop::StrangeReturn): it can go on only after
    /// [`end_returns`](Self::end_returns).
    ///
    /// # Errors
    /// [`ReturnWatchError`]. Nothing is noted then.
    pub fn watch_returns(&mut self, watch: ReturnWatch) -> Result<(), ReturnWatchError> {
        let stopped = self.vcpus.stop_running()?;
        let sregs = self.vcpus.all_stopped().next().map(|vcpu| vcpu.sregs());
        let planted = match sregs {
            Some(Ok(sregs)) => self.returns.plant(&self.memory, &sregs, watch),
            _ => Err(PlantError::NoneStopped),
        };
        let shared = planted.as_ref().ok().cloned();
        self.tell_taken();
        for vcpu in self.vcpus.all_stopped_mut() {
            vcpu.returns.clone_from(&shared);
        }
        self.vcpus.resume_all(&stopped)?;
        planted?;
        Ok(())
    }

    /// From now on each note has the 32 bits at this offset of the current task.
    pub fn note_field(&mut self, offset: u64) {
        self.returns.note_field(offset);
    }

    /// Takes the notes since the last call, in the order in which they were made, and whether a
    /// return is missing behind them because there were too many.
    pub fn take_returns(&mut self) -> (Vec<ReturnNote>, bool) {
        self.returns.take()
    }

    /// Whether a return was not noted because there are too many.
    pub fn returns_are_full(&self) -> bool {
        self.returns.is_full()
    }

    /// Notes no more returns. What was not taken is gone.
    ///
    /// # Errors
    /// [`ReturnWatchError`].
    pub fn end_returns(&mut self) -> Result<(), ReturnWatchError> {
        let stopped = self.vcpus.stop_running()?;
        let removed = self.returns.remove(&self.memory);
        self.tell_taken();
        for vcpu in self.vcpus.all_stopped_mut() {
            vcpu.returns = None;
        }
        self.vcpus.resume_all(&stopped)?;
        removed.map_err(PlantError::from)?;
        Ok(())
    }
}
