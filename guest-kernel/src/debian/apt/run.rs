//! Runs apt's programs, shows their progress, and turns failures into errors that say what to do.

use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use super::AptError;
use crate::cache::CacheError;
use crate::child;
use crate::progress::Progress;

/// If fewer bytes than this are left on the device, apt failed for lack of space.
const LITTLE_SPACE: u64 = 4 << 20;

/// Runs a program of apt that writes below `folder`, and returns its output. With `progress`, its
/// status lines (`dlstatus:NUMBER:PERCENT:TEXT`, twice a second) are shown instead, and apt is
/// stopped when the device is full, because it would wait for ever.
pub(super) fn run(
    command: &mut Command,
    folder: &Path,
    progress: Option<&dyn Progress>,
) -> Result<String, AptError> {
    let name = command_name(command);
    let failed = |source: io::Error| match source.kind() {
        ErrorKind::NotFound => AptError::Missing,
        _ => AptError::Run {
            command: name.clone(),
            source,
        },
    };
    command
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    child::end_with_us(command);
    let mut child = command.spawn().map_err(failed)?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (output, errors) = thread::scope(|scope| {
        let errors = scope.spawn(|| read_all(stderr));
        let output = match (progress, stdout) {
            (Some(progress), Some(stdout)) => {
                show(stdout, folder, progress).map(|()| String::new())
            }
            (_, stdout) => read_all(stdout),
        };
        if output.is_err() {
            // It may wait for ever. If this fails, it has ended already.
            let _ = child.kill();
        }
        (output, errors.join())
    });
    let status = child.wait().map_err(failed)?;
    let errors = errors
        .unwrap_or_else(|_| Err(ErrorKind::Other.into()))
        .map_err(failed)?;
    if status.success() {
        return output.map_err(failed);
    }
    if space_left(folder) < LITTLE_SPACE || errors.contains("No space left on device") {
        return Err(CacheError::NoSpace(folder.to_path_buf()).into());
    }
    Err(explain(name, &errors, &status.to_string()))
}

/// Bytes left on the device of a folder; more than enough if that is unknown.
fn space_left(folder: &Path) -> u64 {
    rustix::fs::statvfs(folder).map_or(u64::MAX, |device| {
        device.f_bavail.saturating_mul(device.f_frsize)
    })
}

fn read_all(stream: Option<impl Read>) -> io::Result<String> {
    let mut bytes = Vec::new();
    if let Some(mut stream) = stream {
        stream.read_to_end(&mut bytes)?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

pub(super) fn show(stdout: impl Read, folder: &Path, progress: &dyn Progress) -> io::Result<()> {
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line?;
        let percent = str::from_utf8(&line)
            .ok()
            .and_then(|line| line.strip_prefix("dlstatus:"))
            .and_then(|status| status.split(':').nth(1))
            .and_then(|percent| percent.split('.').next())
            .and_then(|percent| percent.parse::<u64>().ok());
        if let Some(percent) = percent {
            progress.bytes(percent.min(100), 100);
            if progress.stopped() {
                return Err(ErrorKind::Interrupted.into());
            }
            if space_left(folder) == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
        }
    }
    Ok(())
}

/// The program, and its first argument that is not an option.
fn command_name(command: &Command) -> String {
    let words = [
        "update",
        "download",
        "install",
        "indextargets",
        "pkgnames",
        "madison",
        "download-file",
    ];
    let program = command.get_program().to_string_lossy();
    let verb = command
        .get_args()
        .find_map(|arg| words.iter().find(|word| arg == **word));
    verb.map_or_else(|| program.to_string(), |verb| format!("{program} {verb}"))
}

/// Classifies apt's failure by what the user can do about it.
pub(super) fn explain(command: String, errors: &str, status: &str) -> AptError {
    // apt prints warnings and errors as `W: text` and `E: text`.
    let text = |line: &str| line.get(2..).unwrap_or_default().trim().to_owned();
    let last = |prefix: &str| errors.lines().rev().find(|line| line.starts_with(prefix));
    let first_with = |needles: &[&str]| {
        errors
            .lines()
            .find(|line| needles.iter().any(|needle| line.contains(needle)))
            .map(text)
    };
    if let Some(line) = first_with(SIGNATURE) {
        return AptError::Signature(line);
    }
    if let Some(line) = first_with(HASH) {
        return AptError::Hash(line);
    }
    if let Some(line) = first_with(GONE) {
        return AptError::Gone(line);
    }
    if let Some(line) = first_with(NETWORK) {
        return AptError::Network(line);
    }
    // apt also says this about what it failed to fetch, so look for other reasons first.
    if let Some(line) = first_with(&["is not signed"]) {
        return AptError::Signature(line);
    }
    AptError::Failed {
        command,
        message: last("E:")
            .or_else(|| last("W:"))
            .map(text)
            .or_else(|| errors.lines().last().map(str::to_owned))
            .unwrap_or_else(|| status.to_owned()),
    }
}

/// Messages of apt about signatures that it does not trust.
const SIGNATURE: &[&str] = &["GPG error", "NO_PUBKEY", "BADSIG", "EXPKEYSIG"];
/// Messages about files that are not those of the lists.
const HASH: &[&str] = &[
    "Hash Sum mismatch",
    "File has unexpected size",
    "Hashes of expected file",
];
/// Messages about a missing package or file.
const GONE: &[&str] = &[" 404  ", "was not found", "Unable to locate package"];
/// Messages about failed downloads.
const NETWORK: &[&str] = &[
    "Could not resolve",
    "Temporary failure",
    "Could not connect",
    "Cannot initiate the connection",
    "Failed to fetch",
    "Connection failed",
];
