//! The results of the parts of a command (`--shard`) as one.

mod generated;
mod mutants;
mod parts;
mod requests;
mod run;
mod soak;
mod sweep;

use std::io;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::IgnoredAny;
use unwindlab_guest_kernel::input;

use self::parts::{Lines, Parts, Place};
use super::Context;
use super::error::CampaignError;
use super::part;
use super::requests::PlacesSummary;
use crate::judge::ScenarioResult;
use crate::judge::outcome::OutcomeClass;
use crate::judge::soak::Soaked;
use crate::judge::sweep_record::SweepRecord;
use crate::report::matrix::Matrix;
use crate::report::mutation::MutationScore;
use crate::report::sweep::Summary;

/// What is merged.
#[derive(Debug, Clone, Default)]
pub struct MergeRequest {
    /// The parts' files, in any order; one may come twice.
    pub files: Vec<PathBuf>,
}

/// Why nothing is merged.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what the fields are")]
pub enum MergeError {
    /// The files are of different commands.
    #[error("{} and {} do not belong together: they have another {what}", file.display(), other.display())]
    Mixed {
        file: PathBuf,
        other: PathBuf,
        what: String,
    },
    /// There is nothing in the files.
    #[error("no file has a result:\n{}", .0.join("\n"))]
    Nothing(Vec<String>),
}

impl MergeError {
    /// Whether the user named files that cannot be merged, as opposed to parts that left nothing.
    #[must_use]
    pub const fn is_usage(&self) -> bool {
        matches!(self, Self::Mixed { .. })
    }
}

/// The parts of a sweep together.
#[expect(missing_debug_implementations, reason = "holds trait objects")]
pub struct MergedSweep<'a> {
    /// All trials.
    pub summary: Summary<'a>,
    /// The same as a record, from which `sweep --resume` goes on without `--shard`.
    pub record: &'a SweepRecord,
    /// Why it is not whole, in lines; nothing if it is.
    pub lacks: &'a [String],
    /// What it says of the kernel.
    pub class: OutcomeClass,
}

/// The parts of a command together.
#[derive(Debug)]
pub struct Merged<T> {
    /// What they come to, in the order of the command, as far as it is there.
    pub whole: T,
    /// `uname -r` of the kernel.
    pub release: String,
    /// Why it is not whole, in lines; nothing if it is.
    pub lacks: Vec<String>,
    /// What it says of the kernel, or of the tests. What lacks something is not good.
    pub class: OutcomeClass,
}

impl<T> Merged<T> {
    /// What says `class` where it lacks nothing.
    fn new(whole: T, class: OutcomeClass, parts: &Parts<'_>, lacks: Vec<String>) -> Self {
        Self {
            whole,
            release: parts.head.release.clone(),
            class: match class {
                OutcomeClass::Good if !lacks.is_empty() => OutcomeClass::Untested,
                class => class,
            },
            lacks,
        }
    }
}

/// The places that the parts of a sweep saw.
#[derive(Debug)]
pub struct SeenPlaces {
    /// The places, as far as they are there.
    pub summary: PlacesSummary,
    /// How many of them the survey of one part alone saw.
    pub seen_once: usize,
}

