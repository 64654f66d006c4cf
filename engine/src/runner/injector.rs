//! Makes the injections of a trial: those that are due by time, those that something seen calls
//! for, and those that follow one that was made.

use std::time::{Duration, Instant};

use unwindlab_abi::Command;
use unwindlab_oracle::trace::recording::{Injection, StoodStill, VcpuPlace};
use unwindlab_vmm::{AccessKind, Machine, Pause, Run, Watched};

use super::actions::{Actions, MOST_LED};
use super::arrivals::ThreadIteration;
use super::blocks;
use super::books::Books;
use super::error::{Refusal, TrialError};
use super::helper::Helper;
use super::triggers::{DueInjection, Triggers, due_at_start};
use crate::driver::Driver;
use crate::plan::{ActionPlan, EventPlan, InjectionPlan, TriggerPlan};

/// How long an NMI may wait for a vCPU in user mode.
const UNTAKEN: Duration = Duration::from_secs(3);

/// The injections of a trial.
#[derive(Debug)]
pub struct Injector<'p> {
    plan: &'p [InjectionPlan],
    /// When they are due.
    pub triggers: Triggers,
    /// How they are made.
    pub actions: Actions,
    helper: Helper,
    /// Which were made.
    pub books: Books,
    closed: bool,
}

impl<'p> Injector<'p> {
    /// An injector that waits for [`Self::begin`].
    pub fn new(plan: &'p [InjectionPlan]) -> Self {
        Self {
            plan,
            triggers: Triggers::default(),
            actions: Actions::default(),
            helper: Helper::default(),
            books: Books::default(),
            closed: false,
        }
    }

    /// Whether this machine can make the accesses that injections wait for: each vendor's counters
    /// have their own MSRs.
    pub fn check_host(&self, machine: &Machine) -> Result<(), TrialError> {
        for (spec, watched) in watched(self.plan) {
            let counter = matches!(watched.kind, AccessKind::Rdmsr | AccessKind::Wrmsr);
            if let Some(msr) = watched.number.filter(|_| counter)
                && !machine.has_counter_msr(msr)
            {
                return Err(TrialError::NoSuchCounter { spec, msr });
            }
        }
        Ok(())
    }

    /// The agent is ready: arms what is to be armed, while the workload stands still.
    pub fn begin(&mut self, driver: &mut Driver, now: Instant) -> Result<(), TrialError> {
        self.triggers = Triggers::of(self.plan, &driver.session, now)?;
        let accesses: Vec<_> = watched(self.plan).map(|(_, it)| it).collect();
        driver.stop_at(&accesses)?;
        for due in due_at_start(self.plan) {
            self.act(driver, due)?;
        }
        self.settle(driver)
    }

    /// Whether nothing is injected any more.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Makes the injections that are due by time.
    pub fn make_due(&mut self, driver: &mut Driver) -> Result<(), TrialError> {
        let now = Instant::now();
        if self.closed {
            return Ok(());
        }
        while let Some(delayed) = self.triggers.delays.take_due(now) {
            if let Some((thread, delay)) = self.release(delayed.spec) {
                if delayed.is_new() {
                    blocks::count_from_here(driver, thread);
                }
                if blocks::another_stands_still(driver, thread)
                    && self.triggers.delays.put_off(delayed, now, delay)
                {
                    continue;
                }
            }
            let due = DueInjection::by_nobody(delayed.spec, delayed.vcpu);
            self.act(driver, due)?;
        }
        while let Some((spec, vcpu)) = self.triggers.rates.take_due(now, || driver.progress()) {
            if driver.vcpu(vcpu)?.pause()? != Pause::Paused {
                // It stands at something else that wants an answer first: next period.
                continue;
            }
            match self.act(driver, DueInjection::by_nobody(spec, vcpu)) {
                Ok(()) => self.triggers.rates.made(spec, vcpu),
                Err(error) => match error.refusal_of(spec) {
                    // The last one has not been taken yet (its vCPU had no time): next period.
                    Some(Refusal::OneWaits) => self.not_taken(driver, vcpu, now)?,
                    Some(Refusal::Passing) => {}
                    None => return Err(error),
                },
            }
            driver.resume(vcpu, Run::AsBefore)?;
            self.note_completion(driver);
        }
        Ok(())
    }

