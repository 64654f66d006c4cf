//! The distribution's perf as a child process. It records while the workload runs, and then shows
//! the recording.
//!
//! `perf record` starts with its events disabled. A control pipe tells it to enable them, and it
//! acknowledges that (perf-record(1), `--control` and `--delay`), so no sleep is needed.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use unwindlab_abi::PERF_TOOL_DIR;
use unwindlab_abi::plan::PerfToolPlan;

const CONTROL: &str = "/perf/control";
const ACKNOWLEDGE: &str = "/perf/acknowledge";
const DATA: &str = "/perf/data";
const ERRORS: &str = "/perf/errors";
const SCRIPT: &str = "/perf/script";

/// Longest time until it records, and until it ends after the command to stop. Under two emulations
/// its start takes seconds.
const PATIENCE: Duration = Duration::from_secs(40);
/// Time between two looks at it.
const LOOK: Duration = Duration::from_millis(5);
/// How many of the last bytes of its error output are reported.
const ERRORS_KEPT: usize = 2000;
/// Longest text that is sent to the host.
const SCRIPT_LIMIT: u64 = 4 << 20;

/// Largest recording that is sent to the host.
const DATA_LIMIT: u64 = 8 << 20;

/// Why there is no recording, or nothing to show.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum PerfToolError {
    /// It cannot be started, or its files cannot be used.
    #[error("perf: cannot {what}: {source}")]
    System {
        what: &'static str,
        source: io::Error,
    },
    /// It ended with an error.
    #[error("`perf {command}` ended with {status}; it said: {errors}")]
    Ended {
        command: &'static str,
        status: ExitStatus,
        errors: String,
    },
    /// It does not answer.
    #[error("`perf record` did not {what} in {} s; it said: {errors}", PATIENCE.as_secs())]
    Silent { what: &'static str, errors: String },
    /// It printed too much text.
    #[error("`perf script` printed more than {SCRIPT_LIMIT} bytes")]
    TooLong,
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> PerfToolError {
    move |source| PerfToolError::System { what, source }
}

/// A running `perf record`.
#[derive(Debug)]
pub struct PerfTool {
    child: Child,
    control: File,
}

impl PerfTool {
    /// Starts it. When this returns, it records.
    ///
    /// # Errors
    /// [`PerfToolError`].
    pub fn record(plan: &PerfToolPlan) -> Result<Self, PerfToolError> {
        let control = pipe(CONTROL).map_err(failed("make its control pipe"))?;
        let mut acknowledge = pipe(ACKNOWLEDGE).map_err(failed("make its other pipe"))?;
        let child = command()
            .arg("record")
            .args(["--event", &plan.event, "--call-graph", "fp,defer"])
            .args(["--count", &plan.period.to_string()])
            // By default it takes all that `kernel.perf_event_mlock_kb` allows, which is unlimited
            // here.
            .args(["--mmap-pages", "256"])
            .args(["--all-cpus", "--delay=-1", "--output", DATA])
            .arg(format!("--control=fifo:{CONTROL},{ACKNOWLEDGE}"))
            // Nothing is needed of what it would look up about programs and BPF.
            .args(["--no-buildid", "--no-buildid-cache", "--no-bpf-event"])
            .stderr(File::create(ERRORS).map_err(failed("make its standard error"))?)
            .spawn()
            .map_err(failed("start it"))?;
        let mut tool = Self { child, control };
        tool.tell("enable\n")?;
        let mut answer = Vec::new();
        tool.wait(|| {
            let mut bytes = [0; 16];
            match acknowledge.read(&mut bytes) {
                Ok(length) => answer.extend_from_slice(bytes.get(..length).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            Ok(answer.starts_with(b"ack\n"))
        })?;
        Ok(tool)
    }

    /// Ends the recording.
    ///
    /// # Errors
    /// [`PerfToolError`].
    pub fn stop(&mut self) -> Result<(), PerfToolError> {
        self.tell("stop\n")?;
        let start = Instant::now();
        loop {
            match self.child.try_wait().map_err(failed("wait for it"))? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(ended("record", status)),
                None if start.elapsed() > PATIENCE => {
                    return Err(PerfToolError::Silent {
                        what: "end",
                        errors: errors(),
                    });
                }
                None => std::thread::sleep(LOOK),
            }
        }
    }

    /// The output of `perf script`: for each sample a line (process and thread, CPU, time, event),
    /// a line for each address of its chain, and an empty line.
    ///
    /// # Errors
    /// [`PerfToolError`].
    pub fn script(&self) -> Result<String, PerfToolError> {
        let output = File::create(SCRIPT).map_err(failed("make its output"))?;
        let status = command()
            .args(["script", "--input", DATA, "--ns"])
            .args(["--fields", "pid,tid,cpu,time,event,ip"])
            // It would read the symbols of the kernel, which no field shows, for a second and more.
            .args(["--kallsyms", "/dev/null"])
            .stdout(output)
            .stderr(File::create(ERRORS).map_err(failed("make its standard error"))?)
            .status()
            .map_err(failed("start it"))?;
        if !status.success() {
            return Err(ended("script", status));
        }
        let mut bytes = Vec::new();
        File::open(SCRIPT)
            .and_then(|file| file.take(SCRIPT_LIMIT + 1).read_to_end(&mut bytes))
            .map_err(failed("read its output"))?;
        if bytes.len() as u64 > SCRIPT_LIMIT {
            return Err(PerfToolError::TooLong);
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The recording itself; empty if it is too large to be sent.
    ///
    /// # Errors
    /// [`PerfToolError`].
    pub fn data(&self) -> Result<Vec<u8>, PerfToolError> {
        let mut bytes = Vec::new();
        File::open(DATA)
            .and_then(|file| file.take(DATA_LIMIT + 1).read_to_end(&mut bytes))
            .map_err(failed("read its recording"))?;
        if bytes.len() as u64 > DATA_LIMIT {
            bytes.clear();
        }
        Ok(bytes)
    }

    fn tell(&mut self, word: &str) -> Result<(), PerfToolError> {
        self.control
            .write_all(word.as_bytes())
            .map_err(failed("write to its control pipe"))
    }

    /// Waits for the acknowledgement or the end of the process.
    fn wait(&mut self, mut done: impl FnMut() -> io::Result<bool>) -> Result<(), PerfToolError> {
        let start = Instant::now();
        loop {
            if done().map_err(failed("read its acknowledgement"))? {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait().map_err(failed("wait for it"))? {
                return Err(ended("record", status));
            }
            if start.elapsed() > PATIENCE {
                return Err(PerfToolError::Silent {
                    what: "turn its events on",
                    errors: errors(),
                });
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// Runs perf by its own loader, with its own libraries.
fn command() -> Command {
    let library_path = format!("{PERF_TOOL_DIR}/lib");
    let mut command = Command::new(format!("{library_path}/ld-linux-x86-64.so.2"));
    command
        .args(["--inhibit-cache", "--library-path", &library_path])
        .arg(format!("{PERF_TOOL_DIR}/perf"))
        .env_clear()
        .envs([
            ("HOME", PERF_TOOL_DIR),
            ("LC_ALL", "C"),
            ("TMPDIR", PERF_TOOL_DIR),
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

/// A named pipe, open at both ends, so that neither end waits for the other.
fn pipe(path: &str) -> io::Result<File> {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
}

fn ended(command: &'static str, status: ExitStatus) -> PerfToolError {
    PerfToolError::Ended {
        command,
        status,
        errors: errors(),
    }
}

/// The end of its error output, in one line.
fn errors() -> String {
    let bytes = std::fs::read(ERRORS).unwrap_or_default();
    let from = bytes.len().saturating_sub(ERRORS_KEPT);
    let text = String::from_utf8_lossy(bytes.get(from..).unwrap_or_default()).into_owned();
    let words: Vec<&str> = text.split_whitespace().collect();
    match words.is_empty() {
        true => "nothing".to_owned(),
        false => words.join(" "),
    }
}
