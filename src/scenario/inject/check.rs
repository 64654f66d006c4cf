//! What must hold in the injections of a scenario beyond the types of their values.

use unwindlab_abi::plan::{USER_SYMBOLS, WorkloadKind};

use super::{Corrupt, Corruption, Injection, Place, Schedule, TaskKind, When};
use crate::scenario::check::MAX_TIME_US;
use crate::scenario::error::Complaints;
use crate::scenario::located::{At, Location};
use crate::scenario::model::{Pmu, Scenario};
use crate::scenario::place::SymbolOffset;
use crate::scenario::units::Time;

/// Shortest period of injections. One NMI and its handler take about 10 us on the emulated host.
const MIN_PERIOD_US: u64 = 10;

/// Checks all injections, and the schedule.
pub(in crate::scenario) fn check(scenario: &Scenario, complaints: &mut Complaints<'_>) {
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
            check_helped(&when, injection, vcpus, threads, complaints);
        }
    }
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
    let user = { corrupt.at.as_ref() }.is_some_and(|at| matches!(**at, Place::User(_)));
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

/// Some are done by one workload only.
fn check_kind(injection: &Injection, scenario: &Scenario, complaints: &mut Complaints<'_>) {
    let (kind, why) = match injection {
        Injection::BlockFault(_) | Injection::Unmap(_) => (
            WorkloadKind::MissingPages,
            "which takes its stack out of the page tables",
        ),
        Injection::PageOut(_) => (
            WorkloadKind::PagedOut,
            "which can take pages of its stack out of memory",
        ),
        Injection::Kill(_) | Injection::Exec(_) => (
            WorkloadKind::Process,
            "which has a process for each iteration",
        ),
        _ => return,
    };
    let location = { injection.when() }.map_or_else(Location::default, |it| it.location);
    complaints.require(*scenario.workload.kind == kind, location, || {
        let (word, kind) = (injection.word(), kind.name());
        format!("`{word}` needs workload `{kind}`, {why}")
    });
}

/// What the agent's helper does.
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
        format!("`{word}` needs 2 vCPUs or more: the last one is the helper's who does it")
    });
    check_thread(of, threads, complaints);
    let target = ("target", when.target.map(At::location));
    refuse([target], "it is done to a thread", complaints);
    let known = when.at.is_some() || when.on.is_some() || when.after.is_some();
    complaints.require(of.is_some() || known, when.location, || {
        format!("`{word}` needs to know the thread: give `of`")
    });
}

/// A name is unique, and `after` has that of an injection that is written before.
fn check_names(injections: &[Injection], complaints: &mut Complaints<'_>) {
    let mut known: Vec<&str> = Vec::new();
    for injection in injections {
        let (name, after) = injection.names();
        if let Some(after) = after {
            complaints.require(known.contains(&after.as_str()), after.location(), || {
                let known = match known.as_slice() {
                    [] => "none has one".to_owned(),
                    known => known.join(", "),
                };
                format!(
                    "found `{}`, expected the name of an earlier injection ({known})",
                    after.escape_debug()
                )
            });
        }
        if let Some(name) = name {
            complaints.require(!known.contains(&name.as_str()), name.location(), || {
                format!("found the name `{}` twice", name.escape_debug())
            });
            known.push(name);
        }
    }
}

/// The keys that go with each trigger, in words.
const WITH_AT: &str = "`at` takes `first`, `hit`, `repeat`, `vcpu`, `thread`, `task` and `in-nmi`, \
                       and for `nmi` and `pmu-overflow` also `times` and `sweep`";
const WITH_EVERY: &str = "`every` takes `count` and `vcpus`";
const WITH_ON: &str = "`on` takes `hit` and `repeat`";
const WITH_DELAY: &str = "`delay`, and `after` alone, take `repeat`";

fn check_when(
    when: &When<'_>,
    injection: &Injection,
    vcpus: u8,
    threads: u32,
    complaints: &mut Complaints<'_>,
) {
    let triggers = [
        when.at.is_some(),
        when.every.is_some(),
        when.on.is_some(),
        when.delay.is_some(),
    ];
    let first = ("first", when.first.map(At::location));
    let hit = ("hit", when.hit.map(At::location));
    let repeat = ("repeat", when.repeat.map(At::location));
    let count = ("count", when.count.map(At::location));
    let many = ("vcpus", when.vcpus.map(At::location));
    let at_only = [
        ("vcpu", when.vcpu.map(At::location)),
        ("thread", when.thread.map(At::location)),
        ("task", when.task.map(At::location)),
        ("in-nmi", when.in_nmi.map(At::location)),
        ("times", when.times.map(At::location)),
        ("sweep", when.sweep.map(At::location)),
    ];
    match triggers {
        [true, false, false, false] => {
            refuse([count, many], WITH_AT, complaints);
            check_arrival(when, vcpus, threads, complaints);
        }
        [false, true, false, false] => {
            refuse([first, hit, repeat], WITH_EVERY, complaints);
            refuse(at_only, WITH_EVERY, complaints);
            check_rate(when, injection, vcpus, complaints);
        }
        [false, false, true, false] => {
            refuse([first, count, many], WITH_ON, complaints);
            refuse(at_only, WITH_ON, complaints);
        }
        [false, false, false, true] | [false, false, false, false]
            if triggers != [false; 4] || when.after.is_some() =>
        {
            refuse([first, hit, count, many], WITH_DELAY, complaints);
            refuse(at_only, WITH_DELAY, complaints);
            if when.after.is_none() {
                refuse(
                    [repeat],
                    "a `delay` without `after` is over once",
                    complaints,
                );
            }
        }
        _ => complaints.add(
            when.location,
            "expected exactly one of `at` (an instruction), `every` (a time), `on` (an event) and \
             `delay` (a time), or `after` alone",
        ),
    }
    check_counts(when.first, when.hit, when.repeat, complaints);
    let times = when.times.map(|n| (u64::from(**n), n.location()));
    require_positive("times", times, complaints);
    check_vcpu(when.target, vcpus, complaints);
    if let Some(delay) = when.delay {
        complaints.require(delay.micros() <= MAX_TIME_US, delay.location(), || {
            format!("found {}, expected at most an hour", **delay)
        });
    }
}

