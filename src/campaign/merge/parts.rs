//! Files of parts whose units have lines of their own: which lines count, and what is missing.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::path::PathBuf;

use serde::de::DeserializeOwned;

use super::MergeError;
use crate::campaign::part::{Known, PartHead, PartOf, Unit, UnitLine, Units};
use unwindlab_engine::plan::Shard;

/// Units that are named, of those that a part lacks.
const MAX_NAMED: usize = 12;

/// Where a line stands.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) file: PathBuf,
    pub(super) line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.file.display(), self.line)
    }
}

/// What was read.
#[derive(Default)]
pub(super) struct Lines {
    pub(super) heads: Vec<(Place, String, PartHead)>,
    pub(super) units: Vec<(Place, String, UnitLine)>,
}

impl Lines {
    pub(super) fn head(&mut self, place: Place, text: &str) -> Result<(), String> {
        let head: PartHead = serde_json::from_str(text).map_err(|it| it.to_string())?;
        head.check().map_err(|it| it.to_string())?;
        self.heads.push((place, text.to_owned(), head));
        Ok(())
    }

    pub(super) fn unit(&mut self, place: Place, text: &str) -> Result<(), String> {
        let line = serde_json::from_str(text).map_err(|it| it.to_string())?;
        self.units.push((place, text.to_owned(), line));
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.heads.is_empty() && self.units.is_empty()
    }

    /// Where they are, for a message.
    pub(super) fn first_file(&self) -> Option<PathBuf> {
        let head = self.heads.first().map(|it| &it.0);
        let unit = self.units.first().map(|it| &it.0);
        head.or(unit).map(|it| it.file.clone())
    }

    /// All heads and all lines that count, as one file.
    pub(super) fn joined(&self, parts: &Parts<'_>) -> String {
        let heads: BTreeSet<&str> = self.heads.iter().map(|it| it.1.as_str()).collect();
        let units = parts.lines.values().flatten().copied();
        let lines = heads.into_iter().chain(units);
        lines.fold(String::new(), |all, line| all + line + "\n")
    }

    /// Says where two parts do not belong together.
    pub(super) fn check(&self) -> Result<(), MergeError> {
        let Some((place, _, first)) = self.heads.first() else {
            return Ok(());
        };
        for (other, _, head) in &self.heads {
            if let Some(what) = first.differs(head) {
                return Err(MergeError::Mixed {
                    file: other.file.clone(),
                    other: place.file.clone(),
                    what,
                });
            }
        }
        Ok(())
    }
}

/// The parts of one command.
pub(super) struct Parts<'l> {
    /// What all of them are of.
    pub(super) head: &'l PartHead,
    /// The lines of each unit, each of them once.
    pub(super) lines: BTreeMap<&'l Unit, BTreeSet<&'l str>>,
    /// The units that any of them knows of.
    pub(super) units: Vec<Units>,
    /// Lines that count for nothing.
    pub(super) unread: Vec<String>,
    there: BTreeSet<u32>,
}

impl<'l> Parts<'l> {
    /// Nothing without a head.
    pub(super) fn of(read: &'l Lines) -> Option<Self> {
        let (_, _, head) = read.heads.first()?;
        let hashes =
            { read.heads.iter() }.map(|(_, text, head)| (PartHead::hash_of(text), Known::of(head)));
        let hashes: HashMap<String, Known> = hashes.collect();
        let mut parts = Self {
            head,
            lines: BTreeMap::new(),
            units: all_units(read),
            unread: Vec::new(),
            there: read.heads.iter().map(|it| it.2.shard.number).collect(),
        };
        for (place, text, line) in &read.units {
            let why = match hashes.get(&line.part) {
                None => "the first line of its part is missing",
                Some(known) if !known.has(&line.unit) => "not a result of its part",
                Some(_) => {
                    parts.lines.entry(&line.unit).or_default().insert(text);
                    continue;
                }
            };
            parts.unread.push(format!("{place}: {why}"));
        }
        Some(parts)
    }

    /// What stands in the lines of a unit. Of a line that is none, or `another` thing's, `lacks` says so.
    pub(super) fn read<T: DeserializeOwned>(
        &self,
        unit: &Unit,
        is_its: impl Fn(&T) -> bool,
        another: &str,
        lacks: &mut Vec<String>,
    ) -> Vec<T> {
        let mut records = Vec::new();
        for line in self.lines.get(unit).into_iter().flatten() {
            match serde_json::from_str::<T>(line) {
                Ok(read) if is_its(&read) => records.push(read),
                Ok(_) => lacks.push(format!("{unit}: {another}")),
                Err(error) => lacks.push(format!("{unit}: {error}")),
            }
        }
        records
    }

    /// What is missing, in a line for each part.
    pub(super) fn missing(&self) -> Vec<String> {
        let of = self.head.shard.of;
        let whole = Shard { number: 1, of };
        // Also a part that has no unit leaves a file.
        let absent = (1..=of).filter(|number| !self.there.contains(number));
        let absent = absent.map(|number| (number, (0, Vec::new())));
        let mut missing: BTreeMap<u32, (usize, Vec<String>)> = absent.collect();
        for unit in self.units.iter().flat_map(Units::each) {
            if self.lines.contains_key(&unit) {
                continue;
            }
            let number = whole.owner(&unit.name, unit.trial);
            let (count, named) = missing.entry(number).or_default();
            *count += 1;
            if named.len() < MAX_NAMED {
                named.push(unit.to_string());
            }
        }
        let told = |(number, (count, named)): (u32, (usize, Vec<String>))| {
            let what = match (self.there.contains(&number), count) {
                // The place may not have been in its survey.
                (true, _) if self.head.command == PartOf::Requests => "has not tried ",
                (true, _) => "did not come to its end: it lacks ",
                (false, 0) => "is missing",
                (false, _) => "is missing: ",
            };
            let names = named.join(", ");
            match count.saturating_sub(named.len()) {
                0 => format!("part {number}/{of} {what}{names}"),
                more => format!("part {number}/{of} {what}{names} and {more} more"),
            }
        };
        missing.into_iter().map(told).collect()
    }
}

/// The units of all heads, each once.
fn all_units(read: &Lines) -> Vec<Units> {
    let mut names = BTreeSet::new();
    let all = read.heads.iter().flat_map(|it| &it.2.units);
    all.filter(|it| names.insert(&it.name)).cloned().collect()
}
