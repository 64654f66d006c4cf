//! Checks of the injections of a scenario that the types of their values do not express.

use std::collections::BTreeSet;

use unwindlab_abi::plan::WorkloadKind;

use super::exits;
use super::when::{check_counts, check_place, check_when};
use super::{Corrupt, Corruption, Injection, Schedule, TaskKind, TriggerPlace, When, watch};
use crate::error::Complaints;
use crate::located::{At, Location};
use crate::model::{Pmu, Scenario};
use crate::units::Time;

/// Checks all injections, and the schedule.
pub(crate) fn check(scenario: &Scenario, complaints: &mut Complaints<'_>) {
    let vcpus = *scenario.machine.vcpus;
    check_names(&scenario.inject, complaints);
    for injection in &scenario.inject {
        match injection {
            Injection::Fail(fail) => {
                let (first, hit) = (fail.first.as_ref(), fail.hit.as_ref());
                check_counts(first, hit, fail.repeat.as_ref(), complaints);
            }
            Injection::Irq(irq) => {
                complaints.require(
                    (16..=255).contains(&irq.vector.0),
                    irq.vector.location(),
                    || format!("found vector {}, expected 16 to 255", irq.vector.0),
                );
            }
            Injection::Freeze(freeze) => check_limit(freeze.limit.as_ref(), complaints),
            Injection::Poke(poke) => {
                if let Some(bytes) = &poke.bytes {
                    complaints.require([1, 2, 4, 8].contains(&**bytes), bytes.location(), || {
                        format!("found {} bytes, expected 1, 2, 4 or 8", **bytes)
                    });
                }
                check_vcpu(poke.cpu.as_ref(), vcpus, complaints);
            }
            Injection::PmuOverflow(overflow) => {
                complaints.require(
                    *scenario.machine.pmu == Pmu::Synthetic,
                    overflow.location(),
                    || "`pmu-overflow` needs `machine: { pmu: synthetic }`".to_owned(),
                );
            }
            Injection::Migrate(it) => check_vcpu(Some(&it.to), vcpus, complaints),
            Injection::Corrupt(it) => check_corrupt(it, scenario, complaints),
            Injection::BlockFault(it) => check_frame(&it.frame, scenario, complaints),
            Injection::Unmap(it) => check_frame(&it.frame, scenario, complaints),
            Injection::PageOut(it) => check_frame(&it.frame, scenario, complaints),
            Injection::Truncate(it) => check_frame(&it.frame, scenario, complaints),
            Injection::Kill(_)
            | Injection::Exec(_)
            | Injection::Nmi(_)
            | Injection::Thaw(_)
            | Injection::Signal(_)
            | Injection::ReleaseFault(_) => {}
        }
        check_kind(injection, scenario, complaints);
        if let Some(when) = injection.when() {
            let threads = *scenario.workload.threads;
            check_when(&when, injection, vcpus, threads, complaints);
            if let Some(event) = when.on {
                exits::check(event, scenario, complaints);
            }
            check_helped(&when, injection, vcpus, threads, complaints);
        }
    }
    watch::check_number(scenario, complaints);
    if let Some(schedule) = &scenario.schedule {
        check_schedule(schedule, vcpus, *scenario.workload.threads, complaints);
    }
}

fn check_corrupt(corrupt: &At<Corrupt>, scenario: &Scenario, complaints: &mut Complaints<'_>) {
    let bottom = *corrupt.frame == 0;
    if !bottom {
        check_frame(&corrupt.frame, scenario, complaints);
    }
    complaints.require(
        !bottom || *corrupt.with != Corruption::Loop,
        corrupt.with.location(),
        || "found `loop` for frame 0, whose frame pointer is a register and in no frame".to_owned(),
    );
    let user = { corrupt.at.as_ref() }.is_some_and(|at| matches!(**at, TriggerPlace::User(_)));
    complaints.require(user, corrupt.location(), || {
        "`corrupt` needs `at: { user: ... }`, an instruction of the thread's leaf".to_owned()
    });
}

