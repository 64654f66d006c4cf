//! A sweep that is under way: what comes is judged, progress told, and what was found kept.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::cli::analysis::Analysis;
use crate::cli::args::Detail;
use crate::cli::error::CommandError;
use crate::cli::output::print;
use crate::cli::progress::Spinner;
use crate::host::provider::{ProviderError, TestKernel};
use crate::judge::outcome::EXIT_UNTESTED;
use crate::judge::sweep::{PairCounts, Verdicts};
use crate::judge::sweep_record::{SweepIdentity, SweepRecord};
use crate::plan::Progress as _;
use crate::plan::sweep::Message;
use crate::plan::sweep::{Effort, SweptTrial};
use crate::report::artifacts::OutputFile;
use crate::report::names::Names;
use crate::report::sweep::{self as text, Summary};
use crate::report::{failure, instructions};
use unwindlab_oracle::trace::recording::Recording;

/// Time between two writings of the file for a later sweep.
const KEEP: Duration = Duration::from_secs(10);

/// A file for a later sweep.
pub(super) struct Resume {
    pub(super) path: PathBuf,
    pub(super) of: SweepIdentity,
    /// What an earlier one left there.
    pub(super) kept: Option<SweepRecord>,
}

/// A sweep that is under way.
pub(in crate::cli) struct Run<'a> {
    pub(super) analysis: &'a Analysis,
    pub(super) kernel: &'a dyn TestKernel,
    pub(super) spinner: &'a Spinner,
    pub(super) budget: Option<Duration>,
    pub(super) begin: Instant,
    pub(super) verdicts: Option<Verdicts<'a>>,
    pub(super) effort: Option<Effort>,
    pub(super) failed: Option<String>,
    /// The budget is used up.
    pub(super) stopped: bool,
    /// Whether failures are shown with the events around them.
    pub(super) shows: bool,
    /// What else is shown of them.
    pub(super) detail: Detail,
    pub(super) resume: Option<Resume>,
    /// When the file was last written.
    pub(super) kept: Instant,
}

impl Run<'_> {
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
                Message::Retried { point, end } => verdicts.retried(point, end),
                Message::Alike {
                    firsts,
                    stand_for_all,
                    trials,
                } => {
                    verdicts.pairs = Some(PairCounts {
                        firsts,
                        stand_for_all,
                        trials,
                        stood_for: 0,
                    });
                    // What comes before is no trials.
                    self.begin = Instant::now();
                }
                Message::Changed { pairs } => {
                    if let Some(all) = &mut verdicts.pairs {
                        all.stood_for += pairs;
                    }
                }
                Message::Done(effort) => self.effort = Some(effort),
                Message::Failed { reason } => self.failed = Some(reason),
                Message::Path { .. } => {}
            }
        } else if let Message::Failed { reason } = message {
            self.failed = Some(reason);
        }
        !self.stopped
    }

    fn begin(&mut self, common: Recording, path: Vec<crate::plan::sweep::Step>) {
        let mut verdicts = Verdicts::new(
            self.analysis.invariants,
            self.analysis.findings.as_ref(),
            self.kernel.symbols(),
            common,
            path,
        );
        if let Some(kept) = self.resume.as_mut().and_then(|resume| resume.kept.take()) {
            verdicts.resume(kept);
        }
        self.verdicts = Some(verdicts);
        self.begin = Instant::now();
    }

    fn trial(&mut self, trial: SweptTrial) {
        let Some(verdicts) = &mut self.verdicts else {
            return;
        };
        let point = trial.point;
        if let Some(result) = verdicts.judge(trial)
            && self.shows
        {
            let names = Names {
                kernel: self.kernel.symbols(),
                user: &verdicts.common().user_symbols,
            };
            let mut text = failure::block(&result, names);
            if let (true, Some(trace)) = (self.detail.trace, &result.trace) {
                text += &failure::all_events(trace, names);
            }
            if let Some(count) = self.detail.instructions {
                text +=
                    &format!("  the path around point {point}, as it is without an NMI there:\n");
                text += &instructions::around(verdicts.path(), point.number, count, names);
            }
            // Standard output that is gone ends the command at its summary.
            let _ = self.spinner.suspend(|| print(&text));
        }
        self.tell();
        self.stopped = self
            .budget
            .is_some_and(|budget| self.begin.elapsed() > budget);
        if self.kept.elapsed() > KEEP {
            // The last time it is written a failure is told.
            let _ = self.keep();
        }
    }

    /// Writes what was found to the file for a later sweep, if one is wanted.
    pub(super) fn keep(&mut self) -> Result<(), CommandError> {
        self.kept = Instant::now();
        if let (Some(resume), Some(verdicts)) = (&self.resume, &self.verdicts) {
            let text = serde_json::to_string(&verdicts.record(resume.of.clone()))?;
            OutputFile::create(&resume.path)?.finish(&format!("{text}\n"))?;
        }
        Ok(())
    }

    /// Every now and then.
    fn tell(&self) {
        let Some(verdicts) = &self.verdicts else {
            return;
        };
        let tried = verdicts.tried.len();
        if !tried.is_multiple_of(50) {
            return;
        }
        let made = tried.saturating_sub(verdicts.before) as f64;
        let rate = made / self.begin.elapsed().as_secs_f64().max(0.001);
        let (all, what) = match &verdicts.pairs {
            None => (verdicts.path().len(), "points"),
            Some(pairs) => (usize::try_from(pairs.trials).unwrap_or(usize::MAX), "pairs"),
        };
        let left = all.saturating_sub(tried) as f64 / rate.max(0.001);
        self.spinner.step(&format!(
            "{tried} of {all} {what}, {} failures, {rate:.0} a second, {left:.0} s left",
            verdicts.failures.len(),
        ));
    }

    pub(super) fn report(&self, host: &str) -> Result<u8, CommandError> {
        let Some(verdicts) = &self.verdicts else {
            let reason = self.failed.clone();
            let reason = reason.unwrap_or_else(|| "no path".to_owned());
            return Err(ProviderError::Unavailable(reason).into());
        };
        let names = Names {
            kernel: self.kernel.symbols(),
            user: &verdicts.common().user_symbols,
        };
        let summary = Summary {
            verdicts,
            effort: self.effort.as_ref(),
            elapsed: self.begin.elapsed(),
            cut: self.stopped,
        };
        print(&text::report(&summary, names))?;
        print(&format!("on {}, KVM host {host}\n", self.kernel.release()))?;
        if let Some(reason) = &self.failed {
            return Err(
                ProviderError::Unavailable(format!("the sweep broke off: {reason}")).into(),
            );
        }
        let unknown = verdicts.failures.keys().any(|symptom| !symptom.is_known());
        let untested = verdicts.tried.is_empty()
            || !verdicts.missed.is_empty()
            || !verdicts.unsteady.is_empty();
        Ok(match (unknown, untested) {
            (true, _) => 1,
            (false, true) => EXIT_UNTESTED,
            (false, false) => 0,
        })
    }
}
