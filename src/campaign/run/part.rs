//! One part of a run (`--shard`). Its units are scenarios, and trials of those that have several.
//!
//! The trials of a deterministic run depend on those before them on the same boot, so there the unit is the scenario.
//! A part makes all of its trials, whatever comes of those before: which trials are made does not depend on how many
//! parts there are.

use std::collections::BTreeSet;

use super::tally::Tally;
use super::unit::RunUnit;
use super::{Prepared, RunRequest, TrialOptions};
use crate::campaign::error::CampaignError;
use crate::campaign::part::file::PartFile;
use crate::campaign::part::{PartHead, PartOf, PartRequest, Unit, Units, hash};
use crate::campaign::program;
use crate::judge::ScenarioResult;
use crate::judge::unit_record::UnitResult;
use crate::report::json::{self, Setting};

/// What the choice of `--flaky-is` is called.
pub(in crate::campaign) const FLAKY_IS: &str = "choice of --flaky-is";

/// A part, and what is known of it.
pub(super) struct RunPart {
    request: PartRequest,
    head: PartHead,
    file: PartFile,
    /// The results that stand in its file.
    pub(super) before: Vec<ScenarioResult>,
}

impl RunPart {
    /// Opens its file.
    pub(super) fn open(
        part: &PartRequest,
        request: &RunRequest,
        prepared: &Prepared,
    ) -> Result<Self, CampaignError> {
        let head = head(part, &request.trials, prepared)?;
        let file = PartFile::open(part, &head)?;
        let before = { file.done.values() }.map(|line| UnitResult::read(line));
        let before: Result<Vec<UnitResult>, _> = before.collect();
        Ok(Self {
            before: before?.into_iter().map(ScenarioResult::from).collect(),
            request: part.clone(),
            head,
            file,
        })
    }

    /// What is left to be run.
    pub(super) fn left<'p>(&self, prepared: &'p Prepared) -> Vec<RunUnit<'p>> {
        let done: BTreeSet<&Unit> = self.file.done.keys().collect();
        let scenarios = prepared.library.iter().zip(&prepared.trials);
        let scenarios = scenarios.zip(&self.head.units);
        let units = scenarios.flat_map(|((loaded, plan), units)| {
            let left = units.each().filter(|unit| {
                let shard = self.request.shard;
                shard.has_name(&unit.name, unit.trial) && !done.contains(unit)
            });
            left.map(move |unit| RunUnit {
                loaded,
                plan,
                trial: unit.trial,
            })
        });
        units.collect()
    }

    /// Writes a result to the file.
    pub(super) fn take(
        &mut self,
        unit: &RunUnit<'_>,
        setting: &Setting,
        result: &ScenarioResult,
    ) -> Result<(), CampaignError> {
        let unit = Unit {
            name: unit.loaded.scenario.name.to_string(),
            trial: unit.trial,
        };
        // Traces would make files that nobody wants to collect.
        let result = ScenarioResult {
            trace: None,
            ..result.clone()
        };
        self.file.write(&unit, json::record(setting, &result))
    }
}

fn head(
    part: &PartRequest,
    options: &TrialOptions,
    prepared: &Prepared,
) -> Result<PartHead, CampaignError> {
    let in_time = options.seed.is_some();
    let scenarios = prepared.library.iter().zip(&prepared.trials);
    let units = scenarios.map(|(loaded, plan)| {
        let plan = plan.as_ref().ok();
        let planned = plan.map_or(1, |plan| Tally::planned(plan, options.trials));
        Units {
            name: loaded.scenario.name.to_string(),
            hash: hash(&[&loaded.text, loaded.snapshot.as_deref().unwrap_or_default()]),
            trials: (planned > 1 && !in_time).then_some(planned),
            explores: plan.is_some_and(|plan| plan.explore.is_some()),
        }
    });
    let said = |what: Option<String>| what.unwrap_or_default();
    let same = [
        ("kernel", prepared.kernel.hash().to_owned()),
        ("build of unwindlab", program::hash()?),
        (
            "choice of --deterministic or --seed",
            said(options.seed.map(|it| it.to_string())),
        ),
        (
            "number of --trials",
            said(options.trials.map(|it| it.to_string())),
        ),
        (
            "choice of --witness or --no-witness",
            said(options.witness.map(|it| it.to_string())),
        ),
        ("number of --retries", options.retries.to_string()),
        (FLAKY_IS, options.flaky_is.word().to_owned()),
        (
            "choice of --timeout-factor",
            said(options.timeout_factor.map(|it| it.to_string())),
        ),
        (
            "choice of --no-snapshots",
            options.compare_snapshots.to_string(),
        ),
    ];
    Ok(PartHead::new(
        PartOf::Run,
        part.shard,
        same,
        units.collect(),
        prepared.kernel.release(),
    ))
}
