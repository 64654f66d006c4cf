//! One trial from the agent's first word to its end: the controller of the machine.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use unwindlab_abi::{MAILBOX_PORT, MARK_PORT};
use unwindlab_vmm::{AddressSpace, InjectError, Machine, Pause, Run, Stop, VcpuEvent};

use super::actions::NOBODY;
use super::arrivals::{Arrival, Arrivals};
use super::commands::Commands;
use super::corrupt::Corrupted;
use super::delays::{Delays, later};
use super::error::TrialError;
use super::exits;
use super::frozen::Frozen;
use super::rate::Rates;
use super::sightings::Sightings;
use super::stops::Stepping;
use crate::driver::session::{Session, Turn};
use crate::driver::vcpu::{VcpuError, set_breakpoints, vcpu};
use crate::driver::watch;
use crate::plan::{Place, TrialPlan, TriggerPlan};
use crate::plan::{Stage, TrialProgress};
use unwindlab_oracle::trace::recording::{Progress, Recording, TrialEnd};

/// How often rings are read and the guest is looked at while nothing else happens.
const TICK: Duration = Duration::from_millis(20);
/// How often where an injection waits for what is in the rings.
const QUICK_TICK: Duration = Duration::from_millis(1);
/// How often progress is told.
const TELL: Duration = Duration::from_millis(300);
/// How long an NMI may wait for a vCPU in user mode.
const UNTAKEN: Duration = Duration::from_secs(3);
/// Share of the run limit after which a trial whose points are not all reached is wound up, so
/// that it still ends in order and can say which ones.
const WIND_UP: f64 = 0.7;

/// A running trial.
pub struct Trial<'a> {
    pub(super) plan: &'a TrialPlan,
    pub(super) machine: Machine,
    pub(super) session: Session,
    pub(super) arrivals: Arrivals,
    pub(super) sightings: Sightings,
    pub(super) delays: Delays,
    pub(super) frozen: Frozen,
    pub(super) commands: Commands,
    pub(super) corrupted: Vec<Corrupted>,
    rates: Rates,
    /// By vCPU: since when an NMI waits to be taken.
    untaken: BTreeMap<u8, Instant>,
    planned: u64,
    /// By injection: how often it was made.
    pub(super) made: BTreeMap<u32, u64>,
    /// By injection that comes after a time: how often that time has begun.
    pub(super) begun: BTreeMap<u32, u64>,
    started: Instant,
    /// When the agent said Ready.
    running_since: Option<Instant>,
    /// When the last planned injection was made.
    injected_all: Option<Instant>,
    pub(super) stopping: bool,
    /// By vCPU.
    pub(super) stepping: BTreeMap<u8, Stepping>,
    breakpoints: Vec<u64>,
    pub(super) first_progress: Vec<u64>,
    last_progress: Vec<u64>,
    end: Option<TrialEnd>,
    /// It is over when the agent says hello.
    boots: bool,
    /// The vCPU on which the agent said so, and the frame of its mailbox.
    hello: Option<(u8, u32)>,
}

