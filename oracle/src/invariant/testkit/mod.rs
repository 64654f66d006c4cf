//! For the tests of invariants: traces built by hand, a model of the kernel, and what an invariant
//! says of them.

pub mod entry_text;
#[cfg(test)]
mod hostile_tests;
mod kit;
pub mod lab;
#[cfg(test)]
mod linear_tests;
#[cfg(test)]
pub mod model_kernel;
#[cfg(test)]
pub mod tracefs;

pub use kit::*;

use super::evidence::{EntryCode, KernelText};
use super::{Check, Evidence, INVARIANTS, Invariant, Violation};
use crate::trace::{Event, EventKind, Trace};
use entry_text::EntryText;

/// What the invariant with this id says of a trace.
#[track_caller]
pub fn check(id: &str, trace: &Trace) -> Check {
    let code = EntryCode::new(EntryText);
    let resolve = |address| EntryText.symbol(address);
    row(id).check(&Evidence::new(trace).named(&resolve).knowing(&code))
}

/// Pieces of evidence, undecided things, and whether it is violated.
pub fn judged(id: &str, trace: &Trace) -> (usize, usize, bool) {
    match check(id, trace) {
        Check::Holds {
            evidence,
            undecided,
            ..
        } => (evidence, undecided, false),
        Check::NotExercised { undecided, .. } => (0, undecided, false),
        Check::Violated(_) => (0, 0, true),
    }
}

/// Has a sample be of this mode (`MISC_USER`, `MISC_KERNEL`) and instruction.
pub fn sampled_at(event: &mut Event, misc: u16, ip: u64) {
    event.misc = misc;
    if let EventKind::Sample(sample) = &mut event.kind {
        sample.ip = Some(ip);
    }
}

/// What the invariant with this id says of a trace whose kernel addresses are all in one function.
#[track_caller]
pub fn check_in(id: &str, trace: &Trace, function: &str) -> Check {
    let code = EntryCode::new(EntryText);
    let resolve = |_| Some((function.to_owned(), 0));
    row(id).check(&Evidence::new(trace).knowing(&code).named(&resolve))
}

#[track_caller]
pub fn row(id: &str) -> &'static Invariant {
    { INVARIANTS.iter() }
        .find(|it| it.id == id)
        .expect("its row")
}

/// The violations of a trace, if any.
#[track_caller]
pub fn violated(id: &str, trace: &Trace) -> Vec<Violation> {
    match check(id, trace) {
        Check::Violated(list) => list,
        _ => Vec::new(),
    }
}

/// The evidence and notes, for a trace on which the invariant must hold.
#[track_caller]
pub fn holds(id: &str, kit: &Kit) -> (usize, Vec<String>) {
    match check(id, &kit.trace()) {
        Check::Holds {
            evidence, excused, ..
        } => {
            assert!(evidence > 0);
            (evidence, excused)
        }
        other => panic!("does not hold: {other:?}"),
    }
}

/// The violations, for a trace on which the invariant must be violated.
#[track_caller]
pub fn violations(id: &str, kit: &Kit) -> Vec<Violation> {
    match check(id, &kit.trace()) {
        Check::Violated(list) => {
            assert!(!list.is_empty());
            assert!(list.iter().all(|v| v.invariant == id));
            list
        }
        other => panic!("not violated: {other:?}"),
    }
}

/// How many things are undecided, for a trace on which nothing is evidence.
#[track_caller]
pub fn undecided(id: &str, kit: &Kit) -> usize {
    match check(id, &kit.trace()) {
        Check::NotExercised { undecided, .. } => undecided,
        other => panic!("was exercised: {other:?}"),
    }
}

/// The reason, for a trace that must not exercise the invariant.
#[track_caller]
pub fn not_exercised(id: &str, kit: &Kit) -> String {
    match check(id, &kit.trace()) {
        Check::NotExercised { reason, .. } => reason,
        other => panic!("was exercised: {other:?}"),
    }
}
