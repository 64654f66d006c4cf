//! Replay files: one failing trial with all it takes to make it again.

mod keep;
mod read;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::kernel::KernelChoice;
pub(super) use keep::{KeptTrials, save};
pub use read::ReplayFile;
pub(super) use read::UnpackedScenario;

use crate::judge::outcome::Outcome;
use crate::judge::result::ScenarioResult;
use crate::judge::sweep::SweepSymptom;

/// The version of the format.
pub const VERSION: u32 = 3;

/// One trial, as a file (JSON).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Replay {
    /// [`VERSION`].
    pub version: u32,
    /// The scenario's name.
    pub name: String,
    /// Its YAML.
    pub scenario: String,
    /// Its snapshot, where a trial was compared with one.
    pub snapshot: Option<String>,
    /// The kernel it failed on.
    pub kernel: ReplayKernel,
    /// Which trial.
    pub trial: ReplayTrial,
    /// What came of it.
    pub verdict: ReplayVerdict,
}

/// Which trial of which campaign.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReplayTrial {
    /// A trial of a sweep.
    Sweep(ReplaySweep),
    /// A trial of a run.
    Run(ReplayRun),
}

/// A trial of a sweep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ReplaySweep {
    /// Whether the path begins with the scenario's request.
    pub asks: bool,
    /// Where the path begins, if not at the scenario's request.
    pub from: Option<String>,
    /// Where the NMI came.
    pub place: ReplayPlace,
    /// Where the second NMI came, in the path as the first NMI changed it.
    pub then: Option<ReplayPlace>,
    /// Whether returns to user mode were noted, where the command line said it.
    #[serde(default)]
    pub witness: Option<bool>,
}

/// A trial of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ReplayRun {
    /// The seed of a deterministic run.
    pub seed: Option<u64>,
    /// The number of trials on one boot, of which this is the last.
    pub trials: Option<u32>,
    /// `SEED:TRIAL` of an exploration; nothing if the seed and the number of trials identify the
    /// trial.
    pub token: Option<String>,
    /// Whether returns to user mode were noted, where the command line said it.
    #[serde(default)]
    pub witness: Option<bool>,
}

/// What came of a trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ReplayVerdict {
    /// The outcome.
    pub outcome: Outcome,
    /// The invariants that fell, each with the finding that it is, if any.
    pub fell: BTreeSet<(String, Option<String>)>,
    /// Hash of everything recorded, in a deterministic run.
    pub trace_sha256: Option<String>,
}

/// The kernel that a trial failed on, and how to get it again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ReplayKernel {
    /// Content hash of the image.
    pub hash: String,
    /// `uname -r`.
    pub release: String,
    /// How it is named, with files by their absolute path.
    #[serde(flatten)]
    pub choice: KernelChoice,
}

/// An instruction boundary of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ReplayPlace {
    /// The function.
    pub function: String,
    /// Bytes from its start.
    pub offset: u64,
    /// Which time the path comes there, from 1.
    pub occurrence: u32,
}

impl ReplayVerdict {
    /// The verdict on a trial of a sweep.
    #[must_use]
    pub fn of_sweep(symptom: &SweepSymptom) -> Self {
        let outcome = match symptom.died {
            Some("hang") => Outcome::Hang,
            Some("guest-misbehaved") => Outcome::GuestMisbehaved,
            Some(_) => Outcome::GuestPanic,
            None if symptom.is_known() => Outcome::ExpectedFailure,
            None => Outcome::Fail,
        };
        Self {
            outcome,
            fell: symptom.fell.clone(),
            trace_sha256: None,
        }
    }

    /// The verdict on a trial of a run; nothing if there is no failure to make again.
    #[must_use]
    pub fn of_run(result: &ScenarioResult) -> Option<Self> {
        let outcome = result.outcome;
        let judged = matches!(outcome, Outcome::Fail | Outcome::ExpectedFailure);
        let fell = result.violations.iter();
        let fell = fell.map(|it| (it.violation.invariant.clone(), it.finding.clone()));
        (judged || outcome.is_death()).then(|| Self {
            outcome,
            fell: fell.collect(),
            trace_sha256: result.trace_sha256.clone(),
        })
    }

