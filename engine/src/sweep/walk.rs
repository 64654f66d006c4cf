//! From the beginning of a path, step by step, to its end.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::Instant;

use unwindlab_vmm::{Checkpoint, Machine, Run};

use super::error::{NoPath, Phase, SweepError};
use super::follow::{Followed, unmarked};
use super::guest::{LEG, checkpoint, pass};
use super::local;
use super::progress::Progress;
use super::start::PathStart;
use super::track::Checkpoints;
use super::trial::micros;
use super::user::waiting;
use crate::driver::{Driver, Guest, Happening};
use crate::plan::sweep::{Reach, Step, SweepPlan};

/// Boundaries in user mode at the end of a path: behind the first of them an NMI is in another
/// entry for certain.
const USER_STEPS: usize = 3;
/// A path of more instructions takes seconds to record.
const LONG: usize = 10_000;
/// Iterations whose path is looked at.
const MOST: u32 = 4;

/// A path, and what it was recorded with.
pub(super) struct Recorded {
    pub(super) path: Vec<Step>,
    pub(super) checkpoints: Checkpoints,
    /// Microseconds that each checkpoint took.
    pub(super) checkpoints_us: Vec<u32>,
}

impl Recorded {
    /// Whether other tasks run on the way.
    fn leads_elsewhere(&self) -> bool {
        self.path.iter().any(|step| step.reach == Reach::Returned)
    }
}

/// A guest that can be put back to where a path begins.
pub(super) struct Walk {
    pub(super) driver: Driver,
    pub(super) start: PathStart,
    /// The console's length where a trial begins.
    pub(super) console: u64,
}

impl Walk {
    /// Goes to where the path begins.
    pub(super) fn at_start(
        plan: &SweepPlan,
        guest: Guest,
        progress: &mut Progress<'_>,
    ) -> Result<Self, SweepError> {
        let Guest { mut driver, hello } = guest;
        if let Some(hello) = hello {
            pass(&mut driver, Happening::Hello(hello), Phase::BeforePath)?;
        }
        let start = PathStart::first(&mut driver, plan, progress)?;
        driver.lead(plan.others_run.then_some(start.vcpu));
        Ok(Self {
            driver,
            console: start.console,
            start,
        })
    }

    /// Records the path. Takes the path of
    /// another iteration where it leads through another task (what the scheduler does depends on
    /// time, and is not what is swept) unless it is long. Returns the path, and how many there were
    /// before it.
    pub(super) fn record(
        &mut self,
        plan: &SweepPlan,
        progress: &mut Progress<'_>,
    ) -> Result<(Recorded, u32), SweepError> {
        let mut recorded = self.path(plan, progress)?;
        let mut left = 0;
        while left + 1 < MOST && recorded.leads_elsewhere() && recorded.path.len() <= LONG {
            left += 1;
            self.driver.lead(None);
            self.start = self.start.next(&mut self.driver, plan, progress)?;
            self.driver.lead(plan.others_run.then_some(self.start.vcpu));
            self.console = self.start.console;
            recorded = self.path(plan, progress)?;
        }
        if self.start.place.is_none() {
            let first = recorded.path.iter().find(|step| !step.user);
            self.start.place = first.map(|step| step.rip);
        }
        Ok((recorded, left))
    }

    /// On another machine, which has taken over a state of this sweep's first one.
    pub(super) fn twin(
        plan: &SweepPlan,
        mut machine: Machine,
        start: PathStart,
    ) -> Result<Self, SweepError> {
        machine.restore(&start.behind)?;
        let session = start.session.clone();
        let console = machine.console().len();
        let mut driver = Driver::with_session(&plan.trial, machine, session);
        driver.continue_witness(start.task_pid)?;
        driver.lead(plan.others_run.then_some(start.vcpu));
        Ok(Self {
            console,
            driver,
            start,
        })
    }

    /// Records the path, from its beginning to the first instructions in user mode or the end of
    /// its task; the machine stands behind them afterwards.
    fn path(
        &mut self,
        plan: &SweepPlan,
        progress: &mut Progress<'_>,
    ) -> Result<Recorded, SweepError> {
        self.driver.machine.restore(&self.start.behind)?;
        self.path_from(self.start.behind.clone(), plan, progress)
    }

