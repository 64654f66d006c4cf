//! What the distribution's perf records in the guest, judged by `unwindlab check` as the harness judges the trial; and
//! what a trial recorded, opened by that perf.
//!
//! Needs the kernel `stock`, Debian's perf, and a KVM host, native or emulated.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "an integration test is a test module as a whole"
)]

mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{said, scratch, unwindlab};
use serde_json::Value;

/// A trial in which perf recorded.
struct Trial {
    told: String,
    result: Value,
    perf_data: PathBuf,
}

impl Trial {
    fn run(scenario: &Path, folder: &Path) -> Self {
        let json = folder.join("results.jsonl");
        let artifacts = folder.join("artifacts");
        let output = unwindlab(&[
            "run",
            scenario.to_str().unwrap(),
            "--json",
            json.to_str().unwrap(),
            "--artifacts",
            artifacts.to_str().unwrap(),
            "--perf-data",
            folder.join("perf").to_str().unwrap(),
        ]);
        let told = said(&output);
        let line = std::fs::read_to_string(&json).unwrap_or_else(|_| panic!("{told}"));
        let name = scenario.file_stem().unwrap();
        Self {
            result: serde_json::from_str(line.lines().next().unwrap()).unwrap(),
            perf_data: artifacts.join(name).join("perf.data"),
            told,
        }
    }

    /// The violated invariants, with the finding of each.
    fn violated(&self) -> BTreeSet<(String, String)> {
        let list = self.result["violations"].as_array().unwrap().iter();
        let text = |it: &Value| it.as_str().unwrap_or_default().to_owned();
        list.map(|it| (text(&it["invariant"]), text(&it["finding"])))
            .collect()
    }

    fn held(&self) -> BTreeSet<String> {
        let list = self.result["checks"].as_array().unwrap().iter();
        let held = list.filter(|it| it["check"].get("Holds").is_some());
        held.map(|it| it["invariant"].as_str().unwrap().to_owned())
            .collect()
    }
}

/// The exit code of `check`, and what it printed.
fn check(trial: &Trial, options: &[&str]) -> (Option<i32>, String) {
    let file = trial.perf_data.to_str().unwrap();
    let output = unwindlab(&[&["check", file], options].concat());
    (output.status.code(), said(&output))
}

/// What stands in the line of this word: `held: C4 (40), C7 (20)`.
fn ids(told: &str, word: &str) -> BTreeSet<String> {
    let line = told.lines().find_map(|line| line.trim().strip_prefix(word));
    let parts = line.unwrap_or_default().split(", ");
    let ids = parts.filter_map(|it| it.trim_start_matches(": ").split(' ').next());
    ids.filter(|it| !it.is_empty()).map(str::to_owned).collect()
}

/// The invariants of which violations are shown or counted.
fn violated(told: &str) -> BTreeSet<String> {
    let shown = told
        .lines()
        .filter_map(|it| it.trim().split_once(" violated: "));
    let shown = shown.map(|(id, _)| id.to_owned());
    let more = told.split(" more of ").skip(1);
    let more = more.map(|it| it.chars().take_while(char::is_ascii_alphanumeric).collect());
    shown.chain(more).collect()
}

#[test]
fn a_recording_of_a_right_trial_is_judged_as_the_trial() {
    let folder = scratch("recorded");
    let trial = Trial::run(Path::new("tests/scenarios/recorded.yaml"), &folder);
    assert_eq!(trial.result["outcome"], "pass", "{}", trial.told);
    let (code, told) = check(&trial, &["--kernel", "stock"]);
    assert_eq!(code, Some(0), "{told}");
    assert!(
        told.contains("\npass ") && !told.contains("violated"),
        "{told}"
    );
    let held = ids(&told, "held");
    assert!(held.is_subset(&trial.held()), "{told}\n{}", trial.told);
    for id in ["A1", "A2", "C4", "C7", "D3", "M2", "M4", "M7"] {
        assert!(held.contains(id), "{id}: {told}");
    }
}

