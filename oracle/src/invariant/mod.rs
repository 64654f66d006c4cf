//! The invariants: each a property of a [`Trace`], one file each.
//!
//! An invariant answers one of three things: it holds (and on how much evidence), it is violated
//! (where), or the trace has nothing to judge it by. Only the first may be counted as checked.

mod a1_marker;
mod a2_layout;
mod a3_receivers;
mod a4_max_stack;
mod a5_counted;
mod a7_own_buffer;
mod c1_stability;
mod c2_freshness;
mod c3_uniqueness;
mod c4_format;
mod c5_birth;
mod c6_order;
mod c7_origin;
mod d1_one_walk;
mod d2_one_callback;
mod d3_no_repeat;
mod entries;
mod excuse;
mod facts;
pub mod finding;
#[cfg(test)]
mod hostile_tests;
mod lab;
mod m1_completeness;
mod m2_once;
mod m3_soundness;
mod m4_identity;
mod m5_later;
mod m6_place;
mod m7_inline;
mod matching;
#[cfg(test)]
mod model_kernel;
mod p1_runs;
mod p2_entry_ends;
mod p3_user_mode;
mod p4_at_once;
mod p5_only_that_task;
mod r1_first_is_zero;
mod r2_cancelled_is_refused;
mod r3_limited;
mod r4_none_after_cancel;
mod r5_none_unasked;
mod s1_identity;
mod s2_no_stale_cache;
mod s3_identical;
mod s4_no_user_code;
mod signature;
mod stack;
mod tasks;
#[cfg(test)]
mod testkit;
mod u1_ends;
mod u2_stops;
mod u3_no_signal;
mod u4_missing_pages;
mod u5_word_size;
mod u6_frame_zero;
mod verdict;
mod w0_console;
mod w1_rings;
mod w2_exact;
mod x1_exit_answered;
mod x2_exiting_refused;
mod x3_fork_clean;
mod x4_exec;
mod x5_kernel_threads;
mod x6_early_answer;
mod x7_no_leak;

pub use p3_user_mode::progress;

use serde::{Deserialize, Serialize};

use crate::trace::Trace;

/// What an invariant says of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Check {
    /// It holds.
    Holds {
        /// How many things (samples, pairs, records) it was checked on; never 0.
        evidence: usize,
        /// Things it had to leave out, by the excuse (XA..XF) that was proved for each.
        excused: Vec<String>,
    },
    /// Nothing in the trace could have violated it.
    NotExercised {
        /// Why.
        reason: String,
    },
    /// It does not hold.
    Violated(Vec<Violation>),
}

/// One violation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// ID of the invariant, as in docs/invariants.md (`C1`).
    pub invariant: String,
    /// What is wrong, in one line, with the values that show it.
    pub message: String,
    /// [`crate::trace::Event::index`] of the events that show it, in order.
    pub events: Vec<usize>,
    /// [`crate::trace::LabEvent::slot`] of the records of the lab client's log that show it.
    #[serde(default)]
    pub log: Vec<u64>,
    /// The interrupted instruction, where one is known (symbol and offset are added by the
    /// report).
    pub instruction: Option<u64>,
}

impl Violation {
    /// It in one line.
    #[must_use]
    pub fn line(&self) -> String {
        format!("{} violated: {}", self.invariant, self.message)
    }
}

/// A property of a trace.
pub trait Invariant: Sync {
    /// Stable ID (`C1`).
    fn id(&self) -> &'static str;
    /// One line: what must hold.
    fn title(&self) -> &'static str;
    /// Judges a trace.
    fn check(&self, trace: &Trace) -> Check;
}