    /// The task of the path.
    fn followed(&self) -> Followed {
        Followed {
            vcpu: self.start.vcpu,
            task: self.start.task,
        }
    }

    /// The same from a checkpoint to which the machine was put back.
    pub(super) fn path_from(
        &mut self,
        first: Checkpoint,
        plan: &SweepPlan,
        progress: &mut Progress<'_>,
    ) -> Result<Recorded, SweepError> {
        let followed = self.followed();
        let mut checkpoints = Checkpoints::new(first);
        let mut checkpoints_us = Vec::new();
        let mut path = vec![followed.here(&mut self.driver, Reach::Stepped)?];
        let mut legs = Legs::default();
        let mut plain = BTreeSet::new();
        let mut locals = BTreeMap::new();
        while let Some(&last) = path.last() {
            // With an interrupt that waits, the task enters the kernel again before its next
            // instruction.
            let waits = last.user && waiting(&self.driver.vcpu(self.start.vcpu)?)?.is_some();
            legs.come_to(last.user, waits);
            if legs.in_user_mode == USER_STEPS && legs.arrivals >= plan.arrivals {
                break;
            }
            let in_handler = legs.in_user_mode > 0 && legs.arrivals < plan.arrivals;
            let next = match in_handler {
                true => followed.in_handler(&mut self.driver, last, &mut plain)?,
                false => followed.next(&mut self.driver, last)?,
            };
            let is_over = legs.in_user_mode > 0 && legs.arrivals >= plan.arrivals;
            let Some(mut next) = next.filter(|next| !is_over || next.user) else {
                break;
            };
            if !next.user {
                let vcpu = self.driver.vcpu(self.start.vcpu)?;
                let known = locals.entry(next.rip);
                next.local = *known.or_insert_with(|| local::at(&vcpu, next.rip));
            }
            let at = u32::try_from(path.len()).unwrap_or(u32::MAX);
            path.push(next);
            progress.step()?;
            if path.len() > plan.longest as usize {
                let (longest, place) = (plan.longest, next.rip);
                return Err(NoPath::TooLong { longest, place }.into());
            }
            if checkpoints.are_due(at) {
                let begin = Instant::now();
                checkpoints.push(at, checkpoint(&mut self.driver)?);
                checkpoints_us.push(micros(begin));
            }
        }
        Ok(Recorded {
            path,
            checkpoints,
            checkpoints_us,
        })
    }

    /// The instruction that the vCPU of the path is about to execute.
    pub(super) fn rip(&mut self) -> Result<u64, SweepError> {
        Ok(self.driver.vcpu(self.start.vcpu)?.regs()?.rip)
    }

