//! From behind the request, step by step, to user mode.

use std::num::NonZeroU32;
use std::time::Instant;

use unwindlab_abi::mark;
use unwindlab_vmm::{Machine, Run};

use super::error::{NoPath, Phase, SweepError};
use super::guest::LEG;
use super::start::PathStart;
use crate::driver::{Driver, Happening};
use crate::plan::sweep::{Step, SweepPlan};

/// Boundaries in user mode at the end of a path: behind the first of them an NMI is in another
/// entry for certain.
const USER_STEPS: usize = 3;
/// Iterations whose path is looked at.
const ATTEMPTS: u32 = 16;

/// A guest that can be put back to where a path begins.
pub(super) struct Walk {
    pub(super) driver: Driver,
    pub(super) start: PathStart,
    /// The console's length when the machine was last put back, or just before the request.
    pub(super) console: u64,
}

impl Walk {
    /// Boots a machine, goes to where the path begins, and records the path. Takes the path of
    /// another iteration where it leads through another task: what the scheduler does depends on
    /// time, and is not what is swept.
    pub(super) fn with_path(
        plan: &SweepPlan,
        machine: Machine,
    ) -> Result<(Self, Vec<Step>), SweepError> {
        let mut driver = Driver::new(&plan.trial, machine).running_here();
        let start = PathStart::first(&mut driver, plan)?;
        let mut walk = Self {
            driver,
            console: start.console,
            start,
        };
        for _ in 1..ATTEMPTS {
            let path = walk.path(plan.longest)?;
            if path.iter().all(|step| step.task == walk.start.task) {
                return Ok((walk, path));
            }
            walk.start = walk.start.next(&mut walk.driver, plan)?;
            walk.console = walk.start.console;
        }
        let path = walk.path(plan.longest)?;
        Ok((walk, path))
    }

    /// The same on another machine, which has not run yet.
    pub(super) fn twin(
        plan: &SweepPlan,
        mut machine: Machine,
        start: PathStart,
    ) -> Result<Self, SweepError> {
        machine.adopt(&start.behind)?;
        let session = start.session.clone();
        Ok(Self {
            console: machine.console().len(),
            driver: Driver::with_session(&plan.trial, machine, session).running_here(),
            start,
        })
    }

    /// Records the path, from behind the request to the first instructions in user mode; the
    /// machine stands behind them afterwards.
    fn path(&mut self, longest: u32) -> Result<Vec<Step>, SweepError> {
        self.driver.machine.restore(&self.start.behind)?;
        self.path_from_here(longest)
    }

    /// The same from where the machine stands.
    pub(super) fn path_from_here(&mut self, longest: u32) -> Result<Vec<Step>, SweepError> {
        let mut path = Vec::new();
        loop {
            let step = self.here()?;
            let in_user = path.iter().rev().take_while(|it: &&Step| it.user).count();
            if in_user == USER_STEPS || in_user > 0 && !step.user {
                return Ok(path);
            }
            path.push(step);
            if path.len() > longest as usize {
                return Err(NoPath::TooLong { longest }.into());
            }
            if !self.steps(1)? {
                return Err(NoPath::Lost.into());
            }
        }
    }

    fn here(&mut self) -> Result<Step, SweepError> {
        let place = self.driver.place(self.start.vcpu)?;
        Ok(Step {
            rip: place.rip,
            task: self.driver.current_task(self.start.vcpu)?,
            user: place.cpl == 3,
        })
    }

    /// The instruction that the vCPU of the path is about to execute.
    pub(super) fn rip(&mut self) -> Result<u64, SweepError> {
        Ok(self.driver.vcpu(self.start.vcpu)?.regs()?.rip)
    }

    /// Executes so many instructions; false where the KVM host lost the machine.
    pub(super) fn steps(&mut self, count: u32) -> Result<bool, SweepError> {
        let Some(count) = NonZeroU32::new(count) else {
            return Ok(true);
        };
        self.driver.resume(self.start.vcpu, Run::Steps(count))?;
        match self.next(Instant::now() + LEG)? {
            Happening::Stepped { .. } => Ok(true),
            other => self.stray(other, Phase::OnPath),
        }
    }

    /// Goes on from inside an NMI's handler to this instruction behind it, with interrupts held
    /// back; whether it came there.
    pub(super) fn leave_handler(&mut self, to: u64) -> Result<bool, SweepError> {
        let vcpu = self.start.vcpu;
        let until = Instant::now() + LEG;
        // What the handler calls may come by there too, and a guest that the host lost may do so
        // for ever.
        while Instant::now() < until {
            self.driver.resume(vcpu, Run::To(to))?;
            match self.next(until)? {
                Happening::Stepped { .. } if !self.driver.nmi_state(vcpu)?.masked => {
                    return Ok(true);
                }
                Happening::Stepped { .. } => {
                    if !self.steps(1)? {
                        return Ok(false);
                    }
                }
                Happening::Mark { .. } => return Ok(false),
                Happening::Nothing => {
                    self.driver.machine.pause_all()?;
                }
                other => return self.stray(other, Phase::To(to)),
            }
        }
        Ok(false)
    }

    /// Goes on to an instruction, and so many times in all; whether it came there.
    pub(super) fn run_to_hit(&mut self, rip: u64, hits: usize) -> Result<bool, SweepError> {
        for _ in 0..hits {
            if !self.run_to(rip)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Goes on to an instruction; whether it came there. (An interrupt on the way may return to it
    /// past the breakpoint: TCG pushes RF with one.)
    pub(super) fn run_to(&mut self, rip: u64) -> Result<bool, SweepError> {
        self.driver.break_at(&[rip])?;
        self.driver.resume(self.start.vcpu, Run::Continue)?;
        match self.next(Instant::now() + LEG)? {
            Happening::Breakpoint { .. } => Ok(true),
            Happening::Mark { .. } => Ok(false),
            other => self.stray(other, Phase::To(rip)),
        }
    }

    /// Waits for what happens on the path, of which the helper's marks are no part.
    fn next(&mut self, until: Instant) -> Result<Happening, SweepError> {
        loop {
            match self.driver.next(until)? {
                Happening::Mark { vcpu, what, .. } if !matches!(what, mark::ARM | mark::DONE) => {
                    self.driver.resume(vcpu, Run::Continue)?;
                }
                happening => return Ok(happening),
            }
        }
    }

    /// False where the guest came to another end on a way that was gone before, which is the KVM
    /// host's doing.
    fn stray(&mut self, happening: Happening, phase: Phase) -> Result<bool, SweepError> {
        if matches!(
            happening,
            Happening::Ended(_) | Happening::BackAtBreakpoint { .. }
        ) || self.driver.lost()?.is_some()
        {
            return Ok(false);
        }
        let happening = Box::new(happening);
        Err(SweepError::Stray { happening, phase })
    }
}
