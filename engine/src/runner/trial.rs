//! One trial: from the agent's first word to its end.

use std::time::{Duration, Instant};

use unwindlab_oracle::trace::recording::{Recording, TrialEnd};
use unwindlab_vmm::{Machine, Run};

use super::clock::Clock;
use super::error::TrialError;
use super::injector::Injector;
use super::stops::StoppedVcpu;
use crate::driver::{Call, Driver, Happening};
use crate::plan::{Stage, TrialPlan, TrialProgress};

/// How often rings are read and the guest is looked at while nothing else happens.
const TICK: Duration = Duration::from_millis(20);
/// The same where all injections are made, which is a matter of some iterations then.
const LAST_TICK: Duration = Duration::from_millis(2);
/// The same where an injection waits for what is in the rings.
const QUICK_TICK: Duration = Duration::from_millis(1);
/// How often progress is told.
const TELL: Duration = Duration::from_millis(300);

/// A trial under way.
pub struct Trial<'p> {
    driver: Driver,
    injector: Injector<'p>,
    clock: Clock,
    /// How many injections are planned.
    planned: u64,
    /// Whether it is planned how many iterations threads make.
    counts_iterations: bool,
    /// The agent's first call, which is not answered yet.
    hello: Option<Call>,
    end: Option<TrialEnd>,
}

impl<'p> Trial<'p> {
    /// A trial on a guest whose agent was not answered yet.
    pub fn new(plan: &'p TrialPlan, driver: Driver) -> Self {
        Self {
            driver,
            injector: Injector::new(&plan.injections),
            clock: Clock::start(plan),
            planned: plan.injections.iter().map(|i| i.trigger.injections()).sum(),
            counts_iterations: plan.guest.workload.iterations > 0,
            hello: None,
            end: None,
        }
    }

    /// Lets the machine run until its agent calls for the first time. It stands still then, without
    /// an answer.
    ///
    /// # Errors
    /// The recording of a machine that does not come so far.
    pub fn boot(
        mut self,
        tell: &mut dyn FnMut(&TrialProgress) -> bool,
    ) -> Result<(Driver, Call), Box<Recording>> {
        let started = self.driver.start().map_err(TrialError::from);
        let end = started.and_then(|()| self.control(tell));
        match (end, self.hello.take()) {
            (Ok(_), Some(hello)) => Ok((self.driver, hello)),
            (end, _) => Err(Box::new(self.close_with(end).0)),
        }
    }

    /// Answers the agent's first call, and runs the trial from there to its end. `tell` is told of
    /// the progress and says whether to go on.
    pub fn run(
        mut self,
        hello: Call,
        tell: &mut dyn FnMut(&TrialProgress) -> bool,
    ) -> (Recording, Machine) {
        self.clock.restart();
        let end = self.injector.check_host(&self.driver.machine);
        let end = end.and_then(|()| self.greet(hello));
        let end = end.and_then(|()| self.control(tell));
        self.close_with(end)
    }

    fn close_with(mut self, end: Result<TrialEnd, TrialError>) -> (Recording, Machine) {
        let end = end.unwrap_or_else(|error| self.failed(&error));
        self.close(end)
    }

    /// The end of a trial that cannot go on: the guest's doing where it is known to be.
    fn failed(&mut self, error: &TrialError) -> TrialEnd {
        let what = error.to_string();
        if matches!(error, TrialError::NoSuchCounter { .. }) {
            return TrialEnd::HostLacks { reason: what };
        }
        let end = match error.is_the_guests() {
            true => self.driver.misbehaved(what),
            false => return infra(error),
        };
        end.unwrap_or_else(|failed| infra(&failed))
    }

    fn greet(&mut self, hello: Call) -> Result<(), TrialError> {
        if let Some(happening) = self.driver.answer(hello)? {
            self.deal_with(happening)?;
        }
        match self.end {
            Some(_) => Ok(()),
            None => Ok(self.driver.start()?),
        }
    }

    fn control(
        &mut self,
        tell: &mut dyn FnMut(&TrialProgress) -> bool,
    ) -> Result<TrialEnd, TrialError> {
        let mut told = Instant::now();
        let mut ticked = Instant::now();
        loop {
            let happening = self.driver.next(self.next_wake(ticked))?;
            self.deal_with(happening)?;
            self.injector.make_due(&mut self.driver)?;
            if ticked.elapsed() >= self.tick_length() {
                ticked = Instant::now();
                self.tick()?;
            }
            if told.elapsed() >= TELL {
                told = Instant::now();
                if !tell(&self.progress()) {
                    return Ok(TrialEnd::Infra {
                        reason: "interrupted".to_owned(),
                    });
                }
            }
            if let Some(end) = self.end.take() {
                return Ok(end);
            }
        }
    }

