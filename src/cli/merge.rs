//! `unwindlab merge`.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use clap::Args;

use super::error::{CommandError, class_code};
use super::progress::Spinner;
use crate::campaign::Context;
use crate::campaign::merge::{
    MergeEvent, MergeRequest, Merged, MergedSweep, SeenPlaces, merge as merge_files,
};
use crate::judge::ScenarioResult;
use crate::judge::outcome::OutcomeClass;
use crate::judge::soak::Soaked;
use crate::report::matrix::{Matrix, MutantRow};
use crate::report::mutation::MutationScore;
use crate::report::names::Names;
use crate::report::output_file::OutputFile;
use crate::report::requests::{self, TriedPlaces};
use crate::report::soak::{BOUND, heading, row, totals};
use crate::report::sweep::report;
use crate::report::table;
use unwindlab_engine::text::printable;

/// `unwindlab merge`.
#[derive(Debug, Args)]
pub struct MergeArgs {
    /// The files of all parts, in any order: of `run --shard`, `soak --shard` and `mutants --shard` those of --json, of `sweep --shard` those of --resume.
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Write the results of all parts as one file. Of a sweep, `sweep --resume` without --shard goes on from it
    /// and tries what is missing; other files are merged again.
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub json: Option<PathBuf>,
}

/// Merges and reports; the exit code.
///
/// # Errors
/// [`CommandError`] where the files do not belong together, or have no result.
pub fn merge(
    args: &MergeArgs,
    context: Context<'_>,
    spinner: &Spinner,
) -> Result<u8, CommandError> {
    if let Some(part) = overwritten(args) {
        let part = part.display();
        return Err(CommandError::Usage(format!(
            "--json would overwrite {part}, which is merged: name another file"
        )));
    }
    let file = args.json.as_deref().map(OutputFile::create).transpose()?;
    let request = MergeRequest {
        files: args.files.clone(),
    };
    let mut json = None;
    let class = merge_files(&request, context, &mut |event| match event {
        MergeEvent::Swept(merged) => {
            json = Some(serde_json::to_string(merged.record).map(|it| it + "\n"));
            spinner.print(&swept(merged, args.files.len()))
        }
        MergeEvent::Lines(lines) => {
            json = file.is_some().then(|| Ok(lines.to_owned()));
            Ok(())
        }
        MergeEvent::Places(merged) => spinner.print(&places(merged, args.files.len())),
        MergeEvent::Generated(merged) => spinner.print(&generated(merged, args.files.len())),
        MergeEvent::Mutants(merged) => spinner.print(&mutants(merged, args.files.len())),
        MergeEvent::Ran(merged) => spinner.print(&ran(merged, args.files.len())),
        MergeEvent::Soaked(merged) => spinner.print(&soaked(merged, args.files.len())),
    })?;
    if let (Some(file), Some(json)) = (file, json) {
        file.finish(json?)?;
    }
    Ok(class_code(class))
}

/// The file of a part that the results would be written over, by whatever name.
fn overwritten(args: &MergeArgs) -> Option<&Path> {
    let id = |path: &Path| {
        let file = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        Some((file.dev(), file.ino()))
    };
    let json = id(args.json.as_deref()?)?;
    let mut files = args.files.iter().map(PathBuf::as_path);
    files.find(|part| id(part) == Some(json))
}

/// The report of a run.
fn ran(merged: &Merged<Vec<ScenarioResult>>, files: usize) -> String {
    let widths = merged.whole.iter().map(|it| it.name.len());
    let width = widths.max().unwrap_or(0);
    let mut text = String::new();
    for result in &merged.whole {
        text += &format!("{}\n", table::row(result, width));
        if result.went_wrong() {
            for reason in &result.reasons {
                text += &format!("  {}\n", printable(reason));
            }
        }
    }
    text += &table::failures(&merged.whole);
    let time = merged.whole.iter().map(|it| it.duration).sum();
    text += &format!(
        "{} on {}, merged from {files} files\n",
        table::summary(&merged.whole, time),
        printable(&merged.release)
    );
    text + &not_complete(&merged.lacks)
}

/// The report of a soak.
fn soaked(merged: &Merged<Vec<Soaked>>, files: usize) -> String {
    let names = merged.whole.iter().map(|it| it.name.len());
    let width = names.max().unwrap_or(0);
    let rows = merged.whole.iter().map(|it| row(it, width));
    let text = rows.fold(heading(width), |all, row| all + &row);
    let (totals, release) = (totals(&merged.whole), printable(&merged.release));
    format!("{text}{totals} on {release}, merged from {files} files\n{BOUND}")
        + &not_complete(&merged.lacks)
}

/// The report of places.
fn places(merged: &Merged<SeenPlaces>, files: usize) -> String {
    let SeenPlaces { summary, seen_once } = &merged.whole;
    let tried = TriedPlaces {
        verdicts: &summary.verdicts,
        found: summary.found,
        elapsed: summary.elapsed,
    };
    let release = printable(&merged.release);
    let mut text = requests::report(&tried);
    text += &format!("on {release}, merged from {files} files\n");
    if *seen_once > 0 {
        text += &format!("{seen_once} places were seen by one part only\n");
    }
    text + &not_complete(&merged.lacks)
}

/// The report of generated mutants.
fn generated(merged: &Merged<MutationScore>, files: usize) -> String {
    let score = &merged.whole;
    let release = printable(&merged.release);
    format!(
        "{}\n{}\n{}\non {release}, merged from {files} files\n",
        score.survivors(),
        score.tables(),
        score.summary()
    ) + &not_complete(&merged.lacks)
}

/// The report of the mutants.
fn mutants(merged: &Merged<Matrix>, files: usize) -> String {
    let matrix = &merged.whole;
    let lines = matrix.rows.iter().map(MutantRow::line);
    let lines = lines.fold(String::new(), |all, line| all + &line + "\n");
    let (table, summary) = (matrix.table(), matrix.summary());
    let release = printable(&merged.release);
    format!("{lines}\n{table}\n{summary} on {release}, merged from {files} files\n")
        + &not_complete(&merged.lacks)
}

fn not_complete(lacks: &[String]) -> String {
    let lines = lacks.iter().map(|why| printable(why));
    lines.fold(String::new(), |all, why| {
        all + "NOT COMPLETE: " + &why + "\n"
    })
}

/// The report of a sweep.
fn swept(merged: &MergedSweep<'_>, files: usize) -> String {
    let path = &merged.record.path;
    let names = Names {
        kernel: path,
        user: &[],
    };
    let mut text = report(&merged.summary, names);
    text += &format!(
        "on {}, merged from {files} files\n",
        printable(&path.release)
    );
    text += &not_complete(merged.lacks);
    if merged.class == OutcomeClass::Untested && merged.lacks.is_empty() {
        text += "NOT COMPLETE: points were not tried, or not steady\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("p1"), "1").unwrap();
        fs::write(at("p2"), "2").unwrap();
        std::os::unix::fs::symlink(at("p2"), at("link")).unwrap();
        let of = |json: PathBuf| {
            let args = MergeArgs {
                files: vec![at("p1"), at("p2")],
                json: Some(json),
            };
            overwritten(&args).map(Path::to_owned)
        };
        assert_eq!(of(folder.path().join("./p1")), Some(at("p1")));
        assert_eq!(of(at("link")), Some(at("p2")));
        assert_eq!(of(at("all")), None);
    }
}
