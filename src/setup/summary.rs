//! What came of set-ups.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::judge::{Failure, Judged};
use crate::judge::outcome::OutcomeClass;
use crate::judge::{Outcome, ScenarioResult};
use unwindlab_oracle::invariant::Check;

/// What is said of one set-up. Only [`Said::Held`] says that the kernel does what the ABI says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Said {
    /// Everything that had to be there is, and nothing else; no invariant is violated.
    Held,
    /// The kernel refuses what it must refuse.
    Refused,
    /// Only what listed findings say is wrong.
    Finding,
    /// Something is not as the ABI says.
    Violated,
    /// Something could not be decided, and nothing is wrong.
    Undecided,
    /// It was not tried to its end.
    Untested,
}

/// One set-up and what came of it.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct TriedSetup {
    /// Its number.
    pub number: usize,
    /// Its levels that are not the default.
    pub levels: String,
    /// What is said of it.
    pub said: Said,
    /// Samples and records 22 that had to be there and are.
    pub held: usize,
    /// Why it is not held: the texts are the same for the same failure of another set-up.
    pub reasons: Vec<Reason>,
    /// What the invariants could not decide: how many things of each.
    pub undecided: BTreeMap<String, usize>,
}

/// One reason against a set-up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Reason {
    /// What is wrong, without values.
    pub what: String,
    /// The values that show it.
    pub detail: String,
}

impl TriedSetup {
    /// One that was not tried to its end.
    #[must_use]
    pub fn untested(number: usize, levels: String, result: &ScenarioResult) -> Self {
        let reasons = result.reasons.iter().map(|reason| Reason {
            what: format!("{}: {reason}", result.outcome.name()),
            detail: String::new(),
        });
        Self {
            number,
            levels,
            said: Said::Untested,
            held: 0,
            reasons: reasons.collect(),
            undecided: BTreeMap::new(),
        }
    }

    /// What is said of a trial. `finding` recognizes a failure that is a listed finding's.
    #[must_use]
    pub fn new(
        number: usize,
        levels: String,
        judged: Judged,
        result: &ScenarioResult,
        finding: &dyn Fn(&Failure) -> Option<String>,
    ) -> Self {
        let untested = !result.is_tested();
        if untested {
            return Self::untested(number, levels, result);
        }
        let mut reasons: Vec<Reason> = Vec::new();
        let died = result.outcome.is_death();
        let mut known: Vec<Reason> = Vec::new();
        for failure in judged.failures.into_iter().filter(|_| !died) {
            let reason = |what| Reason {
                what,
                detail: failure.detail.clone(),
            };
            match finding(&failure) {
                Some(id) => known.push(reason(format!("{id}: {}", failure.what))),
                None => reasons.push(reason(failure.what.clone())),
            }
        }
        for it in &result.violations {
            if let Some(id) = &it.finding {
                known.push(Reason {
                    what: format!("{id}: {}", it.violation.invariant),
                    detail: it.violation.message.clone(),
                });
            }
        }
        reasons.extend(
            result
                .reasons
                .iter()
                .filter(|_| result.outcome != Outcome::ExpectedFailure)
                .map(|it| Reason {
                    what: without_values(it),
                    detail: it.clone(),
                }),
        );
        let refusal = levels.starts_with("to refuse");
        let said = match (reasons.is_empty(), judged.undecided.is_empty()) {
            (false, _) => Said::Violated,
            (true, false) => Said::Undecided,
            (true, true) if refusal => Said::Refused,
            (true, true) if !known.is_empty() => Said::Finding,
            (true, true) => Said::Held,
        };
        match said {
            Said::Undecided => reasons.extend(judged.undecided.into_iter().map(|what| Reason {
                what,
                detail: String::new(),
            })),
            Said::Finding => reasons.extend(known),
            _ => {}
        }
        Self {
            number,
            levels,
            said,
            held: judged.held,
            reasons,
            undecided: undecided(result),
        }
    }
}

