//! `run --accept-snapshots`.

use std::fs;

use super::{outcomes, run_words};
use crate::campaign::testing::{FakeProvider, ended};
use unwindlab_oracle::trace::recording::TrialEnd;

const SCENARIO: &str = "\
name: a
description: For tests.
workload: { kind: spin, frames: 3 }
snapshot: events
";

#[test]
fn a_snapshot_is_written_only_when_asked_and_is_what_the_next_run_compares_with() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("scenarios")).unwrap();
    fs::write(at("scenarios/a.yaml"), SCENARIO).unwrap();
    let code = |end: TrialEnd, more: &[&str]| {
        let paths = ["scenarios/a.yaml", "out.json", "kept"].map(|it| at(it).display().to_string());
        let [scenario, json, kept] = paths;
        let words = [
            "unwindlab",
            "run",
            &scenario,
            "--json",
            &json,
            "--artifacts",
            &kept,
        ];
        let words = words.iter().chain(more).map(ToString::to_string);
        run_words(words, &FakeProvider::new([ended(end)])).unwrap()
    };
    let accept = ["--accept-snapshots"];
    let snapshot = at("snapshots/a.snap");
    assert_eq!(code(TrialEnd::Completed, &[]), 1);
    let results = fs::read_to_string(at("out.json")).unwrap();
    let missing =
        "scenarios/../snapshots/a.snap is missing; write this run's with --accept-snapshots";
    assert!(results.contains(missing), "{results}");
    let hang = TrialEnd::Hang { places: Vec::new() };
    assert_eq!(code(hang, &accept), 1);
    assert!(!snapshot.exists());
    assert_eq!(code(TrialEnd::Completed, &accept), 0);
    let results = fs::read_to_string(at("out.json")).unwrap();
    assert!(
        results.contains(r#""snapshot":{"is":"skipped"}"#),
        "{results}"
    );
    assert!(snapshot.is_file());
    assert_eq!(code(TrialEnd::Completed, &[]), 0);
    assert_eq!(outcomes(&folder), ["a pass"]);
    let results = fs::read_to_string(at("out.json")).unwrap();
    assert!(results.contains(r#""snapshot":{"is":"same"}"#), "{results}");
}
