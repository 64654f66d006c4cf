//! A sweep on one machine or several side by side.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::sync::mpsc::channel;
use std::thread;

use unwindlab_vmm::Machine;

use super::job::Job;
use super::plan::{Effort, Message, Step, SweepPlan, SweptTrial};
use crate::trace::recording::Recording;

/// Carries out a sweep. `make` makes a machine; `tell` gets the messages, and says whether to go on.
pub fn run(
    plan: &SweepPlan,
    make: &(dyn Fn() -> Result<Machine, String> + Sync),
    tell: &mut dyn FnMut(Message) -> bool,
) {
    let jobs = plan.jobs.max(1);
    let common = Common::default();
    thread::scope(|scope| {
        let (send, receive) = channel::<FromJob>();
        for _ in 0..jobs {
            let (send, common) = (send.clone(), &common);
            scope.spawn(move || {
                let left_out = || Effort {
                    left_out: 1,
                    ..Effort::default()
                };
                let result = match Job::new(plan, common, make, &send) {
                    Ok(Some(job)) => job.run(),
                    Ok(None) => Ok(left_out()),
                    // Another one is there, and does it alone.
                    Err(error) if common.path.get().is_some() => {
                        tracing::warn!("a machine of the sweep is left out: {error}");
                        Ok(left_out())
                    }
                    Err(error) => Err(error),
                };
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

/// What the machines of a sweep share.
#[derive(Default)]
pub(super) struct Common {
    /// The path, of the machine that was there first.
    pub(super) path: OnceLock<Vec<Step>>,
    /// The first point of the next stretch that nobody has taken.
    pub(super) next: AtomicU32,
}

/// From a machine to the one who gathers.
pub(super) enum FromJob {
    Path(Box<Recording>, Vec<Step>),
    Trial(Box<SweptTrial>),
    Missed(u32),
    Hung(u32),
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
            FromJob::Path(common, path) => tell(Message::Path { common, path }),
            FromJob::Trial(trial) => tell(Message::Trial(trial)),
            FromJob::Missed(point) => tell(Message::Missed { point }),
            FromJob::Hung(point) => tell(Message::Hung { point }),
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
