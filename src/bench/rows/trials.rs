//! Trials a second: those of a sweep, against a boot for each.

use std::time::Instant;

use super::{Bench, Better, Line, PeerSeries, Promise, QEMU, Row, RowError, number};
use crate::bench::series::{Series, Spread};
use crate::judge::Judge;
use crate::judge::sweep::Verdicts;
use unwindlab_engine::plan::Executor;
use unwindlab_engine::plan::measurement::{MeasuredFigures, Measurement, Vmm};
use unwindlab_engine::plan::sweep::{Effort, Message, SweepPlan};

/// A sweep that came to its end.
pub(super) struct Swept {
    /// When the path was there.
    pub begin: Instant,
    /// From then to the end, in seconds.
    pub seconds: f64,
    pub trials: usize,
    effort: Effort,
}

impl Bench<'_> {
    pub(super) fn trials(&mut self) -> Vec<Line> {
        let mut swept = Series::default();
        let mut restores = Series::default();
        let mut rebooted = Series::default();
        let mut qemu = self.series_of_peer();
        let mut trials = 0;
        let mut copied = Vec::new();
        for round in 0..self.rounds {
            self.tell("trials of a sweep", round);
            swept.take(|| -> Result<f64, RowError> {
                let swept = judged(self.executor, &self.sweep, self.judge)?;
                trials = swept.trials;
                let count = |counts: &[u32]| -> Vec<f64> {
                    counts.iter().map(|it| f64::from(*it)).collect()
                };
                copied.extend(count(&swept.effort.copied));
                let millis = Spread::of(&count(&swept.effort.restores_us));
                match millis {
                    Some(millis) => restores.add(millis.median / 1e3),
                    None => restores.fail(&RowError::NoRestore),
                }
                Ok(number(swept.trials as u64) / swept.seconds)
            });
            self.tell("a boot for each trial", round);
            for vmm in self.turns(round) {
                match vmm {
                    Vmm::Ours => rebooted.take(|| self.rebooted()),
                    Vmm::Qemu => qemu.take(|| self.booted_by_qemu()),
                }
            }
        }
        if let Some(why) = &swept.failed {
            restores.failed.get_or_insert_with(|| why.clone());
        }
        let line = |what, (unit, better), ours, peer, promises, notes| Line {
            row: Row::Trials,
            what,
            unit,
            better,
            ours,
            peer,
            promises,
            notes,
            parameters: vec![format!("{} machines", self.sweep.jobs)],
        };
        let rate = ("a second", Better::More);
        let of_sweep = format!(
            "a sweep of {trials} trials on {} machines, judged meanwhile; QEMU only boots, it runs no trial",
            self.sweep.jobs
        );
        let pages = Spread::of(&copied).map(|it| format!("{:.0} pages copied", it.median));
        vec![
            line(
                "trials, against QEMU booted for each",
                rate,
                swept.clone(),
                Some(PeerSeries {
                    name: QEMU,
                    series: qemu,
                }),
                vec![Promise::AtLeast(500.0), Promise::RatioAtLeast(500.0)],
                vec![of_sweep],
            ),
            line(
                "trials, against our machine booted for each",
                rate,
                swept,
                Some(PeerSeries {
                    name: "ours, booted",
                    series: rebooted,
                }),
                vec![Promise::RatioAtLeast(500.0)],
                Vec::new(),
            ),
            line(
                "putting a machine back in these sweeps (of each round the median)",
                ("ms", Better::Less),
                restores,
                None,
                vec![Promise::AtMost(1.0)],
                pages.into_iter().collect(),
            ),
        ]
    }

    fn rebooted(&mut self) -> Result<f64, RowError> {
        let trial = Box::new(self.sweep.trial.clone());
        match self.bench(&Measurement::Trial(trial))? {
            MeasuredFigures::Tried { micros } => Ok(1e6 / number(micros)),
            other => Err(RowError::OtherAnswer(other)),
        }
    }

    fn booted_by_qemu(&mut self) -> Result<f64, RowError> {
        let (vmm, machine) = (Vmm::Qemu, self.machine.clone());
        match self.bench(&Measurement::Start { vmm, machine })? {
            MeasuredFigures::Started { micros, .. } => Ok(1e6 / number(micros)),
            other => Err(RowError::OtherAnswer(other)),
        }
    }
}

/// Makes a sweep, and judges its trials meanwhile.
pub(super) fn judged(
    executor: &mut dyn Executor,
    plan: &SweepPlan,
    judge: Judge<'_>,
) -> Result<Swept, RowError> {
    let mut verdicts = None;
    let mut begin = None;
    let mut ended = None;
    executor.sweep(plan, &mut |message| {
        match message {
            Message::Path { common, path } => {
                verdicts = Some(Verdicts::new(judge, *common, path));
                begin = Some(Instant::now());
            }
            Message::Trial(trial) => {
                if let Some(verdicts) = &mut verdicts {
                    verdicts.judge(*trial);
                }
            }
            Message::Done(effort) => ended = Some(Ok((effort, Instant::now()))),
            Message::Failed { reason } => ended = Some(Err(RowError::Sweep(reason))),
            Message::Recording { .. }
            | Message::Missed { .. }
            | Message::Retried { .. }
            | Message::Alike { .. }
            | Message::Changed { .. }
            | Message::Working => {}
        }
        true
    })?;
    let (effort, end) = ended.ok_or(RowError::SweepUnended)??;
    let (Some(verdicts), Some(begin)) = (verdicts, begin) else {
        return Err(RowError::NoPath);
    };
    Ok(Swept {
        begin,
        seconds: end.duration_since(begin).as_secs_f64(),
        trials: verdicts.tried.len(),
        effort,
    })
}
