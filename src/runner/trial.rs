//! One trial from power-on to its end: the controller of the machine.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use unwindlab_abi::{MAILBOX_PORT, MARK_PORT, mark};
use unwindlab_vmm::{AddressSpace, InjectError, Machine, Pause, Run, Stop, VcpuEvent};

use super::arrivals::{Arrival, Arrivals, Due};
use super::plan::{ActionPlan, Place, TrialPlan, TriggerPlan};
use super::progress::{Stage, TrialProgress};
use super::rate::Rates;
use super::session::{Session, Turn};
use super::vcpu::{VcpuError, vcpu};
use super::watch;
use crate::trace::recording::{Injection, Progress, Recording, TrialEnd};

/// How often rings are read and the guest is looked at while nothing else happens.
const TICK: Duration = Duration::from_millis(20);
/// How often progress is told.
const TELL: Duration = Duration::from_millis(300);
/// Share of the run limit after which a trial whose points are not all reached is wound up, so
/// that it still ends in order and can say which ones.
const WIND_UP: f64 = 0.7;

/// The controller's own failure, as against the guest's: ends in infra-error.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// A vCPU does not do what KVM promises.
    #[error(transparent)]
    Vcpu(#[from] VcpuError),
    /// More places than there are debug registers.
    #[error("{0} different instructions to break on; the CPU has 4 breakpoints")]
    TooManyPlaces(usize),
    /// A symbol that the agent did not announce.
    #[error("the workload has no symbol {0:?}")]
    NoUserSymbol(String),
}

/// A running trial.
pub struct Trial<'a> {
    plan: &'a TrialPlan,
    machine: Machine,
    session: Session,
    arrivals: Arrivals,
    rates: Rates,
    planned: u64,
    started: Instant,
    /// When the agent said Ready.
    running_since: Option<Instant>,
    /// When the last planned injection was made.
    injected_all: Option<Instant>,
    stopping: bool,
    /// By vCPU: the burst or sweep (injection, thread) for which it executes single instructions
    /// right now, and how many.
    stepping: BTreeMap<u8, (u32, u32, u64)>,
    breakpoints: Vec<u64>,
    first_progress: Vec<u64>,
    last_progress: Vec<u64>,
    end: Option<TrialEnd>,
}

impl std::fmt::Debug for Trial<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trial")
            .field("scenario", &self.plan.scenario)
            .finish_non_exhaustive()
    }
}

impl<'a> Trial<'a> {
    /// A trial on a machine that is built but not started.
    #[must_use]
    pub fn new(plan: &'a TrialPlan, machine: Machine) -> Self {
        Self {
            session: Session::new(&plan.guest, plan.vcpus),
            arrivals: Arrivals::default(),
            rates: Rates::default(),
            planned: plan.injections.iter().map(|i| i.trigger.injections()).sum(),
            plan,
            machine,
            started: Instant::now(),
            running_since: None,
            injected_all: None,
            stopping: false,
            stepping: BTreeMap::new(),
            breakpoints: Vec::new(),
            first_progress: Vec::new(),
            last_progress: Vec::new(),
            end: None,
        }
    }

    /// Runs it to its end. The machine is gone when this returns. `tell` is told of the progress
    /// and says whether to go on.
    pub fn run(mut self, tell: &mut dyn FnMut(&TrialProgress) -> bool) -> Recording {
        self.started = Instant::now();
        let started = self.machine.start().map_err(|e| TrialError::Vcpu(e.into()));
        let end = match started.and_then(|()| self.control(tell)) {
            Ok(end) => end,
            Err(error) => TrialEnd::Infra {
                reason: error.to_string(),
            },
        };
        self.close(end)
    }

