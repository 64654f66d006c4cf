//! Parts of the mutants, made by the command.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::{Told, merged_files};
use crate::campaign::error::CampaignError;
use crate::campaign::kernel::KernelChoice;
use crate::campaign::mutants::{MutantTest, MutantsRequest, mutants};
use crate::campaign::part::PartRequest;
use crate::campaign::testing::{FakeProvider, ended, folder};
use crate::judge::outcome::OutcomeClass;
use crate::report::matrix::{Fate, Matrix};
use unwindlab_engine::plan::Shard;
use unwindlab_oracle::trace::recording::TrialEnd;

/// Three mutants of the kernel itself; with the kernel without one, four rows.
fn names() -> Vec<String> {
    let all = unwindlab_guest_kernel::build::header::mutants().unwrap();
    let own = all.into_iter().filter(|it| it.of.is_empty());
    own.map(|it| it.name).take(3).collect()
}

fn made(
    scenarios: &Path,
    shard: Shard,
    file: &Path,
    passes: usize,
) -> Result<Matrix, CampaignError> {
    let mut provider = FakeProvider::new((0..passes).map(|_| ended(TrialEnd::Completed)));
    provider.builds = true;
    let context = provider.context();
    let request = MutantsRequest {
        only: names(),
        test: MutantTest::Scenarios(vec![scenarios.to_owned()]),
        base: KernelChoice::default(),
        part: Some(PartRequest {
            shard,
            file: file.to_owned(),
        }),
        ..MutantsRequest::default()
    };
    mutants(&request, context, &mut |_| Ok(()))
}

/// The files of all parts. No scenario fails, so no mutant is killed; the files say that each is.
fn parts_of(of: u32) -> Vec<String> {
    let (scenarios, files) = (folder(), TempDir::new().unwrap());
    let part = |number| {
        let file = files.path().join(format!("{number}.jsonl"));
        made(scenarios.path(), Shard { number, of }, &file, 12).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        text.replace("\"fate\":\"survived\"", "\"fate\":\"killed\"")
    };
    (1..=of).map(part).collect()
}

fn merged(files: &[String]) -> Result<(OutcomeClass, Matrix, Vec<String>), CampaignError> {
    let (class, told) = merged_files(files)?;
    let Told::Mutants(matrix, lacks) = told else {
        panic!("no mutants");
    };
    Ok((class, matrix, lacks))
}

#[test]
fn any_split_is_the_whole() {
    let (_, whole, _) = merged(&parts_of(1)).unwrap();
    assert_eq!(whole.rows.len(), 4);
    assert_eq!(whole.rows[0].fate, Fate::Clean);
    for of in [2, 3, 8] {
        let (class, matrix, lacks) = merged(&parts_of(of)).unwrap();
        assert_eq!((class, lacks), (OutcomeClass::Good, Vec::new()), "{of}");
        assert_eq!(matrix.rows, whole.rows);
        assert_eq!(matrix.table(), whole.table());
    }
}

#[test]
fn what_stands_in_a_file_is_not_tested_again() {
    let (scenarios, files) = (folder(), TempDir::new().unwrap());
    let file = files.path().join("part.jsonl");
    let shard = Shard { number: 1, of: 1 };
    let whole = made(scenarios.path(), shard, &file, 12).unwrap();
    let text = fs::read_to_string(&file).unwrap();
    // The last row is lost, and the one before it is cut off.
    let lines: Vec<&str> = text.lines().collect();
    let half = &lines[3][..lines[3].len() / 2];
    fs::write(&file, lines[..3].join("\n") + "\n" + half).unwrap();
    let again = made(scenarios.path(), shard, &file, 6).unwrap();
    assert_eq!(again.rows, whole.rows);
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    assert_eq!(
        made(scenarios.path(), shard, &file, 0).unwrap().rows,
        whole.rows
    );
    let other = Shard { number: 1, of: 2 };
    assert!(
        made(scenarios.path(), other, &file, 0)
            .unwrap_err()
            .is_usage()
    );
}

#[test]
fn what_is_missing_is_no_pass() {
    let good = parts_of(2);
    for lost in 0..2 {
        let left = [good[1 - lost].clone()];
        let (class, _, lacks) = merged(&left).unwrap();
        assert_eq!(class, OutcomeClass::Untested);
        let told = format!("part {}/2 is missing", lost + 1);
        assert!(lacks.len() == 1 && lacks[0].starts_with(&told), "{lacks:?}");
    }
    // Each row by itself: a mutant, or the kernel without one, that no part tested.
    let whole = parts_of(1).remove(0);
    let lines: Vec<&str> = whole.lines().collect();
    for lost in 1..lines.len() {
        let mut left = lines.clone();
        left.remove(lost);
        let (class, matrix, lacks) = merged(&[left.join("\n") + "\n"]).unwrap();
        assert_eq!((class, matrix.rows.len()), (OutcomeClass::Untested, 3));
        assert!(lacks[0].contains("did not come to its end"), "{lacks:?}");
        if lost == 1 {
            assert!(lacks[0].ends_with("(no mutant)"), "{lacks:?}");
        }
    }
    let cut = whole[..whole.len() - 9].to_owned();
    assert_eq!(merged(&[cut]).unwrap().0, OutcomeClass::Untested);
}

#[test]
fn of_two_rows_of_one_mutant_the_worse_counts() {
    let whole = parts_of(1).remove(0);
    for (fate, class) in [
        ("\"survived\"", OutcomeClass::Bad),
        ("{\"untested\":\"no disk\"}", OutcomeClass::Untested),
    ] {
        let killed = "\"fate\":\"killed\"";
        let other = whole.replacen(killed, &format!("\"fate\":{fate}"), 1);
        assert_ne!(other, whole);
        for files in [[whole.clone(), other.clone()], [other, whole.clone()]] {
            assert_eq!(merged(&files).unwrap().0, class);
        }
    }
}

#[test]
fn mutants_of_another_kernel_are_refused() {
    let good = parts_of(2);
    let refused = |other: String, what: &str| {
        assert_ne!(other, good[1]);
        let error = merged(&[good[0].clone(), other]).unwrap_err();
        assert!(
            error.is_usage() && error.to_string().contains(what),
            "{error}"
        );
    };
    let of_abd = good[1].replacen("[\"kernel\",\"abc\"]", "[\"kernel\",\"abd\"]", 1);
    refused(of_abd, "another kernel");
    refused(good[1].replacen("\"scenarios\"]", "\"own\"]", 1), "--sweep");
    let other_patch = format!("\"name\":\"{}\",\"hash\":\"", names()[0]);
    let changed = format!("{other_patch}0");
    refused(good[1].replacen(&other_patch, &changed, 1), "another patch");
}