/// All invariants, in the order of the catalogue (docs/invariants.md).
#[must_use]
pub fn registry() -> &'static [&'static dyn Invariant] {
    &[
        &c1_stability::Stability,
        &c2_freshness::Freshness,
        &c3_uniqueness::Uniqueness,
        &c4_format::Format,
        &c5_birth::Birth,
        &c6_order::Order,
        &c7_origin::Origin,
        &m1_completeness::Completeness,
        &m2_once::Once,
        &m3_soundness::Soundness,
        &m4_identity::Identity,
        &m5_later::Later,
        &m6_place::Place,
        &m7_inline::Inline,
        &s1_identity::Identity,
        &s2_no_stale_cache::NoStaleCache,
        &s3_identical::Identical,
        &s4_no_user_code::NoUserCode,
        &d1_one_walk::OneWalk,
        &d2_one_callback::OneCallback,
        &d3_no_repeat::NoRepeat,
        &p1_runs::Runs,
        &p2_entry_ends::EntryEnds,
        &p3_user_mode::UserMode,
        &p4_at_once::AtOnce,
        &p5_only_that_task::OnlyThatTask,
        &x1_exit_answered::ExitAnswered,
        &x2_exiting_refused::ExitingRefused,
        &x3_fork_clean::ForkClean,
        &x4_exec::Exec,
        &x5_kernel_threads::KernelThreads,
        &x6_early_answer::EarlyAnswer,
        &x7_no_leak::NoLeak,
        &a1_marker::Marker,
        &a2_layout::Layout,
        &a3_receivers::Receivers,
        &a4_max_stack::MaxStack,
        &a5_counted::Counted,
        &a7_own_buffer::OwnBuffer,
        &u1_ends::Ends,
        &u2_stops::Stops,
        &u3_no_signal::NoSignal,
        &u4_missing_pages::MissingPages,
        &u5_word_size::WordSize,
        &u6_frame_zero::FrameZero,
        &r1_first_is_zero::FirstIsZero,
        &r2_cancelled_is_refused::CancelledIsRefused,
        &r3_limited::Limited,
        &r4_none_after_cancel::NoneAfterCancel,
        &r5_none_unasked::NoneUnasked,
        &w0_console::Console,
        &w1_rings::Rings,
        &w2_exact::Exact,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_nothing_is_judged_on_an_empty_trace() {
        let mut ids = std::collections::BTreeSet::new();
        for invariant in registry() {
            assert!(ids.insert(invariant.id()), "{} twice", invariant.id());
            assert!(!invariant.title().is_empty());
            let check = invariant.check(&Trace::default());
            let exercised = !matches!(check, Check::NotExercised { .. });
            assert!(!exercised, "{}: {check:?}", invariant.id());
        }
    }

    /// The rings of a stock 7.2 kernel that the decoder is tested with, the attributes put right
    /// that matter here: which event is the tracepoint, and that the one for throttling does not
    /// defer. The stack of both children is that of the first record 22 that shows all of it.
    fn recorded() -> Trace {
        let mut trace = Trace::decode(&crate::trace::fixtures::debian_7_2());
        for spec in &mut trace.tracing.as_mut().unwrap().events {
            if spec.name == "nmi" {
                spec.source = testkit::tracepoint("nmi", "nmi_handler");
            }
            spec.defer_callchain &= spec.name != "fast-clock";
        }
        let chains = trace.events.iter().filter_map(|e| e.deferred_chain());
        let whole = { chains }.find(|chain| chain.ips.len() == 15).unwrap();
        let whole = whole.ips.clone();
        for thread in &mut trace.threads {
            thread.stack.leaf_start = whole[0];
            thread.stack.leaf_end = whole[0] + 1;
            thread.stack.callers = whole[1..].iter().map(|&ip| (ip, 1)).collect();
        }
        trace
    }

    #[test]
    fn nothing_is_violated_on_recorded_rings() {
        let trace = recorded();
        let mut evidence = std::collections::BTreeMap::new();
        for invariant in registry() {
            match invariant.check(&trace) {
                Check::Holds { evidence: n, .. } => {
                    evidence.insert(invariant.id(), n);
                }
                Check::NotExercised { .. } => {}
                Check::Violated(list) => panic!("{list:?}"),
            }
        }
        // Each record 22 and each deferred sample was looked at.
        assert_eq!(evidence.get("M3"), Some(&11));
        assert_eq!(evidence.get("M1"), Some(&14));
        assert_eq!(evidence.get("S1"), Some(&6));
        assert_eq!(evidence.get("M6"), Some(&11));
        assert!(evidence.contains_key("X5"));
    }

    #[test]
    fn a_change_of_the_recorded_rings_is_noticed() {
        for (id, change) in [
            (
                "M1",
                (|d| d.cookie += 2 << 32) as fn(&mut crate::trace::model::CallchainDeferred),
            ),
            ("C4", |d| d.cookie = 0),
            ("S1", |d| d.ips[7] += 1),
            ("A2", |d| d.nr -= 1),
        ] {
            let mut trace = recorded();
            let chains = trace.events.iter_mut().filter_map(|e| match &mut e.kind {
                crate::trace::EventKind::CallchainDeferred(d) if d.ips.len() == 15 => Some(d),
                _ => None,
            });
            change({ chains }.next_back().unwrap());
            let violated = registry().iter().any(|invariant| {
                matches!(invariant.check(&trace), Check::Violated(_)) && invariant.id() == id
            });
            assert!(violated, "{id}");
        }
    }

    #[test]
    fn the_catalogue_has_every_invariant() {
        let catalogue = include_str!("../../../docs/invariants.md");
        for invariant in registry() {
            let heading = format!("### {} ", invariant.id());
            assert!(catalogue.contains(&heading), "{heading} is missing");
        }
    }
}