    /// Executes so many instructions; false where the way ends before, or the KVM host lost the
    /// machine.
    pub(super) fn steps(&mut self, count: u32) -> Result<bool, SweepError> {
        let Some(count) = NonZeroU32::new(count) else {
            return Ok(true);
        };
        self.driver.resume(self.start.vcpu, Run::Steps(count))?;
        match unmarked(&mut self.driver, self.start.vcpu, Instant::now() + LEG)? {
            Happening::Stepped { .. } => Ok(true),
            Happening::Mark { .. } => Ok(false),
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
            match unmarked(&mut self.driver, vcpu, until)? {
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

    /// Goes on to an instruction, and so many times in all; whether it came there, and not to this other one
    /// before.
    pub(super) fn run_to_hit(
        &mut self,
        rip: u64,
        hits: usize,
        not: Option<u64>,
    ) -> Result<bool, SweepError> {
        for _ in 0..hits {
            if !self.run_to_either(rip, not)? || self.rip()? != rip {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Goes on to an instruction, as the path's task; whether it came there. (An interrupt on the
    /// way may return to it past the breakpoint: TCG pushes RF with one.)
    pub(super) fn run_to(&mut self, rip: u64) -> Result<bool, SweepError> {
        self.run_to_either(rip, None)
    }

    fn run_to_either(&mut self, rip: u64, other: Option<u64>) -> Result<bool, SweepError> {
        let places: Vec<u64> = [rip].into_iter().chain(other).collect();
        self.driver.break_at(&places)?;
        self.driver.resume(self.start.vcpu, Run::Continue)?;
        let until = Instant::now() + LEG;
        loop {
            match unmarked(&mut self.driver, self.start.vcpu, until)? {
                Happening::Breakpoint { vcpu, .. }
                    if self.driver.current_task(vcpu)? != self.start.task =>
                {
                    self.driver.resume(vcpu, Run::Continue)?;
                }
                Happening::Breakpoint { .. } => return Ok(true),
                Happening::Mark { .. } => return Ok(false),
                other => return self.stray(other, Phase::To(rip)),
            }
        }
    }

    /// Lets others run until the path's task is back at an instruction; whether it came back.
    pub(super) fn come_back(&mut self, rip: u64) -> Result<bool, SweepError> {
        self.followed().come_back(&mut self.driver, rip)
    }

    /// Takes these steps of a path, one after the other; whether the guest took them. It reads the
    /// times that it read when the path was recorded.
    pub(super) fn along(&mut self, way: &[Step]) -> Result<bool, SweepError> {
        let mut steps = 0;
        for step in way {
            match step.reach {
                Reach::Stepped => {
                    steps += 1;
                    if step.clock.is_some() {
                        let stepped = self.steps(std::mem::take(&mut steps))?;
                        if !stepped || !self.read_as_recorded(step)? {
                            return Ok(false);
                        }
                    }
                }
                Reach::Ran => {
                    if !self.steps(std::mem::take(&mut steps))? || !self.run_to(step.rip)? {
                        return Ok(false);
                    }
                }
                Reach::Returned => {
                    let out = std::mem::take(&mut steps) + 1;
                    if !self.steps(out)? || !self.come_back(step.rip)? {
                        return Ok(false);
                    }
                }
            }
        }
        let came = self.steps(steps)?;
        self.catch_up(way)?;
        Ok(came)
    }

    /// Takes these steps one by one; whether each led where it did when the path was recorded.
    pub(super) fn as_recorded(&mut self, from: Step, way: &[Step]) -> Result<bool, SweepError> {
        let (followed, mut at) = (self.followed(), from);
        for step in way {
            match followed.next(&mut self.driver, at) {
                Ok(Some(next)) if next.rip == step.rip && self.read_as_recorded(step)? => {
                    at = next;
                }
                Ok(_) | Err(SweepError::NoPath(_)) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.catch_up(way)?;
        Ok(true)
    }

    /// False where the guest came to another end on a way that was gone before, or to none, which is
    /// the KVM host's doing.
    fn stray(&mut self, happening: Happening, phase: Phase) -> Result<bool, SweepError> {
        if matches!(
            happening,
            Happening::Ended(_) | Happening::BackAtBreakpoint { .. } | Happening::Nothing
        ) || self.driver.lost()?.is_some()
        {
            self.driver.machine.pause_all()?;
            return Ok(false);
        }
        let happening = Box::new(happening);
        Err(SweepError::Stray { happening, phase })
    }
}

/// Where a path is between kernel and user mode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Legs {
    /// It has been in the kernel.
    in_kernel: bool,
    /// How often it came to user mode from there.
    arrivals: u32,
    /// How many boundaries in a row it has been there.
    in_user_mode: usize,
}

impl Legs {
    /// At the next boundary, at which an interrupt may wait.
    const fn come_to(&mut self, user: bool, waits: bool) {
        self.in_kernel |= !user;
        if !user || !self.in_kernel || waits {
            self.in_user_mode = 0;
            return;
        }
        if self.in_user_mode == 0 {
            self.arrivals += 1;
        }
        self.in_user_mode += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arrival_is_in_user_mode_with_nothing_that_waits() {
        let mut legs = Legs::default();
        let way = [
            (true, false),
            (false, false),
            (true, true),
            (false, false),
            (true, false),
            (true, false),
            (false, false),
            (true, false),
        ];
        let arrivals = way.map(|(user, waits)| {
            legs.come_to(user, waits);
            (legs.arrivals, legs.in_user_mode)
        });
        let expected = [
            (0, 0),
            (0, 0),
            (0, 0),
            (0, 0),
            (1, 1),
            (1, 2),
            (1, 0),
            (2, 1),
        ];
        assert_eq!(arrivals, expected);
    }
}
