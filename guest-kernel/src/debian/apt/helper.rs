//! apt's own downloader, for a file that no list names.

use std::path::Path;
use std::process::Command;

use super::AptError;
use super::run::run;
use crate::child::limit_files;
use crate::progress::Progress;

/// Where Debian's package apt has it.
const PROGRAM: &str = "/usr/lib/apt/apt-helper";
/// It runs as this user, shows its progress as the other programs of apt do, and gives up after a while (apt.conf(5)).
const OPTIONS: [&str; 5] = [
    "APT::Sandbox::User=root",
    "APT::Status-Fd=1",
    "Acquire::Retries=1",
    "Acquire::http::Timeout=20",
    "Acquire::https::Timeout=20",
];

/// Downloads a file of at most `most` bytes to `into`, and compares it with its SHA-256 where that is known.
///
/// # Errors
/// [`AptError::Gone`] where the server says that there is no such file.
pub(crate) fn fetch_file(
    url: &str,
    sha256: Option<&str>,
    most: u64,
    into: &Path,
    progress: &dyn Progress,
) -> Result<(), AptError> {
    let mut command = Command::new(PROGRAM);
    for option in OPTIONS {
        command.args(["-o", option]);
    }
    command.arg("download-file").arg(url).arg(into);
    command.args(sha256.map(|it| format!("SHA256:{it}")));
    limit_files(&mut command, most);
    let folder = into.parent().unwrap_or(into);
    run(&mut command, folder, Some(progress)).map(drop)
}
