//! Which tests execute what a mutant changes.
//!
//! A kernel with many mutants notes which of its places it executes. So one run of the library, without a mutant, says it of each
//! scenario; of a sweep it is said what its scenario executes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use super::order::{KILLED_IT, Order};
use super::setups_stage;
use super::tester::{Bench, Tester, Tests, ends};
use crate::campaign::error::CampaignError;
use crate::campaign::run::LibraryRun;
use crate::campaign::suite;
use crate::host::provider::{ProviderError, TestKernel};
use crate::judge::{Outcome, Reached, ScenarioResult};
use crate::report::mutation::Control;
use unwindlab_engine::plan::ChoicePlan;
use unwindlab_guest_kernel::build::generate::{GeneratedMutant, MUTANT, MutantSchema, REACHED};

/// What it is worth that a scenario executes something in the function of a mutant, next to elsewhere.
const IN_FUNCTION: f64 = 8.0;

/// What each scenario executes.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    /// By number of a scenario.
    scenarios: Vec<Covered>,
    /// What all of them and the boot execute.
    all: Reached,
    /// By file and function: what is noted there.
    functions: BTreeMap<(String, String), Vec<u32>>,
    /// By place: the functions whose code has it.
    code: BTreeMap<u32, BTreeSet<String>>,
}

/// What one scenario executes.
#[derive(Debug, Default)]
struct Covered {
    name: String,
    /// By place.
    reached: Vec<u8>,
    seconds: f64,
}

/// What the run of the library said of the kernel without a mutant.
pub(super) struct Surveyed {
    pub(super) coverage: Coverage,
    pub(super) control: Control,
    pub(super) findings: BTreeSet<String>,
}

impl Surveyed {
    /// Runs the library on a kernel without a mutant. `choice` says so to one that has many.
    pub(super) fn of(
        tester: &Tester<'_>,
        kernel: &dyn TestKernel,
        choice: Option<ChoicePlan>,
    ) -> Result<Self, CampaignError> {
        let mut trials = suite::trials(&tester.library, kernel);
        for trial in trials.iter_mut().flatten() {
            trial.choice = choice;
        }
        let mut run = LibraryRun::new(&tester.options, None, kernel, tester.context).forgetting();
        run.run_all(&tester.library, &trials, &mut |_, _| Ok(()))?;
        tester.context.check_interrupt()?;
        let mut surveyed = Self {
            coverage: Coverage::default(),
            control: Control::Clean,
            findings: BTreeSet::new(),
        };
        for (at, result) in run.results.into_iter().enumerate() {
            let findings = result.findings().into_iter().map(str::to_owned);
            surveyed.findings.extend(findings);
            surveyed.judge(at, &result, tester, kernel, choice)?;
            surveyed.coverage.add(result);
        }
        Ok(surveyed)
    }

    fn judge(
        &mut self,
        at: usize,
        result: &ScenarioResult,
        tester: &Tester<'_>,
        kernel: &dyn TestKernel,
        choice: Option<ChoicePlan>,
    ) -> Result<(), CampaignError> {
        let is_open = !result.is_tested() && result.outcome != Outcome::Skip;
        let is_death = result.outcome.is_death() && result.fallen().is_empty();
        let control = match ends(result) {
            // The host may have done it, once, as with a mutant.
            true if is_death => {
                let again = Bench::new(tester, kernel).scenario(at, choice)?;
                ends(&again).then(|| Control::Unclean(result.brief()))
            }
            true => Some(Control::Unclean(result.brief())),
            false => is_open.then(|| Control::Untested(result.brief())),
        };
        if let Some(control) = control {
            self.control = std::mem::replace(&mut self.control, Control::Clean).and(control);
        }
        Ok(())
    }
}

impl Coverage {
    fn add(&mut self, result: ScenarioResult) {
        self.all.add(&result.reached);
        self.scenarios.push(Covered {
            name: result.name,
            reached: result.reached.in_trials,
            seconds: result.duration.as_secs_f64(),
        });
    }

