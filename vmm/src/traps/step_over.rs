//! Executes the instruction under a trap: one step of one vCPU, with all others stopped.

use std::time::{Duration, Instant};

use super::Traps;
use crate::threads::{ResumeError, Slot, State, TrapContext, Vcpus};
use crate::vcpu::{Run, Stop};

/// Time limit of one step while the others are stopped. A longer one has entered the handler of a
/// fault, which may wait for the others.
const STEP_LIMIT: Duration = Duration::from_millis(20);

/// Result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepOutcome {
    /// The instruction was executed.
    Done,
    /// The instruction faulted: the handler runs, and will come back to it.
    InFaultHandler,
    /// The vCPU stopped for another reason.
    OtherStop,
}

impl Traps {
    /// Lets a vCPU at a trap execute the instruction there, then resumes it.
    pub(super) fn step_over(
        &mut self,
        vcpus: &mut Vcpus,
        index: u8,
        run: Run,
    ) -> Result<(), ResumeError> {
        let stopped = vcpus.stop_running()?;
        let resumed = match (self.step_original(vcpus, index)?, run) {
            (StepOutcome::Done, Run::Continue) => self.resume_unseen(vcpus, index, Run::Continue),
            (StepOutcome::Done, Run::Steps(count)) if count.get() > 1 => {
                match count.get().checked_sub(1).and_then(|it| it.try_into().ok()) {
                    Some(left) => self.resume_unseen(vcpus, index, Run::Steps(left)),
                    None => Ok(()),
                }
            }
            // The caller waits for this very event.
            (StepOutcome::Done | StepOutcome::OtherStop, _) => Ok(()),
            // Its return to the trap is the event that the caller waits for.
            (StepOutcome::InFaultHandler, _) => vcpus.resume(index, Run::Continue),
        };
        vcpus.resume_all(&stopped)?;
        resumed
    }

    /// Steps over the original instruction, with the trap removed meanwhile.
    fn step_original(&mut self, vcpus: &mut Vcpus, index: u8) -> Result<StepOutcome, ResumeError> {
        let failed = |source| ResumeError::Trap {
            vcpu: index,
            source,
        };
        let Some(context) = vcpus.stopped(index).and_then(TrapContext::at) else {
            return Ok(StepOutcome::OtherStop);
        };
        let mut planted = self.planted.iter();
        let Some(trap) = planted.find(|trap| trap.address == context.address) else {
            return Ok(StepOutcome::OtherStop);
        };
        trap.take_out(&self.memory).map_err(failed)?;
        let stepped = step(vcpus, index);
        trap.put_in(&self.memory).map_err(failed)?;
        let stepped = stepped?;
        if stepped == StepOutcome::InFaultHandler {
            vcpus.returns.expect(context, true);
        }
        Ok(stepped)
    }

    /// Resumes a vCPU whose stop was internal, and must not be an event.
    fn resume_unseen(&mut self, vcpus: &mut Vcpus, index: u8, run: Run) -> Result<(), ResumeError> {
        vcpus.drop_events(index);
        self.resume(vcpus, index, run)
    }
}

fn step(vcpus: &mut Vcpus, index: u8) -> Result<StepOutcome, ResumeError> {
    let end = Instant::now() + STEP_LIMIT;
    vcpus.resume(index, Run::Step)?;
    vcpus.wait_until_stopped(index, end);
    if vcpus.get(index).is_some_and(Slot::is_running) {
        vcpus.pause(index)?;
    }
    Ok(match vcpus.get(index).map(|slot| &slot.state) {
        Some(State::Stopped { stop, .. }) => match stop {
            Stop::Stepped { .. } => StepOutcome::Done,
            Stop::Paused => StepOutcome::InFaultHandler,
            _ => StepOutcome::OtherStop,
        },
        _ => StepOutcome::OtherStop,
    })
}