    /// Of an injection that releases a page after a delay: the thread that waits, and the delay. It is put off until all other
    /// threads have made progress, which P5 asks for: one that is short of CPU time needs longer than the delay.
    fn release(&self, spec: u32) -> Option<(u32, Duration)> {
        let plan = self.plan.get(spec as usize)?;
        let ActionPlan::Guest {
            command: Command::Release,
            thread: Some(thread),
        } = plan.action
        else {
            return None;
        };
        match plan.trigger {
            TriggerPlan::Delay { micros, .. } => Some((thread, Duration::from_micros(micros))),
            _ => None,
        }
    }

    /// An NMI waits on a vCPU. If it does so for long, and the vCPU is in user mode, where no
    /// handler of another NMI runs, then the KVM host does not deliver it: seen in the emulated
    /// one, with a guest that went on.
    fn not_taken(&mut self, driver: &mut Driver, vcpu: u8, now: Instant) -> Result<(), TrialError> {
        let time = self.triggers.rates.not_taken(vcpu, now);
        if time <= UNTAKEN {
            return Ok(());
        }
        let VcpuPlace { rip, cpl, .. } = driver.place(vcpu)?;
        let millis = time.as_millis();
        match cpl {
            3 => Err(TrialError::NmiKept { vcpu, millis, rip }),
            _ => Ok(()),
        }
    }

    /// Reads the rings, and makes the injections that wait for what is in them or in the lab
    /// client's log.
    pub fn look(&mut self, driver: &mut Driver) -> Result<(), TrialError> {
        driver.drain();
        if self.closed || !self.triggers.sightings.reads_rings() {
            return Ok(());
        }
        let cursor = &mut self.triggers.sightings.cursor;
        for (event, cpu) in driver.session.seen(driver.machine.memory(), cursor)? {
            self.see(driver, event, cpu, ThreadIteration::default())?;
        }
        Ok(())
    }

    /// Something was seen: makes the injections that wait for it.
    pub fn see(
        &mut self,
        driver: &mut Driver,
        event: EventPlan,
        vcpu: u8,
        by: ThreadIteration,
    ) -> Result<(), TrialError> {
        for spec in self.triggers.sightings.see(event) {
            self.act(driver, DueInjection { spec, vcpu, by })?;
        }
        Ok(())
    }

    /// Makes an injection that is due, and then those that follow it in the same stop.
    pub fn act(&mut self, driver: &mut Driver, due: DueInjection) -> Result<(), TrialError> {
        let mut now = vec![due];
        while let Some(due) = now.pop() {
            let Some(plan) = self.plan.get(due.spec as usize) else {
                continue;
            };
            self.books.begin(driver);
            if let ActionPlan::Guest { command, thread } = plan.action {
                self.helper.give(driver, due, command, thread)?;
                continue;
            }
            let target = plan.target.unwrap_or(due.vcpu);
            let is_here = target == due.vcpu;
            let stood = is_here && matches!(plan.trigger, TriggerPlan::Arrival(_));
            let exact = stood && driver.nmi_state(target)?.takes_one_here();
            if self.actions.is_to_thaw(plan.action, target) {
                // What was released before may be due at the next instruction of that vCPU.
                self.refresh_breakpoints(driver)?;
            }
            let performed = self.actions.perform(driver, plan.action, due, target);
            let place = performed.map_err(|error| error.of_injection(due.spec))?;
            let by = match is_here {
                true => due.by,
                false => ThreadIteration::default(),
            };
            self.note(driver, due.spec, by, place, exact);
            let followers = self.triggers.follow(self.plan, &mut self.books, due);
            now.extend(followers.into_iter().rev());
        }
        self.settle(driver)
    }

    /// The helper says that it is done with its command. Makes what follows, and gives the next
    /// one.
    pub fn commanded(&mut self, driver: &mut Driver) -> Result<(), TrialError> {
        let Some((due, place)) = self.helper.done(driver)? else {
            return Ok(());
        };
        self.note(driver, due.spec, due.by, place, false);
        for due in self.triggers.follow(self.plan, &mut self.books, due) {
            self.act(driver, due)?;
        }
        // Before the one who says so goes on: what follows may be due at its next instruction.
        self.refresh_breakpoints(driver)?;
        self.helper.give_next(driver)
    }