fn check_arrival(when: &When<'_>, vcpus: u8, threads: u32, complaints: &mut Complaints<'_>) {
    if let Some(at) = when.at {
        check_place(at, complaints);
    }
    check_vcpu(when.vcpu, vcpus, complaints);
    check_thread(when.thread, threads, complaints);
    let any = when.task.is_some_and(|task| **task == TaskKind::Any);
    if any {
        let why = "with `task: any` there are no iterations of a thread";
        let keys = [
            ("first", when.first.map(At::location)),
            ("thread", when.thread.map(At::location)),
            ("sweep", when.sweep.map(At::location)),
        ];
        refuse(keys, why, complaints);
    }
}

fn check_place(at: &At<Place>, complaints: &mut Complaints<'_>) {
    if let Place::User(SymbolOffset { symbol, .. }) = &**at {
        complaints.require(
            USER_SYMBOLS.contains(&symbol.as_str()),
            at.location(),
            || {
                format!(
                    "the workloads have no symbol `{symbol}`, expected one of {}",
                    USER_SYMBOLS.join(", ")
                )
            },
        );
    }
}

/// Which of its hits count is said from 1.
fn check_counts(
    first: Option<&At<u64>>,
    hit: Option<&At<u64>>,
    repeat: Option<&At<u64>>,
    complaints: &mut Complaints<'_>,
) {
    for (key, written) in [("first", first), ("hit", hit), ("repeat", repeat)] {
        require_positive(key, written.map(|n| (**n, n.location())), complaints);
    }
}

fn check_rate(when: &When<'_>, injection: &Injection, vcpus: u8, complaints: &mut Complaints<'_>) {
    let every = when.every.map(At::location).unwrap_or_default();
    complaints.require(
        matches!(
            injection,
            Injection::Nmi(_) | Injection::PmuOverflow(_) | Injection::Irq(_)
        ),
        every,
        || format!("found `every`, which `{}` does not take", injection.word()),
    );
    let not_with = [
        ("after", when.after.map(At::location)),
        ("target", when.target.map(At::location)),
    ];
    refuse(not_with, WITH_EVERY, complaints);
    match when.count {
        Some(count) => require_positive("count", Some((**count, count.location())), complaints),
        None => complaints.add(every, "key `count` is missing beside `every`"),
    }
    if let Some(every) = when.every {
        complaints.require(
            (MIN_PERIOD_US..=MAX_TIME_US).contains(&every.micros()),
            every.location(),
            || format!("found {}, expected {MIN_PERIOD_US} us or more", **every),
        );
    }
    let Some(list) = when.vcpus else { return };
    complaints.require(!list.is_empty(), list.location(), || {
        "found no vCPU, expected at least one (or no key `vcpus`)".to_owned()
    });
    for (index, vcpu) in list.iter().enumerate() {
        check_vcpu(Some(vcpu), vcpus, complaints);
        let twice = list.iter().take(index).any(|other| **other == **vcpu);
        complaints.require(!twice, vcpu.location(), || {
            format!("found vCPU {} twice", **vcpu)
        });
    }
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
        check_vcpu(Some(&point.vcpu), vcpus, complaints);
        check_thread(point.thread.as_ref(), threads, complaints);
        let hit = point.hit.as_ref().map(|n| (**n, n.location()));
        require_positive("hit", hit, complaints);
        if point.task.as_ref().is_some_and(|it| **it == TaskKind::Any) {
            let thread = ("thread", point.thread.as_ref().map(At::location));
            let why = "with `task: any` every task's arrival counts";
            refuse([thread], why, complaints);
        }
    }
    let repeat = schedule.repeat.as_ref().map(|n| (**n, n.location()));
    require_positive("repeat", repeat, complaints);
    check_limit(schedule.limit.as_ref(), complaints);
}

/// A guest's own watchdogs call a CPU hung that stands still for long: 21 s for RCU's.
fn check_limit(limit: Option<&At<Time>>, complaints: &mut Complaints<'_>) {
    if let Some(limit) = limit {
        complaints.require(
            (1000..=10_000_000).contains(&limit.micros()),
            limit.location(),
            || format!("found {}, expected 1 ms to 10 s", **limit),
        );
    }
}

fn check_vcpu(vcpu: Option<&At<u8>>, vcpus: u8, complaints: &mut Complaints<'_>) {
    if let Some(vcpu) = vcpu {
        complaints.require(**vcpu < vcpus, vcpu.location(), || {
            format!(
                "found vCPU {}, expected one of the machine's {vcpus}, from 0",
                **vcpu
            )
        });
    }
}

fn check_thread(thread: Option<&At<u32>>, threads: u32, complaints: &mut Complaints<'_>) {
    if let Some(thread) = thread {
        complaints.require(**thread < threads, thread.location(), || {
            format!(
                "found thread {}, expected one of the workload's {threads}, from 0",
                **thread
            )
        });
    }
}

fn refuse<const N: usize>(
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

fn require_positive(key: &str, written: Option<(u64, Location)>, complaints: &mut Complaints<'_>) {
    if let Some((0, location)) = written {
        complaints.add(location, format!("found `{key}` 0, expected 1 or more"));
    }
}
