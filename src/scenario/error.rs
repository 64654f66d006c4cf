//! What can be wrong with a scenario.

use super::located::Location;

/// One thing that is wrong with a scenario, as one line that an editor can jump to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {message}", line = location.line, column = location.column)]
pub struct ScenarioError {
    /// The file, as the user named it.
    pub file: String,
    /// Where in it.
    pub location: Location,
    /// What was found and what was expected.
    pub message: String,
}

/// Everything that is wrong with a scenario; at least one thing, one line each.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", lines(.0))]
pub struct ScenarioErrors(pub Vec<ScenarioError>);

fn lines(errors: &[ScenarioError]) -> String {
    let lines: Vec<_> = errors.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

/// Collects what is wrong with one file.
#[derive(Debug)]
pub(super) struct Complaints<'a> {
    file: &'a str,
    found: Vec<ScenarioError>,
}

impl<'a> Complaints<'a> {
    pub(super) const fn new(file: &'a str) -> Self {
        Self {
            file,
            found: Vec::new(),
        }
    }

    /// A value that was not written is complained of at the start of the file.
    pub(super) fn add(&mut self, location: Location, message: impl Into<String>) {
        let start = Location { line: 1, column: 1 };
        self.found.push(ScenarioError {
            file: self.file.to_owned(),
            location: location.max(start),
            message: message.into(),
        });
    }

    /// Complains unless the condition holds.
    pub(super) fn require(
        &mut self,
        holds: bool,
        location: Location,
        message: impl FnOnce() -> String,
    ) {
        if !holds {
            self.add(location, message());
        }
    }

    pub(super) fn into_errors(mut self) -> ScenarioErrors {
        self.found.sort_by_key(|error| error.location);
        ScenarioErrors(self.found)
    }

    pub(super) fn into_result<T>(self, value: T) -> Result<T, ScenarioErrors> {
        if self.found.is_empty() {
            Ok(value)
        } else {
            Err(self.into_errors())
        }
    }
}
