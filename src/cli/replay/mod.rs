//! `unwindlab replay`: one failing trial once more, from its file; and writing such files.

mod run;
mod sweep;

use std::fs;
use std::path::{Path, PathBuf};

use super::analysis::Analysis;
use super::args::{BuildOptions, KernelOptions, ReplayArgs};
use super::error::CommandError;
use super::output::print;
use crate::host::provider::{Provider, TestKernel};
use crate::interrupt::Interrupt;
use crate::judge::outcome::EXIT_UNTESTED;
use crate::report::replay::{Replay, ReplayKernel, ReplayTrial, ReplayVerdict, VERSION};

pub(super) use self::run::keep;
pub(super) use self::sweep::write;

/// What came of a trial that was made again.
struct Again {
    /// In the same way or another, or not at all; nothing where it could not be made.
    shown: Vec<ReplayVerdict>,
    /// Trials that were made.
    made: usize,
    /// Where, or what: to be put behind "fails the same way".
    of: String,
}

/// Makes the trial again; the exit code: 1 where it fails in the same way, 0 where it passes, 125
/// where neither can be said.
///
/// # Errors
/// [`CommandError`].
pub fn replay(
    args: &ReplayArgs,
    provider: &dyn Provider,
    analysis: &Analysis,
    interrupt: &Interrupt,
) -> Result<u8, CommandError> {
    let replay = read(&args.file)?;
    let folder = Unpacked::of(&replay)?;
    let again = match &replay.trial {
        ReplayTrial::Sweep(trial) => {
            let sweep = sweep::of(args, &replay, trial, &folder.scenario)?;
            sweep::again(&sweep, &replay, trial, provider, analysis, interrupt)?
        }
        ReplayTrial::Run(trial) => {
            let setup = run::of(args, &replay, trial, &folder.scenario, analysis)?;
            run::again(&setup, provider, analysis, interrupt)?
        }
    };
    let (of, verdict) = (&again.of, &replay.verdict);
    if let Some(same) = again.shown.iter().find(|it| verdict.is_shown_by(it)) {
        let byte = match (&verdict.trace_sha256, &same.trace_sha256) {
            (Some(then), Some(now)) if then == now => ", with the same trace to the byte",
            (Some(_), Some(_)) => ", with another trace",
            _ => "",
        };
        print(&format!("fails the same way {of}{byte}\n"))?;
        return Ok(1);
    }
    if again.made == 0 {
        print(&format!("the trial could not be made {of}\n"))?;
        return Ok(EXIT_UNTESTED);
    }
    if again.shown.is_empty() {
        print(&format!("passes {of}\n"))?;
        return Ok(0);
    }
    print(&format!("fails in another way {of}\n"))?;
    Ok(EXIT_UNTESTED)
}

/// A replay file's scenario as files, until it is dropped.
struct Unpacked {
    scenario: PathBuf,
    _folder: tempfile::TempDir,
}

impl Unpacked {
    fn of(replay: &Replay) -> Result<Self, CommandError> {
        let folder = tempfile::tempdir()?;
        let [scenarios, snapshots] = ["scenarios", "snapshots"].map(|it| folder.path().join(it));
        fs::create_dir(&scenarios)?;
        fs::create_dir(&snapshots)?;
        let scenario = scenarios.join(format!("{}.yaml", replay.name));
        fs::write(&scenario, &replay.scenario)?;
        if let Some(snapshot) = &replay.snapshot {
            fs::write(snapshots.join(format!("{}.snap", replay.name)), snapshot)?;
        }
        Ok(Self {
            scenario,
            _folder: folder,
        })
    }
}

fn read(path: &Path) -> Result<Replay, CommandError> {
    let wrong = |why: String| CommandError::Usage(format!("{}: {why}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let version: Version =
        serde_json::from_str(&text).map_err(|error| wrong(format!("no replay file: {error}")))?;
    if version.version != VERSION {
        return Err(wrong(format!(
            "a replay file of version {}, this program knows {VERSION}: make the failure again",
            version.version
        )));
    }
    let replay: Replay =
        serde_json::from_str(&text).map_err(|error| wrong(format!("no replay file: {error}")))?;
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if replay.name.is_empty() || !replay.name.chars().all(is_word) {
        return Err(wrong(format!("no scenario has the name {:?}", replay.name)));
    }
    Ok(replay)
}

/// What every version of a replay file has.
#[derive(serde::Deserialize)]
struct Version {
    version: u32,
}

/// A file's text.
fn text(replay: &Replay) -> Result<String, CommandError> {
    Ok(format!("{}\n", serde_json::to_string_pretty(replay)?))
}

/// The kernel to replay on: another, if one is named, else that of the file.
fn options(args: &ReplayArgs, replay: &Replay) -> KernelOptions {
    if args.on.kernel.is_some() || !args.on.build.is_empty() {
        return args.on.clone();
    }
    let kernel = &replay.kernel;
    KernelOptions {
        kernel: kernel.kernel.clone(),
        build: BuildOptions {
            tree: kernel.tree.clone(),
            rev: kernel.rev.clone(),
            source: kernel.source.clone(),
            patch: kernel.patch.clone(),
            config: kernel.config.clone(),
        },
    }
}

/// How to get a kernel again that was got by these options.
fn kernel_of(
    options: &KernelOptions,
    kernel: &dyn TestKernel,
) -> Result<ReplayKernel, CommandError> {
    let build = &options.build;
    let whole = |path: &str| -> Result<String, CommandError> {
        // Names of ours are no files.
        match Path::new(path).exists() {
            true => Ok(fs::canonicalize(path)?.display().to_string()),
            false => Ok(path.to_owned()),
        }
    };
    let all = |paths: &[String]| -> Result<Vec<String>, CommandError> {
        paths.iter().map(|path| whole(path)).collect()
    };
    Ok(ReplayKernel {
        hash: kernel.hash().to_owned(),
        release: kernel.release().to_owned(),
        kernel: options.kernel.clone(),
        tree: build.tree.as_ref().map(fs::canonicalize).transpose()?,
        rev: build.rev.clone(),
        source: build.source.clone(),
        patch: all(&build.patch)?,
        config: all(&build.config)?,
    })
}
