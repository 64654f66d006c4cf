//! A file with what a sweep has found so far, from which a later sweep goes on.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use unwindlab_engine::plan::sweep::{Point, Tried};

/// Version of the file format; raised with each change.
pub const VERSION: u32 = 1;

/// An unfinished sweep, as a file (JSON).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SweepRecord {
    /// [`VERSION`].
    pub version: u32,
    /// What was swept.
    #[serde(rename = "of")]
    pub identity: SweepIdentity,
    /// Points that were tried.
    pub tried: BTreeSet<Point>,
    /// How many of them passed.
    pub passed: u32,
    /// What went wrong.
    pub failures: Vec<RecordedFailure>,
    /// On how many points each invariant was exercised.
    pub exercised: BTreeMap<String, u32>,
}

/// What is swept. A sweep goes on only from a file with the same identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SweepIdentity {
    /// The scenario's YAML.
    pub scenario: String,
    /// Content hash of the kernel's image.
    pub kernel: String,
    /// Whether the request is made.
    pub asks: bool,
    /// Where the path begins, if not at the scenario's own request.
    pub from: Option<String>,
    /// Whether each trial has two NMIs.
    pub pairs: bool,
}

/// One distinct failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RecordedFailure {
    /// `guest-panic` or `hang`.
    pub died: Option<String>,
    /// Violated invariants, each with the finding that the violation matches, if any.
    pub fell: BTreeSet<(String, Option<String>)>,
    /// The points that show it.
    pub points: BTreeSet<Point>,
    /// What the first of them showed, in lines.
    pub messages: Vec<String>,
}

/// Why a sweep cannot go on from a file.
#[derive(Debug, thiserror::Error)]
pub enum SweepRecordError {
    /// The file is not the record of a sweep.
    #[error("not the file of a sweep: {0}")]
    Format(#[from] serde_json::Error),
    /// The file is of another version of this program.
    #[error("the file has version {0}, this program reads version {VERSION}")]
    Version(u32),
    /// The file is of another sweep.
    #[error("the file is of a sweep with another {0}; name another file, or remove this one")]
    OtherSweep(&'static str),
}

impl SweepRecord {
    /// Reads a file's text. The file must be of the sweep with this identity.
    ///
    /// # Errors
    /// [`SweepRecordError`].
    pub fn parse(text: &str, identity: &SweepIdentity) -> Result<Self, SweepRecordError> {
        let record: Self = serde_json::from_str(text)?;
        if record.version != VERSION {
            return Err(SweepRecordError::Version(record.version));
        }
        let recorded = &record.identity;
        let differences = [
            (recorded.scenario != identity.scenario, "scenario"),
            (recorded.kernel != identity.kernel, "kernel"),
            (recorded.asks != identity.asks, "choice of --no-request"),
            (recorded.from != identity.from, "beginning (--from)"),
            (recorded.pairs != identity.pairs, "choice of --pairs"),
        ];
        match differences.into_iter().find(|(differs, _)| *differs) {
            Some((_, what)) => Err(SweepRecordError::OtherSweep(what)),
            None => Ok(record),
        }
    }

    /// What the later sweep skips.
    #[must_use]
    pub fn done(&self) -> BTreeSet<Tried> {
        self.tried.iter().map(Point::tried).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unwindlab_engine::plan::sweep::{Boundary, SecondNmi};

    fn record() -> SweepRecord {
        let at = |rip| Boundary { rip, occurrence: 2 };
        let point = Point {
            number: 3,
            at: at(0xffff_ffff_8100_0000),
            then: Some(SecondNmi {
                number: 1,
                at: at(0xffff_ffff_8100_0004),
            }),
        };
        SweepRecord {
            version: VERSION,
            identity: SweepIdentity {
                scenario: "name: s".to_owned(),
                kernel: "abc".to_owned(),
                asks: true,
                from: None,
                pairs: true,
            },
            tried: [point].into(),
            passed: 0,
            failures: vec![RecordedFailure {
                died: None,
                fell: [("C4".to_owned(), Some("F001".to_owned()))].into(),
                points: [point].into(),
                messages: vec!["C4 violated".to_owned()],
            }],
            exercised: [("C4".to_owned(), 1)].into(),
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = record();
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(SweepRecord::parse(&text, &record.identity).unwrap(), record);
        assert!(text.contains("\"of\":{\"scenario\""), "{text}");
    }

    #[test]
    fn a_record_of_another_sweep_is_refused() {
        let record = record();
        let text = serde_json::to_string(&record).unwrap();
        let refused = |text: &str, identity: &SweepIdentity, why: &str| {
            let error = SweepRecord::parse(text, identity).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        let other_kernel = SweepIdentity {
            kernel: "def".to_owned(),
            ..record.identity.clone()
        };
        refused(&text, &other_kernel, "another kernel");
        let no_pairs = SweepIdentity {
            pairs: false,
            ..record.identity
        };
        refused(&text, &no_pairs, "--pairs");
        refused("{}", &no_pairs, "not the file of a sweep");
    }
}