    fn control(
        &mut self,
        tell: &mut dyn FnMut(&TrialProgress) -> bool,
    ) -> Result<TrialEnd, TrialError> {
        let mut told = Instant::now();
        let mut ticked = Instant::now();
        loop {
            let wait = self
                .next_wake(ticked)
                .saturating_duration_since(Instant::now());
            if let Some(event) = self.machine.next_event(wait) {
                self.on_stop(&event)?;
            }
            self.inject_due()?;
            if ticked.elapsed() >= TICK {
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

    fn next_wake(&self, ticked: Instant) -> Instant {
        let tick = ticked + TICK;
        self.rates.next().map_or(tick, |due| due.min(tick))
    }

    fn progress(&self) -> TrialProgress {
        TrialProgress {
            stage: if self.stopping {
                Stage::Stopping
            } else {
                self.session.stage
            },
            elapsed_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            injected: (self.session.recording.injections.len()
                + self.session.recording.failures.len()) as u64,
            planned: self.planned,
        }
    }

    fn on_stop(&mut self, event: &VcpuEvent) -> Result<(), TrialError> {
        let index = event.vcpu;
        match &event.stop {
            Stop::Port {
                port: MAILBOX_PORT,
                value,
                ..
            } => {
                if !self.mailbox(index, *value)? {
                    return Ok(());
                }
            }
            Stop::Port {
                port: MARK_PORT,
                value,
                ..
            } => self.mark(index, *value)?,
            Stop::Breakpoint { pc } => return self.breakpoint(index, *pc),
            Stop::Stepped { pc } => return self.stepped(index, *pc),
            Stop::Paused => {}
            other => {
                self.end = Some(watch::ended_by(&self.machine, index, other));
                return Ok(());
            }
        }
        self.resume(index, Run::Continue)
    }

    fn resume(&mut self, index: u8, run: Run) -> Result<(), TrialError> {
        Ok(vcpu(&mut self.machine, index)?
            .resume(run)
            .map_err(VcpuError::from)?)
    }

    /// Answers the agent; false when the vCPU must not run on.
    fn mailbox(&mut self, index: u8, frame: u32) -> Result<bool, TrialError> {
        let sregs = vcpu(&mut self.machine, index)?.sregs();
        let space = AddressSpace::of(&sregs.map_err(VcpuError::from)?);
        match self.session.mailbox(self.machine.memory(), &space, frame) {
            Ok(Turn::Go) => {}
            Ok(Turn::Ready) => self.begin()?,
            Ok(Turn::Finished) => self.session.drain(self.machine.memory()),
            Ok(Turn::End(end)) => {
                self.end = Some(end);
                return Ok(false);
            }
            Err(error) => {
                self.end = Some(TrialEnd::Infra {
                    reason: error.to_string(),
                });
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The agent is ready: arm what is to be armed, on vCPUs that stand still.
    fn begin(&mut self) -> Result<(), TrialError> {
        let now = Instant::now();
        self.running_since = Some(now);
        let mut arrivals = Vec::new();
        for (spec, injection) in (0_u32..).zip(&self.plan.injections) {
            match &injection.trigger {
                TriggerPlan::Arrival {
                    place,
                    first,
                    hit,
                    repeat,
                    times,
                    sweep,
                } => {
                    let address = self.address(place)?;
                    let arrival = Arrival::new(spec, address, *first, *hit, *repeat, *times);
                    arrivals.push(arrival.sweeping(*sweep));
                }
                TriggerPlan::Rate {
                    period_us,
                    count,
                    vcpus,
                } => {
                    for &vcpu in vcpus {
                        self.rates
                            .add(spec, vcpu, Duration::from_micros(*period_us), *count, now);
                    }
                }
            }
        }
        self.arrivals = Arrivals::new(arrivals);
        if self.injections_complete() {
            self.injected_all = Some(now);
        }
        Ok(())
    }

    fn address(&self, place: &Place) -> Result<u64, TrialError> {
        match place {
            Place::Kernel { address } => Ok(*address),
            Place::User { symbol, offset } => {
                let found = self
                    .session
                    .user_symbol(symbol)
                    .ok_or_else(|| TrialError::NoUserSymbol(symbol.clone()))?;
                Ok(found.start.wrapping_add(*offset))
            }
        }
    }

    fn set_breakpoints(&mut self, places: Vec<u64>) -> Result<(), TrialError> {
        if places.len() > 4 {
            return Err(TrialError::TooManyPlaces(places.len()));
        }
        if places == self.breakpoints {
            return Ok(());
        }
        self.breakpoints = places;
        for index in 0..self.plan.vcpus {
            let mut vcpu = vcpu(&mut self.machine, index)?;
            let paused = vcpu.pause().map_err(VcpuError::from)?;
            vcpu.set_breakpoints(&self.breakpoints)
                .map_err(VcpuError::from)?;
            if paused == Pause::Paused {
                vcpu.resume(Run::Continue).map_err(VcpuError::from)?;
            }
        }
        Ok(())
    }

    fn mark(&mut self, index: u8, value: u32) -> Result<(), TrialError> {
        let (what, thread) = mark::unpack(value);
        match what {
            mark::ARM if !self.stopping => {
                let task = watch::current_task(&mut self.machine, index, &self.plan.symbols)?;
                self.arrivals.arm(thread, task);
                self.note_completion();
            }
            mark::DONE => {
                self.arrivals.disarm(thread);
                self.note_completion();
            }
            _ => {}
        }
        self.set_breakpoints(self.arrivals.addresses())
    }

    /// The vCPU stands at a place of ours, or at the boundary after one.
    fn breakpoint(&mut self, index: u8, pc: u64) -> Result<(), TrialError> {
        let state = vcpu(&mut self.machine, index)?.nmi_state();
        if state.map_err(VcpuError::from)?.masked {
            // An NMI's handler comes by (perf's asks for the task's pid, as getppid does): the
            // place is meant in the entry itself, and an NMI would not be taken here anyway.
            return self.resume(index, Run::Continue);
        }
        let task = watch::current_task(&mut self.machine, index, &self.plan.symbols)?;
        let next = watch::successors(&mut self.machine, index, pc)?;
        match self.arrivals.hit(pc, task, !next.is_empty()) {
            Due::Pass => {}
            Due::StepFirst {
                spec,
                thread,
                steps,
            } => {
                self.stepping.insert(index, (spec, thread, steps));
                return self.resume(index, Run::Step);
            }
            Due::Inject {
                spec,
                thread,
                iteration,
                again,
            } => {
                if again {
                    self.arrivals.go_on_at(spec, thread, next);
                }
                self.inject(spec, index, Some(thread), Some(iteration))?;
                self.set_breakpoints(self.arrivals.addresses())?;
            }
        }
        self.resume(index, Run::Continue)
    }

    /// The vCPU executed an instruction in the way of a burst or a sweep, which goes on here.
    fn stepped(&mut self, index: u8, pc: u64) -> Result<(), TrialError> {
        match self.stepping.remove(&index) {
            Some((spec, thread, steps @ 2..)) => {
                self.stepping.insert(index, (spec, thread, steps - 1));
                self.resume(index, Run::Step)
            }
            Some((spec, thread, _)) => {
                self.arrivals.go_on_at(spec, thread, vec![pc]);
                self.breakpoint(index, pc)
            }
            None => self.resume(index, Run::Continue),
        }
    }

    fn inject_due(&mut self) -> Result<(), TrialError> {
        let now = Instant::now();
        if self.stopping {
            return Ok(());
        }
        while let Some((spec, index)) = self.rates.take_due(now) {
            let paused = vcpu(&mut self.machine, index)?
                .pause()
                .map_err(VcpuError::from)?;
            if paused != Pause::Paused {
                // It stands at something else that wants an answer first: next period.
                continue;
            }
            match self.inject(spec, index, None, None) {
                Ok(()) => self.rates.made(spec, index),
                // The last one has not been taken yet (its vCPU had no time): next period.
                Err(TrialError::Vcpu(VcpuError::Inject(InjectError::AlreadyPending {
                    ..
                }))) => {}
                Err(error) => return Err(error),
            }
            self.resume(index, Run::Continue)?;
            self.note_completion();
        }
        Ok(())
    }

    fn inject(
        &mut self,
        spec: u32,
        index: u8,
        thread: Option<u32>,
        iteration: Option<u64>,
    ) -> Result<(), TrialError> {
        if self.first_progress.is_empty() {
            self.first_progress = self.session.progress(self.machine.memory());
        }
        let action = self.plan.injections.get(spec as usize).map(|i| i.action);
        let mut vcpu = vcpu(&mut self.machine, index)?;
        let (rip, cpl) = watch::place(&vcpu).map_err(VcpuError::from)?;
        let recording = &mut self.session.recording;
        let made = match action {
            Some(ActionPlan::Fail { returns }) => {
                vcpu.return_now(returns).map_err(VcpuError::from)?;
                &mut recording.failures
            }
            Some(ActionPlan::Nmi) | None => {
                vcpu.inject_nmi().map_err(VcpuError::from)?;
                &mut recording.injections
            }
        };
        made.push(Injection {
            spec,
            vcpu: u32::from(index),
            rip,
            cpl,
            thread,
            iteration,
        });
        self.note_completion();
        Ok(())
    }

    fn injections_complete(&self) -> bool {
        self.arrivals.complete() && self.rates.complete()
    }

    fn note_completion(&mut self) {
        if self.injected_all.is_none() && self.injections_complete() {
            self.injected_all = Some(Instant::now());
            self.last_progress = self.session.progress(self.machine.memory());
        }
    }

    fn tick(&mut self) -> Result<(), TrialError> {
        self.session.drain(self.machine.memory());
        if let Some(end) = watch::panicked(&self.machine) {
            self.end = Some(end);
            return Ok(());
        }
        let boot = Duration::from_millis(self.plan.limits.boot_ms);
        let run = Duration::from_millis(self.plan.limits.run_ms);
        let Some(since) = self.running_since else {
            if self.started.elapsed() > boot {
                let places = watch::places(&mut self.machine)?;
                self.end = Some(watch::no_boot(&self.machine, boot, &places));
            }
            return Ok(());
        };
        let settled = self
            .injected_all
            .is_some_and(|at| at.elapsed() > Duration::from_millis(self.plan.settle_ms));
        if !self.stopping && (settled || since.elapsed() > run.mul_f64(WIND_UP)) {
            self.stopping = true;
            if self.last_progress.is_empty() {
                self.last_progress = self.session.progress(self.machine.memory());
            }
            self.set_breakpoints(Vec::new())?;
            if let Err(error) = self.session.stop_workload(self.machine.memory()) {
                self.end = Some(TrialEnd::Infra {
                    reason: error.to_string(),
                });
            }
        }
        if since.elapsed() > run {
            self.end = Some(watch::out_of_time(&mut self.machine, &self.session)?);
        }
        Ok(())
    }

    fn close(mut self, end: TrialEnd) -> Recording {
        self.session.drain(self.machine.memory());
        self.session.read_lab(self.machine.memory());
        let at_end = self.session.progress(self.machine.memory());
        let console = watch::console_text(&self.machine);
        let count = |list: &[u64], i: usize| list.get(i).copied().unwrap_or(0);
        let progress = (0_usize..)
            .zip(&self.session.recording.threads)
            .map(|(i, thread)| Progress {
                thread: thread.thread,
                at_first_injection: count(&self.first_progress, i),
                at_last_injection: count(&self.last_progress, i),
                at_end: count(&at_end, i),
            })
            .collect();
        let mut recording = self.session.into_recording();
        recording.progress = progress;
        recording.console = console;
        recording.end = end;
        recording
    }
}
