//! YAML text to [`Scenario`].

use serde_saphyr::{DefaultMessageFormatter, Error, MessageFormatter};

use super::error::{Complaints, ScenarioErrors};
use super::located::Location;
use super::model::Scenario;

/// Longest scenario that is read, in bytes; the longest of ours has 2 KiB.
const MAX_LEN: usize = 1 << 20;

/// Parses a scenario. `file` is its name in messages.
///
/// # Errors
/// With file, line and column: what is no YAML, has unknown or missing keys, or values of
/// another kind. What is wrong beyond that is for [`super::check`].
pub fn parse(file: &str, text: &str) -> Result<Scenario, ScenarioErrors> {
    let mut complaints = Complaints::new(file);
    if text.len() > MAX_LEN {
        let start = Location { line: 1, column: 1 };
        complaints.add(
            start,
            format!("found {} bytes, expected at most {MAX_LEN}", text.len()),
        );
        return Err(complaints.into_errors());
    }
    let options = serde_saphyr::options! {
        with_snippet: false,
        strict_booleans: true,
        reject_unsupported_tags: true,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let location = error.location().map_or_else(|| end_of(text), Into::into);
        complaints.add(location, describe(&error, location, text));
        complaints.into_errors()
    })
}

/// What was found and what was expected, in one line.
fn describe(error: &Error, location: Location, text: &str) -> String {
    let list = |names: &[&'static str]| {
        let quoted: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
        quoted.join(", ")
    };
    match error.without_snippet() {
        Error::SerdeUnknownField {
            field, expected, ..
        } => {
            format!("found key `{field}`, expected one of {}", list(expected))
        }
        Error::SerdeUnknownVariant {
            variant, expected, ..
        } => {
            format!("found `{variant}`, expected one of {}", list(expected))
        }
        Error::SerdeMissingField { field, .. } => format!("key `{field}` is missing"),
        Error::SerdeInvalidValue {
            unexpected,
            expected,
            ..
        }
        | Error::SerdeInvalidType {
            unexpected,
            expected,
            ..
        } => format!("found {unexpected}, expected {expected}"),
        Error::InvalidScalar { ty, .. } => {
            format!("found {}, expected {}", found(location, text), kind(ty))
        }
        Error::Unexpected { expected, .. } => {
            format!("found {}, expected {expected}", found(location, text))
        }
        other => DefaultMessageFormatter
            .format_message(other)
            .escape_debug()
            .to_string(),
    }
}

/// A scalar type of Rust in words.
fn kind(ty: &str) -> String {
    match ty {
        "u8" | "u16" | "u32" | "u64" => {
            let bits: u32 = ty.trim_start_matches('u').parse().unwrap_or(64);
            format!("a whole number up to {}", u64::MAX >> (64 - bits))
        }
        "bool" | "boolean" => "`true` or `false`".to_owned(),
        other => format!("a {other}"),
    }
}

/// The rest of the line from a location on, shortened.
fn found(location: Location, text: &str) -> String {
    let index = |n: u64| usize::try_from(n.saturating_sub(1)).unwrap_or(usize::MAX);
    let rest: String = text
        .lines()
        .nth(index(location.line))
        .map(|line| line.chars().skip(index(location.column)).collect())
        .unwrap_or_default();
    let rest = rest.trim();
    if rest.is_empty() {
        return "nothing".to_owned();
    }
    let shown: String = rest.chars().take(40).collect();
    let ellipsis = if rest.chars().count() > 40 { "..." } else { "" };
    format!("`{}{ellipsis}`", shown.escape_debug())
}

/// Where a file ends, for errors that have no place of their own.
fn end_of(text: &str) -> Location {
    Location {
        line: text.lines().count().max(1) as u64,
        column: 1,
    }
}
