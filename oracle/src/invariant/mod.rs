//! The invariants: what must hold of a trace.
//!
//! An invariant answers one of three things: it holds (and on how much evidence), it is violated
//! (where), or the trace has nothing to judge it by. Only the first counts as checked. Evidence is
//! what could not be there on a kernel that violates the invariant. What might be there on a right
//! kernel and on a wrong one is counted as undecided.
//!
//! Each is a row of [`INVARIANTS`] and a file: `cookie/c1_stability.rs` is C1. To add one, write a
//! function that goes through the [`Evidence`] and tells a [`Tally`] what it finds, add its row to
//! `table.rs`, and describe it in docs/invariants.md.
//!
//! S(c) stands for a sample that carries cookie c, a request; D(c) for the record 22 with cookie c,
//! its answer. An entry is one stay of a task in the kernel, from user mode to the return.
//!
//! - `cookie/` (C), `matching/` (M), `stack/` (S), `delivery/` (D, P), `task/` (X), `abi/` (A),
//!   `user/` (U), `sframe/` (F), `program/` and `user_mode/` (N), `client/` (R), `world/` (W): the invariants by theme. `lab_log.rs` in them judges
//!   the log of the kernel's lab client.
//! - `evidence/`: what a trace proves, derived once for all of them
//! - `limit`: judging that ends early
//! - [`finding`]: whether a violation is a kernel bug that is understood

mod abi;
mod across;
mod client;
mod cookie;
mod delivery;
mod evidence;
pub mod finding;
mod limit;
mod matching;
mod own_stack;
mod program;
mod sframe;
mod stack;
mod table;
mod tally;
mod task;
#[cfg(test)]
pub(crate) mod testkit;
mod user;
mod user_mode;
mod world;

pub use delivery::p3_user_mode::progress;
pub use evidence::{EntryCode, Evidence, KernelText};
pub use limit::GoOn;
pub use program::OwnStacks;
pub use sframe::Shown;
pub use table::INVARIANTS;
pub use tally::Tally;
pub use user_mode::{Answers, Designs, NonceStacks, Signals};

use std::cell::OnceCell;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use evidence::Beside;
use evidence::lab::Lab;
use evidence::views::View;

/// What an invariant says of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Check {
    /// It holds.
    Holds {
        /// How many things (samples, pairs, records) it was checked on; never 0.
        evidence: usize,
        /// How many more there were that a kernel which violates it could show too.
        #[serde(default)]
        undecided: usize,
        /// Things it had to leave out, by the excuse (XA..XF) that was proved for each.
        excused: Vec<String>,
    },
    /// Nothing in the trace tells a kernel that keeps it from one that violates it.
    NotExercised {
        /// What the trace lacks.
        reason: String,
        /// How many things there were that a kernel which violates it could show too.
        #[serde(default)]
        undecided: usize,
    },
    /// It does not hold.
    Violated(Vec<Violation>),
}

/// One violation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
    /// The open event that lacks a record, as an index into [`crate::trace::Trace::session`].
    #[serde(default)]
    pub receiver: Option<usize>,
}

impl Violation {
    /// The violation in one line.
    #[must_use]
    pub fn line(&self) -> String {
        format!("{} violated: {}", self.invariant, self.message)
    }
}

