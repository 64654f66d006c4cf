//! What an invariant collects while it judges a trace, and the [`Check`] that follows from it.

use std::collections::BTreeMap;

use super::limit::step;
use super::{Check, Violation};

/// Evidence, excuses and violations of one invariant, and what it could not decide.
#[derive(Debug)]
pub struct Tally {
    id: &'static str,
    /// What the trace lacks if it turns out that nothing in it can be judged.
    lacking: String,
    evidence: usize,
    /// Reason and how many.
    undecided: BTreeMap<&'static str, usize>,
    notes: Vec<String>,
    violations: Vec<Violation>,
}

impl Tally {
    /// Nothing yet, of the invariant `id`. `lacking` says what a trace lacks in which nothing can
    /// be judged.
    pub(super) fn new(id: &'static str, lacking: &str) -> Self {
        Self {
            id,
            lacking: lacking.to_owned(),
            evidence: 0,
            undecided: BTreeMap::new(),
            notes: Vec::new(),
            violations: Vec::new(),
        }
    }

    /// Says more precisely what the trace lacks.
    pub fn lacks(&mut self, what: impl Into<String>) {
        self.lacking = what.into();
    }

    /// One more thing was checked and found right.
    pub fn holds(&mut self) {
        self.holds_on(1);
    }

    /// So many more things were checked and found right.
    pub fn holds_on(&mut self, things: usize) {
        step();
        self.evidence += things;
    }

    /// One more thing was looked at that a kernel which violates the invariant could show too.
    /// `why` says what would decide it.
    pub fn undecided(&mut self, why: &'static str) {
        step();
        *self.undecided.entry(why).or_default() += 1;
    }

    /// What seemed right may be wrong all the same, for this reason.
    pub(super) fn doubt(&mut self, why: &'static str) {
        let things = std::mem::take(&mut self.evidence);
        if things > 0 {
            *self.undecided.entry(why).or_default() += things;
        }
    }

    /// Something was left out for a reason that the trace proves.
    pub fn excuse(&mut self, why: String) {
        step();
        self.notes.push(why);
    }

    /// Says how many things there were that are worth knowing though nothing is wrong with them.
    pub fn note(&mut self, count: usize, what: &str) {
        if count > 0 {
            self.notes.push(format!("{count} {what}"));
        }
    }

    /// Something is wrong: one line, the events that show it, the interrupted instruction.
    pub fn violated(
        &mut self,
        message: String,
        events: impl IntoIterator<Item = usize>,
        instruction: Option<u64>,
    ) {
        let mut events: Vec<usize> = events.into_iter().collect();
        events.sort_unstable();
        events.dedup();
        self.violations.push(Violation {
            invariant: self.id.to_owned(),
            message,
            events,
            log: Vec::new(),
            instruction,
            receiver: None,
        });
    }

    /// A copy of a record is missing: one line, the copies that are there, the open event that
    /// should have got one.
    pub fn missing_copy(
        &mut self,
        message: String,
        events: impl IntoIterator<Item = usize>,
        receiver: usize,
    ) {
        self.violated(message, events, None);
        if let Some(last) = self.violations.last_mut() {
            last.receiver = Some(receiver);
        }
    }

    /// Something is wrong in the lab client's log: one line, the slots that show it.
    pub fn violated_in_log(
        &mut self,
        message: String,
        slots: impl IntoIterator<Item = u64>,
        instruction: Option<u64>,
    ) {
        let mut log: Vec<u64> = slots.into_iter().collect();
        log.sort_unstable();
        log.dedup();
        self.violations.push(Violation {
            invariant: self.id.to_owned(),
            message,
            events: Vec::new(),
            log,
            instruction,
            receiver: None,
        });
    }

    /// Something is wrong in what clients of tracefs wrote, which has no place among perf's records.
    pub fn violated_elsewhere(&mut self, message: String) {
        self.violated(message, [], None);
    }

