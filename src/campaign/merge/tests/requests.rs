//! Parts of a sweep of places, made by the command. The survey of each boot may find others.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Told, merged_files};
use crate::campaign::error::CampaignError;
use crate::campaign::part::PartRequest;
use crate::campaign::requests::{PlacesRequest, PlacesSummary, requests};
use crate::campaign::testing::{FakeProvider, Recorded, ended, folder};
use crate::judge::outcome::OutcomeClass;
use unwindlab_abi::SurveyedPlace;
use unwindlab_engine::plan::Shard;
use unwindlab_oracle::trace::Recording;
use unwindlab_oracle::trace::recording::TrialEnd;

/// Functions that every boot passes: each has four places.
const ALWAYS: [&str; 3] = ["f", "g", "p"];

fn surveyed(functions: &[&str]) -> Recorded {
    let place = |name: &&str| SurveyedPlace {
        system: None,
        name: (*name).to_owned(),
        hits: 1,
        contexts: 1,
    };
    Ok(Recording {
        survey: functions.iter().map(place).collect(),
        end: TrialEnd::Completed,
        ..Recording::default()
    })
}

/// Makes a part whose surveys find these.
fn made(
    scenarios: &Path,
    (shard, file): (Shard, &Path),
    functions: &[&str],
    trials: usize,
) -> Result<PlacesSummary, CampaignError> {
    let refused = || {
        ended(TrialEnd::Unsupported {
            reason: "no kprobe on it".to_owned(),
        })
    };
    let none = || surveyed(&[]);
    let surveys = [surveyed(functions), none(), surveyed(functions), none()];
    let provider = FakeProvider::new(surveys.into_iter().chain((0..trials).map(|_| refused())));
    let context = provider.context();
    let request = PlacesRequest {
        scenario: scenarios.join("a.yaml"),
        part: Some(PartRequest {
            shard,
            file: file.to_owned(),
        }),
        ..PlacesRequest::default()
    };
    requests(&request, context, &mut |_| Ok(()))
}

/// The file, as if every place had passed.
fn passed(text: &str) -> String {
    let line = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        if line["verdict"].is_object() {
            line["verdict"]["fate"] = json!("passed");
            return line.to_string();
        }
        String::new()
    };
    let lines = text.lines().map(|text| match line(text) {
        head if head.is_empty() => text.to_owned(),
        unit => unit,
    });
    lines.fold(String::new(), |all, line| all + &line + "\n")
}

/// The files of parts whose surveys find these.
fn parts_of(functions: &[&[&str]]) -> Vec<String> {
    let (scenarios, files) = (folder(), TempDir::new().unwrap());
    let of = u32::try_from(functions.len()).unwrap();
    let parts = (1..=of).zip(functions).map(|(number, functions)| {
        let file = files.path().join(format!("{number}.jsonl"));
        let shard = Shard { number, of };
        made(scenarios.path(), (shard, &file), functions, 40).unwrap();
        passed(&fs::read_to_string(&file).unwrap())
    });
    parts.collect()
}

type Merged = (OutcomeClass, Vec<String>, usize, Vec<String>);

fn merged(files: &[String]) -> Result<Merged, CampaignError> {
    let (class, told) = merged_files(files)?;
    let Told::Places(summary, seen_once, lacks) = told else {
        panic!("no places");
    };
    let places = summary.verdicts.places.iter();
    let places = places.map(|it| it.place.to_string()).collect();
    Ok((class, places, seen_once, lacks))
}

#[test]
fn any_split_is_the_whole() {
    let (class, whole, seen_once, lacks) = merged(&parts_of(&[&ALWAYS])).unwrap();
    assert_eq!((class, whole.len()), (OutcomeClass::Good, 12));
    assert_eq!((seen_once, lacks), (0, Vec::new()));
    for of in [2, 3, 8] {
        let parts = parts_of(&vec![ALWAYS.as_slice(); of]);
        assert_eq!(
            merged(&parts).unwrap(),
            (OutcomeClass::Good, whole.clone(), 0, Vec::new())
        );
    }
}

#[test]
fn what_is_missing_is_named_and_is_no_pass() {
    let good = parts_of(&[&ALWAYS, &ALWAYS]);
    let (class, places, _, lacks) = merged(&good[..1]).unwrap();
    assert_eq!(class, OutcomeClass::Untested);
    assert!(lacks[0].starts_with("part 2/2 is missing: k"), "{lacks:?}");
    assert!(places.len() < 12);
    let end = good[1].trim_end().rfind('\n').unwrap();
    for cut in [&good[1][..=end], &good[1][..end + 9]] {
        let (class, _, _, lacks) = merged(&[good[0].clone(), cut.to_owned()]).unwrap();
        assert_eq!(class, OutcomeClass::Untested);
        let told = "part 2/2 has not tried k";
        assert!(lacks.iter().any(|it| it.starts_with(told)), "{lacks:?}");
    }
    let failed = good[1].replacen("\"fate\":\"passed\"", "\"fate\":\"failed\"", 1);
    assert_ne!(failed, good[1]);
    for files in [
        vec![good[0].clone(), failed.clone()],
        vec![failed, good[1].clone()],
    ] {
        assert_eq!(merged(&files).unwrap().0, OutcomeClass::Bad);
    }
}

#[test]
fn a_place_that_one_survey_saw_is_told_and_no_pass_if_nobody_tried_it() {
    let parts = parts_of(&[&["g", "p"], &ALWAYS]);
    let (class, places, seen_once, lacks) = merged(&parts).unwrap();
    assert_eq!((class, seen_once), (OutcomeClass::Untested, 4));
    assert_eq!(lacks, ["part 1/2 has not tried kprobe:f (beside)"]);
    assert_eq!(places.len(), 11);
}

#[test]
fn a_later_boot_may_find_others() {
    let (scenarios, files) = (folder(), TempDir::new().unwrap());
    let file = files.path().join("part.jsonl");
    let part = (Shard { number: 1, of: 1 }, file.as_path());
    made(scenarios.path(), part, &["f"], 4).unwrap();
    let summary = made(scenarios.path(), part, &["f", "g"], 4).unwrap();
    assert_eq!(summary.verdicts.places.len(), 8);
    let text = fs::read_to_string(&file).unwrap();
    assert_eq!(text.lines().count(), 2 + 8);
    // What is in the file is not tried again, nor lost if it is not seen again.
    let summary = made(scenarios.path(), part, &["f"], 0).unwrap();
    assert_eq!((summary.verdicts.places.len(), summary.found), (8, 8));
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    assert_eq!(merged(&[passed(&text)]).unwrap().0, OutcomeClass::Good);
}

#[test]
fn places_of_another_kernel_or_scenario_are_refused() {
    let good = parts_of(&[&ALWAYS, &ALWAYS]);
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
    let scenario = good[1].replacen("[\"scenario\",\"", "[\"scenario\",\"0", 1);
    refused(scenario, "another scenario");
    let only = good[1].replacen("--function\",\"\"]", "--function\",\"f\"]", 1);
    refused(only, "another choice of --function");
    refused(parts_of(&[&ALWAYS]).remove(0), "number of parts");
}
