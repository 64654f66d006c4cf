//! The trials of a sweep, on one machine or several side by side.

use std::collections::BTreeSet;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use unwindlab_vmm::{Checkpoint, Machine, Run};

use super::guest::{Happening, SweepError, THREAD};
use super::plan::{Effort, Message, Points, Step, SweepPlan, SweptTrial};
use super::walk::{Start, pass};
use crate::runner::vcpu::VcpuError;
use crate::trace::recording::{Recording, TrialEnd};

/// Boundaries from one checkpoint of the path to the next: a trial steps over half of them on
/// average, which costs less than a checkpoint for each.
const STRIDE: u32 = 24;
/// How often a point is tried before it counts as missed.
const TRIES: u32 = 4;

/// Carries out a sweep. `make` makes a machine; `tell` gets the messages, and says whether to go on.
pub fn run(
    plan: &SweepPlan,
    make: &(dyn Fn() -> Result<Machine, String> + Sync),
    tell: &mut dyn FnMut(Message) -> bool,
) {
    let jobs = plan.jobs.max(1);
    thread::scope(|scope| {
        let (send, receive) = channel::<FromJob>();
        for job in 0..jobs {
            let send = send.clone();
            scope.spawn(move || {
                let result = Job::new(plan, job, jobs, make, &send).and_then(Job::run);
                // Nobody listens any more where the sweep was broken off.
                let _ = send.send(match result {
                    Ok(effort) => FromJob::Ended(effort),
                    Err(error) => FromJob::Failed(error.to_string()),
                });
            });
        }
        drop(send);
        let mut gather = Gather::default();
        for message in receive {
            if !gather.take(message, tell) {
                return;
            }
        }
        gather.end(tell);
    });
}

/// From a machine to the one who gathers.
enum FromJob {
    Path(Box<Recording>, Vec<Step>),
    Trial(Box<SweptTrial>),
    Missed(u32),
    Ended(Effort),
    Failed(String),
}

/// Puts together what the machines say.
#[derive(Default)]
struct Gather {
    path: Option<Vec<Step>>,
    /// Trials of a machine whose path is not known to be the common one yet have to wait for it.
    effort: Effort,
    failed: Option<String>,
}

impl Gather {
    fn take(&mut self, message: FromJob, tell: &mut dyn FnMut(Message) -> bool) -> bool {
        match message {
            FromJob::Path(common, path) => match &self.path {
                None => {
                    self.path = Some(path.clone());
                    tell(Message::Path { common, path })
                }
                Some(first) => {
                    if let Some(at) = differ(first, &path) {
                        self.failed = Some(format!(
                            "two machines went different ways at instruction {at} of the path"
                        ));
                    }
                    true
                }
            },
            FromJob::Trial(trial) => tell(Message::Trial(trial)),
            FromJob::Missed(point) => tell(Message::Missed { point }),
            FromJob::Ended(effort) => {
                self.effort.restores_us.extend(effort.restores_us);
                self.effort.copied.extend(effort.copied);
                self.effort.trials_ms = self.effort.trials_ms.max(effort.trials_ms);
                true
            }
            FromJob::Failed(reason) => {
                self.failed.get_or_insert(reason);
                true
            }
        }
    }

    fn end(self, tell: &mut dyn FnMut(Message) -> bool) {
        tell(match self.failed {
            Some(reason) => Message::Failed { reason },
            None => Message::Done(self.effort),
        });
    }
}

/// Where two paths part; tasks are at other addresses in another machine.
fn differ(one: &[Step], other: &[Step]) -> Option<usize> {
    let at = one.iter().zip(other).position(|(a, b)| a.rip != b.rip);
    at.or_else(|| (one.len() != other.len()).then(|| one.len().min(other.len())))
}

/// A checkpoint on the path.
struct Block {
    at: u32,
    checkpoint: Checkpoint,
}

/// One machine.
struct Job<'p> {
    plan: &'p SweepPlan,
    start: Start<'p>,
    path: Vec<Step>,
    job: u32,
    jobs: u32,
    send: &'p Sender<FromJob>,
    effort: Effort,
}

impl<'p> Job<'p> {
    fn new(
        plan: &'p SweepPlan,
        job: u32,
        jobs: u32,
        make: &(dyn Fn() -> Result<Machine, String> + Sync),
        send: &'p Sender<FromJob>,
    ) -> Result<Self, SweepError> {
        let machine = make().map_err(SweepError::Other)?;
        let (start, path) = Start::with_path(plan, machine)?;
        let common = Recording {
            injections: Vec::new(),
            ..start.guest.session.recording.clone()
        };
        let _ = send.send(FromJob::Path(Box::new(common), path.clone()));
        Ok(Self {
            plan,
            start,
            path,
            job,
            jobs,
            send,
            effort: Effort::default(),
        })
    }

    /// Every trial of this machine: stretches of [`STRIDE`] boundaries go to the machines in turn.
    fn run(mut self) -> Result<Effort, SweepError> {
        let begin = Instant::now();
        let mut block = Block {
            at: 0,
            checkpoint: self.start.behind.clone(),
        };
        for point in self.points() {
            if point / STRIDE % self.jobs != self.job {
                continue;
            }
            if point >= block.at + STRIDE {
                block = self.block(block, point - point % STRIDE)?;
            }
            let message = match self.try_often(&block, point)? {
                Some(trial) => FromJob::Trial(Box::new(trial)),
                None => FromJob::Missed(point),
            };
            if self.send.send(message).is_err() {
                return Ok(self.effort);
            }
        }
        self.effort.trials_ms = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(self.effort)
    }

