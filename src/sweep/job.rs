//! The trials of one machine of a sweep.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use unwindlab_vmm::{Checkpoint, Run};

use super::engine::{Common, FromJob};
use super::guest::{Happening, SweepError, THREAD};
use super::plan::{Effort, Points, Step, SweepPlan, SweptTrial};
use super::walk::{Walk, pass};
use crate::runner::vcpu::VcpuError;
use crate::runner::watch;
use crate::trace::recording::{Injection, TrialEnd};

/// Boundaries from one checkpoint of the path to the next: a trial steps over half of them on
/// average, which costs less than a checkpoint for each.
const STRIDE: u32 = 24;
/// After so long without a stop a trial's machine is looked at: the host may have lost it.
const SILENCE: Duration = Duration::from_millis(200);
/// How often a point is tried before it counts as missed.
const TRIES: u32 = 4;

/// The last two checkpoints on the path.
struct Blocks {
    last: Block,
    before: Option<Block>,
}

impl Blocks {
    /// The one to go to a point from: the last may be beyond it.
    fn of(&self, point: u32) -> &Block {
        match &self.before {
            Some(before) if point < self.last.at => before,
            _ => &self.last,
        }
    }
}

fn micros(since: Instant) -> u32 {
    u32::try_from(since.elapsed().as_micros()).unwrap_or(u32::MAX)
}

/// How to go from a checkpoint to a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// To a breakpoint, where the way does not come by the point before: one stop instead of many.
    InOneGo,
    /// By single steps, with interrupts held back.
    StepByStep,
}

/// A checkpoint on the path.
struct Block {
    at: u32,
    checkpoint: Checkpoint,
}

/// One machine.
pub(super) struct Job<'p> {
    plan: &'p SweepPlan,
    common: &'p Common,
    walk: Walk<'p>,
    send: &'p Sender<FromJob>,
    effort: Effort,
}

impl<'p> Job<'p> {
    pub(super) fn new(
        plan: &'p SweepPlan,
        common: &'p Common,
        walk: Walk<'p>,
        send: &'p Sender<FromJob>,
    ) -> Self {
        Self {
            plan,
            common,
            walk,
            send,
            effort: Effort::default(),
        }
    }

    /// Trials, as long as there are any: stretches of [`STRIDE`] boundaries go to whoever is free.
    pub(super) fn run(mut self) -> Result<Effort, SweepError> {
        let points = self.points();
        let mut blocks = Blocks {
            last: Block {
                at: 0,
                checkpoint: self.walk.start.behind.clone(),
            },
            before: None,
        };
        loop {
            let stretch = self.common.next.fetch_add(STRIDE, Ordering::Relaxed);
            if stretch as usize >= self.common.path.len() {
                break;
            }
            let of_stretch = |point: &&u32| (stretch..stretch + STRIDE).contains(*point);
            for &point in points.iter().filter(of_stretch) {
                if point >= blocks.last.at + STRIDE
                    && let Some(new) = self.block(&blocks.last, stretch)?
                {
                    blocks.before = Some(std::mem::replace(&mut blocks.last, new));
                }
                let message = match self.try_often(blocks.of(point), point)? {
                    Some(trial) => FromJob::Trial(Box::new(trial)),
                    None => FromJob::Missed(point),
                };
                if self.send.send(message).is_err() {
                    return Ok(self.effort);
                }
            }
        }
        Ok(self.effort)
    }

    /// A checkpoint further along the path. Putting a machine back has KVM write the guest's clock
    /// anew, and code that is reading it starts over: where a checkpoint does not lead along the
    /// path, one a few instructions further does. Where none does, the old one has to do.
    fn block(&mut self, old: &Block, wanted: u32) -> Result<Option<Block>, SweepError> {
        let last = u32::try_from(self.common.path.len()).unwrap_or(u32::MAX) - 1;
        for at in wanted..(wanted + STRIDE).min(last) {
            if !self.go(old, at, Way::StepByStep)? {
                continue;
            }
            let new = Block {
                at,
                checkpoint: self.walk.guest.machine.checkpoint()?,
            };
            if self.go(&new, (at + 2 * STRIDE).min(last), Way::StepByStep)? {
                return Ok(Some(new));
            }
        }
        Ok(None)
    }

    /// Puts the machine back and goes to a point; whether it is there.
    fn go(&mut self, block: &Block, point: u32, how: Way) -> Result<bool, SweepError> {
        self.restore(&block.checkpoint)?;
        let begin = Instant::now();
        let way = self.common.path.get(block.at as usize..point as usize);
        let there = self.common.path.get(point as usize).map(|step| step.rip);
        match (way.unwrap_or_default(), there) {
            ([], _) => {}
            (way, Some(rip))
                if how == Way::InOneGo
                    && way.len() > 1
                    && way.iter().all(|step| step.rip != rip) =>
            {
                if !self.walk.run_to(rip)? {
                    return Ok(false);
                }
            }
            _ => {
                if !self.walk.steps(point.saturating_sub(block.at))? {
                    return Ok(false);
                }
            }
        }
        self.effort.steps_us.push(micros(begin));
        Ok(there == Some(self.walk.here()?.rip))
    }

