//! The `tracefs` part of a scenario: instances of tracefs as tracers.

use schemars::JsonSchema;
use serde::Deserialize;
use unwindlab_abi::tracefs::{
    ChurnKind, MAX_INSTANCES, TracefsChurn, TracefsInstance, TracefsPlan,
};

use super::error::Complaints;
use super::located::At;
use super::model::Scenario;
use super::units::Time;

/// Shortest period of a change, in microseconds.
const MIN_PERIOD_US: u64 = 100;
/// Largest buffer of a CPU, in KiB.
const MAX_BUFFER_KIB: u32 = 16 * 1024;

/// Instances of tracefs that ask for the deferred user stack at each of their events, beside perf. The
/// kernel must have the option for it, which `proposal:tracefs-stack` adds.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Tracefs {
    /// The instances, made before the workload starts.
    pub instances: Vec<Instance>,
    /// A thread that changes them while the workload runs, one after the other.
    pub churn: Option<At<InstanceChurn>>,
}

/// One instance of tracefs.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Instance {
    /// Its name: lower-case letters and digits.
    pub name: At<String>,
    /// The events that it traces, as `system:name` (default: `nmi:nmi_handler`).
    pub events: Option<Vec<At<String>>>,
    /// KiB of buffer for each CPU (default 1024). What does not fit is lost.
    #[schemars(range(min = 8, max = 16384))]
    pub buffer: Option<At<u32>>,
}

/// A thread that changes instances.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct InstanceChurn {
    /// The CPU on which it runs.
    pub cpu: At<u8>,
    /// The period, 100 us at least.
    pub every: At<Time>,
    /// What it does.
    pub what: What,
}

/// What is done to an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// The option is cleared and set again.
    Option,
    /// The option is cleared where it is set, and set for the next instance.
    Swap,
    /// The instance is removed with its option set, and made again.
    Remove,
}

/// Checks what the types do not express.
pub(super) fn check(scenario: &Scenario, complaints: &mut Complaints<'_>) {
    let Some(tracefs) = &scenario.tracefs else {
        return;
    };
    for (at, instance) in tracefs.instances.iter().enumerate() {
        let name = &instance.name;
        let is_name = |it: &str| {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
            (1..=16).contains(&it.len()) && it.chars().all(plain)
        };
        complaints.require(is_name(name), name.location(), || {
            format!(
                "found instance `{}`, expected 1 to 16 lower-case letters and digits",
                name.escape_debug()
            )
        });
        let mut earlier = tracefs.instances.iter().take(at);
        complaints.require(
            !earlier.any(|it| *it.name == **name),
            name.location(),
            || format!("found instance `{}` twice", name.escape_debug()),
        );
        complaints.require(at < MAX_INSTANCES, name.location(), || {
            format!("found another instance, expected up to {MAX_INSTANCES}")
        });
        for event in instance.events.iter().flatten() {
            complaints.require(split(event).is_some(), event.location(), || {
                format!(
                    "found event `{}`, expected `system:name`",
                    event.escape_debug()
                )
            });
        }
        if let Some(buffer) = &instance.buffer {
            let fits = (8..=MAX_BUFFER_KIB).contains(&**buffer);
            complaints.require(fits, buffer.location(), || {
                format!("found {} KiB, expected 8 to {MAX_BUFFER_KIB}", **buffer)
            });
        }
    }
    if let Some(churn) = &tracefs.churn {
        let vcpus = *scenario.machine.vcpus;
        complaints.require(*churn.cpu < vcpus, churn.cpu.location(), || {
            format!(
                "found CPU {}, expected one of the machine's {vcpus}, from 0",
                *churn.cpu
            )
        });
        let every = &churn.every;
        complaints.require(every.micros() >= MIN_PERIOD_US, every.location(), || {
            format!("found {}, expected {MIN_PERIOD_US} us or more", **every)
        });
        complaints.require(!tracefs.instances.is_empty(), churn.location(), || {
            "found `churn` without instances".to_owned()
        });
    }
}

/// The system and the name of an event. They become part of a path, so they are words.
fn split(event: &str) -> Option<(String, String)> {
    let word =
        |it: &str| !it.is_empty() && it.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let (system, name) = event.split_once(':')?;
    (word(system) && word(name)).then(|| (system.to_owned(), name.to_owned()))
}

/// Resolves the part; the scenario has been checked.
pub(super) fn resolve(tracefs: &Tracefs) -> TracefsPlan {
    let instance = |it: &Instance| TracefsInstance {
        name: String::clone(&it.name),
        events: match &it.events {
            Some(events) => events.iter().filter_map(|event| split(event)).collect(),
            None => vec![("nmi".to_owned(), "nmi_handler".to_owned())],
        },
        buffer_kib: it.buffer.as_ref().map_or(1024, |buffer| **buffer),
    };
    TracefsPlan {
        instances: tracefs.instances.iter().map(instance).collect(),
        churn: tracefs.churn.as_ref().map(|churn| TracefsChurn {
            cpu: u32::from(*churn.cpu),
            period_us: churn.every.micros(),
            what: match churn.what {
                What::Option => ChurnKind::Option,
                What::Swap => ChurnKind::Swap,
                What::Remove => ChurnKind::Remove,
            },
        }),
    }
}
