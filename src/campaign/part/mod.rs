//! One part of a command (`--shard I/N`), and its file.
//!
//! The file is JSON Lines: a head that says what the part is of, and a line for each unit as soon as it is over. Each
//! line names its head by the head's hash, so it is never taken for one of another part, kernel or choice, wherever
//! files were cut off or joined. What must be in the file follows from its head.

pub(super) mod file;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use unwindlab_engine::plan::Shard;

/// Names the format of a head. The number rises with every change that may break a reader.
pub const SCHEMA: &str = "unwindlab.part/1";

/// Most units of all parts together.
const MAX_UNITS: u64 = 10_000_000;
/// Most bytes of a name; it is copied for each trial.
const MAX_NAME: usize = 256;
/// Most things that parts have in common; they are compared with each other.
const MAX_SAME: usize = 64;

/// The part that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartRequest {
    /// Which one.
    pub shard: Shard,
    /// Its file. What stands in it is not made again.
    pub file: PathBuf,
}

/// What is in one part or another as a whole: a scenario, a trial of one, a mutant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Unit {
    /// Its name, or that of the scenario that it is a trial of.
    pub name: String,
    /// The number of the trial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trial: Option<u32>,
}

impl fmt::Display for Unit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.trial {
            None => out.write_str(&self.name),
            Some(trial) => write!(out, "{} trial {trial}", self.name),
        }
    }
}

/// Units of one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Units {
    /// The name.
    pub name: String,
    /// Hash of what has the name.
    pub hash: String,
    /// How many trials are units by themselves; without it, it is one unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trials: Option<u32>,
    /// Whether its trials explore: one of them at least must make a preemption.
    #[serde(default)]
    pub explores: bool,
}

impl Units {
    /// One by one.
    pub fn each(&self) -> impl Iterator<Item = Unit> {
        let numbers = self.trials.map(|trials| 1..=trials);
        let whole = numbers.is_none().then_some(None);
        let trials = numbers.into_iter().flatten().map(Some);
        whole.into_iter().chain(trials).map(|trial| Unit {
            name: self.name.clone(),
            trial,
        })
    }
}

/// Which command a part is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PartOf {
    /// `run`.
    Run,
    /// `soak`.
    Soak,
    /// `mutants`.
    Mutants,
    /// `mutants --generate`.
    Generated,
    /// `sweep --requests`. The units of a part are what its own survey found.
    Requests,
}

/// What a part is of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PartHead {
    /// [`SCHEMA`].
    pub schema: String,
    /// The command.
    pub command: PartOf,
    /// Which part.
    pub shard: Shard,
    /// What all parts have in common, each behind the words for it.
    pub same: Vec<(String, String)>,
    /// The units of all parts together, in the order in which they are told; of `sweep --requests`, as far as this part knows.
    pub units: Vec<Units>,
    /// Of mutants, the scenarios or sweeps that test them, in the order of the matrix.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<String>,
    /// `uname -r` of the kernel.
    pub release: String,
}

/// Why a head is of no use.
#[derive(Debug, thiserror::Error)]
pub enum PartHeadError {
    /// It is of another version of this program.
    #[error("it has the format {0:?}, this program reads {SCHEMA}")]
    Schema(String),
    /// There is no such part.
    #[error("there is no part {0}")]
    Shard(Shard),
    /// A name is none.
    #[error("{0:?} is no name")]
    Name(String),
    /// A name is longer than anybody's.
    #[error("a name has {0} bytes: {MAX_NAME} are the most")]
    Long(usize),
    /// It has more in common with the other parts than any part has.
    #[error("the parts have {0} things in common: {MAX_SAME} are the most")]
    Same(usize),
    /// Two have one name.
    #[error("two have the name {0}")]
    Twice(String),
    /// There are more than anybody makes.
    #[error("{0} scenarios or trials are too many: {MAX_UNITS} are the most")]
    TooMany(u64),
}

impl PartHead {
    /// The head of a part on a kernel with this release.
    pub(super) fn new<'w>(
        command: PartOf,
        shard: Shard,
        same: impl IntoIterator<Item = (&'w str, String)>,
        units: Vec<Units>,
        release: &str,
    ) -> Self {
        let same = same.into_iter();
        Self {
            schema: SCHEMA.to_owned(),
            command,
            shard,
            same: same.map(|(what, value)| (what.to_owned(), value)).collect(),
            units,
            columns: Vec::new(),
            release: release.to_owned(),
        }
    }

