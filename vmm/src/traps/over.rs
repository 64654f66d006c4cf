//! Executing the instruction under a trap: one vCPU, one step, everyone else stopped.

use std::time::{Duration, Instant};

use crate::debug::BreakpointError;
use crate::exit::Stop;
use crate::machine::Machine;
use crate::slot::{ResumeError, State};
use crate::thread::Run;

use super::{Passing, Who};

/// How long one step may take, while nobody else runs. One that takes longer went off into the
/// handler of a fault, which may wait for the others.
const STEP_LIMIT: Duration = Duration::from_millis(20);

impl Machine {
    /// Lets a vCPU that stands at a trap execute the instruction there, and then go on as wanted.
    pub(super) fn step_over(&mut self, index: u8, run: Run) -> Result<(), ResumeError> {
        let failed = |source: BreakpointError| ResumeError::Trap {
            vcpu: index,
            source: Box::new(source),
        };
        let stopped = self.stop_all().map_err(failed)?;
        let stepped = self.step_with_original(index).map_err(failed)?;
        let went_on = match (stepped, run) {
            (Stepped::Once, Run::Continue) => self.take_as_seen(index, Run::Continue),
            (Stepped::Once, Run::Steps(count)) if count.get() > 1 => {
                match count.get().checked_sub(1).and_then(|it| it.try_into().ok()) {
                    Some(left) => self.take_as_seen(index, Run::Steps(left)),
                    None => Ok(()),
                }
            }
            // The step, or what happened instead, is the event that the caller waits for.
            (Stepped::Once | Stepped::OtherStop, _) => Ok(()),
            // It comes back to the trap, and is told then.
            (Stepped::WentOff, _) => match self.slot_mut(index) {
                Some(slot) => slot.resume(Run::Continue),
                None => Ok(()),
            },
        };
        self.go_on(&stopped).map_err(failed)?;
        went_on
    }

    fn step_with_original(&mut self, index: u8) -> Result<Stepped, BreakpointError> {
        let vcpu = self.slot(index).and_then(|slot| slot.stopped());
        let Some(who) = vcpu.and_then(Who::at) else {
            return Ok(Stepped::OtherStop);
        };
        let planted = self.traps.planted.iter();
        let Some(at) = { planted }.position(|trap| trap.address == who.address) else {
            return Ok(Stepped::OtherStop);
        };
        if let Some(trap) = self.traps.planted.get(at) {
            trap.take_out(&self.memory)?;
        }
        let stepped = self.one_step(index);
        if let Some(trap) = self.traps.planted.get(at) {
            trap.put_in(&self.memory)?;
        }
        let stepped = stepped?;
        if stepped == Stepped::WentOff {
            self.traps.passing.push(Passing { who, stepped: true });
        }
        Ok(stepped)
    }

    fn one_step(&mut self, index: u8) -> Result<Stepped, BreakpointError> {
        let end = Instant::now() + STEP_LIMIT;
        if let Some(slot) = self.slot_mut(index) {
            slot.resume(Run::Step).map_err(Box::new)?;
        }
        self.wait_until_stopped(index, end);
        if let Some(slot) = self.slot(index)
            && slot.is_running()
        {
            slot.kick()?;
            self.wait_stopped(index, true)?;
        }
        Ok(match self.slot(index).map(|slot| &slot.state) {
            Some(State::Stopped { stop, .. }) => match stop {
                Stop::Stepped { .. } => Stepped::Once,
                Stop::Paused => Stepped::WentOff,
                _ => Stepped::OtherStop,
            },
            _ => Stepped::OtherStop,
        })
    }

    /// Takes back the event of a stop that is the machine's own affair, and lets the vCPU go on.
    fn take_as_seen(&mut self, index: u8, run: Run) -> Result<(), ResumeError> {
        self.drop_events(index);
        self.resume(index, run)
    }
}

/// What became of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stepped {
    /// The instruction was executed.
    Once,
    /// It is not done: the handler of a fault runs, and will come back to it.
    WentOff,
    /// The vCPU stopped for another reason.
    OtherStop,
}
