//! The errors of a scenario.

use std::fmt;

use super::located::Location;

/// One error in a scenario, as a line that an editor can jump to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {message}", line = location.line, column = location.column)]
pub struct ScenarioError {
    /// The file, as the user named it.
    pub file: String,
    /// Where in the file.
    pub location: Location,
    /// What was found and what was expected.
    pub message: String,
}

/// All errors in a scenario, at least one, a line each.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", lines(.0))]
pub struct ScenarioErrors(pub Vec<ScenarioError>);

fn lines(errors: &[ScenarioError]) -> String {
    let lines: Vec<_> = errors.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

/// Errors of one file that are told; the rest are counted.
const MAX_ERRORS: usize = 100;

/// Collects the errors of one file.
#[derive(Debug)]
pub(super) struct Complaints<'a> {
    file: &'a str,
    found: Vec<ScenarioError>,
    more: usize,
}

impl<'a> Complaints<'a> {
    pub(super) const fn new(file: &'a str) -> Self {
        Self {
            file,
            found: Vec::new(),
            more: 0,
        }
    }

    /// Adds an error. That of a value that the file does not contain is at the start of the file.
    pub(super) fn add(&mut self, location: Location, message: impl Into<String>) {
        self.tell(location, || message.into());
    }

    fn tell(&mut self, location: Location, message: impl FnOnce() -> String) {
        if self.found.len() >= MAX_ERRORS {
            self.more += 1;
            return;
        }
        let start = Location { line: 1, column: 1 };
        self.found.push(ScenarioError {
            file: self.file.to_owned(),
            location: location.max(start),
            message: message(),
        });
    }

    /// Removes the errors that say this; whether there were any.
    pub(super) fn take(&mut self, message: &str) -> bool {
        let before = self.found.len();
        self.found.retain(|error| error.message != message);
        self.found.len() < before
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.found.is_empty() && self.more == 0
    }

    /// Adds an error unless the condition holds.
    pub(super) fn require(
        &mut self,
        holds: bool,
        location: Location,
        message: impl FnOnce() -> String,
    ) {
        if !holds {
            self.tell(location, message);
        }
    }

    /// Adds the error of a result, or returns its value.
    pub(super) fn accept<T, E: fmt::Display>(
        &mut self,
        location: Location,
        result: Result<T, E>,
    ) -> Option<T> {
        result
            .map_err(|error| self.add(location, error.to_string()))
            .ok()
    }

    pub(super) fn into_errors(mut self) -> ScenarioErrors {
        self.found.sort_by_key(|error| error.location);
        if let Some(last) = self.found.last().filter(|_| self.more > 0) {
            let message = format!("{} more errors are not shown", self.more);
            self.found.push(ScenarioError {
                message,
                ..last.clone()
            });
        }
        ScenarioErrors(self.found)
    }

    pub(super) fn into_result<T>(self, value: T) -> Result<T, ScenarioErrors> {
        if self.is_empty() {
            Ok(value)
        } else {
            Err(self.into_errors())
        }
    }
}
