//! Checks of a scenario that the types of its values do not express.

use unwindlab_abi::plan::WorkloadKind;
use unwindlab_abi::shared::MAX_THREADS;
use unwindlab_abi::user_mode::Asker;

use super::error::{Complaints, ScenarioErrors};
use super::events;
use super::explore;
use super::inject;
use super::lab;
use super::model::{Machine, Scenario, Workload};
use super::perf_tool;
use super::program;
use super::tracefs;

/// vCPUs a machine can have.
const VCPUS: std::ops::RangeInclusive<u8> = 1..=8;
/// MiB a machine can have. A stock kernel needs the minimum; the maximum keeps a typing error from
/// using all memory of the host.
const MEMORY_MIB: std::ops::RangeInclusive<u32> = 64..=8192;
/// Longest addition to the kernel command line. The kernel's limit is 2048 for the whole line.
const MAX_CMDLINE: usize = 1024;
/// Frames of a stack, 16 bytes each at least: 255 of the largest stacks still fit a small machine.
const FRAMES: std::ops::RangeInclusive<u64> = 3..=131_072;
/// The kernel takes no more (kernel/events/callchain.c).
const MAX_CONTEXTS: u16 = 1000;
/// Most data pages of a ring, 16 MiB: the limit of the ring reader.
const MAX_RING_PAGES: u32 = 1 << 12;
/// Longest time in a scenario.
pub(super) const MAX_TIME_US: u64 = 3_600_000_000;

/// Checks a scenario. `file` is its name in messages, `stem` the file's name without `.yaml`,
/// `invariants` the IDs of all invariants.
///
/// # Errors
/// All errors, each with its location.
pub fn check(
    file: &str,
    stem: &str,
    scenario: Scenario,
    invariants: &[&str],
) -> Result<Scenario, ScenarioErrors> {
    let mut complaints = Complaints::new(file);
    check_name(&scenario, stem, &mut complaints);
    check_machine(&scenario.machine, &mut complaints);
    check_workload(&scenario.workload, &mut complaints);
    check_vdso(&scenario, &mut complaints);
    check_perf(&scenario, &mut complaints);
    lab::check(&scenario, &mut complaints);
    check_user_mode(&scenario, &mut complaints);
    tracefs::check(&scenario, &mut complaints);
    perf_tool::check(&scenario, &mut complaints);
    program::check(&scenario, &mut complaints);
    check_results(&scenario, &mut complaints);
    inject::check::check(&scenario, &mut complaints);
    explore::check(&scenario, &mut complaints);
    check_times(&scenario, &mut complaints);
    check_invariants(&scenario, invariants, &mut complaints);
    complaints.into_result(scenario)
}

fn check_name(scenario: &Scenario, stem: &str, complaints: &mut Complaints<'_>) {
    let (name, at) = (scenario.name.as_str(), scenario.name.location());
    let is_word = |word: &str| {
        !word.is_empty()
            && word
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
    };
    if !name.split('-').all(is_word) {
        let message = format!(
            "found name `{}`, expected lower-case words joined by `-`",
            name.escape_debug()
        );
        complaints.add(at, message);
    } else if name != stem {
        complaints.add(
            at,
            format!("found name `{name}`, expected `{stem}` as in the file's name"),
        );
    }
    let description = &scenario.description;
    complaints.require(
        !description.trim().is_empty() && !description.trim().contains('\n'),
        description.location(),
        || "expected a description of one line".to_owned(),
    );
}

/// What `setitimer(ITIMER_PROF)` and perf's `sigtrap` send.
const SIGPROF: u32 = 27;
const SIGTRAP: u32 = 5;

