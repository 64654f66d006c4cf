//! One part of a run or of a soak (`--shard`). Its units are scenarios, and trials of those that have several.
//!
//! The trials of a deterministic run depend on those before them on the same boot, so there the unit is the scenario.
//! A part makes all of its trials, whatever comes of those before: which trials are made does not depend on how many
//! parts there are.

use std::collections::BTreeSet;

use serde::Serialize;

use super::tally::Tally;
use super::unit::RunUnit;
use super::{Prepared, TrialOptions};
use crate::campaign::error::CampaignError;
use crate::campaign::part::file::PartFile;
use crate::campaign::part::{PartHead, PartOf, PartRequest, Unit, Units, hash};
use crate::campaign::program;
use crate::judge::ScenarioResult;
use crate::judge::unit_record::UnitResult;
use crate::report::json::{self, Setting};
use unwindlab_engine::plan::{Shard, TrialPlan};

/// What the choice of `--flaky-is` is called.
pub(in crate::campaign) const FLAKY_IS: &str = "choice of --flaky-is";

/// A part, and what is known of it.
pub(super) struct RunPart {
    pub(super) shard: Shard,
    /// All units.
    units: Vec<Units>,
    file: PartFile,
}

impl RunPart {
    /// Opens the file of a part of a run.
    pub(super) fn of_run(
        part: &PartRequest,
        options: &TrialOptions,
        prepared: &Prepared,
    ) -> Result<Self, CampaignError> {
        let in_time = options.seed.is_some();
        let units = units_of(prepared, |plan| {
            let planned = plan.map_or(1, |plan| Tally::planned(plan, options.trials));
            (planned > 1 && !in_time).then_some(planned)
        });
        Self::open(part, PartOf::Run, options, (prepared, units))
    }

    /// Opens the file of a part of a soak, of which all parts have these units.
    pub(super) fn of_soak(
        part: &PartRequest,
        options: &TrialOptions,
        prepared: &Prepared,
        units: Vec<Units>,
    ) -> Result<Self, CampaignError> {
        Self::open(part, PartOf::Soak, options, (prepared, units))
    }

    fn open(
        part: &PartRequest,
        command: PartOf,
        options: &TrialOptions,
        (prepared, units): (&Prepared, Vec<Units>),
    ) -> Result<Self, CampaignError> {
        let release = prepared.kernel.release();
        let same = same(options, prepared)?;
        let head = PartHead::new(command, part.shard, same, units, release);
        Ok(Self {
            file: PartFile::open(part, &head)?,
            shard: part.shard,
            units: head.units,
        })
    }

    /// The units of this part, those that stand in its file included.
    pub(super) fn own(&self) -> impl Iterator<Item = Unit> {
        let all = self.units.iter().flat_map(Units::each);
        all.filter(|it| self.shard.has_name(&it.name, it.trial))
    }

    /// The lines that stand in its file.
    pub(super) fn before(&self) -> impl Iterator<Item = (&Unit, &str)> {
        { self.file.done.iter() }.map(|(unit, line)| (unit, line.as_str()))
    }

    /// The results of a run that stand in its file.
    pub(super) fn results(&self) -> Result<Vec<ScenarioResult>, CampaignError> {
        let read = self.before().map(|(_, line)| UnitResult::read(line));
        let results = read.map(|it| it.map(ScenarioResult::from));
        Ok(results.collect::<Result<_, _>>()?)
    }

    /// What is left to be run.
    pub(super) fn left<'p>(&self, prepared: &'p Prepared) -> Vec<RunUnit<'p>> {
        let done: BTreeSet<&Unit> = self.file.done.keys().collect();
        let mut left = prepared.units_of(&self.units);
        left.retain(|it| {
            let unit = it.name();
            self.shard.has_name(&unit.name, unit.trial) && !done.contains(&unit)
        });
        left
    }

    /// Writes the result of a run to the file.
    pub(super) fn take(
        &mut self,
        unit: &RunUnit<'_>,
        setting: &Setting,
        result: &ScenarioResult,
    ) -> Result<(), CampaignError> {
        // Traces would make files that nobody wants to collect.
        let result = ScenarioResult {
            trace: None,
            ..result.clone()
        };
        self.write(unit, json::record(setting, &result))
    }

    /// Writes the line of a unit to the file.
    pub(super) fn write(
        &mut self,
        unit: &RunUnit<'_>,
        record: impl Serialize,
    ) -> Result<(), CampaignError> {
        self.file.write(&unit.name(), record)
    }
}

/// So many trials of each scenario, each a unit. What cannot be run is one.
pub(super) fn soak_units(prepared: &Prepared, trials: Option<u32>) -> Vec<Units> {
    units_of(prepared, |plan| plan.and(trials))
}

/// The units of all scenarios, of which `trials` says how many trials are units by themselves.
fn units_of(prepared: &Prepared, trials: impl Fn(Option<&TrialPlan>) -> Option<u32>) -> Vec<Units> {
    let scenarios = prepared.library.iter().zip(&prepared.trials);
    let units = scenarios.map(|(loaded, plan)| {
        let plan = plan.as_ref().ok();
        Units {
            name: loaded.scenario.name.to_string(),
            hash: hash(&[&loaded.text, loaded.snapshot.as_deref().unwrap_or_default()]),
            trials: trials(plan),
            explores: plan.is_some_and(|plan| plan.explore.is_some()),
        }
    });
    units.collect()
}

/// What all parts have in common.
fn same(
    options: &TrialOptions,
    prepared: &Prepared,
) -> Result<[(&'static str, String); 9], CampaignError> {
    let said = |what: Option<String>| what.unwrap_or_default();
    Ok([
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
    ])
}
