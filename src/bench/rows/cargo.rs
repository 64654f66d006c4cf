//! What whoever has the source tree waits for: a clean build, the first run, the test command. Each into a target folder,
//! and with a cache, that are empty at first and gone afterwards.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::Command;

use super::{Better, Commands, Line, Promise, Row};
use crate::bench::command::{self, CommandError, Ended};
use crate::bench::series::Series;
use unwindlab_guest_kernel::CACHE_VARIABLE;

/// Variables with which cargo would build something else.
const NOT_THEIRS: [&str; 4] = [
    "RUSTFLAGS",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_INCREMENTAL",
    "CARGO_BUILD_TARGET",
];

/// Why a command is no measurement.
#[derive(Debug, thiserror::Error)]
enum CargoError {
    /// It failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// There is no temporary folder.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Nobody has said where the source is.
    #[error("there is no source tree to build: --checkout names it")]
    NoCheckout,
}

/// A row: what is done, and what of it counts.
struct Measured {
    row: Row,
    what: &'static str,
    arguments: &'static [&'static str],
    number: fn(&Ended) -> f64,
    promises: Vec<Promise>,
}

impl Commands<'_> {
    /// CPU time of a release build from nothing.
    #[must_use]
    pub fn clean_build(&self) -> Line {
        self.cargo(Measured {
            row: Row::CleanBuild,
            what: "CPU time of a clean release build",
            arguments: &["build", "--release", "--locked"],
            number: |ended| ended.cpu_seconds,
            promises: Vec::new(),
        })
    }

    /// Time of the first run: the build, the downloads, and the library.
    #[must_use]
    pub fn first_run(&self) -> Line {
        self.cargo(Measured {
            row: Row::FirstRun,
            what: "first `unwindlab run`, build and downloads included",
            arguments: &["run", "--release", "--locked", "--", "run"],
            number: |ended| ended.seconds,
            promises: vec![Promise::AtMost(300.0)],
        })
    }

    /// CPU time of the test command.
    #[must_use]
    pub fn tests(&self) -> Line {
        self.cargo(Measured {
            row: Row::Tests,
            what: "CPU time of the test command, build and downloads included",
            arguments: &["test", "--release", "--workspace", "--locked"],
            number: |ended| ended.cpu_seconds,
            promises: Vec::new(),
        })
    }

    fn cargo(&self, measured: Measured) -> Line {
        let mut series = Series::default();
        let mut notes = Vec::new();
        if let Some(commit) = self.checkout.and_then(commit) {
            notes.push(format!("commit {commit}"));
        }
        for round in 0..self.rounds {
            self.tell(measured.row, round);
            series.take(|| {
                let ended = self.starting_empty(&measured)?;
                let (wall, cpu) = (ended.seconds, ended.cpu_seconds);
                notes.push(format!("took {wall:.0} s, and {cpu:.0} s of CPU time"));
                Ok::<_, CargoError>((measured.number)(&ended))
            });
        }
        let mut words = format!("cargo {}", measured.arguments.join(" "));
        if measured.row == Row::FirstRun {
            words = format!("{words} {}", self.words(&[]));
        }
        Line {
            row: measured.row,
            what: measured.what,
            unit: "s",
            better: Better::Less,
            ours: series,
            peer: None,
            promises: measured.promises,
            notes,
            parameters: vec![words],
        }
    }

    fn starting_empty(&self, measured: &Measured) -> Result<Ended, CargoError> {
        let checkout = self.checkout.ok_or(CargoError::NoCheckout)?;
        let folder = tempfile::tempdir()?;
        let mut command = Command::new("cargo");
        command.current_dir(checkout).args(measured.arguments);
        if measured.row == Row::FirstRun {
            let logs: [OsString; 2] = ["--artifacts".into(), folder.path().join("logs").into()];
            command.args(logs).args(self.options);
        }
        for variable in NOT_THEIRS {
            command.env_remove(variable);
        }
        command
            .env("RUSTC_WRAPPER", "")
            .env("CARGO_TARGET_DIR", folder.path().join("target"))
            .env(CACHE_VARIABLE, folder.path().join("cache"))
            .env("INSTA_UPDATE", "no");
        let ended = command::run(command, self.interrupt)?;
        folder.close()?;
        Ok(ended)
    }
}

/// The commit of a source tree, and whether something in it is not committed.
fn commit(checkout: &Path) -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .arg("-C")
            .arg(checkout)
            .args(arguments)
            .output()
            .ok()?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success().then_some(text)
    };
    let head = git(&["rev-parse", "--short", "HEAD"])?;
    let changed = git(&["status", "--porcelain"])?;
    Some(match changed.is_empty() {
        true => head,
        false => format!("{head}, and changes that are not committed"),
    })
}
