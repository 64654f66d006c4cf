//! The result files of a run: JSON Lines, JUnit XML, HTML and KCIDB.

use std::path::PathBuf;

use super::error::CommandError;
use crate::campaign::run::{RunEvent, RunSummary};
use crate::judge::flaky::FlakyIs;
use crate::report::html::run::RunReport;
use crate::report::kcidb::{self, Submission};
use crate::report::names::Names;
use crate::report::output_file::{LineFile, OutputFile};
use crate::report::{json, junit};

/// Where results are to be written.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) json: Option<PathBuf>,
    pub(super) junit: Option<PathBuf>,
    pub(super) html: Option<PathBuf>,
    pub(super) kcidb: Option<PathBuf>,
    pub(super) submission: Submission,
    pub(super) flaky_is: FlakyIs,
}

/// The result files that the user wants, known to be writable.
#[derive(Debug)]
pub(super) struct Outputs {
    json: Option<LineFile>,
    junit: Option<OutputFile>,
    html: Option<(OutputFile, RunReport)>,
    kcidb: Option<OutputFile>,
    submission: Submission,
    flaky_is: FlakyIs,
    /// Why lines could not be written.
    unwritten: Vec<CommandError>,
}

impl Outputs {
    /// Checks that they can be written.
    ///
    /// # Errors
    /// [`CommandError`], also where two of them are one file.
    pub fn open(wanted: Wanted) -> Result<Self, CommandError> {
        let file = |path: Option<PathBuf>| path.as_deref().map(OutputFile::create).transpose();
        let json = wanted.json.as_deref().map(LineFile::create).transpose()?;
        let (junit, html) = (file(wanted.junit)?, file(wanted.html)?);
        let kcidb = file(wanted.kcidb)?;
        let named = [("--junit", &junit), ("--html", &html), ("--kcidb", &kcidb)];
        let mut before: Vec<(&str, &OutputFile)> = Vec::new();
        for (option, file) in named {
            let Some(file) = file else { continue };
            let is_json = json.as_ref().is_some_and(|json| json.is_same(file));
            let same = before.iter().find(|(_, other)| file.is_same(other));
            let same = same.map(|it| it.0).or(is_json.then_some("--json"));
            if let Some(other) = same {
                let message = format!("{other} and {option} name the same file");
                return Err(CommandError::Usage(message));
            }
            before.push((option, file));
        }
        Ok(Self {
            json,
            junit,
            html: html.map(|file| (file, RunReport::default())),
            kcidb,
            submission: wanted.submission,
            flaky_is: wanted.flaky_is,
            unwritten: Vec::new(),
        })
    }

    /// Writes the line of a result as soon as it is there: whoever is killed later keeps it.
    pub fn take(&mut self, event: RunEvent<'_>) {
        let RunEvent::Finished {
            result,
            kernel,
            setting,
            ..
        } = event
        else {
            return;
        };
        if let Some((_, report)) = &mut self.html {
            report.add(result, Names::of(kernel.symbols(), result.trace.as_ref()));
        }
        let Some(json) = self.json.as_mut() else {
            return;
        };
        let line = json::line(setting, result).map_err(CommandError::from);
        let written = line.and_then(|line| Ok(json.write(&line)?));
        if let Err(error) = written {
            self.json = None;
            self.unwritten.push(error);
        }
    }

    /// Completes them; why some could not be written.
    pub fn write(self, summary: &RunSummary) -> Vec<CommandError> {
        let RunSummary {
            results,
            setting,
            elapsed,
            ..
        } = summary;
        let json = { self.json }.map(|file| -> Result<(), CommandError> { Ok(file.finish()?) });
        let junit = self.junit.map(|file| -> Result<(), CommandError> {
            Ok(file.finish(&junit::xml(setting, results, self.flaky_is, *elapsed)?)?)
        });
        let html = self.html.map(|(file, report)| -> Result<(), CommandError> {
            Ok(file.finish(report.html(setting, results, *elapsed)?)?)
        });
        let kcidb = self.kcidb.map(|file| -> Result<(), CommandError> {
            Ok(file.finish(kcidb::report(&self.submission, setting, results)?)?)
        });
        let written = [json, junit, html, kcidb].into_iter().flatten();
        let mut unwritten = self.unwritten;
        unwritten.extend(written.filter_map(Result::err));
        unwritten
    }
}