fn check_frame(frame: &At<u32>, scenario: &Scenario, complaints: &mut Complaints<'_>) {
    let frames = *scenario.workload.frames;
    complaints.require((1..frames).contains(&**frame), frame.location(), || {
        format!(
            "found frame {}, expected 1 to {}",
            **frame,
            frames.saturating_sub(1)
        )
    });
}

/// Some actions need certain workloads.
fn check_kind(injection: &Injection, scenario: &Scenario, complaints: &mut Complaints<'_>) {
    let (kinds, why): (&[WorkloadKind], _) = match injection {
        Injection::BlockFault(_) => (
            &[WorkloadKind::MissingPages, WorkloadKind::Process],
            "which take their stacks out of the page tables",
        ),
        Injection::Unmap(_) => (
            &[WorkloadKind::MissingPages],
            "which moves pages of its stack",
        ),
        Injection::Truncate(_) => (
            &[WorkloadKind::MissingPages],
            "which can have pages of its stack in a file",
        ),
        Injection::PageOut(_) => (
            &[WorkloadKind::PagedOut],
            "which can take pages of its stack out of memory",
        ),
        Injection::Kill(_) | Injection::Exec(_) => (
            &[WorkloadKind::Process],
            "which has a process for each iteration",
        ),
        _ => return,
    };
    let location = { injection.when() }.map_or_else(Location::default, |it| it.location);
    let fits = kinds.contains(&*scenario.workload.kind);
    complaints.require(fits, location, || {
        let kinds: Vec<_> = kinds.iter().map(|it| format!("`{}`", it.name())).collect();
        let (word, kinds) = (injection.word(), kinds.join(" or "));
        format!("`{word}` needs workload {kinds}, {why}")
    });
}

/// Checks an action of the agent's helper.
fn check_helped(
    when: &When<'_>,
    injection: &Injection,
    vcpus: u8,
    threads: u32,
    complaints: &mut Complaints<'_>,
) {
    let Some(of) = injection.helped() else { return };
    let word = injection.word();
    complaints.require(vcpus >= 2, when.location, || {
        format!("`{word}` needs 2 vCPUs or more: the last one is for the agent's helper")
    });
    check_thread(of, threads, complaints);
    let target = ("target", when.target.map(At::location));
    refuse([target], "it acts on a thread", complaints);
    let known = when.at.is_some() || when.on.is_some() || when.after.is_some();
    complaints.require(of.is_some() || known, when.location, || {
        format!("`{word}` needs a thread: add `of`")
    });
}

/// Most characters of a name.
const MAX_NAME: usize = 64;
/// Names that an error lists.
const MAX_LISTED: usize = 12;

/// Names are unique, and `after` names earlier injections.
fn check_names(injections: &[Injection], complaints: &mut Complaints<'_>) {
    let mut listed: Vec<&str> = Vec::new();
    let mut known: BTreeSet<&str> = BTreeSet::new();
    for injection in injections {
        let (name, after) = injection.names();
        if let Some(after) = after {
            complaints.require(!after.as_slice().is_empty(), after.location(), || {
                "found no name, expected that of an earlier injection".to_owned()
            });
        }
        for (name, location) in after.iter().flat_map(|it| {
            let location = it.location();
            it.as_slice().iter().map(move |name| (name, location))
        }) {
            complaints.require(known.contains(name.as_str()), location, || {
                let names = match known.len().saturating_sub(listed.len()) {
                    _ if listed.is_empty() => "none has one".to_owned(),
                    0 => listed.join(", "),
                    more => format!("{} and {more} more", listed.join(", ")),
                };
                format!(
                    "found `{}`, expected the name of an earlier injection ({names})",
                    short(name)
                )
            });
        }
        if let Some(name) = name {
            complaints.require(is_short(name), name.location(), || {
                format!(
                    "found a name of {} characters, expected {MAX_NAME} at most",
                    name.chars().count()
                )
            });
            let is_new = known.insert(name);
            complaints.require(is_new, name.location(), || {
                format!("found the name `{}` twice", short(name))
            });
            if is_new && is_short(name) && listed.len() < MAX_LISTED {
                listed.push(name);
            }
        }
    }
}