    /// Adds what was found of another client. Its events are not those of the trace; where a violation is one that is
    /// here already, by the records that `beside` names for each of its events, that one's stand for them.
    pub(super) fn absorb(
        &mut self,
        client: &str,
        other: Self,
        beside: impl Fn(&Violation) -> Vec<Vec<usize>>,
    ) {
        self.evidence += other.evidence;
        for (why, count) in other.undecided {
            *self.undecided.entry(why).or_default() += count;
        }
        let notes = other.notes.into_iter();
        self.notes.extend(notes.map(|it| format!("{client}: {it}")));
        for violation in other.violations {
            let message = format!("{client}: {}", violation.message);
            let beside = beside(&violation);
            let has_each = |it: &&Violation| {
                let is_there = |of_one: &Vec<usize>| of_one.iter().any(|at| it.events.contains(at));
                !beside.is_empty() && beside.iter().all(is_there)
            };
            match self.violations.iter().find(has_each).cloned() {
                Some(known) => self.violations.push(Violation { message, ..known }),
                None => self.violated_elsewhere(message),
            }
        }
    }

    /// What follows from all of it.
    pub(super) fn finish(mut self) -> Check {
        if !self.violations.is_empty() {
            return Check::Violated(self.violations);
        }
        let undecided = self.undecided.values().sum();
        let reasons = std::mem::take(&mut self.undecided);
        for (why, count) in reasons {
            self.notes.push(format!("{count} undecided: {why}"));
        }
        if self.evidence > 0 {
            return Check::Holds {
                evidence: self.evidence,
                undecided,
                excused: self.notes,
            };
        }
        // What is undecided was there: only without any was it lacking.
        if undecided == 0 {
            self.notes.insert(0, self.lacking);
        }
        let reason = self.notes.join("; ");
        Check::NotExercised { reason, undecided }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_violation_outweighs_evidence() {
        let mut tally = Tally::new("C1", "no samples");
        tally.holds();
        tally.violated("wrong".into(), [7, 3, 7], Some(0x40));
        let Check::Violated(list) = tally.finish() else {
            panic!("not violated");
        };
        assert_eq!(list.len(), 1);
        assert_eq!(list[0].events, [3, 7]);
        assert_eq!(list[0].invariant, "C1");
    }

    #[test]
    fn without_evidence_nothing_holds() {
        let mut tally = Tally::new("C1", "no samples");
        tally.excuse("XA ring 0".into());
        let reason = "no samples; XA ring 0".to_owned();
        let undecided = 0;
        assert_eq!(tally.finish(), Check::NotExercised { reason, undecided });
    }

    #[test]
    fn what_is_undecided_does_not_hold() {
        let mut tally = Tally::new("C1", "no samples");
        tally.undecided("no markers");
        tally.undecided("no markers");
        let reason = "2 undecided: no markers".to_owned();
        let undecided = 2;
        assert_eq!(tally.finish(), Check::NotExercised { reason, undecided });

        let mut tally = Tally::new("C1", "no samples");
        tally.holds();
        tally.undecided("no markers");
        let Check::Holds {
            evidence,
            undecided,
            excused,
        } = tally.finish()
        else {
            panic!("does not hold");
        };
        assert_eq!((evidence, undecided), (1, 1));
        assert_eq!(excused, ["1 undecided: no markers"]);
    }

    #[test]
    fn what_another_client_found_is_added() {
        let mut tally = Tally::new("C1", "no samples");
        tally.holds();
        tally.undecided("no markers");
        let mut other = Tally::new("C1", "no samples");
        other.holds_on(2);
        other.undecided("no markers");
        other.undecided("no witness");
        other.note(3, "late samples");
        other.note(0, "early ones");
        tally.absorb("a", other, |_| Vec::new());
        let evidence = 3;
        let undecided = 3;
        let excused = [
            "a: 3 late samples",
            "2 undecided: no markers",
            "1 undecided: no witness",
        ];
        let excused = excused.map(str::to_owned).to_vec();
        let expected = Check::Holds {
            evidence,
            undecided,
            excused,
        };
        assert_eq!(tally.finish(), expected);
    }
}