    /// Says what is wrong with it.
    ///
    /// # Errors
    /// [`PartHeadError`].
    pub fn check(&self) -> Result<(), PartHeadError> {
        if self.schema != SCHEMA {
            return Err(PartHeadError::Schema(self.schema.clone()));
        }
        if !self.shard.is_valid() {
            return Err(PartHeadError::Shard(self.shard));
        }
        if self.same.len() > MAX_SAME {
            return Err(PartHeadError::Same(self.same.len()));
        }
        let is_name = |name: &str| !name.is_empty() && !name.chars().any(char::is_control);
        let names = || self.units.iter().map(|it| &it.name).chain(&self.columns);
        if let Some(long) = names().find(|it| it.len() > MAX_NAME) {
            return Err(PartHeadError::Long(long.len()));
        }
        if let Some(wrong) = names().find(|it| !is_name(it)) {
            return Err(PartHeadError::Name(wrong.clone()));
        }
        let mut names = BTreeSet::new();
        if let Some(twice) = self.units.iter().find(|it| !names.insert(&it.name)) {
            return Err(PartHeadError::Twice(twice.name.clone()));
        }
        let counts = { self.units.iter() }.map(|it| it.trials.map_or(1, u64::from));
        match counts.fold(0, u64::saturating_add) {
            count if count > MAX_UNITS => Err(PartHeadError::TooMany(count)),
            _ => Ok(()),
        }
    }

    /// In what a part is of another command, kernel or choice, if it is.
    #[must_use]
    pub fn differs(&self, other: &Self) -> Option<String> {
        if self.command != other.command {
            return Some("command".to_owned());
        }
        let lacks = |one: &Self, other: &Self| {
            let mut same = one.same.iter();
            same.find(|it| !other.same.contains(it))
                .map(|it| it.0.clone())
        };
        if let Some(what) = lacks(self, other).or_else(|| lacks(other, self)) {
            return Some(what);
        }
        if self.shard.of != other.shard.of {
            return Some("number of parts (--shard)".to_owned());
        }
        if self.command == PartOf::Requests {
            return None;
        }
        let choice = || {
            Some(match self.command {
                PartOf::Run | PartOf::Soak | PartOf::Requests => "choice of scenarios".to_owned(),
                PartOf::Mutants | PartOf::Generated => "choice of mutants or scenarios".to_owned(),
            })
        };
        if self.units.len() != other.units.len() || self.columns != other.columns {
            return choice();
        }
        let pairs = self.units.iter().zip(&other.units);
        let (one, other) = { pairs }.find(|(one, other)| one != other)?;
        match (one.name == other.name, self.command) {
            (false, _) => choice(),
            (true, PartOf::Run | PartOf::Soak | PartOf::Requests) => {
                Some(format!("scenario or number of trials: {}", one.name))
            }
            (true, PartOf::Mutants | PartOf::Generated) => Some(format!("patch: {}", one.name)),
        }
    }

    /// By what lines name it.
    #[must_use]
    pub fn hash_of(text: &str) -> String {
        hash(&[text])
    }
}

/// The units of a head, to look them up.
pub(super) struct Known {
    shard: Shard,
    by_name: HashMap<String, Option<u32>>,
}

impl Known {
    pub(super) fn of(head: &PartHead) -> Self {
        let names = head.units.iter().map(|it| (it.name.clone(), it.trials));
        Self {
            shard: head.shard,
            by_name: names.collect(),
        }
    }

    /// Whether a unit is one of this part.
    pub(super) fn has(&self, unit: &Unit) -> bool {
        let is_there = match (self.by_name.get(&unit.name), unit.trial) {
            (Some(Some(trials)), Some(trial)) => (1..=*trials).contains(&trial),
            (Some(None), None) => true,
            _ => false,
        };
        is_there && self.shard.has_name(&unit.name, unit.trial)
    }
}

/// The line of a unit.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct UnitLine {
    /// The hash of the head.
    pub part: String,
    /// The unit.
    pub unit: Unit,
}

/// SHA-256 of texts, in hexadecimal digits.
pub(super) fn hash(texts: &[&str]) -> String {
    let mut hasher = Sha256::new();
    for text in texts {
        hasher.update(text.len().to_le_bytes());
        hasher.update(text);
    }
    format!("{:x}", hasher.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(names: &[&str], same: usize) -> PartHead {
        let units = names.iter().map(|name| Units {
            name: (*name).to_owned(),
            hash: String::new(),
            trials: None,
            explores: false,
        });
        let same = std::iter::repeat_n(("kernel", String::new()), same);
        let shard = Shard { number: 1, of: 2 };
        PartHead::new(PartOf::Run, shard, same, units.collect(), "7.3")
    }

    #[test]
    fn a_head_has_no_endless_names_and_no_endless_list() {
        let (longest, long) = ("x".repeat(MAX_NAME), "x".repeat(MAX_NAME + 1));
        let told = |head: &PartHead| head.check().err().map(|it| it.to_string());
        assert_eq!(told(&head(&["a", &longest], MAX_SAME)), None);
        let too_long = "a name has 257 bytes: 256 are the most";
        assert_eq!(told(&head(&["a", &long], 0)).as_deref(), Some(too_long));
        let mut columns = head(&["a"], 0);
        columns.columns.push(long);
        assert_eq!(told(&columns).as_deref(), Some(too_long));
        let too_much = "the parts have 65 things in common: 64 are the most";
        assert_eq!(told(&head(&["a"], MAX_SAME + 1)).as_deref(), Some(too_much));
    }
}
