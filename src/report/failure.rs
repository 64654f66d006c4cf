//! What is shown of a scenario that did not pass: why, the events that prove it, and the files with
//! more.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::artifacts::REPLAY_KIND;
use super::chains::side_by_side;
use super::names::Names;
use super::timeline::timeline;
use crate::judge::outcome::Outcome;
use crate::judge::result::{JudgedViolation, ScenarioResult};
use crate::judge::snapshot::SnapshotComparison;
use unwindlab_engine::text::printable;
use unwindlab_oracle::invariant::INVARIANTS;
use unwindlab_oracle::trace::{Event, EventKind, LabEvent, LabKind, Trace};

/// Violations that are shown in full; the files have all of them.
const MAX_VIOLATIONS: usize = 3;
/// Reasons besides violations that are shown.
const MAX_REASONS: usize = 10;
/// Events that are shown of one violation.
const MAX_EVENTS: usize = 12;

/// The block of one scenario, some lines.
#[must_use]
pub fn block(result: &ScenarioResult, names: Names<'_>) -> String {
    let mut out = String::new();
    let told: Vec<String> = result
        .violations
        .iter()
        .map(|it| it.violation.line())
        .collect();
    let others = result
        .reasons
        .iter()
        .filter(|reason| !told.contains(reason));
    // Except for a fail, the table already shows the first reason.
    let in_table = usize::from(result.outcome != Outcome::Fail);
    for reason in others.skip(in_table).take(MAX_REASONS) {
        let _ = writeln!(out, "  {}", printable(reason));
    }
    if let Some(trace) = &result.trace {
        for violation in result.violations.iter().take(MAX_VIOLATIONS) {
            show_violation(&mut out, violation, trace, names);
        }
    }
    let more = result.violations.get(MAX_VIOLATIONS..).unwrap_or_default();
    if !more.is_empty() {
        let _ = writeln!(out, "  ... and {}", by_invariant(more));
    }
    if let Some(SnapshotComparison::Different { diff, .. }) = &result.snapshot {
        for line in diff.lines() {
            let _ = writeln!(out, "    {}", printable(line));
        }
    }
    for artifact in &result.artifacts {
        let how = if artifact.kind == REPLAY_KIND {
            "unwindlab replay "
        } else {
            ""
        };
        let _ = writeln!(out, "  {}: {how}{}", artifact.kind, artifact.path.display());
    }
    out
}

/// `95 more of C1, 3 more of P3`.
fn by_invariant(violations: &[JudgedViolation]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for judged in violations {
        *counts.entry(&judged.violation.invariant).or_default() += 1;
    }
    let parts: Vec<String> = counts
        .iter()
        .map(|(id, n)| format!("{n} more of {id}"))
        .collect();
    parts.join(", ")
}

fn show_violation(out: &mut String, judged: &JudgedViolation, trace: &Trace, names: Names<'_>) {
    let violation = &judged.violation;
    let finding = judged
        .finding
        .as_ref()
        .map(|id| format!(" ({id})"))
        .unwrap_or_default();
    let place = violation
        .instruction
        .map(|address| format!(", at {}", names.name(address)))
        .unwrap_or_default();
    let _ = writeln!(out, "  {}{finding}{place}", printable(&violation.line()));
    let invariant = INVARIANTS.iter().find(|it| it.id == violation.invariant);
    if let Some(invariant) = invariant {
        let _ = writeln!(out, "    must hold: {}", invariant.title);
    }
    let around = with_neighbours(&violation.events, trace.events.len());
    let shown = { around.iter().take(MAX_EVENTS) }.filter_map(|&at| trace.events.get(at));
    let shown: Vec<&Event> = shown.collect();
    if !shown.is_empty() {
        let marked = |event: &Event| violation.events.contains(&event.index);
        out.push_str(&timeline(&shown, marked, names));
    }
    if around.len() > MAX_EVENTS {
        let _ = writeln!(out, "    ... and {} more events", around.len() - MAX_EVENTS);
    }
    out.push_str(&side_by_side(&violation.events, trace, names));
    let logged = |slot: &u64| trace.lab.as_ref()?.at(*slot);
    for event in violation.log.iter().filter_map(logged).take(MAX_EVENTS) {
        let _ = writeln!(out, "  > {}", log_line(event, names));
    }
}

