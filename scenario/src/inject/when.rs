//! Checks the keys that say when an injection happens.

use unwindlab_abi::plan::USER_SYMBOLS;

use super::check::{check_thread, check_vcpu, refuse, require_count};
use super::{Injection, TaskKind, TriggerPlace, When, watch};
use crate::check::MAX_TIME_US;
use crate::error::Complaints;
use crate::located::At;
use crate::place::SymbolOffset;

/// Shortest period of injections. An NMI and its handler take about 10 us on the emulated host.
const MIN_PERIOD_US: u64 = 10;

/// The keys that each trigger takes, as text.
const WITH_AT: &str = "`at` takes `first`, `hit`, `repeat`, `vcpu`, `thread`, `task` and `in-nmi`, \
                       and for `nmi` and `pmu-overflow` also `times` and `sweep`";
const WITH_EVERY: &str =
    "`every` takes `count` and `vcpus`, and for `nmi` and `pmu-overflow` also `backs-off`";
const WITH_ON: &str = "`on` takes `hit` and `repeat`";
const WITH_DELAY: &str = "`delay`, and `after` alone, take `repeat`";

pub(super) fn check_when(
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
    let backs_off = ("backs-off", when.backs_off.map(At::location));
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
            refuse([count, many, backs_off], WITH_AT, complaints);
            check_arrival(when, vcpus, threads, complaints);
            watch::check(when, complaints);
        }
        [false, true, false, false] => {
            refuse([first, hit, repeat], WITH_EVERY, complaints);
            refuse(at_only, WITH_EVERY, complaints);
            check_rate(when, injection, vcpus, complaints);
        }
        [false, false, true, false] => {
            refuse([first, count, many, backs_off], WITH_ON, complaints);
            refuse(at_only, WITH_ON, complaints);
        }
        [false, false, false, true] | [false, false, false, false]
            if triggers != [false; 4] || when.after.is_some() =>
        {
            refuse([first, hit, count, many, backs_off], WITH_DELAY, complaints);
            refuse(at_only, WITH_DELAY, complaints);
            if when.after.is_none() {
                refuse(
                    [repeat],
                    "a `delay` without `after` happens once",
                    complaints,
                );
            }
        }
        _ => complaints.add(
            when.location,
            "expected exactly one of `at` (an instruction or an access), `every` (a time), `on` (an event) and \
             `delay` (a time), or `after` alone",
        ),
    }
    check_counts(when.first, when.hit, when.repeat, complaints);
    let times = when.times.map(|n| (u64::from(**n), n.location()));
    require_count("times", times, complaints);
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

pub(super) fn check_place(at: &At<TriggerPlace>, complaints: &mut Complaints<'_>) {
    if let TriggerPlace::User(SymbolOffset { symbol, .. }) = &**at {
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

/// Checks the counts, which start from 1.
pub(super) fn check_counts(
    first: Option<&At<u64>>,
    hit: Option<&At<u64>>,
    repeat: Option<&At<u64>>,
    complaints: &mut Complaints<'_>,
) {
    for (key, written) in [("first", first), ("hit", hit), ("repeat", repeat)] {
        require_count(key, written.map(|n| (**n, n.location())), complaints);
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
        Some(count) => require_count("count", Some((**count, count.location())), complaints),
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