/// What the invariants could not decide.
fn undecided(result: &ScenarioResult) -> BTreeMap<String, usize> {
    let counts = result.checks.iter().map(|it| {
        let count = match it.check {
            Check::Holds { undecided, .. } | Check::NotExercised { undecided, .. } => undecided,
            Check::Violated(_) => 0,
        };
        (it.invariant.clone(), count)
    });
    counts.filter(|(_, count)| *count > 0).collect()
}

/// A line without its numbers, so that the same failure has the same text.
fn without_values(line: &str) -> String {
    let mut text = String::new();
    for word in line.split_inclusive(' ') {
        let is_value = word.starts_with(|c: char| c.is_ascii_digit());
        text.push_str(if is_value { "N " } else { word });
    }
    text.trim_end().to_owned()
}

/// A failure, and the set-ups that show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Distinct<'a> {
    /// What is wrong.
    pub what: &'a str,
    /// What is said of the set-ups.
    pub said: Said,
    /// Their numbers.
    pub setups: Vec<usize>,
    /// The values of the first.
    pub detail: &'a str,
    /// The levels that all of them have, defaults left out.
    pub in_common: Vec<String>,
}

/// What came of all.
#[derive(Debug, Clone)]
pub struct SetupsSummary {
    /// The set-ups, by number.
    pub tried: Vec<TriedSetup>,
    /// How long it took.
    pub elapsed: Duration,
    /// Levels that no set-up has, because the kernel lacks what they need.
    pub left_out: Vec<String>,
}

impl SetupsSummary {
    /// How many set-ups this is said of.
    #[must_use]
    pub fn count(&self, said: Said) -> usize {
        self.tried.iter().filter(|it| it.said == said).count()
    }

    /// What the invariants could not decide, of all set-ups.
    #[must_use]
    pub fn undecided(&self) -> BTreeMap<&str, usize> {
        let mut all = BTreeMap::new();
        for (id, count) in self.tried.iter().flat_map(|it| &it.undecided) {
            *all.entry(id.as_str()).or_default() += count;
        }
        all
    }

    /// The distinct reasons, the most frequent first.
    #[must_use]
    pub fn distinct(&self) -> Vec<Distinct<'_>> {
        let mut all: Vec<Distinct<'_>> = Vec::new();
        for tried in &self.tried {
            for reason in &tried.reasons {
                let same = |it: &&mut Distinct<'_>| it.what == reason.what && it.said == tried.said;
                match all.iter_mut().find(same) {
                    Some(known) if known.setups.last() == Some(&tried.number) => {}
                    Some(known) => known.setups.push(tried.number),
                    None => all.push(Distinct {
                        what: &reason.what,
                        said: tried.said,
                        setups: vec![tried.number],
                        detail: &reason.detail,
                        in_common: Vec::new(),
                    }),
                }
            }
        }
        for distinct in &mut all {
            distinct.in_common = self.in_common(&distinct.setups);
        }
        all.sort_by_key(|it| std::cmp::Reverse(it.setups.len()));
        all
    }

    /// The levels that all these set-ups have in common.
    fn in_common(&self, numbers: &[usize]) -> Vec<String> {
        let levels = |tried: &TriedSetup| -> Vec<String> {
            tried.levels.split(' ').map(str::to_owned).collect()
        };
        let mut those = self.tried.iter().filter(|it| numbers.contains(&it.number));
        let Some(first) = those.next() else {
            return Vec::new();
        };
        let mut common = levels(first);
        for other in those {
            let has = levels(other);
            common.retain(|level| has.contains(level));
        }
        common
    }

    /// What all of it says about the kernel.
    #[must_use]
    pub fn class(&self) -> OutcomeClass {
        let any = |said| self.count(said) > 0;
        if any(Said::Violated) {
            OutcomeClass::Bad
        } else if self.tried.is_empty() || any(Said::Undecided) || any(Said::Untested) {
            OutcomeClass::Untested
        } else {
            OutcomeClass::Good
        }
    }
}
