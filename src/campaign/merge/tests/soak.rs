//! Parts of a soak, made by soaks.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::{Told, merged_files};
use crate::campaign::error::CampaignError;
use crate::campaign::part::PartRequest;
use crate::campaign::run::soak::{SoakSummary, soak};
use crate::campaign::run::{RunRequest, TrialOptions};
use crate::campaign::testing::{FakeProvider, Recorded, died, ended, folder};
use crate::judge::outcome::OutcomeClass;
use crate::judge::soak::Soaked;
use unwindlab_engine::plan::Shard;
use unwindlab_oracle::trace::recording::TrialEnd;

/// Trials of each of three scenarios.
const TRIALS: u32 = 5;

fn pass() -> Recorded {
    ended(TrialEnd::Completed)
}

fn hang() -> Recorded {
    ended(TrialEnd::Hang { places: Vec::new() })
}

fn made(
    scenarios: &Path,
    shard: Shard,
    file: &Path,
    provider: &FakeProvider,
) -> Result<SoakSummary, CampaignError> {
    let request = RunRequest {
        scenarios: vec![scenarios.to_owned()],
        trials: TrialOptions {
            trials: Some(TRIALS),
            ..TrialOptions::default()
        },
        part: Some(PartRequest {
            shard,
            file: file.to_owned(),
        }),
        ..RunRequest::default()
    };
    let context = provider.context();
    soak(&request, context, &mut |_| Ok(()))
}

/// The files of all parts, whose trials pass but for the first of the first part.
fn parts_of(of: u32, first: &dyn Fn() -> Recorded) -> Vec<String> {
    let (scenarios, files) = (folder(), TempDir::new().unwrap());
    let part = |number| {
        let file = files.path().join(format!("{number}.jsonl"));
        let passes = (0..20).map(|_| pass());
        let provider = match number {
            1 => FakeProvider::new(std::iter::once(first()).chain(passes)),
            _ => FakeProvider::new(passes),
        };
        made(scenarios.path(), Shard { number, of }, &file, &provider).unwrap();
        fs::read_to_string(&file).unwrap()
    };
    (1..=of).map(part).collect()
}

fn merged(files: &[String]) -> (OutcomeClass, Vec<Soaked>, Vec<String>) {
    let (class, told) = merged_files(files).unwrap();
    let Told::Soaked(soaked, lacks) = told else {
        panic!("no soak");
    };
    (class, soaked, lacks)
}

fn counts(soaked: &[Soaked]) -> Vec<String> {
    let count = |it: &Soaked| {
        format!(
            "{} {}/{} {}",
            it.name,
            it.judged(),
            it.planned,
            it.failures()
        )
    };
    soaked.iter().map(count).collect()
}

#[test]
fn any_split_is_the_whole() {
    for of in [1, 2, 3, 8] {
        let (class, soaked, lacks) = merged(&parts_of(of, &pass));
        assert_eq!((class, lacks), (OutcomeClass::Good, Vec::new()), "{of}");
        assert_eq!(counts(&soaked), ["a 5/5 0", "b 5/5 0", "c 5/5 0"], "{of}");
        let (class, soaked, _) = merged(&parts_of(of, &hang));
        assert_eq!(class, OutcomeClass::Bad, "{of}");
        assert_eq!(soaked.iter().map(Soaked::failures).sum::<u32>(), 1, "{of}");
    }
}

#[test]
fn what_is_missing_or_not_judged_is_not_held() {
    let mut files = parts_of(3, &pass);
    files.remove(1);
    let (class, soaked, lacks) = merged(&files);
    assert_eq!(class, OutcomeClass::Untested);
    assert!(lacks[0].starts_with("part 2/3 is missing: "), "{lacks:?}");
    assert!(soaked.iter().map(Soaked::judged).sum::<u32>() < 3 * TRIALS);
    let (class, soaked, lacks) = merged(&parts_of(2, &died));
    assert_eq!((class, lacks), (OutcomeClass::Untested, Vec::new()));
    assert_eq!(
        soaked.iter().map(Soaked::judged).sum::<u32>(),
        3 * TRIALS - 1
    );
}

#[test]
fn a_trial_that_was_made_twice_counts_once_and_as_the_worse() {
    let once = parts_of(1, &pass).remove(0);
    let again = once.replacen(
        "\"outcome\":\"pass\",\"class\":\"good\"",
        "\"outcome\":\"hang\",\"class\":\"bad\"",
        1,
    );
    assert_ne!(once, again);
    for files in [[once.clone(), again.clone()], [again, once]] {
        let (class, soaked, _) = merged(&files);
        assert_eq!(class, OutcomeClass::Bad);
        assert_eq!(counts(&soaked), ["a 5/5 1", "b 5/5 0", "c 5/5 0"]);
    }
}

#[test]
fn what_stands_in_a_file_is_not_made_again() {
    let (scenarios, files) = (folder(), TempDir::new().unwrap());
    let file = files.path().join("part.jsonl");
    let shard = Shard { number: 1, of: 1 };
    let mut provider = FakeProvider::new([hang(), pass(), pass()]);
    provider.interrupt_in = Some(2);
    let summary = made(scenarios.path(), shard, &file, &provider).unwrap();
    let begun = summary.soaked.iter().map(Soaked::made).sum::<u32>();
    assert!((1..15).contains(&begun), "{begun}");
    let passes = (begun..15).map(|_| pass());
    let summary = made(scenarios.path(), shard, &file, &FakeProvider::new(passes)).unwrap();
    assert_eq!(counts(&summary.soaked), ["a 5/5 1", "b 5/5 0", "c 5/5 0"]);
    assert_eq!(Soaked::class_of(&summary.soaked), OutcomeClass::Bad);
    // Nothing is left.
    let summary = made(scenarios.path(), shard, &file, &FakeProvider::new([])).unwrap();
    assert_eq!(counts(&summary.soaked), ["a 5/5 1", "b 5/5 0", "c 5/5 0"]);
}
