//! Runs a Perl script of a source tree. It is a stranger's program: it reads the tree and the system's programs,
//! writes nothing, and has no network.

use std::env;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;

use super::make::KEPT;
use crate::child;
use crate::confine::{self, Allowed, ConfineError};

/// Most that is read of what a script prints, in bytes.
const MOST: u64 = 1 << 20;

/// What a script said.
#[derive(Debug)]
pub(super) struct Said {
    pub status: ExitStatus,
    /// What it printed to both outputs.
    pub text: String,
}

/// Why a script did not run to its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum ScriptError {
    /// It cannot be confined.
    #[error(transparent)]
    Confine(#[from] ConfineError),
    /// It cannot be started, or does not end.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Runs `scripts/NAME` of the tree in the folder `root`, with `input` on its standard input.
pub(super) fn run(
    root: &Path,
    name: &str,
    arguments: &[&str],
    input: &[u8],
) -> Result<Said, ScriptError> {
    let (reader, writer) = io::pipe()?;
    let mut command = Command::new("perl");
    command
        .arg(format!("scripts/{name}"))
        .args(arguments)
        .current_dir(root)
        .env_clear()
        .envs(
            KEPT.iter()
                .filter_map(|name| Some((name, env::var_os(name)?))),
        )
        // Both look for options of the user's there.
        .env("HOME", root)
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::piped())
        .stdout(writer.try_clone()?)
        .stderr(writer);
    let allowed = Allowed::system().and_read(root);
    confine::confine(&mut command, &allowed, "a script of the tree")?;
    child::end_with_us(&mut command);
    let mut child = command.spawn()?;
    // It holds the other end of the pipe.
    drop(command);
    let stdin = child.stdin.take();
    let mut text = Vec::new();
    thread::scope(|scope| {
        // If it stops reading (EPIPE), its exit code says whether that is an error.
        scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(input)));
        let read = reader.take(MOST + 1).read_to_end(&mut text);
        if read.is_err() || text.len() as u64 > MOST {
            child.kill()?;
        }
        read
    })?;
    let status = child.wait()?;
    if text.len() as u64 > MOST {
        return Err(io::Error::other(format!("it prints more than {MOST} bytes")).into());
    }
    Ok(Said {
        status,
        text: String::from_utf8_lossy(&text).into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn tree(script: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("scripts")).unwrap();
        fs::write(folder.path().join("scripts/it.pl"), script).unwrap();
        folder
    }

    #[test]
    fn a_script_reads_what_it_is_given_and_says_what_it_thinks() {
        let folder = tree("$| = 1; print \"$ARGV[0] \", <STDIN>; print STDERR \"no\"; exit 3;");
        let said = run(folder.path(), "it.pl", &["--a"], b"patch\n").unwrap();
        assert_eq!(said.text, "--a patch\nno");
        assert_eq!(said.status.code(), Some(3));
    }

    #[test]
    fn a_script_writes_nothing() {
        let script = "open(my $f, '>', 'new') and print 'written'; print 'end';";
        let folder = tree(script);
        let said = run(folder.path(), "it.pl", &[], b"").unwrap();
        assert_eq!(said.text, "end");
        assert!(!folder.path().join("new").exists());
    }

    #[test]
    fn a_script_that_prints_without_end_is_ended() {
        let folder = tree("print 'x' x 4096 while 1;");
        let error = run(folder.path(), "it.pl", &[], b"").unwrap_err();
        assert!(error.to_string().contains("prints more than"), "{error}");
    }
}
