//! The whole library, as `unwindlab run` runs it: a command of its own, from nothing to its exit.

use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::time::Instant;

use unwindlab_guest_kernel::child::end_with_us;

use super::{Line, Promise, Row};
use crate::bench::series::Series;

/// Runs it once with these arguments (the kernel, the KVM host).
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

fn run(arguments: &[OsString]) -> Result<f64, String> {
    let mut command = Command::new("/proc/self/exe");
    command.arg("run").args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    end_with_us(&mut command);
    let begin = Instant::now();
    let output = command.output().map_err(|error| error.to_string())?;
    let took = begin.elapsed();
    // A run in which something broke is over sooner or later than one that is to be measured.
    match output.status.success() {
        true => Ok(took.as_secs_f64()),
        false => {
            let text = String::from_utf8_lossy(&output.stdout);
            let last = text.lines().last().unwrap_or_default();
            Err(format!("it ended with {}: {last}", output.status))
        }
    }
}
