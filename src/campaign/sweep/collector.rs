//! A sweep that is under way: takes its messages, judges its trials, and keeps what was found.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::event::{SweepEvent, SweptFailure};
use crate::campaign::Context;
use crate::campaign::error::CampaignError;
use crate::host::provider::TestKernel;
use crate::judge::sweep::{PairCounts, RecordOf, Verdicts};
use crate::judge::sweep_record::{SweepChoice, SweepIdentity, SweepRecord};
use crate::report::output_file::OutputFile;
use unwindlab_engine::plan::sweep::{Effort, Message, Step, SweepPlan, SweptTrial};
use unwindlab_oracle::trace::recording::Recording;

/// Time between two writings of the file for a later sweep.
const KEEP: Duration = Duration::from_secs(10);

/// The file for a later sweep.
pub(super) struct ResumeFile {
    pub(super) path: PathBuf,
    pub(super) of: SweepIdentity,
    pub(super) choice: SweepChoice,
    /// What an earlier sweep left there.
    pub(super) record: Option<SweepRecord>,
}

/// Takes what a sweep sends.
pub(super) struct Collector<'a, 't> {
    context: Context<'a>,
    kernel: &'a dyn TestKernel,
    tell: &'t mut dyn FnMut(SweepEvent<'_>) -> io::Result<()>,
    budget: Option<Duration>,
    /// What is to be tried.
    plan: &'a SweepPlan,
    /// How many those are; of pairs, the boundaries for the first NMI are meant.
    pub(super) chosen: usize,
    /// Whether each failure is told by itself.
    pub(super) tells_failures: bool,
    resume: Option<ResumeFile>,
    /// When the file was last written.
    kept: Instant,
    pub(super) begin: Instant,
    pub(super) verdicts: Option<Verdicts<'a>>,
    pub(super) effort: Option<Effort>,
    pub(super) failed: Option<String>,
    /// The budget is used up.
    pub(super) stopped: bool,
    /// Why an event could not be told.
    unheard: Option<io::Error>,
}

impl<'a, 't> Collector<'a, 't> {
    pub(super) fn new(
        context: Context<'a>,
        kernel: &'a dyn TestKernel,
        (plan, budget): (&'a SweepPlan, Option<Duration>),
        resume: Option<ResumeFile>,
        tell: &'t mut dyn FnMut(SweepEvent<'_>) -> io::Result<()>,
    ) -> Self {
        Self {
            context,
            kernel,
            tell,
            budget,
            plan,
            chosen: 0,
            tells_failures: false,
            resume,
            kept: Instant::now(),
            begin: Instant::now(),
            verdicts: None,
            effort: None,
            failed: None,
            stopped: false,
            unheard: None,
        }
    }

    /// Takes a message; whether more is wanted.
    pub(super) fn take(&mut self, message: Message) -> bool {
        if let Message::Path { common, path } = message {
            self.begin(*common, path);
            return true;
        }
        if let Some(verdicts) = &mut self.verdicts {
            match message {
                Message::Trial(trial) => self.trial(*trial),
                Message::Missed { point } => verdicts.missed.push(point),
                Message::Retried {
                    point,
                    end,
                    console,
                } => verdicts.retried(point, end, console),
                Message::Alike {
                    firsts,
                    stand_for_all,
                    near,
                } => {
                    verdicts.pairs = Some(PairCounts {
                        firsts,
                        stand_for_all,
                        near,
                        ..PairCounts::default()
                    });
                    // What comes before is no trials.
                    self.begin = Instant::now();
                }
                Message::Changed { trials, pairs } => {
                    if let Some(all) = &mut verdicts.pairs {
                        all.known += 1;
                        all.far += trials;
                        all.stood_for += pairs;
                    }
                }
                Message::Done(effort) => self.effort = Some(effort),
                Message::Failed { reason } => self.failed = Some(reason),
                Message::Path { .. } | Message::Recording { .. } | Message::Working => {}
            }
            self.stopped = self
                .budget
                .is_some_and(|budget| self.begin.elapsed() > budget);
        } else {
            match message {
                Message::Failed { reason } => self.failed = Some(reason),
                Message::Recording { instructions } => {
                    let text = format!("{instructions} instructions recorded");
                    self.context.progress.step(&text);
                }
                _ => {}
            }
        }
        !self.stopped && self.unheard.is_none()
    }

