//! `explore`: many trials of a scenario, each with vCPUs stopped at other places, at random.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Deserialize;

use super::error::Complaints;
use super::inject::boundaries;
use super::located::At;
use super::model::Scenario;
use super::resolve::{KernelSymbols, near};
use crate::plan::{ExplorePlan, TriggerPlan};

/// Many trials. In each of them a few preemptions are made: a vCPU that comes to an instruction chosen at
/// random stands still there until another vCPU has come to one chosen at random, or for some tens of
/// milliseconds.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Explore {
    /// What the choices follow from (default 0): the same seed makes the same ones.
    #[serde(default)]
    pub seed: At<u64>,
    /// How many trials.
    #[schemars(range(min = 1, max = 100_000))]
    pub trials: At<u32>,
    /// How many preemptions there are in each, 1 to 3 (default 2).
    #[serde(default = "two")]
    #[schemars(range(min = 1, max = 3))]
    pub preemptions: At<u32>,
    /// The functions of the kernel in which vCPUs are stopped (default: those of deferred unwinding).
    #[serde(rename = "in")]
    pub functions: Option<Vec<At<String>>>,
}

fn two() -> At<u32> {
    At::unwritten(2)
}

/// Where vCPUs are stopped unless the scenario says otherwise, as far as a kernel has them: some are
/// inlined.
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
        "`explore` needs 2 vCPUs or more: the order of what they do is what it explores".to_owned()
    });
    complaints.require(scenario.schedule.is_none(), at, || {
        "found `explore` beside `schedule`, which has the order already".to_owned()
    });
    if let Some(snapshot) = &scenario.snapshot {
        let message = "found `snapshot` beside `explore`, whose trials are not alike";
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

/// Complaints are made where there is no plan.
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
            "the preemptions and the scenario's own injections take {places} breakpoints, a CPU has \
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
        "no instruction is known at which a vCPU could be stopped: name functions with `in`"
            .to_owned()
    });
    Some(ExplorePlan {
        seed: *explore.seed,
        trials: *explore.trials,
        preemptions: *explore.preemptions,
        places: places.into_iter().collect(),
    })
}