/// Not every kind's threads can be processes that unwind themselves.
fn check_user_mode(scenario: &Scenario, complaints: &mut Complaints<'_>) {
    let kind = &scenario.workload.kind;
    let Some(user_mode) = &scenario.user_mode else {
        complaints.require(!kind.needs_user_mode(), kind.location(), || {
            format!("found `{}` without user-mode, which it needs", kind.name())
        });
        return;
    };
    complaints.require(scenario.bpf.is_none(), user_mode.location(), || {
        "found `user-mode` beside `bpf`, expected one of them".to_owned()
    });
    complaints.require(kind.takes_user_mode(), kind.location(), || {
        let name = kind.name();
        format!(
            "found `{name}` with user-mode, expected `spin`, `syscalls`, `deep`, `frameless`, `interpreter`, `fork`, \
             `vfork`, `clone3`, `exec`, `exit-group`, `waits` or `raises`"
        )
    });
    let twins = &user_mode.twins;
    let pairs = scenario.workload.threads.is_multiple_of(2) || !**twins;
    complaints.require(pairs, twins.location(), || {
        format!(
            "found {} threads, expected an even number with twins",
            *scenario.workload.threads
        )
    });
    let blocked = &user_mode.blocked;
    let ask = &user_mode.ask;
    let is_timer = matches!(**ask, Asker::Itimer | Asker::ThreadTimer);
    let may_block = **kind == WorkloadKind::Deep || is_timer || !**blocked;
    complaints.require(may_block, blocked.location(), || {
        format!("found `blocked` with `{}`, expected `deep`", kind.name())
    });
    let signal = &user_mode.signal;
    complaints.require((1..=64).contains(&**signal), signal.location(), || {
        format!("found signal {}, expected 1 to 64", **signal)
    });
    let only = match **ask {
        Asker::Itimer => Some(SIGPROF),
        Asker::Sigtrap => Some(SIGTRAP),
        Asker::Bpf | Asker::ThreadTimer => None,
    };
    let right = only.is_none_or(|only| only == **signal);
    complaints.require(right, ask.location(), || {
        let only = only.unwrap_or(0);
        format!(
            "found signal {}, expected `signal: {only}`: the kernel sends no other one",
            **signal
        )
    });
}

/// What only a stack that is unwound in user mode has: without one, 0 would always be met.
fn check_results(scenario: &Scenario, complaints: &mut Complaints<'_>) {
    if scenario.user_mode.is_some() || scenario.bpf.is_some() {
        return;
    }
    let expect = &scenario.expect;
    let counts = [
        ("nonces", &expect.nonces),
        ("reused", &expect.reused),
        ("refused", &expect.refused),
        ("results", &expect.results),
        ("busy", &expect.busy),
        ("unasked", &expect.unasked),
        ("changed", &expect.changed),
        ("late-results", &expect.late_results),
        ("wrong-results", &expect.wrong_results),
        ("values", &expect.values),
        ("overruns", &expect.overruns),
        ("strangers", &expect.strangers),
    ];
    for (key, count) in counts {
        if let Some(count) = count {
            complaints.add(
                count.location(),
                format!("found `{key}` without `user-mode` or `bpf`, which it counts"),
            );
        }
    }
}

fn check_machine(machine: &Machine, complaints: &mut Complaints<'_>) {
    let (vcpus, memory, cmdline) = (&machine.vcpus, &machine.memory, &machine.cmdline);
    complaints.require(VCPUS.contains(vcpus), vcpus.location(), || {
        format!("found {} vCPUs, expected 1 to 8", **vcpus)
    });
    complaints.require(MEMORY_MIB.contains(&memory.mib), memory.location(), || {
        format!("found {} MiB, expected 64 MiB to 8 GiB", memory.mib)
    });
    complaints.require(
        cmdline.len() <= MAX_CMDLINE && cmdline.chars().all(|c| (' '..='~').contains(&c)),
        cmdline.location(),
        || format!("expected at most {MAX_CMDLINE} printable ASCII characters"),
    );
}

fn check_workload(workload: &Workload, complaints: &mut Complaints<'_>) {
    let (frames, step, threads) = (&workload.frames, &workload.frames_step, &workload.threads);
    let deepest = u64::from(**frames) + u64::from(**step) * u64::from(threads.saturating_sub(1));
    complaints.require(
        FRAMES.contains(&u64::from(**frames)),
        frames.location(),
        || format!("found {} frames, expected 3 to {}", **frames, FRAMES.end()),
    );
    complaints.require(
        FRAMES.contains(&deepest) || !FRAMES.contains(&u64::from(**frames)),
        step.location(),
        || {
            format!(
                "the last thread would have {deepest} frames, expected 3 to {}",
                FRAMES.end()
            )
        },
    );
    complaints.require(
        (1..=MAX_THREADS).contains(threads),
        threads.location(),
        || format!("found {} threads, expected 1 to {MAX_THREADS}", **threads),
    );
}

