//! What a stop of a vCPU calls for: at a mark, at a place of an injection, after a single step.

use unwindlab_abi::mark;
use unwindlab_vmm::{Access, Run};

use super::actions::NOBODY;
use super::arrivals::{Due, Standing, Who};
use super::error::TrialError;
use super::trial::Trial;
use crate::driver::vcpu::{VcpuError, vcpu};
use crate::driver::watch;
use crate::plan::EventPlan;
use crate::plan::ExitPlan;

/// Why a vCPU executes single instructions right now.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stepping {
    /// On the way of a burst or a sweep.
    Lead {
        spec: u32,
        who: Who,
        /// How many are left.
        steps: u64,
    },
    /// Past a point of a schedule with so many.
    Pass { of: u32 },
}

impl Trial<'_> {
    /// A workload thread, or the agent's helper, says something.
    pub(super) fn mark(&mut self, index: u8, value: u32) -> Result<(), TrialError> {
        let (what, thread) = mark::unpack(value);
        if what == mark::DONE {
            self.restore(index, thread)?;
        }
        if self.stopping {
            return Ok(());
        }
        match what {
            mark::ARM => {
                let task = watch::current_task(&mut self.machine, index, &self.plan.symbols)?;
                self.arrivals.arm(thread, task);
            }
            mark::DONE => self.arrivals.disarm(thread),
            mark::COMMANDED => self.commanded()?,
            mark::BLOCKED => self.begin_block(thread),
            _ => return Ok(()),
        }
        let who = Who {
            thread: Some(thread),
            iteration: None,
        };
        for spec in self.sightings.see(EventPlan::Mark(what)) {
            self.act(spec, index, who)?;
        }
        self.note_completion();
        self.refresh_breakpoints()
    }

    /// The guest made an access that is waited for.
    pub(super) fn accessed(&mut self, index: u8, access: Access) -> Result<(), TrialError> {
        if !self.stopping {
            for spec in self.sightings.see(EventPlan::Exit(ExitPlan::of(access))) {
                self.act(spec, index, NOBODY)?;
            }
            self.note_completion();
        }
        if !self.stepping.contains_key(&index) {
            return self.resume(index, Run::Continue);
        }
        // The access was the step.
        let handle = vcpu(&mut self.machine, index)?;
        let (pc, _) = watch::place(&handle).map_err(VcpuError::from)?;
        self.stepped(index, pc)
    }

    /// The vCPU stands at a place of ours, or at the boundary after one.
    pub(super) fn breakpoint(&mut self, index: u8, pc: u64) -> Result<(), TrialError> {
        if self.stopping {
            return self.resume(index, Run::Continue);
        }
        // An NMI's handler comes by places too (perf's asks for the task's pid, as getppid does):
        // unless a scenario says so, the place is meant in the entry itself, and an NMI would
        // not be taken here anyway.
        let in_nmi = self.in_nmi(index)?;
        let task = watch::current_task(&mut self.machine, index, &self.plan.symbols)?;
        let next = watch::successors(&mut self.machine, index, pc)?;
        let standing = Standing {
            pc,
            vcpu: index,
            task,
            in_nmi,
            leads_on: !next.is_empty(),
        };
        for due in self.arrivals.hit(&standing) {
            match due {
                Due::StepFirst { spec, who, steps } => {
                    let lead = Stepping::Lead { spec, who, steps };
                    if self.stepping.insert(index, lead).is_some() {
                        return Err(TrialError::TwoLead(index));
                    }
                }
                Due::Inject { spec, who, again } => {
                    if again {
                        self.arrivals.go_on_at(spec, who, next.clone());
                    }
                    self.act(spec, index, who)?;
                }
            }
        }
        self.resume_as_led(index)
    }

    /// Lets a vCPU go on: by one instruction, where something leads it.
    pub(super) fn resume_as_led(&mut self, index: u8) -> Result<(), TrialError> {
        let run = match self.stepping.contains_key(&index) {
            true => Run::Step,
            false => Run::Continue,
        };
        self.resume(index, run)
    }

    /// The vCPU executed an instruction: on the way of a burst or a sweep, which goes on here, or
    /// past a point of a schedule.
    pub(super) fn stepped(&mut self, index: u8, pc: u64) -> Result<(), TrialError> {
        match self.stepping.remove(&index) {
            Some(Stepping::Lead {
                spec,
                who,
                steps: steps @ 2..,
            }) => {
                let steps = steps - 1;
                self.stepping
                    .insert(index, Stepping::Lead { spec, who, steps });
                self.resume(index, Run::Step)
            }
            Some(Stepping::Lead { spec, who, .. }) => {
                self.arrivals.go_on_at(spec, who, vec![pc]);
                self.breakpoint(index, pc)
            }
            Some(Stepping::Pass { of }) => {
                self.passed(of)?;
                self.resume(index, Run::Continue)
            }
            None => self.resume(index, Run::Continue),
        }
    }
}