    /// Writes an injection down that was made.
    fn note(
        &mut self,
        driver: &mut Driver,
        spec: u32,
        by: ThreadIteration,
        place: VcpuPlace,
        exact: bool,
    ) {
        let Some(plan) = self.plan.get(spec as usize) else {
            return;
        };
        let injection = Injection {
            spec,
            vcpu: place.vcpu,
            rip: place.rip,
            cpl: place.cpl,
            thread: by.thread,
            iteration: by.iteration,
            exact: exact && place.cpl == 0,
            interrupt_waits: place.interrupt_waits,
            stack_pointer: place.stack_pointer,
        };
        let recording = &mut driver.session.recording;
        self.books.note(recording, plan.action, injection);
        if plan.trigger.waits_for_the_guest() {
            self.books.reach();
        }
    }

    /// Something was made or released: sees whether that was all, and stops at what is due next.
    pub fn settle(&mut self, driver: &mut Driver) -> Result<(), TrialError> {
        self.note_completion(driver);
        self.refresh_breakpoints(driver)
    }

    /// Takes note of it where all injections are made.
    pub fn note_completion(&mut self, driver: &Driver) {
        if self.books.completed().is_none()
            && self.triggers.are_complete(self.plan, &self.books)
            && self.helper.is_idle()
        {
            self.books.complete(driver);
        }
    }

    /// Sets the breakpoints that are needed now.
    fn refresh_breakpoints(&self, driver: &mut Driver) -> Result<(), TrialError> {
        if self.closed {
            return Ok(driver.break_at(&[])?);
        }
        let arrivals = &self.triggers.arrivals;
        Ok(driver.break_at_all(&arrivals.addresses(), &arrivals.data())?)
    }

    /// Lets frozen vCPUs go on whose time is over. One that was to be thawed in time closes the
    /// injector, or fails the trial where the helper waits for it.
    pub fn thaw_late(&mut self, driver: &mut Driver) -> Result<(), TrialError> {
        self.actions.freezer.thaw_over(driver)?;
        let Some(late) = self.actions.freezer.too_long(Instant::now()) else {
            return Ok(());
        };
        if !self.helper.is_idle() {
            let name = |spec: u32| self.plan.get(spec as usize).map(|it| it.name.as_str());
            let injection = self.helper.under_way().and_then(name);
            return Err(TrialError::HelperWaits {
                injection: injection.unwrap_or("a command").to_owned(),
                frozen: late.vcpu,
                places: driver.places()?,
            });
        }
        let by = self.plan.get(late.by as usize);
        driver.session.recording.stood_still = Some(StoodStill {
            vcpu: late.vcpu,
            ms: u64::try_from(late.time.as_millis()).unwrap_or(u64::MAX),
            by: by.map_or("?", |it| it.name.as_str()).to_owned(),
            places: driver.places()?,
        });
        self.close(driver)
    }

    /// Lets those go on freely that have been led on for too long.
    pub fn let_go_late(&mut self, driver: &mut Driver) -> Result<(), TrialError> {
        for (spec, by) in self.actions.let_go(driver, MOST_LED)? {
            self.triggers.arrivals.lose_way(spec, by);
        }
        Ok(())
    }

    /// From now on nothing is injected, everything may run, and the workload is to end.
    pub fn close(&mut self, driver: &mut Driver) -> Result<(), TrialError> {
        if !self.closed {
            self.closed = true;
            self.books.close(driver);
            let shared = &driver.session.shared;
            shared.stop_workload(driver.machine.memory())?;
        }
        self.refresh_breakpoints(driver)?;
        self.actions.let_go(driver, Duration::ZERO)?;
        Ok(self.actions.freezer.thaw_all(driver)?)
    }
}

/// The accesses that these injections wait for, each with its injection's number.
fn watched(plan: &[InjectionPlan]) -> impl Iterator<Item = (usize, Watched)> {
    plan.iter().enumerate().filter_map(|(spec, it)| {
        let TriggerPlan::Event {
            event: EventPlan::Exit(exit),
            ..
        } = it.trigger
        else {
            return None;
        };
        Some((spec, exit.watched()?))
    })
}