    /// With what is known of the mutants, and of the kernel that has them.
    pub(super) fn with(
        mut self,
        mutants: &[GeneratedMutant],
        kernel: &dyn TestKernel,
        choice: ChoicePlan,
    ) -> Self {
        self.code = code(kernel, choice);
        for mutant in mutants {
            let function = (mutant.file.clone(), mutant.function.clone());
            let noted = self.functions.entry(function).or_default();
            noted.extend([mutant.place, mutant.difference].into_iter().flatten());
        }
        self
    }

    /// Whether a mutant may make a difference to the boot.
    fn is_in_boot(&self, mutant: &GeneratedMutant) -> bool {
        let notes = mutant.difference.or(mutant.place);
        notes.is_some_and(|at| is_set(&self.all.before, at))
    }

    /// The first scenario that executes what a mutant changes.
    pub(super) fn nearest(&self, mutant: &GeneratedMutant) -> Option<String> {
        let place = mutant.place?;
        let of = { self.scenarios.iter() }.find(|it| is_set(&it.reached, place));
        of.map(|it| it.name.clone())
    }

    /// The tests that may tell a mutant from the kernel without it: scenarios in which it makes a difference where it stands, or that
    /// execute it if that is not known; sweeps whose scenarios execute it. Scenarios that most probably do in the least time take turns with those that
    /// do something else.
    pub(super) fn tests(
        &self,
        mutant: &GeneratedMutant,
        tester: &Tester<'_>,
        order: &Mutex<Order>,
    ) -> Tests {
        let is_noted = |of: Option<&Covered>, at: Option<u32>| match (at, of) {
            (Some(at), Some(of)) => is_set(&of.reached, at),
            _ => true,
        };
        let notes = mutant.difference.or(mutant.place);
        let worth = { order.lock() }
            .unwrap_or_else(PoisonError::into_inner)
            .of(mutant);
        let mut ranked: Vec<(usize, f64)> = Vec::new();
        for (at, loaded) in tester.library.iter().enumerate() {
            let of = self.scenarios.get(at);
            if is_noted(of, notes) {
                let seconds = of.map_or(1.0, |it| it.seconds);
                let worth = f64::from(worth(&loaded.scenario.name) + 1);
                ranked.push((at, worth / seconds.max(0.1)));
            }
        }
        ranked.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        let ranked: Vec<usize> = ranked.into_iter().map(|(at, _)| at).collect();
        let unlike = self.unlike(mutant, &ranked);
        let mut scenarios = Vec::new();
        for (at, probable) in ranked.iter().enumerate() {
            for scenario in [Some(probable), unlike.get(at)].into_iter().flatten() {
                if !scenarios.contains(scenario) {
                    scenarios.push(*scenario);
                }
            }
        }
        let sweeps = tester.sweeps.iter().enumerate().filter(|(_, sweep)| {
            let name = sweep.scenario();
            let of = self.scenarios.iter().find(|it| it.name == name);
            is_noted(of, mutant.place)
        });
        let mut sweeps: Vec<(usize, u32)> = sweeps
            .map(|(at, sweep)| (at, worth(&sweep.name())))
            .collect();
        sweeps.sort_by_key(|(_, worth)| Reverse(*worth));
        let functions = mutant.place.and_then(|it| self.code.get(&it));
        Tests {
            sweep_first: { sweeps.first() }.is_some_and(|(_, worth)| *worth >= KILLED_IT),
            sweeps: sweeps.into_iter().map(|(at, _)| at).collect(),
            functions: functions.into_iter().flatten().cloned().collect(),
            scenarios,
            boots: self.is_in_boot(mutant),
            setups: setups_stage::is_for(&mutant.file) && !tester.budget.is_zero(),
        }
    }

