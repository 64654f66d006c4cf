//! Reads what an earlier `bench --json` wrote. The file may be anything.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::super::machine::Machine;
use super::super::rows::Line;
use super::super::series::Series;
use crate::bench::{MOST_ROUNDS, SCHEMA};

/// One figure of the file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Earlier {
    schema: String,
    /// The row's name.
    pub row: String,
    /// What is measured.
    pub what: String,
    pub(super) unit: String,
    pub(super) ours: Series,
    pub(super) peer: Option<EarlierPeer>,
    #[serde(default)]
    pub(super) parameters: Vec<String>,
    pub(super) kernel_hash: String,
    pub(super) kvm_host: String,
    /// Where it was measured, if the file says so.
    pub machine: Option<Machine>,
}

/// The peer's numbers.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct EarlierPeer {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) series: Series,
}

/// What is wrong with a line of the file.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what the fields are")]
pub enum FileError {
    /// There is no figure in it.
    #[error("no figures in it: it is to be what `bench --json` wrote")]
    Empty,
    /// It ends in the middle of a line.
    #[error("line {0}: the file is cut off")]
    CutOff(usize),
    /// It is no figure.
    #[error("line {line}: {source}")]
    Form {
        line: usize,
        source: serde_json::Error,
    },
    /// Another program wrote it.
    #[error("line {line}: its schema is {found:?}, and this program reads {SCHEMA:?}")]
    Schema { line: usize, found: String },
    /// A number that no round can have.
    #[error("line {line}: {number} is no measurement")]
    Number { line: usize, number: f64 },
    /// More rounds than there can be.
    #[error("line {line}: {rounds} rounds, and {MOST_ROUNDS} are the most")]
    Rounds { line: usize, rounds: usize },
    /// The peer has another number of rounds.
    #[error("line {line}: {ours} rounds of ours and {peers} of the peer")]
    Uneven {
        line: usize,
        ours: usize,
        peers: usize,
    },
    /// It says the same thing twice.
    #[error("line {line}: `{what}` was there before")]
    Twice { line: usize, what: String },
}

impl Earlier {
    pub(super) fn is_of(&self, line: &Line) -> bool {
        (self.row.as_str(), self.what.as_str()) == (line.row.name(), line.what)
    }

    fn check(&self, line: usize) -> Result<(), FileError> {
        if self.schema != SCHEMA {
            let found = self.schema.clone();
            return Err(FileError::Schema { line, found });
        }
        let peer = self.peer.as_ref().map(|it| &it.series);
        for series in [Some(&self.ours), peer].into_iter().flatten() {
            let rounds = series.values.len();
            if rounds > MOST_ROUNDS as usize {
                return Err(FileError::Rounds { line, rounds });
            }
            let wrong = series.values.iter().find(|it| !Series::is_number(**it));
            if let Some(&number) = wrong {
                return Err(FileError::Number { line, number });
            }
        }
        match (
            self.ours.spread(),
            peer.and_then(|it| Some((it, it.spread()?))),
        ) {
            (Some(_), Some((peer, _))) if peer.values.len() != self.ours.values.len() => {
                Err(FileError::Uneven {
                    line,
                    ours: self.ours.values.len(),
                    peers: peer.values.len(),
                })
            }
            _ => Ok(()),
        }
    }
}

/// Reads the text of a file.
///
/// # Errors
/// [`FileError`], at the first line that is wrong.
pub fn read(text: &str) -> Result<Vec<Earlier>, FileError> {
    let mut all: Vec<Earlier> = Vec::new();
    let mut seen = BTreeSet::new();
    for (line, number) in text.lines().zip(1..) {
        if line.trim().is_empty() {
            continue;
        }
        let earlier: Earlier =
            serde_json::from_str(line).map_err(|source| match source.is_eof() {
                true => FileError::CutOff(number),
                false => FileError::Form {
                    line: number,
                    source,
                },
            })?;
        earlier.check(number)?;
        if !seen.insert((earlier.row.clone(), earlier.what.clone())) {
            return Err(FileError::Twice {
                line: number,
                what: earlier.what,
            });
        }
        all.push(earlier);
    }
    match all.is_empty() {
        true => Err(FileError::Empty),
        false => Ok(all),
    }
}
