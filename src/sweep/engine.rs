//! A sweep on one machine or several side by side.

use std::sync::atomic::AtomicU32;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use unwindlab_vmm::Machine;

use super::guest::SweepError;
use super::job::Job;
use super::plan::{Effort, Message, Step, SweepPlan, SweptTrial};
use super::walk::Walk;
use crate::trace::recording::TrialEnd;

/// Which machine is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// One that boots.
    Boot,
    /// One that takes the state of another.
    Twin,
}

/// How a machine is made.
type Make<'a> = &'a (dyn Fn(Purpose) -> Result<Machine, String> + Sync);

/// Carries out a sweep. `make` makes a machine; `tell` gets the messages, and says whether to go on.
pub fn run(plan: &SweepPlan, make: Make<'_>, tell: &mut dyn FnMut(Message) -> bool) {
    let walk = make(Purpose::Boot).map_err(SweepError::Other);
    let (walk, path) = match walk.and_then(|machine| Walk::with_path(plan, machine)) {
        Ok(found) => found,
        Err(error) => {
            tell(Message::Failed {
                reason: error.to_string(),
            });
            return;
        }
    };
    let recording = Box::new(walk.guest.session.recording.clone());
    let told = Message::Path {
        common: recording,
        path: path.clone(),
    };
    if !tell(told) {
        return;
    }
    let common = Common {
        path,
        next: AtomicU32::new(0),
    };
    thread::scope(|scope| {
        let (send, receive) = channel::<FromJob>();
        let start = walk.start.clone();
        for _ in 1..plan.jobs {
            let (send, common, start) = (send.clone(), &common, start.clone());
            scope.spawn(move || {
                let twin = make(Purpose::Twin).map_err(SweepError::Other);
                let twin = twin.and_then(|machine| Walk::twin(plan, machine, start));
                finish(
                    &send,
                    twin.and_then(|it| Job::new(plan, common, it, &send).run()),
                );
            });
        }
        let common = &common;
        scope.spawn(move || finish(&send, Job::new(plan, common, walk, &send).run()));
        let mut gather = Gather::default();
        for message in receive {
            if !gather.take(message, tell) {
                return;
            }
        }
        gather.end(tell);
    });
}

fn finish(send: &Sender<FromJob>, result: Result<Effort, SweepError>) {
    // Nobody listens any more where the sweep was broken off.
    let _ = send.send(match result {
        Ok(effort) => FromJob::Ended(effort),
        Err(error) => FromJob::Failed(error.to_string()),
    });
}

/// What the machines of a sweep share.
pub(super) struct Common {
    /// The path.
    pub(super) path: Vec<Step>,
    /// The first point of the next stretch that nobody has taken.
    pub(super) next: AtomicU32,
}

/// From a machine to the one who gathers.
pub(super) enum FromJob {
    Trial(Box<SweptTrial>),
    Missed(u32),
    Again(u32, TrialEnd),
    Ended(Effort),
    Failed(String),
}

/// Puts together what the machines say.
#[derive(Default)]
struct Gather {
    effort: Effort,
    failed: Option<String>,
}

impl Gather {
    fn take(&mut self, message: FromJob, tell: &mut dyn FnMut(Message) -> bool) -> bool {
        match message {
            FromJob::Trial(trial) => tell(Message::Trial(trial)),
            FromJob::Missed(point) => tell(Message::Missed { point }),
            FromJob::Again(point, end) => tell(Message::Again { point, end }),
            FromJob::Ended(effort) => {
                self.effort.add(effort);
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
