//! Parts of a sweep and of a run (`--shard`), made by one command each and merged, are the sweep and the run.
//!
//! Needs the stock kernel and a KVM host, native or emulated.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "an integration test is a test module as a whole"
)]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use common::{said, scratch, unwindlab};
use serde_json::Value;

const SWEEP: [&str; 4] = ["sweep", "nmi-in-syscall", "--function", "do_syscall_64"];

/// A sweep with more arguments, which leaves a file.
fn sweep(more: &[&str], file: &Path) {
    let rest = ["--resume", file.to_str().unwrap()];
    let output = unwindlab(&[&SWEEP, more, &rest].concat());
    assert!(output.status.success(), "{}", said(&output));
}

/// The report of these files, as its lines, and the exit code.
fn merge(files: &[&PathBuf], more: &[&str]) -> (Vec<String>, Option<i32>) {
    let files: Vec<&str> = files.iter().map(|it| it.to_str().unwrap()).collect();
    let output = unwindlab(&[&["merge"], files.as_slice(), more].concat());
    let told = said(&output);
    (
        told.lines().map(str::to_owned).collect(),
        output.status.code(),
    )
}

/// What identifies the trials of a file in each boot, and the failures with those that show them.
fn trials(file: &Path) -> (BTreeSet<String>, BTreeSet<String>) {
    let record: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let point = |it: &Value| format!("{} {}", it["at"], it["then"]["at"]);
    let points =
        |it: &Value| -> BTreeSet<String> { it.as_array().unwrap().iter().map(point).collect() };
    let failures = record["failures"].as_array().unwrap().iter();
    let failures = failures.map(|it| format!("{} {:?}", it["fell"], points(&it["points"])));
    (points(&record["tried"]), failures.collect())
}

