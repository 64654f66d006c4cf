//! Parses YAML into a [`Scenario`].

use serde_saphyr::{DefaultMessageFormatter, Error, MessageFormatter};

use super::error::{Complaints, ScenarioErrors};
use super::located::Location;
use super::model::Scenario;
use unwindlab_engine::text::printable;

/// Longest accepted scenario, in bytes. The longest in the library has 2 KiB.
const MAX_LEN: usize = 1 << 20;

/// Parses a scenario. `file` is its name in messages.
///
/// # Errors
/// With file, line and column, if the text is not YAML, has unknown or missing keys, or values of
/// another type. [`super::check`] finds other errors.
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
        let (location, message) = describe(&error, location, text);
        complaints.add(location, message);
        complaints.into_errors()
    })
}

/// The location, and in one line what was found and what was expected.
fn describe(error: &Error, location: Location, text: &str) -> (Location, String) {
    let message = match error.without_snippet() {
        Error::SerdeUnknownField {
            field, expected, ..
        } => format!("found key `{field}`, expected one of {}", list(expected)),
        Error::SerdeUnknownVariant {
            variant, expected, ..
        } => format!("found `{variant}`, expected one of {}", list(expected)),
        Error::SerdeMissingField { field, .. } => format!("key `{field}` is missing"),
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("found key `{key}` twice"),
        Error::MultipleDocuments { .. } => {
            "found a second document, expected one scenario in a file".to_owned()
        }
        Error::SerdeInvalidValue {
            unexpected,
            expected,
            ..
        }
        | Error::SerdeInvalidType {
            unexpected,
            expected,
            ..
        } => {
            let message = format!("found {unexpected}, expected {expected}");
            return (narrowed(location, unexpected, text), printable(&message));
        }
        Error::InvalidScalar { ty, .. } => {
            format!("found {}, expected {}", found(location, text), kind(ty))
        }
        Error::InvalidBooleanStrict { .. } => {
            format!(
                "found {}, expected `true` or `false`",
                found(location, text)
            )
        }
        Error::Unexpected { expected, .. } => {
            format!(
                "found {}, expected {}",
                found(location, text),
                kind(expected)
            )
        }
        other => DefaultMessageFormatter.format_message(other).into_owned(),
    };
    (location, printable(&message))
}

fn list(names: &[&'static str]) -> String {
    let quoted: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}

/// Translates the parser's word for what it expected into the user's.
fn kind(expected: &str) -> String {
    match expected {
        "u8" | "u16" | "u32" | "u64" => {
            let bits: u32 = expected.trim_start_matches('u').parse().unwrap_or(64);
            format!("a whole number up to {}", u64::MAX >> (64 - bits))
        }
        "mapping start" => "keys with values (`key: value`)".to_owned(),
        "sequence start" => "a list".to_owned(),
        "string scalar" => "a single value".to_owned(),
        other => format!("a {other}"),
    }
}

/// The text at a location, shortened.
fn found(location: Location, text: &str) -> String {
    let rest = from(location, text).lines().next().unwrap_or_default();
    // A plain value ends where the list or mapping around it goes on.
    let value = match rest.chars().next() {
        Some('[' | '{' | '"' | '\'') => rest,
        _ => rest.split([',', '}', ']', '#']).next().unwrap_or_default(),
    };
    let value = value.trim();
    if value.is_empty() {
        return "nothing".to_owned();
    }
    let shown: String = value.chars().take(MAX_FOUND).collect();
    let ellipsis = if shown.len() < value.len() { "..." } else { "" };
    format!("`{shown}{ellipsis}`")
}

/// Most characters of a file that are shown.
const MAX_FOUND: usize = 40;

/// Moves the location of a key to the unexpected value in it.
fn narrowed(location: Location, unexpected: &str, text: &str) -> Location {
    let quoted = unexpected.split_once('"').map(|(_, rest)| rest);
    let Some(value) = quoted.and_then(|rest| rest.strip_suffix('"')) else {
        return location;
    };
    let rest = from(location, text);
    let Some(before) = rest.find(value).and_then(|at| rest.get(..at)) else {
        return location;
    };
    match before.rsplit_once('\n') {
        None => Location {
            column: location.column + before.chars().count() as u64,
            ..location
        },
        Some((lines, last)) => Location {
            line: location.line + 1 + lines.matches('\n').count() as u64,
            column: 1 + last.chars().count() as u64,
        },
    }
}

/// The text from a location on.
fn from(location: Location, text: &str) -> &str {
    let index = |n: u64| usize::try_from(n.saturating_sub(1)).unwrap_or(usize::MAX);
    let mut lines = text.split_inclusive('\n');
    let before: usize = lines
        .by_ref()
        .take(index(location.line))
        .map(str::len)
        .sum();
    let line = lines.next().unwrap_or_default();
    let column = line.char_indices().nth(index(location.column));
    let column = column.map_or(line.len(), |(at, _)| at);
    text.get(before + column..).unwrap_or_default()
}

/// The end of the file, the location of errors that have none.
fn end_of(text: &str) -> Location {
    Location {
        line: text.lines().count().max(1) as u64,
        column: 1,
    }
}
