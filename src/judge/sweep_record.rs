//! A file with what a sweep has found so far, from which a later sweep goes on, and which is merged with those of the
//! other parts of a sweep that several machines make.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::sweep::{PairCounts, Unsteady};
use unwindlab_engine::plan::Shard;
use unwindlab_engine::plan::sweep::{Boundary, Point, Points, Tried};
use unwindlab_scenario::KernelSymbols;

/// Version of the file format; raised with each change.
pub const VERSION: u32 = 3;

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
    /// The part of the sweep that this is, if it is one.
    pub shard: Option<Shard>,
    /// Which points all parts together try, and how.
    pub choice: SweepChoice,
    /// The path.
    pub path: RecordedPath,
    /// Numbers of a sweep of pairs.
    pub pairs: Option<PairCounts>,
    /// What is left.
    pub left: SweepLeft,
}

/// Which points of a path are tried, and how. What is merged has the same choice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SweepChoice {
    /// SHA-256 of the program that made the trials and judged them.
    pub program: String,
    /// The boundaries of the path; of pairs, those for the first NMI.
    pub points: Points,
    /// Of pairs, those for the second NMI, and whether also those are tried that other pairs stand for.
    pub second: Option<(Points, bool)>,
    /// Whether returns to user mode are noted, if not as the scenario says.
    pub witness: Option<bool>,
}

/// A path as it was in the boot of a sweep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RecordedPath {
    /// `uname -r` of the kernel.
    pub release: String,
    /// The instruction of each boundary.
    pub instructions: Vec<u64>,
    /// Numbers of those that are left out, because the next one stands for them.
    pub left_out: BTreeSet<u32>,
    /// The boundaries to try in all parts together.
    pub chosen: Vec<Boundary>,
    /// Names of the code of path and failures, by where it begins.
    pub names: BTreeMap<u64, String>,
}

/// What a sweep has left undone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SweepLeft {
    /// Whether it came to its end: each of its points was tried, or stands below.
    pub ended: bool,
    /// Points to which the path did not come again.
    pub missed: Vec<Point>,
    /// Points whose trial was not judged to its end, and why.
    pub unjudged: Vec<(Point, String)>,
    /// Trials that hung or panicked and were made once more.
    pub unsteady: Vec<Unsteady>,
}

impl SweepLeft {
    /// Whether that is nothing.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.ended && self.missed.is_empty() && self.unjudged.is_empty() && self.unsteady.is_empty()
    }
}

impl RecordedPath {
    /// The code that contains an address, and the offset in it.
    #[must_use]
    pub fn name(&self, address: u64) -> Option<(String, u64)> {
        let (start, name) = self.names.range(..=address).next_back()?;
        Some((name.clone(), address - start))
    }
}

/// A kernel of which nothing is known but the names of a recorded path.
impl KernelSymbols for RecordedPath {
    fn addresses(&self, name: &str) -> Vec<u64> {
        let named = self.names.iter().filter(|(_, it)| *it == name);
        named.map(|(start, _)| *start).collect()
    }

    fn size(&self, _: &str) -> Option<u64> {
        None
    }

    fn similar(&self, _: &str) -> Vec<String> {
        Vec::new()
    }

    fn current_task_offset(&self) -> Option<u64> {
        None
    }

    fn is_unknown(&self) -> bool {
        true
    }

    fn resolve(&self, address: u64) -> Option<(String, u64)> {
        self.name(address)
    }
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

/// What stands in a file of each version.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

impl SweepIdentity {
    /// In what another sweep differs, if it is another.
    #[must_use]
    pub fn differs(&self, other: &Self) -> Option<&'static str> {
        let differences = [
            (self.scenario != other.scenario, "scenario"),
            (self.kernel != other.kernel, "kernel"),
            (self.asks != other.asks, "choice of --no-request"),
            (self.from != other.from, "beginning (--from)"),
            (self.pairs != other.pairs, "choice of --pairs"),
        ];
        let differs = differences.into_iter().find(|(differs, _)| *differs);
        differs.map(|(_, what)| what)
    }
}

impl SweepChoice {
    /// In what another choice differs, if it is another.
    #[must_use]
    pub fn differs(&self, other: &Self) -> Option<&'static str> {
        let differences = [
            (self.program != other.program, "build of unwindlab"),
            (
                self.points != other.points,
                "choice of --function, --static or --all",
            ),
            (
                self.second != other.second,
                "choice of --function, --static or --all",
            ),
            (
                self.witness != other.witness,
                "choice of --witness or --no-witness",
            ),
        ];
        let differs = differences.into_iter().find(|(differs, _)| *differs);
        differs.map(|(_, what)| what)
    }
}

impl SweepRecord {
    /// Reads a file's text. The file must be of the sweep with this identity, and of this part of it.
    ///
    /// # Errors
    /// [`SweepRecordError`].
    pub fn parse(
        text: &str,
        identity: &SweepIdentity,
        shard: Option<Shard>,
    ) -> Result<Self, SweepRecordError> {
        let record = Self::read(text)?;
        let other_part = (record.shard != shard).then_some("part (--shard)");
        match record.identity.differs(identity).or(other_part) {
            Some(what) => Err(SweepRecordError::OtherSweep(what)),
            None => Ok(record),
        }
    }

    /// Reads the text of a file of any sweep.
    ///
    /// # Errors
    /// [`SweepRecordError`].
    pub fn read(text: &str) -> Result<Self, SweepRecordError> {
        let Versioned { version } = serde_json::from_str(text)?;
        match version {
            VERSION => Ok(serde_json::from_str(text)?),
            other => Err(SweepRecordError::Version(other)),
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
    use unwindlab_engine::plan::sweep::SecondNmi;

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
            shard: Some(Shard { number: 1, of: 2 }),
            choice: SweepChoice {
                program: "p".to_owned(),
                points: Points::These(vec![3]),
                second: None,
                witness: None,
            },
            path: RecordedPath {
                release: "7.3".to_owned(),
                instructions: vec![0xffff_ffff_8100_0000],
                left_out: [0].into(),
                chosen: vec![point.at],
                names: [(0xffff_ffff_8000_0000, "f".to_owned())].into(),
            },
            pairs: None,
            left: SweepLeft::default(),
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = record();
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(
            SweepRecord::parse(&text, &record.identity, record.shard).unwrap(),
            record
        );
        assert!(text.contains("\"of\":{\"scenario\""), "{text}");
    }

    #[test]
    fn a_record_of_another_sweep_is_refused() {
        let record = record();
        let text = serde_json::to_string(&record).unwrap();
        let refused = |text: &str, identity: &SweepIdentity, why: &str| {
            let shard = record.shard;
            let error = SweepRecord::parse(text, identity, shard)
                .unwrap_err()
                .to_string();
            assert!(error.contains(why), "{error}");
        };
        let other_kernel = SweepIdentity {
            kernel: "def".to_owned(),
            ..record.identity.clone()
        };
        refused(&text, &other_kernel, "another kernel");
        let no_pairs = SweepIdentity {
            pairs: false,
            ..record.identity.clone()
        };
        refused(&text, &no_pairs, "--pairs");
        refused("{}", &no_pairs, "not the file of a sweep");
        refused(r#"{"version":1}"#, &no_pairs, "version 1");
        let whole = SweepRecord::parse(&text, &record.identity, None);
        assert!(whole.unwrap_err().to_string().contains("--shard"));
    }
}
