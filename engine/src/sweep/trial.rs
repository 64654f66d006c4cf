//! One trial: puts the machine back, goes to the boundary, makes the NMIs, and runs to the end.

use std::time::{Duration, Instant};

use unwindlab_abi::mark;
use unwindlab_oracle::trace::recording::{Injection, TrialEnd};
use unwindlab_vmm::{Checkpoint, Run};

use super::error::{Phase, SweepError};
use super::guest::{Injected, THREAD, nmi, pass, without_tick};
use super::passing::{Passing, Passings};
use super::track::{PathCheckpoint, Track};
use super::tries::Tries;
use super::worker::{Nmis, Worker};
use crate::driver::{Driver, Happening};
use crate::plan::sweep::{Message, Point, Reach, Step, SweptTrial};

/// After so long without a stop a trial's machine is looked at: the host may have lost it.
const SILENCE: Duration = Duration::from_millis(200);
/// A trial that takes so many times as long as those before it on average hangs, ...
const TIMES: u32 = 100;
/// ... or this long. Whoever waits for the machine would take it for dead.
const LONGEST: Duration = Duration::from_secs(30);
/// How often a point is tried, or a path behind one, before it counts as missed.
pub(super) const TRIES: u32 = 6;

pub(super) fn micros(since: Instant) -> u32 {
    u32::try_from(since.elapsed().as_micros()).unwrap_or(u32::MAX)
}

/// How to go from a checkpoint to a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Approach {
    /// To a breakpoint, where that takes fewer stops than stepping.
    Breakpoint,
    /// By single steps, with interrupts held back.
    Steps,
    /// By single steps that are as slow as those that recorded the path: code that looks at a clock
    /// goes another way when less time has passed.
    AsRecorded,
}

/// Steps that take as long as one stop at a breakpoint.
const STEPS_A_STOP: usize = 4;

/// How often a breakpoint at an instruction is met on a way whose last boundary is there, where that is the
/// faster way to go. `None` where the way begins or stands still (`rep`) at the instruction:
/// whether such a breakpoint is met depends on what was before. Other tasks on the way may come by
/// it, too.
fn hits(way: &[Step], rip: u64) -> Option<usize> {
    let is_stepped = |step: &Step| step.reach == Reach::Stepped;
    if !way.iter().skip(1).all(is_stepped) {
        return None;
    }
    let (_, way) = way.split_last()?;
    let is_there = |step: Option<&Step>| step.is_some_and(|step| step.rip == rip);
    let hits = 1 + way.iter().filter(|step| step.rip == rip).count();
    let passed = !is_there(way.first()) && !is_there(way.last());
    let passed = passed
        && way
            .windows(2)
            .all(|two| !two.iter().all(|step| step.rip == rip));
    (passed && hits * STEPS_A_STOP <= way.len() + STEPS_A_STOP).then_some(hits)
}

/// Whether an NMI would be a vCPU's first: it neither handles one nor is about to.
fn takes_nmi(driver: &mut Driver, vcpu: u8) -> Result<bool, SweepError> {
    let state = driver.nmi_state(vcpu)?;
    Ok(!state.masked && !state.injected && state.pending == 0)
}

