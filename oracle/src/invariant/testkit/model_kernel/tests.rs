//! A right kernel violates nothing, and every bug is noticed.

use std::collections::BTreeMap;

use super::*;
use crate::invariant::{Check, Evidence, INVARIANTS, Violation};

const STEPS: usize = 400;

/// The first violation of each invariant, and the evidence for each that held.
fn judge(seed: u64, bug: Option<Bug>) -> (BTreeMap<&'static str, Violation>, Vec<&'static str>) {
    let mut model = Model::new(seed, bug);
    model.run(STEPS);
    let trace = model.kit.trace();
    let evidence = Evidence::new(&trace);
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
        "S2", "S4", "D1", "D3", "P3", "P4", "X1", "X2", "X3", "A1", "A2", "A3", "A5", "A7", "U1",
        "U2", "U6", "W1",
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
