//! The file of a part while it is made.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use unwindlab_guest_kernel::input;

use super::{Known, PartHead, PartHeadError, PartRequest, SCHEMA, Unit, UnitLine};
use crate::campaign::error::CampaignError;
use crate::report::output_file::OutputFile;

/// Why a part cannot be made with a file.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}; name another file, or remove this one", path.display())]
pub struct PartFileError {
    pub path: PathBuf,
    pub why: PartFileProblem,
}

/// What is wrong with the file.
#[derive(Debug, thiserror::Error)]
pub enum PartFileProblem {
    /// It cannot be read.
    #[error("{0}")]
    Read(#[from] io::Error),
    /// A line is nothing that a part writes.
    #[error("line {line} is not of the file of a part: {source}")]
    Line {
        line: usize,
        source: serde_json::Error,
    },
    /// Its head is of no use.
    #[error("{0}")]
    Head(#[from] PartHeadError),
    /// It is of another part, or a part of something else.
    #[error("it is of a part with another {0}")]
    Other(String),
}

/// The line that is written of a unit.
#[derive(Serialize)]
struct Written<'a, T> {
    part: &'a str,
    unit: &'a Unit,
    #[serde(flatten)]
    record: T,
}

/// The file of a part, which lines are added to.
pub(in crate::campaign) struct PartFile {
    file: File,
    head: String,
    /// The lines of units that are over.
    pub(in crate::campaign) done: BTreeMap<Unit, String>,
}

impl PartFile {
    /// Begins the file, or goes on with one that is of the same part.
    pub(in crate::campaign) fn open(
        request: &PartRequest,
        head: &PartHead,
    ) -> Result<Self, CampaignError> {
        let told = |why| PartFileError {
            path: request.file.clone(),
            why,
        };
        head.check().map_err(|why| told(why.into()))?;
        let bytes = match input::read(&request.file, input::RECORDED) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(told(error.into()).into()),
        };
        let written = serde_json::to_string(head)?;
        let of = PartHead::hash_of(&written);
        // What stands behind the last end of a line was cut off.
        let whole = { bytes.iter() }.rposition(|it| *it == b'\n');
        let whole = whole.map_or(0, |end| end + 1);
        let lines = String::from_utf8_lossy(bytes.get(..whole).unwrap_or_default());
        let Read { heads, done } = Read::of(&lines, head).map_err(told)?;
        if lines.is_empty() {
            // What cannot be written is told as of other files.
            OutputFile::create(&request.file)?.finish(format!("{written}\n"))?;
        }
        let mut file = appending(&request.file)?;
        if !lines.is_empty() {
            file.set_len(whole.try_into().unwrap_or(u64::MAX))?;
            if !heads.contains(&of) {
                file.write_all(format!("{written}\n").as_bytes())?;
            }
        }
        Ok(Self {
            file,
            head: of,
            done,
        })
    }

    /// Adds the line of a unit.
    pub(in crate::campaign) fn write<T: Serialize>(
        &mut self,
        unit: &Unit,
        record: T,
    ) -> Result<(), CampaignError> {
        let mut line = serde_json::to_string(&Written {
            part: &self.head,
            unit,
            record,
        })?;
        line.push('\n');
        self.file.write_all(line.as_bytes())?;
        Ok(self.file.sync_data()?)
    }
}

fn appending(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).open(path)
}

/// What stands in the whole lines of a file.
struct Read {
    /// The hashes of its heads. Each boot may find other units, so there may be several.
    heads: BTreeSet<String>,
    done: BTreeMap<Unit, String>,
}

impl Read {
    /// All of it is to be of the part with this head.
    fn of(lines: &str, head: &PartHead) -> Result<Self, PartFileProblem> {
        let mut read = Self {
            heads: BTreeSet::new(),
            done: BTreeMap::new(),
        };
        let mut known: BTreeMap<String, Known> = BTreeMap::new();
        for (text, line) in lines.lines().zip(1..) {
            let wrong = |source| PartFileProblem::Line { line, source };
            if line == 1 || is_head(text) {
                let there: PartHead = serde_json::from_str(text).map_err(wrong)?;
                there.check()?;
                let number = (there.shard != head.shard).then(|| "part (--shard)".to_owned());
                if let Some(what) = there.differs(head).or(number) {
                    return Err(PartFileProblem::Other(what));
                }
                known.insert(PartHead::hash_of(text), Known::of(&there));
                continue;
            }
            let UnitLine { part, unit } = serde_json::from_str(text).map_err(wrong)?;
            if !known.get(&part).is_some_and(|it| it.has(&unit)) {
                return Err(PartFileProblem::Other(format!("line {line}")));
            }
            read.done.insert(unit, text.to_owned());
        }
        read.heads = known.into_keys().collect();
        Ok(read)
    }
}

/// Whether a line says what a part is of.
fn is_head(text: &str) -> bool {
    #[derive(Deserialize)]
    struct Kind {
        schema: Option<String>,
    }
    serde_json::from_str::<Kind>(text).is_ok_and(|it| it.schema.as_deref() == Some(SCHEMA))
}