/// Every event of a trace and every record of the lab client's log, a line each.
#[must_use]
pub fn all_events(trace: &Trace, names: Names<'_>) -> String {
    let mut out = String::from("  all events:\n");
    for event in &trace.events {
        let _ = writeln!(out, "    {}", event_line(event, names));
    }
    for event in trace.lab.iter().flat_map(|lab| &lab.events) {
        let _ = writeln!(out, "    {}", log_line(event, names));
    }
    out
}

/// These events and the one before and after each, in order.
fn with_neighbours(events: &[usize], len: usize) -> Vec<usize> {
    let mut around: Vec<usize> = events
        .iter()
        .flat_map(|&index| index.saturating_sub(1)..=index.saturating_add(1))
        .filter(|&index| index < len)
        .collect();
    around.sort_unstable();
    around.dedup();
    around
}

/// A line for a record of the lab client's log: slot, CPU, task, entry, and content.
#[must_use]
pub fn log_line(event: &LabEvent, names: Names<'_>) -> String {
    let client = event
        .client
        .map_or_else(String::new, |client| format!(" client {client}"));
    let what = match event.kind {
        LabKind::Request {
            ret, cookie, ip, ..
        } => {
            let context = event.context.name();
            let leaving = if event.flags.leaving { ", leaving" } else { "" };
            let at = match ip {
                0 => String::new(),
                ip => format!(" at {}", names.name(ip)),
            };
            format!("request = {ret}, cookie {cookie:#x}, {context}{leaving}{at}")
        }
        LabKind::Callback { cookie, nr, .. } => {
            format!("callback, cookie {cookie:#x}, {nr} frames")
        }
        ref other => format!("{other:?}").to_lowercase(),
    };
    format!(
        "log {} cpu{} {} entry {}{client} {what}",
        event.slot, event.cpu, event.tid, event.entry
    )
}

/// A line for an event: index, time in seconds, CPU, pid/tid, and content.
#[must_use]
pub fn event_line(event: &Event, names: Names<'_>) -> String {
    let time = event.time.map_or_else(String::new, |ns| {
        format!("{}.{:09} ", ns / 1_000_000_000, ns % 1_000_000_000)
    });
    let number = |n: Option<u32>| n.map_or_else(|| "?".to_owned(), |n| n.to_string());
    format!(
        "#{} {time}cpu{} {}/{} {}",
        event.index,
        event.cpu,
        number(event.pid),
        number(event.tid),
        what(&event.kind, names)
    )
}

/// What an event is, without its place and time.
#[must_use]
pub fn what(kind: &EventKind, names: Names<'_>) -> String {
    match kind {
        EventKind::Sample(sample) => {
            let ip = sample
                .ip
                .map_or_else(String::new, |ip| format!(" in {}", names.name(ip)));
            match sample.cookie() {
                Some(cookie) => format!("sample, cookie {cookie:#x}{ip}"),
                None => format!("sample, not deferred{ip}"),
            }
        }
        EventKind::CallchainDeferred(chain) => {
            let frames = chain.frames();
            let top: Vec<_> = frames.iter().take(3).map(|&ip| names.name(ip)).collect();
            format!(
                "deferred chain, cookie {:#x}, {} frames: {}",
                chain.cookie,
                frames.len(),
                top.join(" < ")
            )
        }
        EventKind::Lost { lost, .. } | EventKind::LostSamples { lost } => {
            format!("{lost} records lost")
        }
        EventKind::Switch {
            out: true,
            preempt: true,
            ..
        } => "switched out, preempted".to_owned(),
        EventKind::Switch { out: true, .. } => "switched out".to_owned(),
        EventKind::Switch { out: false, .. } => "switched in".to_owned(),
        EventKind::Mmap {
            addr,
            len,
            filename,
            ..
        } => {
            format!("mmap {addr:#x}+{len:#x} {}", printable(filename))
        }
        EventKind::Comm { comm, exec } => {
            format!(
                "comm {}{}",
                printable(comm),
                if *exec { ", by exec" } else { "" }
            )
        }
        EventKind::Fork { pid, tid, .. } => format!("fork of {pid}/{tid}"),
        EventKind::Exit { pid, tid, .. } => format!("exit of {pid}/{tid}"),
        EventKind::Throttle { on: true, .. } => "throttled".to_owned(),
        EventKind::Throttle { on: false, .. } => "unthrottled".to_owned(),
        EventKind::Other { record_type } => format!("record of type {record_type}"),
    }
}
