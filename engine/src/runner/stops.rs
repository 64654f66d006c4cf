//! What a stop of a vCPU calls for: at a mark, at a place of an injection, after a single step.

use unwindlab_abi::mark;
use unwindlab_vmm::{Access, DataBreakpoint, Run};

use super::actions::Stepping;
use super::arrivals::{Due, Standing, ThreadIteration};
use super::blocks;
use super::error::TrialError;
use super::injector::Injector;
use super::triggers::DueInjection;
use crate::driver::Driver;
use crate::plan::{EventPlan, ExitPlan};

/// A vCPU that stopped of its own. Each method deals with one reason to stop, and then lets the
/// vCPU go on.
#[derive(Debug)]
pub struct StoppedVcpu<'a, 'p> {
    pub injector: &'a mut Injector<'p>,
    pub driver: &'a mut Driver,
    pub vcpu: u8,
}

impl StoppedVcpu<'_, '_> {
    /// A workload thread, or the agent's helper, says where it is.
    pub fn at_mark(mut self, what: u8, thread: u32) -> Result<(), TrialError> {
        if what == mark::DONE {
            let corrupted = &mut self.injector.actions.corrupted;
            corrupted.restore(self.driver, self.vcpu, thread)?;
        }
        if !self.injector.is_closed() {
            self.see_mark(what, thread)?;
        }
        self.behind_access()
    }

    /// Notes what a mark says, and makes the injections that wait for it.
    fn see_mark(&mut self, what: u8, thread: u32) -> Result<(), TrialError> {
        if matches!(what, mark::ARM | mark::DONE) {
            // Its iteration is over, and with it the way of its arrival.
            let stepping = &mut self.injector.actions.stepping;
            stepping.retain(|_, it| !it.leads(thread));
        }
        let arrivals = &mut self.injector.triggers.arrivals;
        match what {
            mark::ARM => arrivals.arm(thread, self.driver.current_task(self.vcpu)?),
            mark::DONE => arrivals.disarm(thread),
            mark::COMMANDED => self.injector.commanded(self.driver)?,
            mark::BLOCKED => blocks::begin(self.driver, thread, arrivals.in_iteration(thread)),
            _ => return Ok(()),
        }
        let by = ThreadIteration {
            thread: Some(thread),
            iteration: None,
        };
        let event = EventPlan::Mark(what);
        self.injector.see(self.driver, event, self.vcpu, by)?;
        self.injector.settle(self.driver)
    }

    /// It made an access that is waited for.
    pub fn at_access(self, access: Access) -> Result<(), TrialError> {
        if !self.injector.is_closed() {
            let event = EventPlan::Exit(ExitPlan::of(access));
            let nobody = ThreadIteration::default();
            self.injector.see(self.driver, event, self.vcpu, nobody)?;
            self.injector.note_completion(self.driver);
        }
        self.behind_access()
    }

    /// Goes on behind an access: where something leads the vCPU on, it was the step.
    fn behind_access(self) -> Result<(), TrialError> {
        if !self.injector.actions.stepping.contains_key(&self.vcpu) {
            return self.go_on(Run::Continue);
        }
        let pc = self.driver.place(self.vcpu)?.rip;
        self.after_step(pc)
    }

    /// It stands at a place of an injection, or at the boundary after one.
    pub fn at_breakpoint(mut self, pc: u64) -> Result<(), TrialError> {
        if self.injector.is_closed() {
            return self.go_on(Run::Continue);
        }
        self.arrive(pc, None)?;
        self.injector.actions.resume_as_led(self.driver, self.vcpu)
    }

    /// It stands behind an access to a field that injections wait for.
    pub fn at_data(mut self, pc: u64, met: &[DataBreakpoint]) -> Result<(), TrialError> {
        if self.injector.is_closed() {
            return self.go_on(Run::Continue);
        }
        for &data in met {
            self.arrive(pc, Some(data))?;
        }
        if !self.injector.actions.stepping.contains_key(&self.vcpu) {
            return self.go_on(Run::Continue);
        }
        // The access was the step.
        self.after_step(pc)
    }

