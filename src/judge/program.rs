//! What a program found that looks at the kernel by itself: by its exit code.

use unwindlab_abi::Observation;
use unwindlab_abi::observation::SAID_LIMIT;
use unwindlab_abi::plan::WorkloadKind;

use super::{MatchFinding, Outcome};
use unwindlab_engine::plan::TrialPlan;
use unwindlab_oracle::invariant::finding::Presence;
use unwindlab_oracle::trace::Trace;
use unwindlab_scenario::KernelSymbols;

/// What it says of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    /// Exit code 0: the kernel is right.
    Right,
    /// Exit code 1, and the code of the program's finding is in the kernel.
    Known {
        /// The finding.
        finding: String,
        /// The program's last line.
        line: String,
    },
    /// Exit code 1 without that, or an end that no program should have.
    Wrong(String),
    /// Exit code 2: it could not be tried.
    NotTried(String),
}

impl Said {
    /// The outcome of a trial in which nothing else is wrong. What was not a pass is told.
    pub fn told(self, reasons: &mut Vec<String>, known: &mut Option<String>) -> Outcome {
        let (line, outcome) = match self {
            Self::Right => return Outcome::Pass,
            Self::Known { finding, line } => {
                *known = Some(finding);
                (line, Outcome::ExpectedFailure)
            }
            Self::Wrong(line) => (line, Outcome::Fail),
            Self::NotTried(line) => (line, Outcome::GuestSkip),
        };
        reasons.push(line);
        outcome
    }
}

/// What the program of a trial says; nothing for a trial without one.
pub(super) fn said(
    plan: &TrialPlan,
    trace: &Trace,
    findings: &dyn MatchFinding,
    symbols: &dyn KernelSymbols,
) -> Option<Said> {
    let workload = &plan.guest.workload;
    if workload.kind != WorkloadKind::Program {
        return None;
    }
    let name = workload.reproducer.as_deref().unwrap_or_default();
    let end = trace.observations.iter().find_map(|seen| match seen {
        // The guest's word.
        Observation::Program { code, said } => {
            Some((*code, said.chars().take(SAID_LIMIT).collect::<String>()))
        }
        _ => None,
    });
    let Some((code, line)) = end else {
        return Some(Said::Wrong(format!("{name} did not end")));
    };
    Some(ended(code, line, name, findings, symbols))
}

fn ended(
    code: Option<i32>,
    line: String,
    name: &str,
    findings: &dyn MatchFinding,
    symbols: &dyn KernelSymbols,
) -> Said {
    let line = match line.is_empty() {
        true => format!("{name} printed nothing"),
        false => line,
    };
    match code {
        Some(0) => Said::Right,
        Some(1) => of_wrong(&name.to_ascii_uppercase(), line, findings, symbols),
        Some(2) => Said::NotTried(line),
        Some(other) => Said::Wrong(format!("{name} ended with exit code {other}: {line}")),
        None => Said::Wrong(format!("a signal ended {name}: {line}")),
    }
}

fn of_wrong(
    finding: &str,
    line: String,
    findings: &dyn MatchFinding,
    symbols: &dyn KernelSymbols,
) -> Said {
    let found = findings.in_image(symbols);
    match found.into_iter().find(|it| it.id == finding) {
        Some(it) if it.presence != Presence::Absent => Said::Known {
            finding: it.id,
            line,
        },
        _ => Said::Wrong(format!(
            "{line} (not {finding}: its code is not in this kernel)"
        )),
    }
}

#[cfg(test)]
mod tests {
    use unwindlab_oracle::invariant::{Evidence, Violation};

    use super::*;
    use crate::judge::FindingInImage;
    use crate::judge::recorded::Unknown;

    /// A kernel in which one finding is.
    struct Has(&'static str);

    impl MatchFinding for Has {
        fn matching(
            &self,
            _: &Violation,
            _: &Evidence<'_>,
            _: &dyn KernelSymbols,
        ) -> Option<String> {
            None
        }

        fn in_image(&self, _: &dyn KernelSymbols) -> Vec<FindingInImage> {
            let finding = |id: &str| FindingInImage {
                id: id.to_owned(),
                title: String::new(),
                presence: match id == self.0 {
                    true => Presence::Code,
                    false => Presence::Absent,
                },
            };
            ["F004", "F007"].map(finding).to_vec()
        }
    }

    fn of(code: Option<i32>, line: &str, has: &'static str) -> (Outcome, Vec<String>) {
        let said = ended(code, line.to_owned(), "f004", &Has(has), &Unknown);
        let (mut reasons, mut known) = (Vec::new(), None);
        let outcome = said.told(&mut reasons, &mut known);
        let is_known = outcome == Outcome::ExpectedFailure;
        assert_eq!(known.as_deref(), is_known.then_some("F004"));
        (outcome, reasons)
    }

    #[test]
    fn an_exit_code_says_what_was_found() {
        let bad = "F004: not ok: 10 of 20";
        assert_eq!(of(Some(0), "F004: ok", "F004"), (Outcome::Pass, vec![]));
        let known = (Outcome::ExpectedFailure, vec![bad.to_owned()]);
        assert_eq!(of(Some(1), bad, "F004"), known);
        let (outcome, told) = of(Some(1), bad, "F007");
        assert_eq!(outcome, Outcome::Fail);
        assert_eq!(
            told,
            [format!("{bad} (not F004: its code is not in this kernel)")]
        );
        let (outcome, told) = of(Some(2), "f004: perf_event_open: no", "F004");
        assert_eq!(outcome, Outcome::GuestSkip);
        assert_eq!(told, ["f004: perf_event_open: no"]);
    }

    #[test]
    fn any_other_end_is_a_failure_that_is_told_with_the_last_line() {
        for (code, told) in [
            (Some(3), "f004 ended with exit code 3: last"),
            (Some(-1), "f004 ended with exit code -1: last"),
            (None, "a signal ended f004: last"),
        ] {
            assert_eq!(
                of(code, "last", "F004"),
                (Outcome::Fail, vec![told.to_owned()])
            );
        }
        let (_, told) = of(Some(3), "", "F004");
        assert_eq!(told, ["f004 ended with exit code 3: f004 printed nothing"]);
    }
}
