//! `unwindlab replay`: one trial of a sweep once more, from its file; and writing such files.

use std::fs;
use std::path::{Path, PathBuf};

use super::analysis::Analysis;
use super::args::{BuildOptions, KernelOptions, ReplayArgs, SweepArgs};
use super::error::CommandError;
use super::lab::{Lab, TestKernel};
use super::output::print;
use super::sweep::{Choice, Swept, code_of, sweep_with};
use crate::report::artifacts::OutputFile;
use crate::report::outcome::EXIT_UNTESTED;
use crate::runner::Interrupt;
use crate::scenario::KernelSymbols;
use crate::sweep::plan::{Boundary, Points};
use crate::sweep::replay::{Replay, ReplayKernel, ReplayPlace, VERSION};
use crate::sweep::verdicts::Verdicts;

/// Where replay files go, with other things that outlive a run.
const FOLDER: &str = "unwindlab-out";

/// Makes the trial again; the exit code: 1 where it fails in the same way, 0 where it passes, 125
/// where neither can be said.
///
/// # Errors
/// [`CommandError`].
pub fn replay(
    args: &ReplayArgs,
    lab: &dyn Lab,
    analysis: &Analysis,
    interrupt: &Interrupt,
) -> Result<u8, CommandError> {
    let replay = read(&args.file)?;
    let folder = tempfile::tempdir()?;
    let scenario = folder.path().join(format!("{}.yaml", replay.name));
    fs::write(&scenario, &replay.scenario)?;
    let from = replay.from.as_deref().map(str::parse).transpose();
    let from = from.map_err(|_| {
        let file = args.file.display();
        CommandError::Usage(format!("{file}: no place of the kernel: {:?}", replay.from))
    })?;
    let same = args.on.kernel.is_none() && args.on.build.is_empty();
    let sweep = SweepArgs {
        scenario,
        kernel: if same {
            options(&replay.kernel)
        } else {
            args.on.clone()
        },
        no_request: !replay.asks,
        from,
        pairs: replay.then.is_some(),
        all: replay.then.is_some(),
        resume: None,
        once: false,
        functions: Vec::new(),
        points: Vec::new(),
        budget: None,
        jobs: 1,
        check_restores: false,
        html: None,
        kvm_host: args.kvm_host,
    };
    let points = |kernel: &dyn TestKernel| {
        let same = kernel.hash() == replay.kernel.hash;
        let first = points(&replay.place, same, kernel.symbols())?;
        let then = replay.then.as_ref().unwrap_or(&replay.place);
        let second = points(then, same, kernel.symbols())?;
        Ok(Choice { first, second })
    };
    let Swept {
        failures,
        tried,
        release,
    } = sweep_with(&sweep, &points, lab, analysis, interrupt)?;
    let places: Vec<_> = [&replay.place].into_iter().chain(&replay.then).collect();
    let join = |name: fn(&ReplayPlace) -> String| {
        let names: Vec<String> = places.iter().map(|place| name(place)).collect();
        names.join(" and then ")
    };
    let at = match tried {
        0 | 1 => format!(
            "{} of {release}",
            join(|it| format!("{}+{:#x}", it.function, it.offset))
        ),
        tried => format!(
            "{tried} points in {} of {release}",
            join(|it| it.function.clone())
        ),
    };
    if failures.iter().any(|symptom| replay.is_shown(symptom)) {
        print(&format!("fails the same way at {at}\n"))?;
        return Ok(1);
    }
    if tried == 0 {
        print(&format!("the path does not come by {at}\n"))?;
        return Ok(EXIT_UNTESTED);
    }
    if failures.is_empty() {
        print(&format!("passes at {at}\n"))?;
        return Ok(0);
    }
    print(&format!("fails in another way at {at}\n"))?;
    Ok(EXIT_UNTESTED)
}

fn read(path: &Path) -> Result<Replay, CommandError> {
    let wrong = |why: String| CommandError::Usage(format!("{}: {why}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let replay: Replay =
        serde_json::from_str(&text).map_err(|error| wrong(format!("no replay file: {error}")))?;
    if replay.version != VERSION {
        return Err(wrong(format!(
            "a replay file of version {}, this program knows {VERSION}",
            replay.version
        )));
    }
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if replay.name.is_empty() || !replay.name.chars().all(is_word) {
        return Err(wrong(format!("no scenario has the name {:?}", replay.name)));
    }
    Ok(replay)
}

fn options(kernel: &ReplayKernel) -> KernelOptions {
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

/// The place in a kernel: in another image than the one it was found in, all of its function.
fn points(
    place: &ReplayPlace,
    same: bool,
    symbols: &dyn KernelSymbols,
) -> Result<Points, CommandError> {
    let code = code_of(&place.function, symbols)?;
    Ok(match same {
        true => Points::At {
            addresses: code
                .iter()
                .map(|code| code.start.wrapping_add(place.offset))
                .collect(),
            occurrence: place.occurrence,
        },
        false => Points::In {
            functions: Some(code),
            once: false,
        },
    })
}

/// Writes a file for each distinct failure of a sweep, at its first point; their names.
///
/// # Errors
/// [`CommandError`] where one cannot be written.
pub(super) fn write(
    args: &SweepArgs,
    scenario: (&str, &str),
    kernel: &dyn TestKernel,
    verdicts: &Verdicts<'_>,
) -> Result<Vec<PathBuf>, CommandError> {
    let mut written = Vec::new();
    for (symptom, failure) in &verdicts.failures {
        let Some(point) = failure.points.first() else {
            continue;
        };
        let Some(place) = place(point.at, kernel.symbols()) else {
            continue;
        };
        let then = match point.then {
            None => None,
            Some(then) => match self::place(then.at, kernel.symbols()) {
                None => continue,
                then => then,
            },
        };
        let replay = Replay {
            version: VERSION,
            name: scenario.0.to_owned(),
            scenario: scenario.1.to_owned(),
            kernel: kernel_of(args, kernel)?,
            asks: !args.no_request,
            from: args.from.as_ref().map(ToString::to_string),
            place,
            then,
            fell: symptom.fell.iter().cloned().collect(),
            died: symptom.died.map(str::to_owned),
        };
        fs::create_dir_all(FOLDER)?;
        let point = point.to_string().replace(':', "-");
        let path = Path::new(FOLDER).join(format!("{}-point-{point}.replay.json", scenario.0));
        let text = serde_json::to_string_pretty(&replay)?;
        OutputFile::create(&path)?.finish(&format!("{text}\n"))?;
        written.push(path);
    }
    Ok(written)
}

fn place(boundary: Boundary, symbols: &dyn KernelSymbols) -> Option<ReplayPlace> {
    let (function, offset) = symbols.resolve(boundary.rip)?;
    Some(ReplayPlace {
        function,
        offset,
        occurrence: boundary.occurrence,
    })
}

fn kernel_of(args: &SweepArgs, kernel: &dyn TestKernel) -> Result<ReplayKernel, CommandError> {
    let build = &args.kernel.build;
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
        kernel: args.kernel.kernel.clone(),
        tree: build.tree.as_ref().map(fs::canonicalize).transpose()?,
        rev: build.rev.clone(),
        source: build.source.clone(),
        patch: all(&build.patch)?,
        config: all(&build.config)?,
    })
}
