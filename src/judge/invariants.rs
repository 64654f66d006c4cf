//! All invariants on one trace, and the findings that violations match.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::MatchFinding;
use super::result::{InvariantCheck, JudgedViolation};
use unwindlab_engine::interrupt::Interrupt;
use unwindlab_oracle::invariant::{Check, Evidence, GoOn, Invariant};
use unwindlab_scenario::KernelSymbols;

/// Judges trials; the same for every scenario of a run.
#[expect(missing_debug_implementations, reason = "holds trait objects")]
#[derive(Clone, Copy)]
pub struct Judge<'a> {
    /// All invariants.
    pub invariants: &'a [Invariant],
    /// All findings.
    pub findings: &'a dyn MatchFinding,
    /// The symbols of the kernel under test.
    pub symbols: &'a dyn KernelSymbols,
    /// Whether snapshots are compared.
    pub compare_snapshots: bool,
    /// When judging ends early.
    pub limit: JudgeLimit<'a>,
}

/// When judging ends early. It is looked at within each invariant, and before each violation is compared with the
/// findings.
#[derive(Debug, Clone, Copy)]
pub struct JudgeLimit<'a> {
    /// Set when the user wants to stop.
    pub interrupt: &'a Interrupt,
    /// How long the invariants of one trial may take.
    pub time: Duration,
}

impl<'a> JudgeLimit<'a> {
    /// A trace of a million samples takes half a minute.
    const TIME: Duration = Duration::from_secs(120);

    /// The usual time.
    #[must_use]
    pub const fn usual(interrupt: &'a Interrupt) -> Self {
        Self {
            interrupt,
            time: Self::TIME,
        }
    }

    /// Says whether to go on.
    fn go_on(&self, begin: Instant) -> GoOn {
        let (interrupt, time) = (self.interrupt.clone(), self.time);
        Rc::new(move || !interrupt.is_set() && begin.elapsed() < time)
    }

    /// Why judging ends at an invariant, if it does.
    fn ends(&self, begin: Instant, evidence: &Evidence<'_>, id: &str) -> Option<String> {
        let why = self.reached(begin)?;
        let records = evidence.trace().events.len();
        Some(format!(
            "judging the trace of {records} records ended at {id}: {why}"
        ))
    }

    fn reached(&self, begin: Instant) -> Option<String> {
        match begin.elapsed() >= self.time {
            _ if self.interrupt.is_set() => Some("it was interrupted".to_owned()),
            true => Some(format!(
                "it took more than {} s, the most that is allowed",
                self.time.as_secs()
            )),
            false => None,
        }
    }
}

/// What the invariants say of a trace.
#[derive(Debug, Default)]
pub(super) struct Checked {
    /// Of each invariant that was asked, what it says.
    pub checks: Vec<InvariantCheck>,
    /// All that is violated.
    pub violations: Vec<JudgedViolation>,
    /// The findings that violations match by their events, but not by the kernel's code.
    pub near: BTreeSet<String>,
    /// Why not all invariants were checked.
    pub cut: Option<String>,
}

impl Judge<'_> {
    /// Asks the invariants that are `chosen`, in their order, until the limit is reached.
    pub(super) fn check(&self, evidence: &Evidence<'_>, chosen: impl Fn(&str) -> bool) -> Checked {
        let begin = Instant::now();
        let go_on = self.limit.go_on(begin);
        let mut checked = Checked::default();
        for invariant in self.invariants.iter().filter(|it| chosen(it.id)) {
            if checked.cut.is_none() {
                checked.cut = self.limit.ends(begin, evidence, invariant.id);
            }
            if checked.cut.is_some() {
                break;
            }
            let check = match invariant.check_while(evidence, &go_on) {
                Ok(check) => check,
                Err(violations) => {
                    checked.cut = self.limit.ends(begin, evidence, invariant.id);
                    if violations.is_empty() {
                        break;
                    }
                    Check::Violated(violations)
                }
            };
            if let Check::Violated(_) = &check {
                self.compare(&check, begin, evidence, &mut checked);
            }
            checked.checks.push(InvariantCheck {
                invariant: invariant.id.to_owned(),
                check,
            });
        }
        checked
    }

    /// Compares violations with the findings.
    fn compare(
        &self,
        check: &Check,
        begin: Instant,
        evidence: &Evidence<'_>,
        checked: &mut Checked,
    ) {
        let Check::Violated(violations) = check else {
            return;
        };
        for (number, violation) in violations.iter().enumerate() {
            // The first is always told: it makes the trial a failure.
            if number > 0 {
                let ends = || self.limit.ends(begin, evidence, &violation.invariant);
                checked.cut = checked.cut.take().or_else(ends);
                if checked.cut.is_some() {
                    return;
                }
            }
            let finding = self.findings.matching(violation, evidence, self.symbols);
            if finding.is_none() {
                let findings = self.findings;
                let near = findings.matching_but_for_code(violation, evidence, self.symbols);
                checked.near.extend(near);
            }
            checked.violations.push(JudgedViolation {
                finding,
                violation: violation.clone(),
            });
        }
    }
}
