//! What a check collects while it goes through a trace, and the [`Check`] that follows from it.

use super::{Check, Violation};

/// Evidence, excuses and violations of one invariant.
#[derive(Debug)]
pub(super) struct Verdict {
    id: &'static str,
    evidence: usize,
    notes: Vec<String>,
    violations: Vec<Violation>,
}

impl Verdict {
    /// An empty verdict on the invariant `id`.
    pub fn new(id: &'static str) -> Self {
        Self {
            id,
            evidence: 0,
            notes: Vec::new(),
            violations: Vec::new(),
        }
    }

    /// One more thing was checked and found right.
    pub fn holds(&mut self) {
        self.evidence += 1;
    }

    /// Something was left out for a reason that the trace proves.
    pub fn excuse(&mut self, why: String) {
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
        });
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
        });
    }

    /// The answer; `nothing` says what a trace would have needed for this invariant to be judged.
    pub fn finish(self, nothing: &str) -> Check {
        if !self.violations.is_empty() {
            return Check::Violated(self.violations);
        }
        if self.evidence > 0 {
            return Check::Holds {
                evidence: self.evidence,
                excused: self.notes,
            };
        }
        let mut reason = nothing.to_owned();
        for note in self.notes {
            reason.push_str("; ");
            reason.push_str(&note);
        }
        Check::NotExercised { reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_violation_outweighs_evidence() {
        let mut verdict = Verdict::new("C1");
        verdict.holds();
        verdict.violated("wrong".into(), [7, 3, 7], Some(0x40));
        let Check::Violated(list) = verdict.finish("nothing") else {
            panic!("not violated");
        };
        assert_eq!(list.len(), 1);
        assert_eq!(list[0].events, [3, 7]);
        assert_eq!(list[0].invariant, "C1");
    }

    #[test]
    fn without_evidence_nothing_holds() {
        let mut verdict = Verdict::new("C1");
        verdict.excuse("XA ring 0".into());
        let reason = "no samples; XA ring 0".to_owned();
        assert_eq!(verdict.finish("no samples"), Check::NotExercised { reason });
    }
}