/// The distribution's perf, by its own loader, as a run has fetched it.
fn perf(arguments: &[&str]) -> String {
    let kernel = unwindlab(&["kernel", "path", "stock"]);
    let kernel = PathBuf::from(String::from_utf8_lossy(&kernel.stdout).trim());
    let entries = kernel
        .ancestors()
        .find(|it| it.ends_with("entries"))
        .unwrap();
    let entries = std::fs::read_dir(entries)
        .unwrap()
        .map(|it| it.unwrap().path());
    let is_perf = |it: &PathBuf| {
        let name = it.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with("perf-tool-")
    };
    let folder = { entries }.find(is_perf).expect("perf was fetched");
    let output = Command::new(folder.join("lib/ld-linux-x86-64.so.2"))
        .args(["--inhibit-cache", "--library-path"])
        .arg(folder.join("lib"))
        .arg(folder.join("perf"))
        .args(arguments)
        .env("PAGER", "cat")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn perf_opens_what_a_trial_recorded_and_merges_its_chains() {
    let folder = scratch("written");
    let trial = Trial::run(Path::new("tests/scenarios/recorded.yaml"), &folder);
    let file = folder.join("perf/recorded.data");
    let file = file.to_str().unwrap();
    let report = perf(&["report", "--stdio", "--no-children", "--input", file]);
    for name in ["deep_return", "descend", "root"] {
        assert!(report.contains(name), "{name}: {report}");
    }
    let script = perf(&["script", "--input", file]);
    let samples: Vec<&str> = script
        .split("\n\n")
        .filter(|it| it.contains("nmi:"))
        .collect();
    // The handlers of the counter and of all other NMIs.
    assert_eq!(samples.len(), 40, "{script}");
    for sample in samples {
        let frames = |name: &str| sample.lines().filter(|it| it.contains(name)).count();
        let user = [
            frames(" deep_return+"),
            frames(" descend+"),
            frames(" root+"),
        ];
        assert_eq!(user, [1, 11, 1], "{sample}");
    }
    let output = unwindlab(&["check", file]);
    let told = said(&output);
    assert_eq!(output.status.code(), Some(0), "{told}");
    let held = ids(&told, "held");
    assert!(
        held.contains("C4") && held.is_subset(&trial.held()),
        "{told}"
    );
}

#[test]
fn f001_in_a_recording_is_named_by_the_kernels_code_only() {
    let folder = scratch("recorded-in-reset");
    let found = unwindlab(&["findings"]);
    let lines = String::from_utf8_lossy(&found.stdout).into_owned();
    let f001 = lines.lines().find(|it| it.starts_with("F001")).unwrap();
    // Behind the first of the two stores.
    let (_, window) = f001.split_once("do_syscall_64+").unwrap();
    let offset = window.split([' ', ',']).nth(1).unwrap();
    let both = std::fs::read_to_string("tests/scenarios/recorded.yaml").unwrap();
    let window = format!(
        "repeat: 5\n  - pmu-overflow:\n      at: {{ kernel: do_syscall_64{offset} }}\n      repeat: 5\n"
    );
    let both = both.replace("name: recorded", "name: recorded-in-reset");
    let both = both.replace("repeat: 20\n", &window);
    let scenario = folder.join("recorded-in-reset.yaml");
    std::fs::write(&scenario, both).unwrap();
    let trial = Trial::run(&scenario, &folder);
    let expected = ["C4", "C7", "M3"].map(|id| (id.to_owned(), "F001".to_owned()));
    assert_eq!(trial.violated(), BTreeSet::from(expected), "{}", trial.told);

    let (code, told) = check(&trial, &["--kernel", "stock"]);
    assert_eq!(code, Some(0), "{told}");
    assert!(
        told.contains("\nexpected-failure ") && told.contains("(F001)"),
        "{told}"
    );
    let ids = trial.violated().into_iter().map(|(id, _)| id);
    assert_eq!(violated(&told), ids.collect(), "{told}");

    let (code, told) = check(&trial, &[]);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("the events are as those of F001"), "{told}");
    assert!(!told.contains("(F001)"), "{told}");

    // Cut in its records: what is left is judged, and is no pass.
    let short = folder.join("short.data");
    let bytes = std::fs::read(&trial.perf_data).unwrap();
    std::fs::write(&short, &bytes[..1000]).unwrap();
    let output = unwindlab(&["check", short.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(125), "{}", said(&output));
    assert!(said(&output).contains("cut short"), "{}", said(&output));
}
