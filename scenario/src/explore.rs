//! `explore`: many trials of a scenario, in each of which vCPUs are stopped at random places.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Deserialize;

use super::error::Complaints;
use super::inject::boundaries;
use super::located::At;
use super::model::Scenario;
use super::resolve::{KernelSymbols, near};
use unwindlab_engine::plan::{ExplorePlan, TriggerPlan};

/// Many trials, each with a few preemptions: a vCPU that comes to an instruction chosen at random
/// waits there until another vCPU comes to a second one, or for some tens of milliseconds.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Explore {
    /// Seed of the choices (default 0). The same seed makes the same choices.
    #[serde(default)]
    pub seed: At<u64>,
    /// Number of trials.
    #[schemars(range(min = 1, max = 100_000))]
    pub trials: At<u32>,
    /// Preemptions in each trial, 1 to 3 (default 2).
    #[serde(default = "two")]
    #[schemars(range(min = 1, max = 3))]
    pub preemptions: At<u32>,
    /// The kernel functions in which vCPUs are stopped (default: those of deferred unwinding).
    #[serde(rename = "in")]
    pub functions: Option<Vec<At<String>>>,
}

fn two() -> At<u32> {
    At::unwritten(2)
}

/// The default functions. A kernel may lack some of them, because they are inlined.
const FUNCTIONS: [&str; 12] = [
    "perf_unwind_deferred_callback",
    "process_unwind_deferred",
    "task_work_add",
    "task_work_run",
    "unwind_deferred_cancel",
    "unwind_deferred_init",
    "unwind_deferred_request",
    "unwind_deferred_task_exit",
    "unwind_deferred_task_work",
    "unwind_task_free",
    "unwind_user",
    "unwind_user_faultable",
];

/// Hardware breakpoints of a CPU.
const BREAKPOINTS: usize = 4;

pub(super) fn check(scenario: &Scenario, complaints: &mut Complaints<'_>) {
    let Some(explore) = &scenario.explore else {
        return;
    };
    let at = explore.location();
    complaints.require(*scenario.machine.vcpus >= 2, at, || {
        "`explore` needs 2 vCPUs or more: it explores the order in which they act".to_owned()
    });
    complaints.require(scenario.schedule.is_none(), at, || {
        "found `explore` beside `schedule`, which fixes the order".to_owned()
    });
    if let Some(snapshot) = &scenario.snapshot {
        let message = "found `snapshot` beside `explore`, whose trials differ";
        complaints.add(snapshot.location(), message);
    }
    let trials = &explore.trials;
    complaints.require((1..=100_000).contains(&**trials), trials.location(), || {
        format!("found {} trials, expected 1 to 100000", **trials)
    });
    let preemptions = &explore.preemptions;
    complaints.require(
        (1..=3).contains(&**preemptions),
        preemptions.location(),
        || format!("found {} preemptions, expected 1 to 3", **preemptions),
    );
}

/// Complains if there is no plan.
pub(super) fn resolve(
    scenario: &Scenario,
    injected_at: &[&TriggerPlan],
    symbols: &dyn KernelSymbols,
    complaints: &mut Complaints<'_>,
) -> Option<ExplorePlan> {
    let explore = scenario.explore.as_ref()?;
    let own = { injected_at.iter() }.filter(|it| matches!(it, TriggerPlan::Arrival(_)));
    let places = own.count().saturating_add(*explore.preemptions as usize);
    complaints.require(places <= BREAKPOINTS, explore.location(), || {
        format!(
            "the preemptions and the scenario's own injections need {places} breakpoints, a CPU has \
             {BREAKPOINTS}"
        )
    });
    let mut places = BTreeSet::new();
    match &explore.functions {
        Some(functions) => {
            for function in functions {
                if symbols.addresses(function).is_empty() {
                    let near = near(function, symbols);
                    let message =
                        format!("the kernel has no function `{}`{near}", function.as_str());
                    complaints.add(function.location(), message);
                }
                places.extend(boundaries::of(function, symbols));
            }
        }
        None => {
            for function in FUNCTIONS {
                places.extend(boundaries::of(function, symbols));
            }
        }
    }
    complaints.require(!places.is_empty(), explore.location(), || {
        "found no instruction at which a vCPU can be stopped: name functions with `in`".to_owned()
    });
    Some(ExplorePlan {
        seed: *explore.seed,
        trials: *explore.trials,
        preemptions: *explore.preemptions,
        places: places.into_iter().collect(),
    })
}
