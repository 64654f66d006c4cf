//! The log of a search, as JSON Lines: first what is searched for, then a line for each commit as
//! soon as it is tested.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use unwindlab_guest_kernel::input;

use serde::{Deserialize, Serialize};

use super::search::CommitVerdict;
use super::symptom::BisectSymptom;
use crate::campaign::error::BisectError;

/// What is searched for. The log of another search is of no use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Search {
    /// Id of the good commit.
    pub good: String,
    /// Id of the bad commit.
    pub bad: String,
    /// The scenario.
    pub scenario: String,
    /// Patches and configuration that every commit is built with.
    pub build: String,
    /// The requested confidence.
    pub confidence: f64,
    /// The requested invariant.
    pub invariant: Option<String>,
}

/// What the runs of the bad commit showed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Ends {
    /// What is searched for.
    pub symptom: BisectSymptom,
    /// What else the bad commit showed.
    pub others: Vec<BisectSymptom>,
    /// The number of runs that showed the symptom.
    pub failed: u32,
    /// The number of runs that could have shown it.
    pub runs: u32,
}

/// A commit that was tested.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Tested {
    /// Its id.
    pub commit: String,
    /// The first line of its message.
    pub subject: String,
    /// The number of runs.
    pub runs: u32,
    /// The verdict.
    #[serde(flatten)]
    pub verdict: CommitVerdict,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    Search(Search),
    Ends(Ends),
    Tested(Tested),
}

/// A log, open for appending.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    file: File,
    /// What the runs of the bad commit showed, if it was tested.
    pub ends: Option<Ends>,
    tested: BTreeMap<String, Tested>,
}

impl Log {
    /// Opens the log of this search, or starts one.
    ///
    /// # Errors
    /// [`BisectError`]; the file is unchanged then.
    pub fn open(path: &Path, search: &Search) -> Result<Self, BisectError> {
        let io = |source| BisectError::NoLog {
            path: path.to_owned(),
            source,
        };
        let text = match input::text(path, input::RECORDED) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(io(error)),
        };
        // A process that was killed may have written half a line: it is not counted.
        let mut whole = text.rfind('\n').map_or(0, |at| at + 1);
        let mut found = None;
        let mut ends = None;
        let mut tested = BTreeMap::new();
        for (at, line) in text.get(..whole).unwrap_or_default().lines().enumerate() {
            match serde_json::from_str(line) {
                Ok(Line::Search(search)) => found = Some(search),
                Ok(Line::Ends(read)) => ends = Some(read),
                Ok(Line::Tested(read)) => {
                    tested.insert(read.commit.clone(), read);
                }
                Err(_) => {
                    return Err(BisectError::DamagedLog {
                        path: path.to_owned(),
                        line: at + 1,
                    });
                }
            }
        }
        if found.as_ref().is_some_and(|found| found != search) {
            if ends.is_some() || !tested.is_empty() {
                return Err(BisectError::OtherLog(path.to_owned()));
            }
            // A search that came to nothing: nothing is lost.
            (found, whole) = (None, 0);
        }
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .map_err(io)?;
        file.set_len(whole as u64).map_err(io)?;
        let mut log = Self {
            path: path.to_owned(),
            file,
            ends,
            tested,
        };
        if found.is_none() {
            log.write(&Line::Search(search.clone()))?;
        }
        Ok(log)
    }

    /// What is known of a commit.
    #[must_use]
    pub fn known(&self, commit: &str) -> Option<&Tested> {
        self.tested.get(commit)
    }

    /// Records what the runs of the bad commit showed.
    ///
    /// # Errors
    /// [`BisectError::Log`].
    pub fn set_ends(&mut self, ends: Ends) -> Result<(), BisectError> {
        self.write(&Line::Ends(ends.clone()))?;
        self.ends = Some(ends);
        Ok(())
    }

    /// Records what is known of a commit.
    ///
    /// # Errors
    /// [`BisectError::Log`].
    pub fn add(&mut self, tested: Tested) -> Result<(), BisectError> {
        self.write(&Line::Tested(tested.clone()))?;
        self.tested.insert(tested.commit.clone(), tested);
        Ok(())
    }

    fn write(&mut self, line: &Line) -> Result<(), BisectError> {
        let write = || -> io::Result<()> {
            let mut text = serde_json::to_string(line)?;
            text.push('\n');
            (&self.file).write_all(text.as_bytes())?;
            self.file.sync_data()
        };
        write().map_err(|source| BisectError::Log {
            path: self.path.clone(),
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::campaign::error::CampaignError;

    fn search(scenario: &str) -> Search {
        Search {
            good: "a".to_owned(),
            bad: "b".to_owned(),
            scenario: scenario.to_owned(),
            build: String::new(),
            confidence: 0.99,
            invariant: None,
        }
    }

    fn tested() -> Tested {
        Tested {
            commit: "c".to_owned(),
            subject: "change".to_owned(),
            runs: 3,
            verdict: CommitVerdict::Skip("does not build".to_owned()),
        }
    }

    #[test]
    fn a_search_that_tested_nothing_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        drop(Log::open(&path, &search("s")).unwrap());
        drop(Log::open(&path, &search("t")).unwrap());
        let mut log = Log::open(&path, &search("t")).unwrap();
        log.add(tested()).unwrap();
        let log = Log::open(&path, &search("t")).unwrap();
        assert_eq!(log.known("c"), Some(&tested()));
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 2);
    }

    #[test]
    fn goes_on_where_it_was_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let ends = Ends {
            symptom: BisectSymptom::Invariant("C4".to_owned()),
            others: Vec::new(),
            failed: 5,
            runs: 5,
        };
        let tested = tested();
        let mut log = Log::open(&path, &search("s")).unwrap();
        log.set_ends(ends.clone()).unwrap();
        log.add(tested.clone()).unwrap();
        drop(log);
        // Killed while it wrote.
        let mut text = fs::read(&path).unwrap();
        text.extend(b"{\"tested\":{\"comm");
        fs::write(&path, text).unwrap();
        let log = Log::open(&path, &search("s")).unwrap();
        assert_eq!(log.ends, Some(ends));
        assert_eq!(log.known("c"), Some(&tested));
        assert_eq!(log.known("d"), None);
        assert!(fs::read_to_string(&path).unwrap().ends_with("}\n"));
    }

    #[test]
    fn a_folder_is_no_log() {
        let folder = tempfile::tempdir().unwrap();
        let error = Log::open(folder.path(), &search("s")).unwrap_err();
        assert!(CampaignError::from(error).is_usage());
    }

    #[test]
    fn refuses_what_is_not_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut log = Log::open(&path, &search("s")).unwrap();
        log.add(tested()).unwrap();
        drop(log);
        let error = Log::open(&path, &search("t")).unwrap_err();
        assert!(matches!(error, BisectError::OtherLog(_)), "{error}");
        fs::write(&path, "my notes\n").unwrap();
        let error = Log::open(&path, &search("s")).unwrap_err();
        assert!(
            matches!(error, BisectError::DamagedLog { line: 1, .. }),
            "{error}"
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "my notes\n");
    }
}
