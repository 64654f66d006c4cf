//! A sweep on one machine or several side by side.

use std::collections::BTreeSet;
use std::error::Error;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, Scope};

use unwindlab_vmm::{Checkpoint, Machine};

use super::error::SweepError;
use super::progress::Progress;
use super::track::Track;
use super::walk::Walk;
use super::worker::Worker;
use crate::driver::Guest;
use crate::plan::sweep::{Boundary, Effort, Message, SweepPlan, boundaries};

/// Why there is no machine: the KVM host's own error.
pub(crate) type NoMachine = Box<dyn Error + Send + Sync>;
/// Makes a machine that takes the state of another.
type Twin<'a> = &'a (dyn Fn() -> Result<Machine, NoMachine> + Sync);

/// Carries out a sweep. `tell` gets the messages, several at a time and in order, and says whether to go on.
pub(crate) fn run(
    plan: &SweepPlan,
    guest: Result<Guest, NoMachine>,
    twin: Twin<'_>,
    tell: &mut dyn FnMut(Vec<Message>) -> bool,
) {
    let guest = guest.map_err(SweepError::NoMachine);
    let mut progress = Progress::new(&mut *tell);
    match guest.and_then(|guest| Walk::at_start(plan, guest, &mut progress)) {
        Ok(walk) => thread::scope(|scope| sweep(plan, walk, twin, tell, scope)),
        Err(error) => failed(&error, tell),
    }
}

/// The sweep of a path at whose beginning a machine stands. The other machines take its memory while it records the path.
fn sweep<'s>(
    plan: &'s SweepPlan,
    mut walk: Walk,
    twin: Twin<'s>,
    tell: &mut dyn FnMut(Vec<Message>) -> bool,
    scope: &'s Scope<'s, '_>,
) {
    let jobs = jobs(plan, unwindlab_vmm::on_tcg());
    let twins: Vec<_> = (1..jobs)
        .map(|_| {
            let state = walk.start.behind.clone();
            scope.spawn(move || adopted(twin, &state))
        })
        .collect();
    let (recorded, left) = match walk.record(plan, &mut Progress::new(&mut *tell)) {
        Ok(recorded) => recorded,
        Err(error) => return failed(&error, tell),
    };
    let told = Message::Path {
        common: Box::new(walk.driver.session.recording.clone()),
        path: recorded.path.clone(),
    };
    if !tell(vec![told]) {
        return;
    }
    let effort = Effort {
        left,
        checkpoints_us: recorded.checkpoints_us,
        ..Effort::default()
    };
    let path = recorded.path.into();
    let track = Track::new(path, walk.start.made.clone(), recorded.checkpoints);
    let common = Arc::new(Common::new(track, jobs));
    let (send, receive) = channel::<FromWorker>();
    for machine in twins {
        let (send, common, start) = (send.clone(), Arc::clone(&common), walk.start.clone());
        scope.spawn(move || {
            let machine = machine.join().unwrap_or_else(|panic| resume_unwind(panic));
            let twin = machine.and_then(|machine| Walk::twin(plan, machine, start));
            let ended = twin.and_then(|it| Worker::new(plan, &common, it, &send).run());
            common.finish(&send, ended);
        });
    }
    let first = Arc::clone(&common);
    scope.spawn(move || first.finish(&send, Worker::new(plan, &first, walk, &send).run()));
    gather(receive, &common, effort, tell);
}

/// Tells why there is no sweep.
fn failed(error: &SweepError, tell: &mut dyn FnMut(Vec<Message>) -> bool) {
    tell(vec![Message::Failed {
        reason: error.to_string(),
    }]);
}

/// A machine that took this state of another.
fn adopted(twin: Twin<'_>, state: &Checkpoint) -> Result<Machine, SweepError> {
    let mut machine = twin().map_err(SweepError::NoMachine)?;
    machine.adopt(state)?;
    Ok(machine)
}

/// Machines side by side. Where QEMU's TCG emulates the host, only a machine that has booted knows
/// where `sysenter` leads: KVM takes half of the address from a checkpoint.
const fn jobs(plan: &SweepPlan, on_tcg: bool) -> u32 {
    match plan.trial.symbols.sysenter {
        Some(_) if on_tcg => 1,
        _ => plan.jobs,
    }
}

/// Passes on what the machines tell, and tells last how they ended.
fn gather(
    receive: Receiver<FromWorker>,
    common: &Common,
    effort: Effort,
    tell: &mut dyn FnMut(Vec<Message>) -> bool,
) {
    let mut ended: Result<Effort, SweepError> = Ok(effort);
    for message in receive {
        match (message, &mut ended) {
            (FromWorker::Tell(messages), _) => {
                if !tell(messages) {
                    common.stopped.store(true, Ordering::Relaxed);
                    return;
                }
            }
            (FromWorker::Ended(Ok(effort)), Ok(all)) => all.add(effort),
            (FromWorker::Ended(Err(error)), all @ Ok(_)) => *all = Err(error),
            // The first reason is told.
            (FromWorker::Ended(_), Err(_)) => {}
        }
    }
    match ended {
        Ok(effort) => {
            tell(vec![Message::Done(effort)]);
        }
        Err(error) => failed(&error, tell),
    }
}

/// Numbers for whoever is free, in order.
#[derive(Debug, Default)]
pub(super) struct Queue(AtomicU32);

impl Queue {
    /// The next so many of those below `end`; nothing when all are taken.
    pub(super) fn take(&self, count: u32, end: u32) -> Option<Range<u32>> {
        let first = self.0.fetch_add(count, Ordering::Relaxed);
        (first < end).then(|| first..end.min(first.saturating_add(count)))
    }
}

/// What the machines of a sweep share.
pub(super) struct Common {
    /// The whole path, from the request on.
    pub(super) track: Track,
    /// Its boundaries.
    pub(super) boundaries: Vec<Boundary>,
    /// Nobody listens any more, or a machine cannot go on.
    pub(super) stopped: AtomicBool,
    /// Boundaries to try.
    pub(super) singles: Queue,
    /// Of pairs: boundaries to compare with the next one.
    pub(super) compared: Queue,
    /// Of pairs: boundaries for the first NMI.
    pub(super) firsts: Queue,
    /// By boundary: a first NMI there leaves behind what one at the next boundary does.
    pub(super) alike: Vec<AtomicBool>,
    /// Words of guest memory that are not the same each time that the same is done.
    pub(super) unsteady: Mutex<BTreeSet<u64>>,
    /// Machines that are still comparing, and one more until what they found is told.
    pub(super) comparing: AtomicU32,
}

impl Common {
    fn new(track: Track, jobs: u32) -> Self {
        let path = &track.path;
        Self {
            alike: path.iter().map(|_| AtomicBool::default()).collect(),
            boundaries: boundaries(path.iter()),
            track,
            stopped: AtomicBool::default(),
            singles: Queue::default(),
            compared: Queue::default(),
            firsts: Queue::default(),
            unsteady: Mutex::default(),
            comparing: AtomicU32::new(jobs + 1),
        }
    }

    fn finish(&self, send: &Sender<FromWorker>, result: Result<Effort, SweepError>) {
        if result.is_err() {
            self.stopped.store(true, Ordering::Relaxed);
        }
        // Nobody listens any more where the sweep was broken off.
        let _ = send.send(FromWorker::Ended(result));
    }
}

/// From a machine to the one who gathers.
pub(super) enum FromWorker {
    /// To be passed on.
    Tell(Vec<Message>),
    /// It is done, or cannot go on.
    Ended(Result<Effort, SweepError>),
}
