//! A survey of what the workload's tasks pass in the kernel, by ftrace (the files of tracefs,
//! Documentation/trace/ftrace.rst).
//!
//! Only what lies between the gate and the end of a thread counts: a thread is looked at from its
//! first system call or return behind the gate on, and until it calls `exit`. The tasks that it
//! makes are looked at from their first instruction on.

mod events;
mod places;

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader};
use std::path::Path;

use unwindlab_abi::{SurveyPlan, SurveyedPlace};

use events::Events;
use places::Places;

/// KiB of each CPU's trace buffer, which keeps the oldest entries: some thousand, which are read as
/// text.
const BUFFER_KIB: &str = "768";

/// Why there is no survey.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum SurveyError {
    /// The kernel was built without the tracer.
    #[error("this kernel has no function tracer (CONFIG_FUNCTION_TRACER): {0}")]
    NoTracer(io::Error),
    /// A file of tracefs cannot be used.
    #[error("cannot use {file} of tracefs: {source}")]
    File {
        file: &'static str,
        source: io::Error,
    },
}

impl SurveyError {
    /// Whether the kernel lacks something, as opposed to something going wrong.
    #[must_use]
    pub const fn is_unsupported(&self) -> bool {
        matches!(self, Self::NoTracer(_))
    }
}

/// A survey under way.
#[derive(Debug)]
pub struct Survey<'t> {
    tracefs: &'t Path,
    plan: SurveyPlan,
    tids: Vec<u32>,
}

impl<'t> Survey<'t> {
    /// Begins to trace these threads and what they make.
    ///
    /// # Errors
    /// [`SurveyError`].
    pub fn begin(plan: SurveyPlan, tids: &[u32], tracefs: &'t Path) -> Result<Self, SurveyError> {
        let survey = Self {
            tracefs,
            plan,
            tids: tids.to_vec(),
        };
        let tids: Vec<String> = tids.iter().map(ToString::to_string).collect();
        let tids = tids.join(" ");
        survey.set("tracing_on", "0")?;
        survey.set("options/overwrite", "0")?;
        survey.set("buffer_size_kb", BUFFER_KIB)?;
        survey.set("options/event-fork", "1")?;
        survey.set("set_event_pid", &tids)?;
        match plan {
            SurveyPlan::Functions => {
                survey.set("events/raw_syscalls/enable", "1")?;
                survey
                    .set("options/function-fork", "1")
                    .and_then(|()| survey.set("set_ftrace_pid", &tids))
                    .and_then(|()| survey.set("current_tracer", "function"))
                    .map_err(|error| match error {
                        SurveyError::File { source, .. } => SurveyError::NoTracer(source),
                        other => other,
                    })?;
            }
            // Some events cannot be enabled on some machines; the kernel enables the others.
            SurveyPlan::Tracepoints => drop(survey.set("events/enable", "1")),
        }
        survey.set("tracing_on", "1")?;
        Ok(survey)
    }

    /// Stops tracing. To be called before anything is read.
    ///
    /// # Errors
    /// [`SurveyError`].
    pub fn stop(&self) -> Result<(), SurveyError> {
        self.set("tracing_on", "0")
    }

    /// What was passed, in the order of the first passing.
    ///
    /// # Errors
    /// [`SurveyError`].
    pub fn places(&self) -> Result<Vec<SurveyedPlace>, SurveyError> {
        let failed = |source| SurveyError::File {
            file: "trace",
            source,
        };
        let events = match self.plan {
            SurveyPlan::Functions => None,
            SurveyPlan::Tracepoints => Some(Events::read(self.tracefs).map_err(failed)?),
        };
        let mut places = Places::new(&self.tids, events);
        let trace = File::open(self.tracefs.join("trace")).map_err(failed)?;
        for line in BufReader::new(trace).split(b'\n') {
            places.line(&String::from_utf8_lossy(&line.map_err(failed)?));
        }
        Ok(places.found())
    }

    fn set(&self, file: &'static str, value: &str) -> Result<(), SurveyError> {
        let set = fs::write(self.tracefs.join(file), value);
        set.map_err(|source| SurveyError::File { file, source })
    }
}
