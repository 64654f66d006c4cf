//! Many trials of each scenario, all of them, whatever comes of those before. Each is a unit, as of a part of a run.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use super::part::{RunPart, soak_units};
use super::{LibraryRun, Prepared, RunRequest};
use crate::campaign::Context;
use crate::campaign::error::CampaignError;
use crate::campaign::part::{Unit, Units};
use crate::judge::soak::{SoakTrial, Soaked};
use crate::report::json::Setting;

/// What came of it.
#[derive(Debug)]
pub struct SoakSummary {
    /// Each scenario that has trials, or is skipped, in the order of the library; of a part with those that stand in its file.
    pub soaked: Vec<Soaked>,
    /// What was tested, and where.
    pub setting: Setting,
    /// How long it took.
    pub elapsed: Duration,
    /// Why some logs or replay files could not be kept.
    pub unkept: Vec<CampaignError>,
}

/// What happens meanwhile.
#[derive(Debug, Clone, Copy)]
pub enum SoakEvent<'a> {
    /// These scenarios are about to be run, in this order.
    Started(&'a [String]),
    /// The trials of a scenario are over.
    Soaked(&'a Setting, &'a Soaked),
}

/// Makes as many trials of each scenario as the options say, or those of a part. Of the first trial of each that is not
/// good, the logs are kept. If the user interrupts it, the summary has what was made so far.
///
/// # Errors
/// [`CampaignError`] where nothing was run, or a KVM host could not be started.
pub fn soak(
    request: &RunRequest,
    context: Context<'_>,
    tell: &mut dyn FnMut(SoakEvent<'_>) -> io::Result<()>,
) -> Result<SoakSummary, CampaignError> {
    let start = Instant::now();
    let prepared = Prepared::new(request, context)?;
    let all = soak_units(&prepared, request.trials.trials);
    let part = request.part.as_ref();
    let part = part.map(|part| RunPart::of_soak(part, &request.trials, &prepared, all.clone()));
    let mut part = part.transpose()?;
    let mut soaks = match &part {
        Some(part) => Soaks::of(&all, part.own()),
        None => Soaks::of(&all, all.iter().flat_map(Units::each)),
    };
    for (unit, line) in part.iter().flat_map(RunPart::before) {
        soaks.add(unit, &serde_json::from_str(line)?);
    }
    tell(SoakEvent::Started(&soaks.names()))?;
    let mut run = LibraryRun::new(
        &request.trials,
        Prepared::kept(request),
        prepared.kernel.as_ref(),
        context,
    )
    .of_bulk();
    for soaked in soaks.complete() {
        tell(SoakEvent::Soaked(&prepared.setting(&run.host), soaked))?;
    }
    let units = match &part {
        Some(part) => part.left(&prepared),
        None => prepared.units_of(&all),
    };
    let mut done = 0;
    run.run_units(&units, &mut |unit, result, host| {
        done += 1;
        context.progress.overall(done, units.len());
        let trial = SoakTrial::of(result);
        if let Some(part) = &mut part {
            part.write(unit, &trial)?;
        }
        if let Some(soaked) = soaks.add(&unit.name(), &trial) {
            tell(SoakEvent::Soaked(&prepared.setting(host), soaked))?;
        }
        Ok(())
    })?;
    let setting = prepared.setting(&run.host);
    for soaked in soaks.broken_off() {
        tell(SoakEvent::Soaked(&setting, soaked))?;
    }
    Ok(SoakSummary {
        soaked: soaks.begun(),
        setting,
        elapsed: start.elapsed(),
        unkept: run.unkept,
    })
}

/// The scenarios, each with how many of its units are not over.
struct Soaks {
    /// In the order of the library.
    all: Vec<(Soaked, u32)>,
    by_name: BTreeMap<String, usize>,
}

impl Soaks {
    /// With these units of these scenarios.
    fn of(scenarios: &[Units], units: impl Iterator<Item = Unit>) -> Self {
        let by_name = scenarios.iter().map(|it| it.name.clone()).zip(0..);
        let all = { scenarios.iter() }.map(|it| (Soaked::new(&it.name, 0), 0));
        let mut soaks = Self {
            all: all.collect(),
            by_name: by_name.collect(),
        };
        for unit in units {
            if let Some((soaked, left)) = soaks.named(&unit.name) {
                soaked.planned += 1;
                *left += 1;
            }
        }
        soaks
    }

    fn named(&mut self, name: &str) -> Option<&mut (Soaked, u32)> {
        self.all.get_mut(*self.by_name.get(name)?)
    }

    /// Adds what came of a unit. Returns its scenario where that was the last one.
    fn add(&mut self, unit: &Unit, trial: &SoakTrial) -> Option<&Soaked> {
        let (soaked, left) = self.named(&unit.name)?;
        soaked.add(unit.trial.unwrap_or(1), trial);
        *left = left.saturating_sub(1);
        (*left == 0).then_some(soaked)
    }

    /// Those that have a unit.
    fn names(&self) -> Vec<String> {
        let own = self.all.iter().filter(|it| it.0.planned > 0);
        own.map(|it| it.0.name.clone()).collect()
    }

    fn complete(&self) -> impl Iterator<Item = &Soaked> {
        let complete = { self.all.iter() }.filter(|it| it.0.planned > 0 && it.1 == 0);
        complete.map(|it| &it.0)
    }

    fn broken_off(&self) -> impl Iterator<Item = &Soaked> {
        let begun = { self.all.iter() }.filter(|it| it.0.made() > 0 && it.1 > 0);
        begun.map(|it| &it.0)
    }

    fn begun(self) -> Vec<Soaked> {
        let all = self.all.into_iter().map(|it| it.0);
        all.filter(|it| it.made() > 0 || it.skip().is_some())
            .collect()
    }
}