    /// These scenarios in an order in which each executes, in little time, most of what those before it do not: what few execute
    /// counts for more, and what stands in the function of the mutant.
    fn unlike(&self, mutant: &GeneratedMutant, scenarios: &[usize]) -> Vec<usize> {
        let function = (mutant.file.clone(), mutant.function.clone());
        let here: BTreeSet<u32> = { self.functions.get(&function).into_iter().flatten() }
            .copied()
            .collect();
        let of = |at: &usize| Some((*at, self.scenarios.get(*at)?));
        let mut left: Vec<(usize, &Covered)> = scenarios.iter().filter_map(of).collect();
        let mut count: BTreeMap<u32, u32> = BTreeMap::new();
        for place in left.iter().flat_map(|(_, it)| it.places()) {
            *count.entry(place).or_default() += 1;
        }
        let mut order = Vec::new();
        let mut done = BTreeSet::new();
        while !left.is_empty() {
            let worth = |of: &Covered| {
                let new = of.places().filter(|it| !done.contains(it));
                let worth = new.map(|it| {
                    let factor = if here.contains(&it) { IN_FUNCTION } else { 1.0 };
                    factor / f64::from(count.get(&it).copied().unwrap_or(1))
                });
                worth.sum::<f64>() / of.seconds.max(0.1)
            };
            let best = { left.iter().map(|(_, of)| worth(of)).enumerate() }
                .max_by(|(_, a), (_, b)| a.total_cmp(b));
            let Some((best, worth)) = best else { break };
            if worth <= 0.0 {
                break;
            }
            let (at, of) = left.swap_remove(best);
            done.extend(of.places());
            order.push(at);
        }
        order
    }
}

impl Covered {
    /// The places that it executes.
    fn places(&self) -> impl Iterator<Item = u32> {
        { (0..).zip(&self.reached) }.filter_map(|(place, it)| (*it != 0).then_some(place))
    }
}

fn is_set(places: &[u8], place: u32) -> bool {
    let at = usize::try_from(place).unwrap_or(usize::MAX);
    places.get(at).is_some_and(|it| *it != 0)
}

/// The functions that have the code of each place: a `movb $1` to what notes that it is executed (Intel SDM volume 2, MOV; the
/// kernel is linked with a code model in which that is relative to the instruction pointer).
fn code(kernel: &dyn TestKernel, choice: ChoicePlan) -> BTreeMap<u32, BTreeSet<String>> {
    const LENGTH: usize = 7;
    let symbols = kernel.symbols();
    let ends = (symbols.addresses("_stext"), symbols.addresses("_etext"));
    let (&[start], &[end]) = (ends.0.as_slice(), ends.1.as_slice()) else {
        return BTreeMap::new();
    };
    let length = usize::try_from(end.saturating_sub(start)).unwrap_or_default();
    let text = symbols.code(start, length).unwrap_or_default();
    let mut code: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
    for (behind, bytes) in (start + LENGTH as u64..).zip(text.windows(LENGTH)) {
        let [0xc6, 0x05, a, b, c, d, 1] = *bytes else {
            continue;
        };
        let distance = i32::from_le_bytes([a, b, c, d]);
        let to = behind.wrapping_add_signed(distance.into());
        let place = to.wrapping_sub(choice.reached);
        let place = u32::try_from(place).ok().filter(|it| *it < choice.places);
        let function = symbols.resolve(behind);
        if let (Some(place), Some((function, _))) = (place, function) {
            code.entry(place).or_default().insert(function);
        }
    }
    code
}

/// Where a kernel has its variables for the choice; no mutant is chosen.
///
/// # Errors
/// A kernel without them.
pub(super) fn choice(
    kernel: &dyn TestKernel,
    schema: &MutantSchema,
) -> Result<ChoicePlan, CampaignError> {
    let one = |name: &str| match kernel.symbols().addresses(name).as_slice() {
        [address] => Ok(*address),
        _ => {
            let why = format!("the kernel with all mutants has no variable `{name}`");
            Err(CampaignError::from(ProviderError::Unavailable(why)))
        }
    };
    Ok(ChoicePlan {
        variable: one(MUTANT)?,
        number: 0,
        reached: one(REACHED)?,
        places: schema.places,
    })
}