    /// A checkpoint further along the path. Putting a machine back has KVM write the guest's clock
    /// anew, and code that is reading it starts over: where a checkpoint does not lead along the
    /// path, one a few instructions further does. Where none does, the old one has to do.
    fn block(&mut self, old: Block, wanted: u32) -> Result<Block, SweepError> {
        let last = u32::try_from(self.path.len()).unwrap_or(u32::MAX) - 1;
        for at in wanted..(wanted + STRIDE).min(last) {
            if !self.go(&old, at)? {
                continue;
            }
            let new = Block {
                at,
                checkpoint: self.start.guest.machine.checkpoint()?,
            };
            if self.go(&new, (at + 2 * STRIDE).min(last))? {
                return Ok(new);
            }
        }
        Ok(old)
    }

    /// Puts the machine back and goes to a point; whether it is there.
    fn go(&mut self, block: &Block, point: u32) -> Result<bool, SweepError> {
        self.restore(&block.checkpoint)?;
        self.start.steps(point.saturating_sub(block.at))?;
        let expected = self.path.get(point as usize).map(|step| step.rip);
        Ok(expected == Some(self.start.here()?.rip))
    }

    fn points(&self) -> Vec<u32> {
        let mut seen = BTreeSet::new();
        let mut is_wanted = |point: u32, step: &Step| match &self.plan.points {
            Points::All => true,
            Points::Static => seen.insert(step.rip),
            Points::Within { ranges, once } => {
                let within = |(start, end): &(u64, u64)| (*start..*end).contains(&step.rip);
                ranges.iter().any(within) && (!once || seen.insert(step.rip))
            }
            Points::These(points) => points.contains(&point),
        };
        (0_u32..)
            .zip(&self.path)
            .filter(|(point, step)| is_wanted(*point, step))
            .map(|(point, _)| point)
            .collect()
    }

    fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), SweepError> {
        let begin = Instant::now();
        let restored = self.start.guest.machine.restore(checkpoint)?;
        let took = u32::try_from(begin.elapsed().as_micros()).unwrap_or(u32::MAX);
        self.effort.restores_us.push(took);
        let copied = u32::try_from(restored.copied).unwrap_or(u32::MAX);
        self.effort.copied.push(copied);
        Ok(())
    }

    /// Tries a point until the way there is that of the path: code that reads a clock may go another.
    fn try_often(&mut self, block: &Block, point: u32) -> Result<Option<SweptTrial>, SweepError> {
        for _ in 0..TRIES {
            if self.plan.check_restores {
                self.restore(&block.checkpoint)?;
                self.check_restored(block, point)?;
            }
            if self.go(block, point)? {
                return self.trial(point).map(Some);
            }
        }
        Ok(None)
    }

    fn check_restored(&mut self, block: &Block, point: u32) -> Result<(), SweepError> {
        let left = self.start.guest.machine.differences(&block.checkpoint)?;
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
        self.start.guest.session.rings = self.start.rings.clone();
        let iteration = self.start.request.iteration.unwrap_or(0);
        let spec = u32::try_from(self.plan.trial.injections.len()).unwrap_or(u32::MAX);
        let nmi = self.start.guest.nmi(self.start.vcpu, spec, iteration)?;
        let mut injections = vec![self.start.request.clone(), nmi];
        self.start.guest.start()?;
        let end = self.rest(&mut injections, iteration)?;
        let guest = &mut self.start.guest;
        guest.machine.pause_all().map_err(VcpuError::from)?;
        guest.session.drain(guest.machine.memory());
        let rings = std::mem::take(&mut guest.session.rings);
        let console = guest.machine.console().since(self.start.console);
        Ok(SweptTrial {
            point,
            rings: rings.into_iter().map(|ring| ring.finish()).collect(),
            injections,
            console: String::from_utf8_lossy(&console).into_owned(),
            end,
        })
    }

    /// The end of the entry, one more iteration with a request, and the beginning of the next.
    fn rest(
        &mut self,
        injections: &mut Vec<crate::trace::recording::Injection>,
        mut iteration: u64,
    ) -> Result<TrialEnd, SweepError> {
        let until = Instant::now() + Duration::from_millis(self.plan.limit_ms);
        let first = iteration;
        let mut hits = 0;
        loop {
            let happening = self.start.guest.next(until)?;
            match happening {
                Happening::Arm { vcpu, thread } if thread == THREAD => {
                    iteration += 1;
                    if iteration > first + 1 {
                        self.start.guest.break_at(&[])?;
                        return Ok(TrialEnd::Completed);
                    }
                    self.start.guest.break_at(&[self.start.place])?;
                    self.start.guest.resume(vcpu, Run::Continue)?;
                }
                Happening::Breakpoint { vcpu, .. } if self.is_ours(vcpu)? => {
                    hits += 1;
                    if hits == self.start.hit() {
                        let guest = &mut self.start.guest;
                        guest.break_at(&[])?;
                        injections.push(guest.nmi(vcpu, self.plan.request, iteration)?);
                    }
                    self.start.guest.resume(vcpu, Run::Continue)?;
                }
                Happening::End(end) => return Ok(end),
                Happening::Nothing => return self.start.guest.hang(),
                other => pass(&mut self.start.guest, &other, "in a trial")?,
            }
        }
    }

    fn is_ours(&mut self, vcpu: u8) -> Result<bool, SweepError> {
        let guest = &mut self.start.guest;
        Ok(guest.task(vcpu)? == self.start.task && !guest.in_nmi(vcpu)?)
    }
}