impl Worker<'_> {
    /// Puts the machine back and goes to a point; false where it came elsewhere.
    pub(super) fn go(
        &mut self,
        track: &Track,
        from: &PathCheckpoint,
        point: u32,
        how: Approach,
    ) -> Result<bool, SweepError> {
        self.working();
        self.restore(&from.checkpoint)?;
        // Of the way or the trial before.
        self.walk.driver.break_at(&[])?;
        let begin = Instant::now();
        let went = self.way(track, from, point, how);
        let came = self.is_the_way(went)?;
        self.effort.steps_us.push(micros(begin));
        let there = track.step(point).map(|step| step.rip);
        let came = came && there == Some(self.walk.rip()?);
        self.effort.strayed = self.effort.strayed.saturating_add(u32::from(!came));
        Ok(came)
    }

    /// Goes to a point; whether the guest came to its last step.
    fn way(
        &mut self,
        track: &Track,
        from: &PathCheckpoint,
        point: u32,
        how: Approach,
    ) -> Result<bool, SweepError> {
        match track.step(point).map(|step| step.rip) {
            _ if from.at == point => Ok(true),
            // Beyond the first user instruction the way is gone at full speed: stepping holds
            // interrupts back, so that it would come before what the kernel sent itself, and a tick
            // would wait.
            Some(rip) if point > track.user_mode => {
                let run = track.last_run().max(from.at);
                Ok(self.walk.along(track.steps(from.at, run))? && self.walk.run_to(rip)?)
            }
            Some(rip) if how == Approach::Breakpoint => {
                let way = track.path.get(from.at as usize..=point as usize);
                match way.and_then(|way| hits(way, rip)) {
                    Some(hits) => {
                        // A breakpoint that was passed unnoticed would be met in another entry.
                        let left = track.step(track.user_mode).filter(|it| it.user);
                        self.walk.run_to_hit(rip, hits, left.map(|it| it.rip))
                    }
                    None => self.walk.along(track.steps(from.at, point)),
                }
            }
            _ if how == Approach::AsRecorded => {
                let begins = track.step(from.at);
                let way = track.steps(from.at, point);
                begins.map_or(Ok(false), |begins| self.walk.as_recorded(*begins, way))
            }
            _ => self.walk.along(track.steps(from.at, point)),
        }
    }

    pub(super) fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), SweepError> {
        let begin = Instant::now();
        let restored = self.walk.driver.machine.restore(checkpoint)?;
        self.effort.restores_us.push(micros(begin));
        // What a trial printed is not the next one's: not its console, and not why it ended.
        let console = self.walk.console;
        self.walk.driver.machine.console().cut(console);
        let count = |pages| u32::try_from(pages).unwrap_or(u32::MAX);
        self.effort.copied.push(count(restored.copied));
        self.effort.looked_at.push(count(restored.looked_at));
        Ok(())
    }

    /// Tries a point until the way there is that of the path: code that reads a clock may take
    /// another. Putting a machine back has KVM write the guest's clock anew, and code that is reading it
    /// starts over: a checkpoint from which the guest does not come to the point, as it does from the one before, is used no
    /// more.
    pub(super) fn try_often(
        &mut self,
        track: &mut Track,
        number: u32,
        nmis: Nmis,
        point: Point,
    ) -> Result<Option<SweptTrial>, SweepError> {
        // In user mode an interrupt that waited for the kernel to be left would come first.
        let in_user = track.step(number).is_some_and(|it| it.user);
        let mut tries = Tries::default();
        for attempt in 0..TRIES {
            let (from, how) = match attempt {
                0 if !in_user => (track.nearest(number), Approach::Breakpoint),
                0 | 1 => (track.nearest(number), Approach::Steps),
                2 => (track.earlier(number), Approach::Steps),
                3 if !in_user => (track.first(), Approach::Breakpoint),
                4 => (track.earlier(number), Approach::AsRecorded),
                _ => (track.first(), Approach::AsRecorded),
            };
            if self.plan.check_restores {
                self.restore(&from.checkpoint)?;
                self.check_restored(from, point)?;
            }
            if !self.go(track, from, number, how)? {
                continue;
            }
            let nearest = track.nearest(number).at;
            if from.at < nearest && matches!(attempt, 2 | 3) {
                track.leave_out(nearest);
            }
            let mut injections = track.made.clone();
            if !self.inject(track, nmis, &mut injections)? {
                continue;
            }
            let began = match !track.returns_before(number) {
                true => self.walk.start.written.clone(),
                false => self.walk.driver.written(),
            };
            self.walk.driver.begin_trial_witness(began);
            let mut trial = self.trial(point, injections)?;
            if tries.stands(&mut trial.end, attempt + 1 == TRIES) {
                return Ok(Some(trial));
            }
            let again = Message::Retried {
                point,
                end: trial.end,
                console: trial.console,
            };
            self.tell(again);
        }
        Ok(None)
    }

    fn check_restored(&mut self, to: &PathCheckpoint, point: Point) -> Result<(), SweepError> {
        let differences = self.walk.driver.machine.differences(&to.checkpoint)?;
        match differences.is_empty() {
            true => Ok(()),
            false => Err(SweepError::NotRestored { point, differences }),
        }
    }

    /// Makes the NMIs of a trial where the machine stands; false where the way to the second led
    /// elsewhere.
    fn inject(
        &mut self,
        track: &Track,
        nmis: Nmis,
        injections: &mut Vec<Injection>,
    ) -> Result<bool, SweepError> {
        let first = self.nmi()?;
        injections.push(first.clone());
        if nmis == Nmis::One {
            return Ok(true);
        }
        if !self.walk.run_to(self.plan.nmi_entry())? {
            return Ok(false);
        }
        if let Nmis::AndAt(next) = nmis {
            let rip = track.step(next).map_or(0, |step| step.rip);
            if !self.walk.leave_handler(rip)? {
                return Ok(false);
            }
        }
        let second = self.nmi()?;
        injections.push(match nmis {
            // Taken when the first one's handler has returned.
            Nmis::Two => Injection {
                rip: first.rip,
                cpl: first.cpl,
                ..second
            },
            _ => second,
        });
        Ok(true)
    }

    /// An NMI of the sweep's where the machine stands.
    pub(super) fn nmi(&mut self) -> Result<Injection, SweepError> {
        let spec = u32::try_from(self.plan.trial.injections.len()).unwrap_or(u32::MAX);
        let start = &self.walk.start;
        let of = Injected::of(self.plan, start.iteration);
        if !self.plan.made.is_tick() {
            without_tick(&mut self.walk.driver, start.vcpu)?;
        }
        let made = nmi(&mut self.walk.driver, start.vcpu, spec, of)?;
        let rsp = self.walk.driver.vcpu(start.vcpu)?.regs()?.rsp;
        Ok(Injection {
            exact: made.exact && !start.nmi_stack.contains(&rsp),
            ..made
        })
    }

    /// The trial whose NMIs are made.
    fn trial(
        &mut self,
        point: Point,
        mut injections: Vec<Injection>,
    ) -> Result<SweptTrial, SweepError> {
        self.walk.driver.session.rings = self.walk.start.rings.clone();
        let iteration = self.walk.start.iteration;
        let begin = Instant::now();
        let place = self.walk.start.place.into_iter().collect::<Vec<_>>();
        self.walk.driver.break_at(&place)?;
        self.walk.driver.start()?;
        let end = self.rest(&mut injections, iteration)?;
        self.effort.runs_us.push(micros(begin));
        if end == TrialEnd::Completed {
            self.completed += 1;
            self.took += begin.elapsed();
        }
        let begin = Instant::now();
        let (driver, start) = (&mut self.walk.driver, &self.walk.start);
        driver.machine.pause_all()?;
        driver.drain();
        let end = driver.session.within_budget(end);
        let memory = driver.machine.memory();
        let lab = driver.session.lab_from(memory, start.slots);
        let tracefs = driver.session.tracefs_behind(memory, &start.tracefs);
        let rings = std::mem::take(&mut driver.session.rings);
        let witness = driver.end_trial_witness();
        let kernel_log = match &start.printed {
            Some(printed) => printed.since(driver, start.vcpu)?,
            None => String::new(),
        };
        let console = driver.machine.console().since(self.walk.console);
        self.effort.tells_us.push(micros(begin));
        Ok(SweptTrial {
            point,
            rings: rings.into_iter().map(|ring| ring.finish()).collect(),
            lab,
            tracefs,
            witness,
            injections,
            kernel_log,
            console: String::from_utf8_lossy(&console).into_owned(),
            end,
        })
    }

    /// How long the next trial may take: at least what the plan says, and longer on a machine on which all of them do.
    fn limit(&self) -> Duration {
        let mean = self.took.checked_div(self.completed).unwrap_or_default();
        let long = mean.saturating_mul(TIMES).min(LONGEST);
        long.max(Duration::from_millis(self.plan.limit_ms))
    }

    /// The end of the entry, and one more with a request: up to where the one after that would make
    /// its own.
    fn rest(
        &mut self,
        injections: &mut Vec<Injection>,
        mut iteration: u64,
    ) -> Result<TrialEnd, SweepError> {
        let until = Instant::now() + self.limit();
        let mut begun = false;
        let mut passings = Passings::behind(&self.plan.beginning);
        let (driver, start) = (&mut self.walk.driver, &self.walk.start);
        // A task that ends is followed by another one.
        let mut task = start.task;
        loop {
            match driver.next(until.min(Instant::now() + SILENCE))? {
                Happening::Mark {
                    vcpu,
                    what: mark::ARM,
                    thread: THREAD,
                } => {
                    iteration += 1;
                    task = driver.current_task(vcpu)?;
                    // Whichever task comes by, those of the iteration are over, or in user mode.
                    if start.any_task && passings.has_request() {
                        return Ok(TrialEnd::Completed);
                    }
                    begun = true;
                    driver.resume(vcpu, Run::Continue)?;
                }
                // Of any task, the next request is of the next iteration. What comes by before may
                // be a kernel thread, and so may what comes by behind the request.
                Happening::Breakpoint { vcpu, .. }
                    if start.any_task && (!begun || passings.has_request()) =>
                {
                    driver.resume(vcpu, Run::Continue)?;
                }
                Happening::Breakpoint { vcpu, .. }
                    if takes_nmi(driver, vcpu)?
                        && (start.any_task || driver.current_task(vcpu)? == task) =>
                {
                    match passings.pass() {
                        Passing::Request => {}
                        Passing::Behind => return Ok(TrialEnd::Completed),
                        Passing::Between => {
                            driver.resume(vcpu, Run::Continue)?;
                            continue;
                        }
                    }
                    let of = Injected::of(self.plan, iteration);
                    injections.push(nmi(driver, vcpu, self.plan.request, of)?);
                    driver.resume(vcpu, Run::Continue)?;
                }
                Happening::Ended(end) => return Ok(end),
                Happening::Nothing if Instant::now() < until => {
                    if let Some(lost) = driver.lost()? {
                        return Ok(lost);
                    }
                }
                Happening::Nothing => return Ok(driver.stands_still()?),
                other => pass(driver, other, Phase::Trial)?,
            }
        }
    }
}