    fn tick_length(&self) -> Duration {
        let is_last = self.injector.books.completed().is_some() && !self.injector.is_closed();
        match self.injector.triggers.sightings.reads_rings() {
            true => QUICK_TICK,
            false if is_last => LAST_TICK,
            false => TICK,
        }
    }

    fn next_wake(&self, ticked: Instant) -> Instant {
        let tick = ticked + self.tick_length();
        let due = self.injector.triggers.next_due();
        due.map_or(tick, |due| due.min(tick))
    }

    fn progress(&self) -> TrialProgress {
        TrialProgress {
            stage: match self.injector.is_closed() {
                true => Stage::Stopping,
                false => self.driver.session.stage,
            },
            elapsed_ms: self.clock.elapsed_ms(),
            injected: self.injector.books.total(),
            planned: self.planned,
        }
    }

    fn deal_with(&mut self, happening: Happening) -> Result<(), TrialError> {
        match happening {
            Happening::Hello(call) => {
                self.hello = Some(call);
                self.end = Some(TrialEnd::Completed);
            }
            Happening::Ready { vcpu } => {
                let now = Instant::now();
                self.clock.run(now);
                self.injector.begin(&mut self.driver, now)?;
                self.driver.resume(vcpu, Run::Continue)?;
            }
            Happening::Mark { vcpu, what, thread } => self.stopped(vcpu).at_mark(what, thread)?,
            Happening::Access { vcpu, access } => self.stopped(vcpu).at_access(access)?,
            Happening::Breakpoint { vcpu, pc } => self.stopped(vcpu).at_breakpoint(pc)?,
            Happening::Data { vcpu, pc, met } => self.stopped(vcpu).at_data(pc, &met)?,
            Happening::Stepped { vcpu, pc } => self.stopped(vcpu).after_step(pc)?,
            Happening::BackAtBreakpoint { vcpu } => self.stopped(vcpu).again()?,
            Happening::Ended(end) => self.end = Some(end),
            Happening::Nothing => {}
        }
        Ok(())
    }

    fn stopped(&mut self, vcpu: u8) -> StoppedVcpu<'_, 'p> {
        StoppedVcpu {
            injector: &mut self.injector,
            driver: &mut self.driver,
            vcpu,
        }
    }

    fn tick(&mut self) -> Result<(), TrialError> {
        self.injector.look(&mut self.driver)?;
        self.driver.check_witness()?;
        if let Some(end) = self.driver.panicked() {
            self.end = Some(end);
            return Ok(());
        }
        if let Some(what) = self.driver.session.over_budget() {
            self.end = Some(TrialEnd::Misbehaved { what });
            return Ok(());
        }
        if !self.clock.is_running() {
            if let Some(limit) = self.clock.boot_over() {
                self.end = Some(self.driver.no_boot(limit)?);
            }
            return Ok(());
        }
        if self.counts_iterations {
            self.injector.books.iterate(&self.driver.progress());
        }
        let books = &self.injector.books;
        let (completed, reached) = (books.completed(), books.last_reached());
        let going = || books.going(&self.driver);
        if !self.injector.is_closed() && self.clock.is_enough(completed, reached, going) {
            self.injector.close(&mut self.driver)?;
        }
        self.injector.thaw_late(&mut self.driver)?;
        self.injector.let_go_late(&mut self.driver)?;
        if self.clock.run_over(reached) {
            self.end = Some(self.driver.out_of_time()?);
        }
        Ok(())
    }

    /// The recording, and the machine as it is now.
    pub fn close(mut self, end: TrialEnd) -> (Recording, Machine) {
        self.driver.drain();
        let end = self.driver.session.within_budget(end);
        let memory = self.driver.machine.memory();
        self.driver.session.read_lab(memory);
        self.driver.session.read_tracefs(memory);
        self.driver.session.read_user_mode(memory);
        let at_end = self.driver.progress();
        let (mut recording, machine) = self.driver.close();
        recording.progress = self.injector.books.progress(&recording, &at_end);
        recording.points = self.injector.triggers.arrivals.points();
        recording.end = end;
        (recording, machine)
    }
}

fn infra(error: &dyn std::error::Error) -> TrialEnd {
    TrialEnd::Infra {
        reason: error.to_string(),
    }
}