    /// Makes what is due where it stands: before the instruction, or behind an access to `data`.
    fn arrive(&mut self, pc: u64, data: Option<DataBreakpoint>) -> Result<(), TrialError> {
        let (injector, driver, vcpu) = (&mut *self.injector, &mut *self.driver, self.vcpu);
        // An NMI's handler comes by places too (perf's asks for the task's pid, as getppid does):
        // unless a scenario says so, the place is meant in the entry itself, and an NMI would
        // not be taken here anyway.
        let in_nmi = driver.nmi_state(vcpu)?.masked;
        let task = driver.current_task(vcpu)?;
        let next = driver.successors(vcpu, pc)?;
        let standing = Standing {
            pc,
            data,
            vcpu,
            task,
            in_nmi,
            stack_pointer: driver.stack_pointer(vcpu)?,
            leads_on: !next.is_empty(),
        };
        for due in injector.triggers.arrivals.hit(&standing) {
            match due {
                Due::StepFirst {
                    spec,
                    by,
                    anchor,
                    steps,
                } => {
                    let lead = Stepping::lead(spec, by, anchor, steps);
                    if injector.actions.stepping.insert(vcpu, lead).is_some() {
                        return Err(TrialError::TwoLead(vcpu));
                    }
                }
                Due::Inject { spec, by, again } => {
                    if again {
                        injector.triggers.arrivals.go_on_at(spec, by, next.clone());
                    }
                    injector.act(driver, DueInjection { spec, vcpu, by })?;
                }
            }
        }
        Ok(())
    }

    /// It is back at a place where it stopped before: it goes on as it was to go on then.
    pub fn again(self) -> Result<(), TrialError> {
        if self.injector.is_closed() {
            return self.go_on(Run::Continue);
        }
        self.injector.actions.resume_as_led(self.driver, self.vcpu)
    }

    /// It executed an instruction: on the way of a burst or a sweep, which goes on here, or past a
    /// point of a schedule.
    pub fn after_step(self, pc: u64) -> Result<(), TrialError> {
        let is_closed = self.injector.is_closed();
        let stepping = &mut self.injector.actions.stepping;
        match stepping.remove(&self.vcpu).filter(|_| !is_closed) {
            Some(
                lead @ Stepping::Lead {
                    spec,
                    by,
                    anchor: Some(anchor),
                    steps,
                    ..
                },
            ) => {
                if pc != anchor.pc {
                    // An access, on the way.
                    stepping.insert(self.vcpu, lead);
                    return self.go_on(lead.run());
                }
                if !anchor.is_with(self.driver.stack_pointer(self.vcpu)?) {
                    return self.go_on(Run::Continue);
                }
                let arrivals = &mut self.injector.triggers.arrivals;
                arrivals.came_to_anchor(spec, by);
                stepping.insert(self.vcpu, Stepping::by_steps(spec, by, steps));
                self.go_on(Run::Step)
            }
            Some(Stepping::Lead {
                spec,
                by,
                anchor: None,
                steps: steps @ 2..,
                ..
            }) => {
                stepping.insert(self.vcpu, Stepping::by_steps(spec, by, steps - 1));
                self.go_on(Run::Step)
            }
            Some(Stepping::Lead { spec, by, .. }) => {
                self.injector.triggers.arrivals.go_on_at(spec, by, vec![pc]);
                self.at_breakpoint(pc)
            }
            Some(Stepping::Pass { of }) => {
                self.injector.actions.passed(self.driver, of)?;
                self.go_on(Run::Continue)
            }
            None => self.go_on(Run::Continue),
        }
    }

    fn go_on(self, run: Run) -> Result<(), TrialError> {
        Ok(self.driver.resume(self.vcpu, run)?)
    }
}