/// Judges what a trace proves.
type Judge = fn(&Evidence<'_>, &mut Tally);
/// Judges what the lab client's log proves.
type JudgeLog = fn(&Lab<'_>, &mut Tally);

/// The invariants that each client of tracefs is judged by. Which request made a cookie (C5, C6) is not
/// known of them, and what only perf has is not among them.
const OF_CLIENTS: &[&str] = &[
    "C1", "C2", "C3", "C4", "C7", "M1", "M2", "M3", "M4", "S1", "S2", "S3", "S4", "D1", "X1", "X4",
];
/// Those of them that need each answer to have been written.
const OF_ALL_ANSWERS: &[&str] = &["M1", "X1"];
/// Those of them that need each answer, or each request, to have been written, or to know from when on that need not be so.
const OF_ALL_WRITTEN: &[&str] = &["C7", "M1", "M3", "X1"];
/// Those of them of which the evidence is that no second answer was written.
const OF_NO_SECOND: &[&str] = &["M2"];

/// A property of a trace: one row of [`INVARIANTS`].
#[derive(Debug, Clone, Copy)]
pub struct Invariant {
    /// Stable ID (`C1`).
    pub id: &'static str,
    /// One line: what must hold.
    pub title: &'static str,
    /// What a trace lacks in which nothing can be judged: the reason of [`Check::NotExercised`].
    lacking: &'static str,
    /// That reason also says why injections are not known.
    of_injections: bool,
    judge: Option<Judge>,
    judge_log: Option<JudgeLog>,
}

impl Invariant {
    /// An invariant that `judge` finds evidence and violations of. `lacking` says what a trace
    /// lacks in which it finds neither.
    #[must_use]
    pub const fn new(
        id: &'static str,
        title: &'static str,
        lacking: &'static str,
        judge: fn(&Evidence<'_>, &mut Tally),
    ) -> Self {
        Self {
            judge: Some(judge),
            ..Self::row(id, title, lacking)
        }
    }

    /// One that only the lab client's log can show.
    const fn of_log(
        id: &'static str,
        title: &'static str,
        lacking: &'static str,
        judge: JudgeLog,
    ) -> Self {
        Self::row(id, title, lacking).and_log(judge)
    }

    const fn row(id: &'static str, title: &'static str, lacking: &'static str) -> Self {
        Self {
            id,
            title,
            lacking,
            of_injections: false,
            judge: None,
            judge_log: None,
        }
    }

    /// The lab client's log shows it too, if there is one.
    const fn and_log(mut self, judge: JudgeLog) -> Self {
        self.judge_log = Some(judge);
        self
    }

    /// It needs to know which injection raised which sample.
    const fn of_injections(mut self) -> Self {
        self.of_injections = true;
        self
    }

    /// Judges what each client of tracefs wrote as if it were perf.
    fn judge_views(&self, evidence: &Evidence<'_>, tally: &mut Tally) {
        let (Some(judge), true) = (self.judge, OF_CLIENTS.contains(&self.id)) else {
            return;
        };
        let beside = OnceCell::new();
        let clients = { evidence.trace().tracefs.as_ref() }.map_or(0, |it| it.clients.len());
        for _ in evidence.views().len()..clients {
            tally.undecided("too many records and clients of tracefs to judge each client");
        }
        for view in evidence.views() {
            let mut own = Tally::new(self.id, self.lacking);
            if let Some(why) = self.cannot_judge(view) {
                own.excuse(why.to_owned());
                tally.absorb(&view.name, own, |_| Vec::new());
                continue;
            }
            judge(&evidence.of_view(view), &mut own);
            if view.loses && OF_NO_SECOND.contains(&self.id) {
                own.doubt("events of an instance were lost");
            }
            tally.absorb(&view.name, own, |violation| {
                let beside = beside.get_or_init(|| Beside::new(evidence.trace()));
                beside.of(view, violation)
            });
        }
    }

    /// Why what a client of tracefs wrote is no evidence of this.
    fn cannot_judge(&self, view: &View) -> Option<&'static str> {
        let needs = |list: &[&str]| list.contains(&self.id);
        if needs(OF_ALL_ANSWERS) && view.cancels && !view.replaced {
            return Some("not judged: what a client that is removed asked for need not come");
        }
        if needs(OF_ALL_WRITTEN) && view.loses && view.full_from.is_none() {
            return Some("not judged: it lost events, nobody knows when");
        }
        // The second one may be another registration's, and the note of that lost.
        let of_no_second = needs(OF_NO_SECOND) && view.replaced;
        (view.loses && of_no_second).then_some("not judged: it lost events")
    }

    /// Judges a trace.
    #[must_use]
    pub fn check(&self, evidence: &Evidence<'_>) -> Check {
        let mut tally = Tally::new(self.id, self.lacking);
        self.fill(evidence, &mut tally);
        tally.finish()
    }

    /// The same, as long as `go_on` says so.
    ///
    /// # Errors
    /// Where that was not until its end: what was found violated up to there. The rest of the trace is not judged.
    pub fn check_while(
        &self,
        evidence: &Evidence<'_>,
        go_on: &GoOn,
    ) -> Result<Check, Vec<Violation>> {
        let mut tally = Tally::new(self.id, self.lacking);
        let whole = limit::attempt(go_on, || self.fill(evidence, &mut tally));
        match (whole, tally.finish()) {
            (true, check) => Ok(check),
            (false, Check::Violated(violations)) => Err(violations),
            (false, _) => Err(Vec::new()),
        }
    }

    fn fill(&self, evidence: &Evidence<'_>, tally: &mut Tally) {
        if self.of_injections {
            let why = evidence.facts().matching.why_none(evidence.trace());
            tally.lacks(format!("{} ({why})", self.lacking));
        }
        if let Some(judge) = self.judge {
            judge(evidence, tally);
        }
        self.judge_views(evidence, tally);
        if let (Some(judge), Some(lab)) = (self.judge_log, evidence.lab()) {
            judge(lab, tally);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Trace;

    #[test]
    fn ids_are_unique_and_nothing_is_judged_on_an_empty_trace() {
        let mut ids = std::collections::BTreeSet::new();
        for invariant in INVARIANTS {
            assert!(ids.insert(invariant.id), "{} twice", invariant.id);
            assert!(!invariant.title.is_empty());
            let check = invariant.check(&Evidence::new(&Trace::default()));
            let exercised = !matches!(check, Check::NotExercised { .. });
            assert!(!exercised, "{}: {check:?}", invariant.id);
        }
    }

    #[test]
    fn what_was_found_before_the_end_stays_found() {
        fn endless(_: &Evidence<'_>, tally: &mut Tally) {
            loop {
                tally.holds();
            }
        }
        let found: Judge = |evidence, tally| {
            tally.violated("two cookies".to_owned(), [], None);
            endless(evidence, tally);
        };
        let trace = Trace::default();
        let ended = |judge| {
            let stop: GoOn = std::rc::Rc::new(|| false);
            let invariant = Invariant::new("V1", "never ends", "nothing", judge);
            let ended = invariant.check_while(&Evidence::new(&trace), &stop);
            ended.unwrap_err().len()
        };
        assert_eq!([endless, found].map(ended), [0, 1]);
    }

    #[test]
    fn a_violation_in_a_line_names_its_invariant() {
        let mut kit = testkit::Kit::new(1);
        kit.nmi(0, 1001, 0);
        let list = testkit::violated("C4", &kit.trace());
        assert!(list[0].line().starts_with("C4 violated: "));
        assert!(list[0].line().ends_with(&list[0].message));
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
        let shared = Evidence::new(&trace);
        let mut evidence = std::collections::BTreeMap::new();
        let mut undecided = std::collections::BTreeMap::new();
        for invariant in INVARIANTS {
            match invariant.check(&shared) {
                Check::Holds { evidence: n, .. } => {
                    evidence.insert(invariant.id, n);
                }
                Check::NotExercised { undecided: n, .. } => {
                    undecided.insert(invariant.id, n);
                }
                Check::Violated(list) => panic!("{list:?}"),
            }
        }
        // Each record 22 and each deferred sample was looked at.
        // Nobody saw the tasks return, so it is open which of these are late.
        assert_eq!(undecided.get("M3"), Some(&11));
        assert_eq!(undecided.get("M1"), Some(&14));
        assert_eq!(undecided.get("S1"), Some(&6));
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
            let evidence = Evidence::new(&trace);
            let violated = INVARIANTS.iter().any(|invariant| {
                matches!(invariant.check(&evidence), Check::Violated(_)) && invariant.id == id
            });
            assert!(violated, "{id}");
        }
    }

    /// The code of all invariants, with its tests.
    fn code(folder: &std::path::Path) -> String {
        let mut text = String::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                text += &code(&path);
            } else {
                text += &std::fs::read_to_string(path).unwrap();
            }
        }
        text
    }

    #[test]
    fn each_invariant_names_a_test_in_which_it_must_not_hold() {
        let catalogue = include_str!("../../../docs/invariants.md");
        let code = code(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/invariant"));
        let model = include_str!("testkit/model_kernel/tests.rs");
        let (_, table) = catalogue.split_once("## Why it is evidence").unwrap();
        let mut of: Option<&str> = None;
        let mut named = std::collections::BTreeSet::new();
        for row in table.lines().take_while(|line| !line.starts_with("## ")) {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let ["", id, _, _, tests, ""] = cells[..] else {
                continue;
            };
            if ["id", "---"].contains(&id) {
                continue;
            }
            of = if id.is_empty() { of } else { Some(id) };
            let known = of.filter(|id| INVARIANTS.iter().any(|it| it.id == *id));
            named.insert(known.unwrap_or_else(|| panic!("no such invariant: {row}")));
            let tests: Vec<&str> = tests
                .split('`')
                .filter(|it| !it.trim().is_empty())
                .collect();
            assert!(!tests.is_empty(), "no test: {row}");
            for test in tests {
                let bug = format!("Bug::{test}");
                let mut of_model = model.match_indices(&bug);
                let whole = |at: usize| model[at..].starts_with([',', ')']);
                let is = code.contains(&format!("fn {test}("))
                    || of_model.any(|(at, name)| whole(at + name.len()));
                assert!(is, "no such test: {test}");
            }
        }
        for invariant in INVARIANTS {
            assert!(named.contains(invariant.id), "{} has no row", invariant.id);
        }
    }

    #[test]
    fn the_catalogue_has_every_invariant() {
        let catalogue = include_str!("../../../docs/invariants.md");
        for invariant in INVARIANTS {
            let heading = format!("### {} ", invariant.id);
            assert!(catalogue.contains(&heading), "{heading} is missing");
        }
    }
}