/// A process that has a vDSO cannot map the 32-bit one: the agent would end in the middle of the boot.
fn check_vdso(scenario: &Scenario, complaints: &mut Complaints<'_>) {
    let (kind, cmdline) = (&scenario.workload.kind, &scenario.machine.cmdline);
    let needs = matches!(
        **kind,
        WorkloadKind::CompatSyscall | WorkloadKind::CompatSysenter
    );
    // The last one counts.
    let words = cmdline.split_whitespace();
    let vdso = words
        .filter_map(|word| word.strip_prefix("vdso="))
        .next_back();
    complaints.require(!needs || vdso == Some("0"), kind.location(), || {
        format!(
            "found `{}`, expected `cmdline: vdso=0` of the machine with it",
            kind.name()
        )
    });
}

fn check_perf(scenario: &Scenario, complaints: &mut Complaints<'_>) {
    let pages = &scenario.perf.ring_pages;
    complaints.require(
        pages.is_power_of_two() && **pages <= MAX_RING_PAGES,
        pages.location(),
        || {
            format!(
                "found {} pages, expected a power of two up to {MAX_RING_PAGES}",
                **pages
            )
        },
    );
    if let Some(contexts) = &scenario.perf.max_contexts {
        complaints.require(**contexts <= MAX_CONTEXTS, contexts.location(), || {
            format!(
                "found {} contexts, expected at most {MAX_CONTEXTS}",
                **contexts
            )
        });
    }
    // Only for its complaints: the events are resolved again for the kernel.
    events::resolve(scenario, None, complaints);
    let kind = &scenario.workload.kind;
    complaints.require(
        **kind != WorkloadKind::SleepMigrate || *scenario.machine.vcpus >= 2,
        kind.location(),
        || "workload `sleep-migrate` needs 2 vCPUs or more to migrate between".to_owned(),
    );
    let wild = &scenario.workload.wild_ends;
    complaints.require(
        !**wild || **kind != WorkloadKind::Exit,
        wild.location(),
        || "workload `exit` does not support `wild-ends`".to_owned(),
    );
    let huge = &scenario.workload.huge_pages;
    complaints.require(
        !**huge || **kind == WorkloadKind::MissingPages,
        huge.location(),
        || "`huge-pages` needs workload `missing-pages`".to_owned(),
    );
    let section = &scenario.workload.sframe;
    complaints.require(
        section.is_none() || kind.takes_section(),
        section.location(),
        || "`sframe` needs workload `frameless` or `own-stack-frameless`".to_owned(),
    );
}

fn check_times(scenario: &Scenario, complaints: &mut Complaints<'_>) {
    for time in scenario.settle.iter().chain([&scenario.timeout]) {
        complaints.require(time.micros() <= MAX_TIME_US, time.location(), || {
            format!("found {}, expected at most an hour", **time)
        });
    }
    let Some(settle) = &scenario.settle else {
        return;
    };
    complaints.require(
        scenario.timeout.micros() > settle.micros(),
        scenario.timeout.location(),
        || {
            format!(
                "found timeout {}, expected more than the settle time, {}",
                *scenario.timeout, **settle
            )
        },
    );
}

fn check_invariants(scenario: &Scenario, known: &[&str], complaints: &mut Complaints<'_>) {
    let chosen = scenario.invariants.as_deref().unwrap_or_default();
    for id in chosen.iter().chain(&scenario.require) {
        complaints.require(known.contains(&id.as_str()), id.location(), || {
            format!(
                "found invariant `{}`, expected one of {}",
                id.escape_debug(),
                known.join(", ")
            )
        });
    }
    if scenario.invariants.is_none() {
        return;
    }
    for id in &scenario.require {
        let checked = chosen.iter().any(|other| **other == **id);
        let unknown = !known.contains(&id.as_str());
        complaints.require(checked || unknown, id.location(), || {
            format!("`{}` is required but not among `invariants`", id.as_str())
        });
    }
}