fn infra(error: &TrialError) -> TrialEnd {
    TrialEnd::Infra {
        reason: error.to_string(),
    }
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
            sightings: Sightings::default(),
            delays: Delays::default(),
            frozen: Frozen::default(),
            commands: Commands::default(),
            corrupted: Vec::new(),
            made: BTreeMap::new(),
            begun: BTreeMap::new(),
            rates: Rates::default(),
            untaken: BTreeMap::new(),
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
            boots: false,
            hello: None,
        }
    }

    /// Lets the machine run until its agent says hello: the vCPU that rang and the mailbox's frame. It
    /// stands still then, without an answer.
    ///
    /// # Errors
    /// The end of a machine that does not come so far.
    pub(super) fn boot(
        &mut self,
        tell: &mut dyn FnMut(&TrialProgress) -> bool,
    ) -> Result<(u8, u32), TrialEnd> {
        self.boots = true;
        let started = self.machine.start().map_err(|e| TrialError::Vcpu(e.into()));
        let end = started.and_then(|()| self.control(tell));
        self.boots = false;
        match (end, self.hello.take()) {
            (Ok(_), Some(hello)) => Ok(hello),
            (Ok(end), None) => Err(end),
            (Err(error), _) => Err(infra(&error)),
        }
    }

    /// Runs it from there to its end. `tell` is told of the progress and says whether to go on.
    pub(super) fn go_on(
        &mut self,
        (vcpu, frame): (u8, u32),
        tell: &mut dyn FnMut(&TrialProgress) -> bool,
    ) -> TrialEnd {
        self.started = Instant::now();
        let answered = self.mailbox(vcpu, frame).and_then(|_| {
            let started = self.machine.start();
            started.map_err(|e| TrialError::Vcpu(e.into()))
        });
        match answered.and_then(|()| self.control(tell)) {
            Ok(end) => end,
            Err(error) => infra(&error),
        }
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
        match self.running_since.is_some() && self.sightings.reads_rings() {
            true => QUICK_TICK,
            false => TICK,
        }
    }

    fn next_wake(&self, ticked: Instant) -> Instant {
        let tick = ticked + self.tick_length();
        let due = self.rates.next().into_iter().chain(self.delays.next());
        due.fold(tick, Instant::min)
    }

    fn progress(&self) -> TrialProgress {
        TrialProgress {
            stage: if self.stopping {
                Stage::Stopping
            } else {
                self.session.stage
            },
            elapsed_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            injected: self.made.values().sum(),
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
            Stop::Access(access) => return self.accessed(index, *access),
            Stop::Breakpoint { pc } => return self.breakpoint(index, *pc),
            Stop::Stepped { pc } => return self.stepped(index, *pc),
            Stop::BackAtBreakpoint { .. } => return self.resume_as_led(index),
            Stop::Paused => {}
            other => {
                let end = watch::ended_by(&mut self.machine, index, other)?;
                self.end = Some(watch::host_may_have(&end).unwrap_or(end));
                return Ok(());
            }
        }
        self.resume(index, Run::Continue)
    }

    /// Lets a vCPU go on, unless it is frozen: then when it is thawed.
    pub(super) fn resume(&mut self, index: u8, run: Run) -> Result<(), TrialError> {
        if self.frozen.keep(index, run) {
            return Ok(());
        }
        Ok(vcpu(&mut self.machine, index)?
            .resume(run)
            .map_err(VcpuError::from)?)
    }

    /// Answers the agent; false when the vCPU must not run on.
    fn mailbox(&mut self, index: u8, frame: u32) -> Result<bool, TrialError> {
        if self.boots {
            self.hello = Some((index, frame));
            self.end = Some(TrialEnd::Completed);
            return Ok(false);
        }
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
        let mut at_once = Vec::new();
        for (spec, injection) in (0_u32..).zip(&self.plan.injections) {
            let follows = !injection.after.is_empty();
            match &injection.trigger {
                TriggerPlan::Arrival(plan) => {
                    let address = self.address(&plan.place)?;
                    arrivals.push(Arrival::new(spec, address, plan, follows));
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
                TriggerPlan::Delay { .. } if follows => {}
                TriggerPlan::Delay { micros: 0, .. } => at_once.push(spec),
                TriggerPlan::Delay { micros, .. } => {
                    self.delays.add(spec, 0, later(now, *micros));
                }
                TriggerPlan::Event { event, hit, repeat } => {
                    self.sightings.add(spec, *event, *hit, *repeat, follows);
                }
            }
        }
        self.arrivals = Arrivals::new(arrivals);
        exits::watch(&mut self.machine, &self.plan.injections)?;
        for spec in at_once {
            self.act(spec, 0, NOBODY)?;
        }
        self.note_completion();
        self.refresh_breakpoints()
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

    /// Sets those that are needed now.
    pub(super) fn refresh_breakpoints(&mut self) -> Result<(), TrialError> {
        match self.stopping {
            true => self.set_breakpoints(Vec::new()),
            false => self.set_breakpoints(self.arrivals.addresses()),
        }
    }

    fn set_breakpoints(&mut self, places: Vec<u64>) -> Result<(), TrialError> {
        if places == self.breakpoints {
            return Ok(());
        }
        set_breakpoints(&mut self.machine, &places)?;
        self.breakpoints = places;
        Ok(())
    }

    fn inject_due(&mut self) -> Result<(), TrialError> {
        let now = Instant::now();
        if self.stopping || self.running_since.is_none() {
            return Ok(());
        }
        while let Some((spec, index)) = self.delays.take_due(now) {
            self.act(spec, index, NOBODY)?;
        }
        while let Some((spec, index)) = self.rates.take_due(now) {
            let paused = vcpu(&mut self.machine, index)?
                .pause()
                .map_err(VcpuError::from)?;
            if paused != Pause::Paused {
                // It stands at something else that wants an answer first: next period.
                continue;
            }
            match self.act(spec, index, NOBODY) {
                Ok(()) => {
                    self.untaken.remove(&index);
                    self.rates.made(spec, index);
                }
                // The last one has not been taken yet (its vCPU had no time): next period.
                Err(TrialError::Vcpu(VcpuError::Inject(
                    InjectError::AlreadyPending { .. } | InjectError::AlreadyRequested { .. },
                ))) => self.not_taken(index, now)?,
                // Nor this one, or the guest counts nothing just now: likewise.
                Err(TrialError::Vcpu(VcpuError::Overflow(error))) if error.is_passing() => {}
                Err(error) => return Err(error),
            }
            self.resume(index, Run::Continue)?;
            self.note_completion();
        }
        Ok(())
    }

    /// An NMI waits on a vCPU. For long in user mode, where no handler of another one is under way, it
    /// is the KVM host that does not deliver it: seen in the emulated one, with a guest that went on.
    fn not_taken(&mut self, index: u8, now: Instant) -> Result<(), TrialError> {
        let since = *self.untaken.entry(index).or_insert(now);
        let time = now.saturating_duration_since(since);
        if time <= UNTAKEN {
            return Ok(());
        }
        let handle = vcpu(&mut self.machine, index)?;
        let (rip, cpl) = watch::place(&handle).map_err(VcpuError::from)?;
        if cpl == 3 {
            let time = time.as_millis();
            self.end = Some(TrialEnd::Infra {
                reason: format!(
                    "the KVM host has kept an NMI from vCPU {index} for {time} ms, which is in user mode \
                     at {rip:#x}"
                ),
            });
        }
        Ok(())
    }

    /// Looks for events in the rings and the log, at which injections are due.
    fn look(&mut self) -> Result<(), TrialError> {
        self.session.drain(self.machine.memory());
        if self.stopping || self.running_since.is_none() || !self.sightings.reads_rings() {
            return Ok(());
        }
        let seen = self.session.seen(
            self.machine.memory(),
            &mut self.sightings.rings,
            &mut self.sightings.lab,
        );
        for (event, cpu) in seen {
            for spec in self.sightings.see(event) {
                self.act(spec, cpu, NOBODY)?;
            }
        }
        Ok(())
    }

    fn injections_complete(&self) -> bool {
        let made = |spec: u32| self.made.get(&spec).copied().unwrap_or(0);
        let delayed = (0_u32..).zip(&self.plan.injections).all(|(spec, it)| {
            !matches!(it.trigger, TriggerPlan::Delay { .. })
                || made(spec) >= it.trigger.injections()
        });
        delayed
            && self.arrivals.complete()
            && self.rates.complete()
            && self.sightings.complete()
            && self.commands.idle()
    }

    pub(super) fn note_completion(&mut self) {
        if self.injected_all.is_none() && self.injections_complete() {
            self.injected_all = Some(Instant::now());
            self.last_progress = self.session.progress(self.machine.memory());
        }
    }

    fn tick(&mut self) -> Result<(), TrialError> {
        self.look()?;
        self.check_command()?;
        if let Some(end) = watch::panicked(&self.machine) {
            self.end = Some(end);
            return Ok(());
        }
        let boot = Duration::from_millis(self.plan.limits.boot_ms);
        let run = Duration::from_millis(self.plan.limits.run_ms);
        let Some(since) = self.running_since else {
            if self.started.elapsed() > boot {
                let places = watch::places(&mut self.machine)?;
                let end = watch::lost(&mut self.machine)?;
                self.end = end.or_else(|| Some(watch::no_boot(&self.machine, boot, &places)));
            }
            return Ok(());
        };
        let settled = self
            .injected_all
            .is_some_and(|at| at.elapsed() > Duration::from_millis(self.plan.settle_ms));
        if !self.stopping && (settled || since.elapsed() > run.mul_f64(WIND_UP)) {
            self.wind_up()?;
        }
        while let Some(index) = self.frozen.over(Instant::now()) {
            self.let_go(index)?;
        }
        if let Some((index, spec, time)) = self.frozen.too_long(Instant::now()) {
            if !self.commands.idle() {
                self.end = Some(self.helper_waits(index)?);
                return Ok(());
            }
            let by = self.plan.injections.get(spec as usize);
            let by = by.map_or("?", |it| it.name.as_str());
            let note = format!(
                "vCPU {index} stood still for {} ms because of {by}, and nothing let it go in time",
                time.as_millis()
            );
            self.session.recording.notes.push(note);
            self.wind_up()?;
        }
        if since.elapsed() > run {
            self.end = Some(watch::out_of_time(&mut self.machine, &self.session)?);
        }
        Ok(())
    }

    /// From now on nothing is injected, everything may run, and the workload is to end.
    fn wind_up(&mut self) -> Result<(), TrialError> {
        if !self.stopping {
            self.stopping = true;
            if self.last_progress.is_empty() {
                self.last_progress = self.session.progress(self.machine.memory());
            }
            if let Err(error) = self.session.stop_workload(self.machine.memory()) {
                self.end = Some(TrialEnd::Infra {
                    reason: error.to_string(),
                });
            }
        }
        self.refresh_breakpoints()?;
        for index in self.frozen.all() {
            self.let_go(index)?;
        }
        Ok(())
    }

    /// The recording, and the machine as it is now.
    pub(super) fn close(mut self, end: TrialEnd) -> (Recording, Machine) {
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
        recording.points = self.arrivals.points();
        recording.console = console;
        recording.end = end;
        (recording, self.machine)
    }
}
