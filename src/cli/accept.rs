//! `run --accept-snapshots`: what a scenario recorded becomes what later runs are compared with.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::campaign::run::RunEvent;
use crate::judge::outcome::OutcomeClass;
use crate::judge::{ScenarioResult, snapshot};
use crate::report::output_file::{OutputFile, WriteError};
use unwindlab_scenario::library::snapshot_file;

/// Where the snapshots of a run's scenarios are looked for, by the scenario's name.
#[derive(Debug, Default)]
pub(super) struct Accepting {
    places: BTreeMap<String, PathBuf>,
    /// Why some could not be written.
    pub(super) unwritten: Vec<WriteError>,
}

impl Accepting {
    /// Writes the snapshot of a result; what came of it, for the user.
    pub(super) fn take(&mut self, event: RunEvent<'_>) -> Option<String> {
        match event {
            RunEvent::Started { scenarios } => {
                let places = scenarios.iter().filter_map(|loaded| {
                    Some((loaded.scenario.name.to_string(), snapshot_file(loaded)?))
                });
                self.places = places.collect();
                None
            }
            RunEvent::Finished { result, .. } => self.accept(result),
            RunEvent::Ended(_) => None,
        }
    }

    fn accept(&mut self, result: &ScenarioResult) -> Option<String> {
        let name = &result.name;
        let actual = result.canonical.as_deref()?;
        if result.outcome.class() != OutcomeClass::Good {
            return Some(format!("{name}: no snapshot accepted: it did not pass"));
        }
        let Some(place) = self.places.get(name) else {
            let why = "it is a scenario of the program, not of a file";
            return Some(format!("{name}: no snapshot accepted: {why}"));
        };
        match write(place, actual) {
            Ok(()) => {
                let place = place.display();
                Some(format!(
                    "{name}: snapshot accepted, not compared: {place} is written"
                ))
            }
            Err(error) => {
                self.unwritten.push(error);
                None
            }
        }
    }
}

fn write(place: &Path, actual: &str) -> Result<(), WriteError> {
    if let Some(folder) = place.parent() {
        std::fs::create_dir_all(folder).map_err(WriteError::of(folder))?;
    }
    OutputFile::create(place)?.finish(snapshot::file(actual))
}