#[test]
fn three_parts_are_the_whole() {
    let folder = scratch("shards");
    let whole = folder.join("whole.json");
    sweep(&[], &whole);
    let parts: Vec<PathBuf> = (1..=3)
        .map(|it| folder.join(format!("part-{it}.json")))
        .collect();
    for (part, number) in parts.iter().zip(1..) {
        sweep(&["--shard", &format!("{number}/3")], part);
    }
    let all: Vec<&PathBuf> = parts.iter().collect();
    let json = folder.join("merged.json");
    let (told, code) = merge(&all, &["--json", json.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{told:?}");
    assert_eq!(trials(&json), trials(&whole));
    // It is told as the whole is, to the line.
    let (told_whole, code) = merge(&[&whole], &[]);
    assert_eq!(code, Some(0), "{told_whole:?}");
    let same = |lines: &[String]| -> Vec<String> {
        let others = |line: &&String| !line.contains("merged from");
        // W0 is exercised where the kernel printed a line in some trial: on a busy machine that an NMI's handler took long.
        let timeless = |line: &String| match line.starts_with("exercised: ") {
            true => line.replace(" W0", ""),
            false => line.clone(),
        };
        lines.iter().filter(others).map(timeless).collect()
    };
    assert_eq!(same(&told), same(&told_whole));

    let (told, code) = merge(&[&parts[0], &parts[2]], &[]);
    assert_eq!(code, Some(125), "{told:?}");
    assert!(
        told.contains(&"NOT COMPLETE: part 2/3 is missing".to_owned()),
        "{told:?}"
    );

    // What is missing is tried by a sweep that goes on from what is there.
    let rest = folder.join("rest.json");
    merge(&[&parts[0], &parts[2]], &["--json", rest.to_str().unwrap()]);
    sweep(&[], &rest);
    assert_eq!(trials(&rest), trials(&whole));

    let other = folder.join("other.json");
    let asks_not = [
        "--no-request",
        "--shard",
        "2/3",
        "--resume",
        other.to_str().unwrap(),
    ];
    let output = unwindlab(&[SWEEP.as_slice(), &asks_not].concat());
    assert!(output.status.success(), "{}", said(&output));
    let (told, code) = merge(&[&parts[0], &other, &parts[2]], &[]);
    assert_eq!(code, Some(2), "{told:?}");
    assert!(told.concat().contains("--no-request"), "{told:?}");
}

/// Fast ones, some of which are in each of three parts.
const SCENARIOS: [&str; 5] = [
    "nmi-in-nmi",
    "nmi-in-signal-handler",
    "nmi-in-syscall",
    "nmi-in-sysret",
    "nmi-in-user-mode",
];

/// Runs them with more arguments, which leaves a file; the exit code.
fn run(more: &[&str], file: &Path) -> Option<i32> {
    let rest = ["--json", file.to_str().unwrap()];
    let output = unwindlab(&[&["run"], SCENARIOS.as_slice(), more, &rest].concat());
    assert!(output.status.success(), "{}", said(&output));
    output.status.code()
}

/// Name and outcome of each result of a file, in its order.
fn outcomes(file: &Path) -> Vec<(String, String)> {
    let text = fs::read_to_string(file).unwrap();
    let lines = text
        .lines()
        .map(|it| serde_json::from_str::<Value>(it).unwrap());
    let field = |it: &Value, name: &str| it[name].as_str().unwrap().to_owned();
    let results = lines.filter(|it| it["schema"] == "unwindlab.result/1");
    results
        .map(|it| (field(&it, "name"), field(&it, "outcome")))
        .collect()
}

/// The same of printed rows.
fn told_outcomes(told: &[String]) -> Vec<(String, String)> {
    let row = |line: &String| {
        let mut words = line.split_whitespace();
        let (outcome, name) = (words.next()?, words.next()?);
        SCENARIOS
            .contains(&name)
            .then(|| (name.to_owned(), outcome.to_owned()))
    };
    told.iter().filter_map(row).collect()
}

#[test]
fn three_parts_of_a_run_are_the_run() {
    let folder = scratch("shards-run");
    let whole = folder.join("whole.jsonl");
    let code = run(&[], &whole);
    let parts: Vec<PathBuf> = (1..=3)
        .map(|it| folder.join(format!("part-{it}.jsonl")))
        .collect();
    for (part, number) in parts.iter().zip(1..) {
        run(&["--shard", &format!("{number}/3")], part);
        assert!(!outcomes(part).is_empty(), "{number}");
    }
    let all: Vec<&PathBuf> = parts.iter().collect();
    let json = folder.join("merged.jsonl");
    let (told, merged) = merge(&all, &["--json", json.to_str().unwrap()]);
    assert_eq!(merged, code, "{told:?}");
    assert_eq!(told_outcomes(&told), outcomes(&whole));
    let sorted = |file: &Path| outcomes(file).into_iter().collect::<BTreeSet<_>>();
    assert_eq!(sorted(&json), sorted(&whole));

    // What stands in a file is not run again.
    let before = fs::read_to_string(&parts[0]).unwrap();
    run(&["--shard", "1/3"], &parts[0]);
    assert_eq!(fs::read_to_string(&parts[0]).unwrap(), before);

    let (told, code) = merge(&[&parts[0], &parts[2]], &[]);
    assert_eq!(code, Some(125), "{told:?}");
    let names: Vec<String> = outcomes(&parts[1]).into_iter().map(|it| it.0).collect();
    let lacks = format!("NOT COMPLETE: part 2/3 is missing: {}", names.join(", "));
    assert!(told.contains(&lacks), "{told:?}");
    assert_eq!(told_outcomes(&told).len(), SCENARIOS.len() - names.len());

    let sweep = folder.join("sweep.json");
    self::sweep(&["--shard", "2/3"], &sweep);
    let (told, code) = merge(&[&parts[0], &sweep, &parts[2]], &[]);
    assert_eq!(code, Some(2), "{told:?}");
}

#[test]
fn two_parts_of_a_soak_are_the_soak() {
    let folder = scratch("shards-soak");
    let parts: Vec<PathBuf> = (1..=2)
        .map(|it| folder.join(format!("part-{it}.jsonl")))
        .collect();
    let part = |number: usize| {
        let shard = format!("{number}/2");
        let file = parts[number - 1].to_str().unwrap();
        let soak = [
            "soak",
            "--jobs",
            "1",
            "--trials",
            "4",
            "nmi-in-nmi",
            "nmi-in-syscall",
        ];
        let output = unwindlab(&[&soak, ["--shard", &shard, "--json", file].as_slice()].concat());
        assert!(output.status.success(), "{}", said(&output));
        fs::read_to_string(file).unwrap()
    };
    let (first, second) = (part(1), part(2));
    // A head, and a line for each trial.
    assert_eq!(first.lines().count() + second.lines().count(), 2 + 2 * 4);
    // What stands in a file is not made again.
    assert_eq!(part(1), first);
    let (told, code) = merge(&[&parts[1], &parts[0]], &[]);
    assert_eq!(code, Some(0), "{told:?}");
    for name in ["nmi-in-nmi", "nmi-in-syscall"] {
        let row = told.iter().find(|it| it.contains(name)).unwrap();
        let words: Vec<&str> = row.split_whitespace().take(4).collect();
        assert_eq!(words, ["held", name, "4", "0"], "{told:?}");
    }
    let (told, code) = merge(&[&parts[0]], &[]);
    assert_eq!(code, Some(125), "{told:?}");
    assert!(told.concat().contains("NOT COMPLETE: part 2/2"), "{told:?}");
}