fn is_short(name: &str) -> bool {
    name.chars().nth(MAX_NAME).is_none()
}

/// A name as it is shown: no more of it than a name may have.
fn short(name: &str) -> String {
    let shown: String = name.chars().take(MAX_NAME).collect();
    let dots = if is_short(name) { "" } else { "..." };
    format!("{}{dots}", shown.escape_debug())
}

fn check_schedule(
    schedule: &At<Schedule>,
    vcpus: u8,
    threads: u32,
    complaints: &mut Complaints<'_>,
) {
    let points = &schedule.points;
    complaints.require(points.len() >= 2, points.location(), || {
        format!("found {} points, expected two or more", points.len())
    });
    for point in points.iter() {
        check_place(&point.at, complaints);
        let is_watch = matches!(*point.at, TriggerPlace::Watch(_));
        complaints.require(!is_watch, point.at.location(), || {
            "found `watch`, expected an instruction: `kernel` or `user`".to_owned()
        });
        check_vcpu(Some(&point.vcpu), vcpus, complaints);
        check_thread(point.thread.as_ref(), threads, complaints);
        let hit = point.hit.as_ref().map(|n| (**n, n.location()));
        require_count("hit", hit, complaints);
        if point.task.as_ref().is_some_and(|it| **it == TaskKind::Any) {
            let thread = ("thread", point.thread.as_ref().map(At::location));
            let why = "with `task: any` every task's arrival counts";
            refuse([thread], why, complaints);
        }
    }
    let repeat = schedule.repeat.as_ref().map(|n| (**n, n.location()));
    require_count("repeat", repeat, complaints);
    check_limit(schedule.limit.as_ref(), complaints);
}

/// The guest's own watchdogs report a CPU that stands still for long as hung, RCU's after 21 s.
fn check_limit(limit: Option<&At<Time>>, complaints: &mut Complaints<'_>) {
    if let Some(limit) = limit {
        complaints.require(
            (1000..=10_000_000).contains(&limit.micros()),
            limit.location(),
            || format!("found {}, expected 1 ms to 10 s", **limit),
        );
    }
}

pub(super) fn check_vcpu(vcpu: Option<&At<u8>>, vcpus: u8, complaints: &mut Complaints<'_>) {
    if let Some(vcpu) = vcpu {
        complaints.require(**vcpu < vcpus, vcpu.location(), || {
            format!(
                "found vCPU {}, expected one of the machine's {vcpus}, from 0",
                **vcpu
            )
        });
    }
}

pub(super) fn check_thread(
    thread: Option<&At<u32>>,
    threads: u32,
    complaints: &mut Complaints<'_>,
) {
    if let Some(thread) = thread {
        complaints.require(**thread < threads, thread.location(), || {
            format!(
                "found thread {}, expected one of the workload's {threads}, from 0",
                **thread
            )
        });
    }
}

pub(super) fn refuse<const N: usize>(
    keys: [(&str, Option<Location>); N],
    expected: &str,
    complaints: &mut Complaints<'_>,
) {
    for (key, location) in keys {
        if let Some(location) = location {
            complaints.add(
                location,
                format!("found key `{key}`, expected none: {expected}"),
            );
        }
    }
}

/// More than any trial makes or waits for: its time is limited.
const MOST: u64 = 10_000_000;

pub(super) fn require_count(
    key: &str,
    written: Option<(u64, Location)>,
    complaints: &mut Complaints<'_>,
) {
    if let Some((count, location)) = written {
        complaints.require((1..=MOST).contains(&count), location, || {
            format!("found `{key}` {count}, expected 1 to {MOST}")
        });
    }
}