/// What is told.
#[expect(missing_debug_implementations, reason = "holds trait objects")]
#[derive(Clone, Copy)]
pub enum MergeEvent<'a> {
    /// The parts are of a sweep.
    Swept(&'a MergedSweep<'a>),
    /// The parts are of a run.
    Ran(&'a Merged<Vec<ScenarioResult>>),
    /// The parts are of a soak.
    Soaked(&'a Merged<Vec<Soaked>>),
    /// The parts are of the mutants.
    Mutants(&'a Merged<Matrix>),
    /// The parts are of generated mutants.
    Generated(&'a Merged<MutationScore>),
    /// The parts are of places.
    Places(&'a Merged<SeenPlaces>),
    /// All lines that count, as one file.
    Lines(&'a str),
}

/// What tells files apart.
#[derive(Deserialize)]
struct Kind {
    #[serde(rename = "of")]
    sweep: Option<IgnoredAny>,
    /// Of the head of a part.
    schema: Option<String>,
    /// Of a unit of a part.
    part: Option<IgnoredAny>,
}

/// What is said of a line that no part writes.
const NOT_OF_A_PART: &str = "not the result of a part";

/// Lines of a file that are told as unreadable: a file of another kind has no others.
const MAX_UNREAD: usize = 3;

/// Merges files; what all say of the kernel together.
///
/// # Errors
/// [`CampaignError`] where the files are of different commands, or none has a result.
pub fn merge(
    request: &MergeRequest,
    context: Context<'_>,
    tell: &mut dyn FnMut(MergeEvent<'_>) -> io::Result<()>,
) -> Result<OutcomeClass, CampaignError> {
    let mut sweeps = Vec::new();
    let mut parts = Lines::default();
    let mut lacks = Vec::new();
    for file in &request.files {
        let text = match input::text(file, input::RECORDED) {
            Ok(text) => text,
            Err(error) => {
                lacks.push(format!("{}: {error}", file.display()));
                continue;
            }
        };
        if text.trim().is_empty() {
            lacks.push(format!("{}: the file is empty", file.display()));
        }
        let mut unread = 0;
        for (text, line) in text.lines().zip(1..).filter(|it| !it.0.trim().is_empty()) {
            let place = Place {
                file: file.clone(),
                line,
            };
            let read = match serde_json::from_str::<Kind>(text) {
                Ok(Kind { part: Some(_), .. }) => parts.unit(place.clone(), text),
                Ok(Kind {
                    schema: Some(schema),
                    ..
                }) if schema == part::SCHEMA => parts.head(place.clone(), text),
                Ok(Kind { sweep: Some(_), .. }) => sweep::read(text)
                    .map(|record| sweeps.push((file.clone(), record)))
                    .map_err(|error| error.to_string()),
                Ok(_) => Err(NOT_OF_A_PART.to_owned()),
                Err(error) if error.is_eof() => Err("the file is cut off".to_owned()),
                // JSON of another form; what the parser calls it means nothing to a user.
                Err(error) if error.is_data() => Err(NOT_OF_A_PART.to_owned()),
                Err(_) => Err(format!("{NOT_OF_A_PART}: it is not JSON")),
            };
            if let Err(why) = read {
                unread += 1;
                if unread <= MAX_UNREAD {
                    lacks.push(format!("{place}: {why}"));
                }
            }
        }
        if let Some(more @ 1..) = unread.checked_sub(MAX_UNREAD) {
            lacks.push(format!(
                "{}: {more} more lines like these: it is no file of a part (`--shard`)",
                file.display()
            ));
        }
    }
    if let (Some((file, _)), Some(other)) = (sweeps.first(), parts.first_file()) {
        return Err(MergeError::Mixed {
            file: file.clone(),
            other,
            what: "command".to_owned(),
        }
        .into());
    }
    if !parts.is_empty() {
        return of_units(&parts, lacks, tell);
    }
    sweep::check(&sweeps)?;
    let Some((record, missing)) = sweep::merged(&sweeps) else {
        return Err(MergeError::Nothing(lacks).into());
    };
    lacks.extend(missing);
    let told = sweep::report(&record, &lacks, context, |merged| {
        tell(MergeEvent::Swept(merged)).map(|()| merged.class)
    });
    Ok(told?)
}

/// Merges parts whose units have lines of their own.
fn of_units(
    lines: &Lines,
    mut lacks: Vec<String>,
    tell: &mut dyn FnMut(MergeEvent<'_>) -> io::Result<()>,
) -> Result<OutcomeClass, CampaignError> {
    lines.check()?;
    let Some(parts) = Parts::of(lines) else {
        lacks.push("the first line of each part is missing".to_owned());
        return Err(MergeError::Nothing(lacks).into());
    };
    lacks.extend_from_slice(&parts.unread);
    lacks.extend(parts.missing());
    tell(MergeEvent::Lines(&lines.joined(&parts)))?;
    match parts.head.command {
        part::PartOf::Requests => {
            let merged = requests::merged(lines, &parts, lacks);
            tell(MergeEvent::Places(&merged))?;
            Ok(merged.class)
        }
        part::PartOf::Mutants => {
            let merged = mutants::merged(&parts, lacks);
            tell(MergeEvent::Mutants(&merged))?;
            Ok(merged.class)
        }
        part::PartOf::Generated => {
            let merged = generated::merged(&parts, lacks);
            tell(MergeEvent::Generated(&merged))?;
            Ok(merged.class)
        }
        part::PartOf::Soak => {
            let merged = soak::merged(&parts, lacks);
            tell(MergeEvent::Soaked(&merged))?;
            Ok(merged.class)
        }
        part::PartOf::Run => {
            let merged = run::merged(&parts, lacks);
            tell(MergeEvent::Ran(&merged))?;
            Ok(merged.class)
        }
    }
}

#[cfg(test)]
mod tests;
