//! A right kernel violates nothing, and every bug is noticed.

use std::collections::BTreeMap;

use super::*;
use crate::invariant::testkit::entry_text::EntryText;
use crate::invariant::{Check, EntryCode, Evidence, INVARIANTS, Violation};

const STEPS: usize = 400;

/// The first violation of each invariant, and the evidence for each that held.
fn judge(seed: u64, bug: Option<Bug>) -> (BTreeMap<&'static str, Violation>, Vec<&'static str>) {
    judge_all(Model::new(seed, bug))
}

fn judge_all(mut model: Model) -> (BTreeMap<&'static str, Violation>, Vec<&'static str>) {
    model.run(STEPS);
    let trace = model.kit.trace();
    let code = EntryCode::new(EntryText);
    let evidence = Evidence::new(&trace).knowing(&code);
    let (mut violated, mut held) = (BTreeMap::new(), Vec::new());
    for invariant in INVARIANTS {
        match invariant.check(&evidence) {
            Check::Violated(mut list) => {
                violated.insert(invariant.id, list.swap_remove(0));
            }
            Check::Holds { .. } => held.push(invariant.id),
            Check::NotExercised { .. } => {}
        }
    }
    (violated, held)
}

#[test]
fn a_right_kernel_violates_nothing() {
    let mut evidence: BTreeMap<&str, usize> = BTreeMap::new();
    for seed in 1..=200 {
        let (violated, held) = judge(seed, None);
        assert!(violated.is_empty(), "seed {seed}: {violated:#?}");
        for id in held {
            *evidence.entry(id).or_default() += 1;
        }
    }
    for id in [
        "C1", "C2", "C3", "C4", "C5", "C6", "C7", "M1", "M2", "M3", "M4", "M5", "M6", "M7", "S1",
        "S2", "S4", "D1", "D3", "P3", "P4", "X1", "X2", "A1", "A2", "A5", "A7", "U6", "W1",
    ] {
        let seeds = evidence.get(id).copied().unwrap_or_default();
        assert!(seeds >= 20, "{id} was exercised by {seeds} of 200 seeds");
    }
}

#[test]
fn every_bug_falls_by_the_invariants_named_for_it() {
    for (bug, named) in [
        (Bug::ClearBeforeUnwind, &["C1"][..]),
        (Bug::CookieWithoutCpu, &["C3", "C5"]),
        (Bug::CounterNotStored, &["C2", "M2"]),
        (Bug::ConstantCount, &["C2", "M2"]),
        (Bug::PerTaskCounter, &["C3"]),
        (Bug::NoExitFlush, &["X1"]),
        (Bug::ExitingNotRefused, &["X2"]),
        (Bug::NmiWithoutSelfIpi, &["P4", "S4"]),
        (Bug::ResetKeepsId, &["C2", "M2"]),
        (Bug::ResetKeepsCache, &["S1", "S2"]),
        (Bug::ResetKeepsCompleted, &["M1"]),
        (Bug::ResetIgnoresPending, &["M1"]),
        (Bug::RequestInReset, &["C4", "C7", "M3"]),
        (Bug::ErrorWithoutCallback, &["M1"]),
        (Bug::OnlyFirstDeferred, &["M7"]),
        (Bug::OutputToEveryone, &["A3"]),
    ] {
        let mut caught: BTreeMap<&str, usize> = BTreeMap::new();
        for seed in 1..=20 {
            for id in judge(seed, Some(bug)).0.into_keys() {
                *caught.entry(id).or_default() += 1;
            }
        }
        for id in named {
            assert!(caught.contains_key(id), "{bug:?}: {caught:?}");
        }
    }
}

/// What can be shown besides requests and answers.
fn all_shown() -> impl Iterator<Item = Shown> {
    (0..8).map(|bits| Shown {
        markers: bits & 1 != 0,
        witness: bits & 2 != 0,
        injections: bits & 4 != 0,
    })
}

#[test]
fn a_right_kernel_violates_nothing_whoever_asks_and_whatever_is_shown() {
    for &source in SOURCES {
        for shown in all_shown() {
            for seed in 1..=10 {
                let model = Model::with(seed, None, shown, &[source]);
                let (violated, _) = judge_all(model);
                assert!(
                    violated.is_empty(),
                    "{source:?} {shown:?} {seed}: {violated:#?}"
                );
            }
        }
    }
}

#[test]
fn a_late_answer_is_evidence_of_nothing_whoever_asked() {
    for &source in SOURCES {
        for shown in all_shown() {
            let (mut seen, mut stale) = (0, 0);
            let mut fell = BTreeMap::<&str, usize>::new();
            for seed in 1..=20 {
                let mut model = Model::with(seed, Some(Bug::AnswersLate), shown, &[source]);
                model.run(3 * STEPS);
                let late = model.late > 0;
                seen += usize::from(late);
                stale += usize::from(model.stale > 0);
                let (violated, held) = judge_all(model);
                for id in ["M1", "M3", "M5", "S4", "P4"] {
                    let holds = late && held.contains(&id);
                    assert!(!holds || shown.witness, "{id}: {source:?} {shown:?} {seed}");
                }
                for id in violated.into_keys() {
                    *fell.entry(id).or_default() += 1;
                }
            }
            assert!(seen >= 10, "{source:?}: {seen}");
            if shown.witness {
                for id in ["M1", "S4"] {
                    let found = fell.get(id).copied().unwrap_or_default();
                    assert!(
                        found >= seen,
                        "{id}: {source:?} {shown:?}: {found} of {seen}"
                    );
                }
                let found = fell.get("C2").copied().unwrap_or_default();
                assert!(
                    found >= stale,
                    "C2: {source:?} {shown:?}: {found} of {stale}"
                );
            }
        }
    }
}
