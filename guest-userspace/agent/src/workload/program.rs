//! `program`: a C program that looks at the kernel by itself, as a process of its own. Its exit code and its last
//! line say what it found.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use unwindlab_abi::Observation;
use unwindlab_abi::observation::SAID_LIMIT;

use super::{WorkloadError, exec};
use crate::chain::Chain;

/// What it prints.
const OUTPUT: &str = "/c-program.out";
/// Time between two looks at it.
const LOOK: Duration = Duration::from_millis(20);

/// Runs it to its end. As long as it uses CPU time, the thread counts, so that the host sees something move.
pub(super) fn run(chain: &Chain, thread: u32) -> Result<Observation, WorkloadError> {
    let failed = |source| WorkloadError::System {
        thread,
        what: "cannot run the program",
        source,
    };
    let mut child = start().map_err(failed)?;
    let status = wait(&mut child, chain).map_err(failed)?;
    let said = last_line(OUTPUT).map_err(failed)?;
    Ok(Observation::Program {
        code: status.code(),
        said,
    })
}

fn start() -> io::Result<Child> {
    let output = File::create(OUTPUT)?;
    Command::new(OsStr::from_bytes(exec::COMPILED.to_bytes()))
        .env_clear()
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()
}

fn wait(child: &mut Child, chain: &Chain) -> io::Result<ExitStatus> {
    // Its state, faults and CPU times are in there (proc_pid_stat(5)).
    let path = format!("/proc/{}/stat", child.id());
    let mut before = String::new();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let now = fs::read_to_string(&path).unwrap_or_default();
        if now != before {
            chain.count();
            before = now;
        }
        std::thread::sleep(LOOK);
    }
}

/// The last line of its output that is not empty.
fn last_line(path: &str) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(SAID_LIMIT as u64)))?;
    let mut bytes = Vec::new();
    file.take(SAID_LIMIT as u64).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().rev().find(|line| !line.trim().is_empty());
    Ok(line.unwrap_or_default().trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_what_it_said() {
        let path = std::env::temp_dir().join(format!("said-{}", std::process::id()));
        let path = path.to_str().unwrap();
        let long = "x".repeat(2 * SAID_LIMIT);
        for (text, said) in [
            ("", String::new()),
            ("one\ntwo\n\n", "two".to_owned()),
            ("one\r\n", "one".to_owned()),
            (long.as_str(), "x".repeat(SAID_LIMIT)),
        ] {
            fs::write(path, text).unwrap();
            assert_eq!(last_line(path).unwrap(), said);
        }
        fs::remove_file(path).unwrap();
    }
}
