//! Parts as files, merged.

mod generated;
mod mutants;
mod requests;
mod run;
mod soak;
mod sweep;

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use super::{MergeEvent, MergeRequest, merge};
use crate::campaign::error::CampaignError;
use crate::campaign::requests::PlacesSummary;
use crate::campaign::testing::FakeProvider;
use crate::judge::ScenarioResult;
use crate::judge::outcome::OutcomeClass;
use crate::judge::soak::Soaked;
use crate::judge::sweep_record::SweepRecord;
use crate::report::matrix::Matrix;
use crate::report::mutation::MutationScore;

/// What a merge tells, with what it lacks.
enum Told {
    Swept(Box<SweepRecord>, Vec<String>),
    /// With all lines as one file.
    Ran(Vec<ScenarioResult>, Vec<String>, String),
    Soaked(Vec<Soaked>, Vec<String>),
    Mutants(Matrix, Vec<String>),
    Generated(MutationScore, Vec<String>),
    /// With how many places one part alone saw.
    Places(Box<PlacesSummary>, usize, Vec<String>),
}

/// Merges files with these texts.
fn merged_files(files: &[String]) -> Result<(OutcomeClass, Told), CampaignError> {
    let folder = TempDir::new().unwrap();
    let mut paths: Vec<PathBuf> = Vec::new();
    for (number, text) in files.iter().enumerate() {
        paths.push(folder.path().join(format!("{number}.json")));
        fs::write(&paths[number], text).unwrap();
    }
    let provider = FakeProvider::new([]);
    let context = provider.context();
    let (mut told, mut joined) = (None, String::new());
    let class = merge(&MergeRequest { files: paths }, context, &mut |event| {
        match event {
            MergeEvent::Swept(merged) => {
                let record = Box::new(merged.record.clone());
                told = Some(Told::Swept(record, merged.lacks.to_vec()));
            }
            MergeEvent::Lines(lines) => lines.clone_into(&mut joined),
            MergeEvent::Mutants(merged) => {
                told = Some(Told::Mutants(merged.whole.clone(), merged.lacks.clone()));
            }
            MergeEvent::Generated(merged) => {
                told = Some(Told::Generated(merged.whole.clone(), merged.lacks.clone()));
            }
            MergeEvent::Places(merged) => {
                let summary = Box::new(merged.whole.summary.clone());
                let lacks = merged.lacks.clone();
                told = Some(Told::Places(summary, merged.whole.seen_once, lacks));
            }
            MergeEvent::Soaked(merged) => {
                told = Some(Told::Soaked(merged.whole.clone(), merged.lacks.clone()));
            }
            MergeEvent::Ran(merged) => {
                let (results, lacks) = (merged.whole.clone(), merged.lacks.clone());
                told = Some(Told::Ran(results, lacks, joined.clone()));
            }
        }
        Ok(())
    })?;
    Ok((class, told.unwrap()))
}