    fn begin(&mut self, common: Recording, path: Vec<Step>) {
        self.chosen = self.plan.own(&path).len();
        let judge = self.context.judge(self.kernel.symbols(), false);
        let left_out = self.plan.points.left_out(&path);
        let mut verdicts = Verdicts::new(judge, common, path);
        verdicts.left_out = left_out;
        if let Some(record) = self.resume.as_mut().and_then(|resume| resume.record.take()) {
            verdicts.resume(record);
        }
        self.verdicts = Some(verdicts);
        self.begin = Instant::now();
        // Whoever merges this part with others knows of its points, even if it comes to nothing. An error is told
        // when the file is written for the last time.
        let _ = self.keep();
    }

    fn trial(&mut self, trial: SweptTrial) {
        let Some(verdicts) = &mut self.verdicts else {
            return;
        };
        let point = trial.point;
        let before = verdicts.failures.len();
        if let Some(result) = verdicts.judge(trial) {
            let failed = SweptFailure {
                point,
                result: &result,
                verdicts: &*verdicts,
                kernel: self.kernel,
            };
            let is_new = verdicts.failures.len() > before;
            for (event, is_told) in [
                (SweepEvent::New(failed), is_new),
                (SweepEvent::Failed(failed), self.tells_failures),
            ] {
                if is_told {
                    let told = (self.tell)(event);
                    self.unheard = self.unheard.take().or(told.err());
                }
            }
        }
        self.step();
        if self.kept.elapsed() > KEEP {
            // An error is told when the file is written for the last time.
            let _ = self.keep();
        }
    }

    /// Writes what was found to the file for a later sweep, if one is wanted.
    pub(super) fn keep(&mut self) -> Result<(), CampaignError> {
        self.kept = Instant::now();
        if let (Some(resume), Some(verdicts)) = (&self.resume, &self.verdicts) {
            let record = verdicts.record(RecordOf {
                identity: &resume.of,
                shard: self.plan.shard,
                choice: &resume.choice,
                release: self.kernel.release(),
                ended: self.effort.is_some(),
            });
            let text = serde_json::to_string(&record)?;
            OutputFile::create(&resume.path)?.finish(format!("{text}\n"))?;
        }
        Ok(())
    }

    /// Every now and then.
    fn step(&self) {
        let Some(verdicts) = &self.verdicts else {
            return;
        };
        let tried = verdicts.tried.len();
        if !tried.is_multiple_of(50) {
            return;
        }
        let made = tried.saturating_sub(verdicts.before) as f64;
        let rate = made / self.begin.elapsed().as_secs_f64().max(0.001);
        let all = match &verdicts.pairs {
            None => Some(self.chosen),
            Some(pairs) => pairs.trials().and_then(|it| usize::try_from(it).ok()),
        };
        if let Some(all) = all {
            let before = verdicts.before;
            let part = |all: usize| all.saturating_sub(before);
            self.context.progress.overall(part(tried), part(all));
        }
        let known = verdicts.failures.keys().filter(|it| it.is_known()).count();
        let what = verdicts.pairs.map_or("points", |_| "pairs");
        self.context.progress.step(&format!(
            "{tried} {what}, {} failures, {known} findings, {rate:.0} a second",
            verdicts.failures.len() - known,
        ));
    }

    /// Ends it where an event could not be told.
    pub(super) fn check_heard(&mut self) -> io::Result<()> {
        self.unheard.take().map_or(Ok(()), Err)
    }
}