    /// Whether another trial, on the same kernel or another, failed in the same way. Of trials that
    /// did not complete only the outcome counts: what fell depends on how far they came.
    #[must_use]
    pub fn is_shown_by(&self, other: &Self) -> bool {
        self.outcome == other.outcome && (self.outcome.is_death() || self.fell == other.fell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_the_same_invariants_with_the_same_findings() {
        let known = |finding: Option<&str>| ("C4".to_owned(), finding.map(str::to_owned));
        let symptom = |fell, died| {
            ReplayVerdict::of_sweep(&SweepSymptom {
                died,
                fell: [fell].into(),
            })
        };
        let verdict = symptom(known(Some("F001")), None);
        assert_eq!(verdict.outcome, Outcome::ExpectedFailure);
        assert!(verdict.is_shown_by(&symptom(known(Some("F001")), None)));
        assert!(!verdict.is_shown_by(&symptom(known(None), None)));
        assert!(!verdict.is_shown_by(&symptom(known(Some("F001")), Some("hang"))));
        let hang = symptom(known(None), Some("hang"));
        assert!(hang.is_shown_by(&symptom(known(Some("F001")), Some("hang"))));
        assert!(!hang.is_shown_by(&symptom(known(None), Some("guest-panic"))));
    }

    #[test]
    fn a_pass_and_what_was_not_tested_are_not_made_again() {
        let result = |outcome| ScenarioResult::not_run("s", outcome, String::new());
        for outcome in Outcome::ALL {
            let kept = ReplayVerdict::of_run(&result(outcome)).is_some();
            let failed = outcome.class() == crate::judge::outcome::OutcomeClass::Bad;
            // Of a flaky scenario, each attempt that failed is kept by itself.
            let expected = failed && outcome != Outcome::Flaky;
            assert_eq!(kept, expected || outcome == Outcome::ExpectedFailure);
        }
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let place = ReplayPlace {
            function: "f".to_owned(),
            offset: 4,
            occurrence: 1,
        };
        let sweep = ReplayTrial::Sweep(ReplaySweep {
            asks: true,
            from: None,
            place,
            then: None,
            witness: Some(true),
        });
        let run = ReplayTrial::Run(ReplayRun {
            seed: Some(7),
            trials: None,
            token: None,
            witness: Some(false),
        });
        for trial in [sweep, run] {
            let replay = Replay {
                version: VERSION,
                name: "s".to_owned(),
                scenario: String::new(),
                snapshot: None,
                kernel: ReplayKernel::default(),
                trial,
                verdict: ReplayVerdict {
                    outcome: Outcome::Fail,
                    fell: BTreeSet::new(),
                    trace_sha256: None,
                },
            };
            let text = serde_json::to_string(&replay).unwrap();
            assert_eq!(serde_json::from_str::<Replay>(&text).unwrap(), replay);
        }
    }

    #[test]
    fn a_kernel_has_no_other_keys() {
        let kernel = ReplayKernel {
            hash: "abc".to_owned(),
            release: "7.2".to_owned(),
            choice: KernelChoice {
                kernel: Some("stock".to_owned()),
                ..KernelChoice::default()
            },
        };
        let text = serde_json::to_string(&kernel).unwrap();
        assert_eq!(
            text,
            r#"{"hash":"abc","release":"7.2","kernel":"stock","tree":null,"rev":null,"source":null,"patch":[],"config":[]}"#
        );
        assert_eq!(serde_json::from_str::<ReplayKernel>(&text).unwrap(), kernel);
        let more = text.replace("\"rev\"", "\"other\":1,\"rev\"");
        assert!(serde_json::from_str::<ReplayKernel>(&more).is_err());
    }
}