    fn points(&self) -> Vec<u32> {
        let mut seen = BTreeSet::new();
        let mut times = 0;
        let mut is_wanted = |point: u32, step: &Step| match &self.plan.points {
            Points::In { functions, once } => {
                let within =
                    |ranges: &Vec<Range<u64>>| ranges.iter().any(|it| it.contains(&step.rip));
                functions.as_ref().is_none_or(within) && (!once || seen.insert(step.rip))
            }
            Points::At {
                addresses,
                occurrence,
            } => {
                times += u32::from(addresses.contains(&step.rip));
                addresses.contains(&step.rip) && times == *occurrence
            }
            Points::These(points) => points.contains(&point),
        };
        (0_u32..)
            .zip(&self.common.path)
            .filter(|(point, step)| is_wanted(*point, step))
            .map(|(point, _)| point)
            .collect()
    }

    fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), SweepError> {
        let begin = Instant::now();
        let restored = self.walk.guest.machine.restore(checkpoint)?;
        self.effort.restores_us.push(micros(begin));
        let count = |pages| u32::try_from(pages).unwrap_or(u32::MAX);
        self.effort.copied.push(count(restored.copied));
        self.effort.looked_at.push(count(restored.looked_at));
        Ok(())
    }

    /// Tries a point until the way there is that of the path: code that reads a clock may go another.
    fn try_often(&mut self, block: &Block, point: u32) -> Result<Option<SweptTrial>, SweepError> {
        for attempt in 0..TRIES {
            // In user mode an interrupt that waited for the kernel to be left would come first.
            let in_user = self
                .common
                .path
                .get(point as usize)
                .is_some_and(|it| it.user);
            let how = match attempt {
                0 if !in_user => Way::InOneGo,
                _ => Way::StepByStep,
            };
            if self.plan.check_restores {
                self.restore(&block.checkpoint)?;
                self.check_restored(block, point)?;
            }
            if !self.go(block, point, how)? {
                continue;
            }
            let trial = self.trial(point)?;
            match trial.end {
                // A kernel that hangs or panics there does so each time. One that does not is told of, and
                // so is a failure of the KVM host.
                end @ (TrialEnd::Hang { .. } | TrialEnd::Panic { .. } | TrialEnd::Infra { .. })
                    if attempt + 1 < TRIES =>
                {
                    let _ = self.send.send(FromJob::Again(point, end));
                }
                TrialEnd::Infra { reason } => return Err(SweepError::Other(reason)),
                _ => return Ok(Some(trial)),
            }
        }
        Ok(None)
    }

    fn check_restored(&mut self, block: &Block, point: u32) -> Result<(), SweepError> {
        let left = self.walk.guest.machine.differences(&block.checkpoint)?;
        if left.is_empty() {
            return Ok(());
        }
        Err(SweepError::Other(format!(
            "point {point}: put back, the machine is not what it was: {}",
            left.join(", ")
        )))
    }

    /// The trial of the point at which the machine stands.
    fn trial(&mut self, point: u32) -> Result<SweptTrial, SweepError> {
        self.walk.guest.session.rings = self.walk.start.rings.clone();
        let iteration = self.walk.start.iteration;
        let spec = u32::try_from(self.plan.trial.injections.len()).unwrap_or(u32::MAX);
        let nmi = self.walk.guest.nmi(self.walk.start.vcpu, spec, iteration)?;
        let mut injections: Vec<Injection> = self.walk.start.request.iter().cloned().collect();
        injections.push(nmi);
        let begin = Instant::now();
        self.walk.guest.break_at(&[self.walk.start.place])?;
        self.walk.guest.start()?;
        let end = self.rest(&mut injections, iteration)?;
        self.effort.runs_us.push(micros(begin));
        let begin = Instant::now();
        let guest = &mut self.walk.guest;
        guest.machine.pause_all().map_err(VcpuError::from)?;
        guest.session.drain(guest.machine.memory());
        let rings = std::mem::take(&mut guest.session.rings);
        let console = guest.machine.console().since(self.walk.console);
        self.effort.tells_us.push(micros(begin));
        Ok(SweptTrial {
            point,
            rings: rings.into_iter().map(|ring| ring.finish()).collect(),
            injections,
            console: String::from_utf8_lossy(&console).into_owned(),
            end,
        })
    }

    /// The end of the entry, and one more with a request: up to where the one after that would make
    /// its own.
    fn rest(
        &mut self,
        injections: &mut Vec<Injection>,
        mut iteration: u64,
    ) -> Result<TrialEnd, SweepError> {
        let until = Instant::now() + Duration::from_millis(self.plan.limit_ms);
        let mut requests = 0;
        loop {
            let happening = self.walk.guest.next(until.min(Instant::now() + SILENCE))?;
            match happening {
                Happening::Arm { vcpu, thread } => {
                    iteration += u64::from(thread == THREAD);
                    self.walk.guest.resume(vcpu, Run::Continue)?;
                }
                Happening::Breakpoint { vcpu, .. } if self.is_ours(vcpu)? => {
                    requests += 1;
                    let guest = &mut self.walk.guest;
                    if requests > 1 {
                        return Ok(TrialEnd::Completed);
                    }
                    injections.push(guest.nmi(vcpu, self.plan.request, iteration)?);
                    guest.resume(vcpu, Run::Continue)?;
                }
                Happening::End(end) => return Ok(end),
                Happening::Nothing if Instant::now() < until => {
                    if let Some(lost) = watch::lost(&mut self.walk.guest.machine)? {
                        return Ok(lost);
                    }
                }
                Happening::Nothing => return self.walk.guest.hang(),
                other => pass(&mut self.walk.guest, &other, "in a trial")?,
            }
        }
    }

    fn is_ours(&mut self, vcpu: u8) -> Result<bool, SweepError> {
        let guest = &mut self.walk.guest;
        Ok(guest.task(vcpu)? == self.walk.start.task && !guest.in_nmi(vcpu)?)
    }
}
