//! The whole library: `unwindlab run` as a command of its own, from its start to its exit.

use std::ffi::OsString;
use std::io;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

use unwindlab_guest_kernel::child::end_with_us;

use super::{Line, Promise, Row};
use crate::bench::series::Series;

/// Runs it once, as this program with these arguments.
#[must_use]
pub fn library(arguments: &[OsString]) -> Line {
    let mut seconds = Series::default();
    seconds.take(|| run(arguments));
    Line {
        row: Row::Library,
        what: "`unwindlab run` of the whole library, outer machine included (once)",
        unit: "s",
        ours: seconds,
        peer: None,
        promises: vec![Promise::AtMost(60.0)],
        notes: Vec::new(),
    }
}

/// Why the run is no measurement.
#[derive(Debug, thiserror::Error)]
enum LibraryError {
    /// The command cannot be started.
    #[error(transparent)]
    Start(#[from] io::Error),
    /// It did not succeed: it takes another time than one that does.
    #[error("it ended with {status}: {last_line}")]
    Failed {
        status: ExitStatus,
        last_line: String,
    },
}

fn run(arguments: &[OsString]) -> Result<f64, LibraryError> {
    let mut command = Command::new("/proc/self/exe");
    command.args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    end_with_us(&mut command);
    let begin = Instant::now();
    let output = command.output()?;
    let took = begin.elapsed();
    match output.status.success() {
        true => Ok(took.as_secs_f64()),
        false => {
            let text = String::from_utf8_lossy(&output.stdout);
            Err(LibraryError::Failed {
                status: output.status,
                last_line: text.lines().last().unwrap_or_default().to_owned(),
            })
        }
    }
}
