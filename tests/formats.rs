//! What `run` prints and writes for other programs, read by those who are to read it: `prove` (Perl's TAP::Harness), the
//! kernel's `kunit.py`, and from PyPI kcidb-io, junitparser and jsonschema. Each refuses a file that is wrong.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "an integration test is a test module as a whole"
)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::Duration;

use common::consumers::consume;
use common::{kernel_tree, said, scratch, unwindlab};
use unwindlab::judge::flaky::{Attempt, FlakyIs};
use unwindlab::judge::{Outcome, ScenarioResult};
use unwindlab::report::json::{self, Setting};
use unwindlab::report::junit;
use unwindlab::report::kcidb::{self, Submission};

/// A pass, a skip, an expected failure, and a kernel that panics.
const SCENARIOS: [&str; 4] = [
    "nmi-in-syscall",
    "lab-leaving",
    "deferred-without-side-band",
    "tests/scenarios/panics.yaml",
];

/// What runs of them printed and wrote, of TAP's run.
fn tap() -> &'static Path {
    static TAP: OnceLock<PathBuf> = OnceLock::new();
    TAP.get_or_init(|| results("tap", &scratch("formats-tap"), &SCENARIOS))
}

/// What a run prints in this format, in a file; `results.jsonl`, `results.xml` and `results.json` (KCIDB) beside it.
fn results(format: &str, folder: &Path, scenarios: &[&str]) -> PathBuf {
    let at = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let named = [
        "guests",
        "results.jsonl",
        "results.xml",
        "results.json",
        "traces",
    ]
    .map(at);
    let [artifacts, json, junit, kcidb, traces] = named.each_ref().map(String::as_str);
    let mut options = vec!["run", "--format", format, "--artifacts", artifacts];
    options.extend(["--json", json, "--junit", junit, "--kcidb", kcidb]);
    options.extend(["--trace-json", traces]);
    options.extend(scenarios);
    let output = unwindlab(&options);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let file = folder.join(format!("results.{format}"));
    fs::write(&file, &output.stdout).unwrap();
    file
}

/// The same without its last result.
fn cut(file: &Path, last: &str) -> PathBuf {
    let text = fs::read_to_string(file).unwrap();
    let whole = text.lines().count();
    let kept = text.lines().filter(|line| !line.starts_with(last));
    let kept: String = kept.flat_map(|line| [line, "\n"]).collect();
    assert_eq!(kept.lines().count(), whole - 1);
    let cut = file.with_extension("cut");
    fs::write(&cut, kept).unwrap();
    cut
}

fn prove(file: &Path) -> Output {
    Command::new("prove")
        .args(["-e", "cat"])
        .arg(file)
        .output()
        .unwrap()
}

#[test]
fn prove_reads_tap() {
    let file = tap();
    let read = prove(file);
    let told = said(&read);
    assert!(!read.status.success(), "{told}");
    for line in [
        "(less 1 skipped subtest: 2 okay)",
        "Failed test:  4",
        "Files=1, Tests=4,",
    ] {
        assert!(told.contains(line), "{told}");
    }
    assert!(!told.contains("Parse errors"), "{told}");
    let told = said(&prove(&cut(file, "not ok 4 ")));
    assert!(
        told.contains("Bad plan.  You planned 4 tests but ran 3."),
        "{told}"
    );
}

#[test]
fn the_kernels_parser_reads_ktap() {
    let file = results("ktap", &scratch("formats-ktap"), &SCENARIOS);
    let kunit = kernel_tree().join("tools/testing/kunit/kunit.py");
    let parse = |file: &Path| {
        let output = Command::new("python3")
            .arg(&kunit)
            .arg("parse")
            .arg(file)
            .output();
        said(&output.unwrap())
    };
    let told = parse(&file);
    let counts = "Ran 4 tests: passed: 2, failed: 1, skipped: 1";
    assert!(told.contains(counts), "{told}");
    assert!(!told.contains("ERROR"), "{told}");
    let told = parse(&cut(&file, "not ok 4 "));
    assert!(told.contains("missing expected subtest"), "{told}");
}

/// What a consumer says of a file that is right, and that it refuses the same with this text replaced.
fn consumed(script: &str, before: &[&Path], file: &Path, right: &str, wrong: &str) -> String {
    let read = |file: &Path| consume(script, &[before, &[file]].concat());
    let output = read(file);
    assert!(output.status.success(), "{}", said(&output));
    let text = fs::read_to_string(file).unwrap();
    assert!(text.contains(right), "{right}: {text:.1000}");
    let broken = file.with_extension("wrong");
    fs::write(&broken, text.replacen(right, wrong, 1)).unwrap();
    let refused = read(&broken);
    assert!(!refused.status.success(), "{}", said(&refused));
    String::from_utf8(output.stdout).unwrap()
}

/// A result that does not occur in a run on purpose.
fn flaky() -> ScenarioResult {
    let of = |outcome| ScenarioResult::not_run("once-more", outcome, "why".to_owned());
    let before = [Outcome::InfraError, Outcome::Hang].map(|it| Attempt::of(&of(it)));
    of(Outcome::Pass).after(before.to_vec())
}

fn setting() -> Setting {
    Setting {
        kernel_spec: "stock".to_owned(),
        kernel_release: "7.3".to_owned(),
        kernel_hash: "abc".to_owned(),
        kvm_host: "none".to_owned(),
    }
}

#[test]
fn others_read_what_is_written_for_them() {
    let folder = tap().parent().unwrap();
    let at = |name: &str| folder.join(name);

    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/result.schema.json");
    let line = json::line(&setting(), &flaky()).unwrap();
    let lines = fs::read_to_string(at("results.jsonl")).unwrap() + &line;
    fs::write(at("results.jsonl"), lines).unwrap();
    let other = ("unwindlab.result/1", "unwindlab.result/2");
    let told = consumed(
        "jsonl.py",
        &[&schema],
        &at("results.jsonl"),
        other.0,
        other.1,
    );
    assert_eq!(told, OUTCOMES);
    let unknown = ("\"outcome\":\"guest-panic\"", "\"outcome\":\"panic\"");
    consumed(
        "jsonl.py",
        &[&schema],
        &at("results.jsonl"),
        unknown.0,
        unknown.1,
    );

    let told = consumed("junit.py", &[], &at("results.xml"), "</testsuite>", "");
    assert_eq!(told, CASES);
    consumed(
        "junit.py",
        &[],
        &at("results.xml"),
        "<failure ",
        "<success ",
    );
    for (flaky_is, kind) in [(FlakyIs::Fail, "Failure"), (FlakyIs::Pass, "Success")] {
        let text = junit::xml(&setting(), &[flaky()], flaky_is, Duration::ZERO).unwrap();
        fs::write(at("flaky.xml"), text).unwrap();
        let told = consumed(
            "junit.py",
            &[],
            &at("flaky.xml"),
            "<testsuites ",
            "<suites ",
        );
        assert_eq!(told, format!("once-more {kind} flakyError flakyFailure\n"));
    }

    let status = ("\"status\": \"PASS\"", "\"status\": \"FLAKY\"");
    let told = consumed("kcidb.py", &[], &at("results.json"), status.0, status.1);
    assert_eq!(told, STATUSES);
    let submission = Submission::new("ours".to_owned(), Some("theirs:1".to_owned())).unwrap();
    let report = kcidb::report(&submission, &setting(), &[flaky()]).unwrap();
    fs::write(at("flaky.json"), report).unwrap();
    let id = ("\"ours:", "\"Ours:");
    let told = consumed("kcidb.py", &[], &at("flaky.json"), id.0, id.1);
    assert_eq!(told, "unwindlab.once-more FAIL\nissues\n");
}

#[test]
fn trace_events_are_as_the_format_says() {
    let file = tap().parent().unwrap().join("traces/nmi-in-syscall.json");
    let end = ("\"ph\":\"f\"", "\"ph\":\"t\"");
    let told = consumed("trace_events.py", &[], &file, end.0, end.1);
    for line in [
        "CPU 0 20 deferred chain, 20 sample,\n",
        "workload thread 0 20 deferred chain, 20 sample,\n",
        "\n20 arrows\n",
    ] {
        assert!(told.contains(line), "{told}");
    }
    let slice = (
        "\"name\":\"deferred chain\"",
        "\"label\":\"deferred chain\"",
    );
    consumed("trace_events.py", &[], &file, slice.0, slice.1);
}

const OUTCOMES: &str = "nmi-in-syscall pass
lab-leaving skip
deferred-without-side-band expected-failure
panics guest-panic
once-more flaky
";

const CASES: &str = "nmi-in-syscall Success
lab-leaving Skipped
deferred-without-side-band Success
panics Failure
";

const STATUSES: &str = "unwindlab.nmi-in-syscall PASS
unwindlab.lab-leaving SKIP
unwindlab.deferred-without-side-band FAIL
unwindlab.panics FAIL
issues unwindlab:F007
";

/// There is no program of GitHub's that reads them elsewhere; this is what its documentation says of them.
#[test]
fn annotations_are_the_only_commands() {
    let scenarios = ["deferred-without-side-band", "tests/scenarios/panics.yaml"];
    let file = results("github", &scratch("formats-github"), &scenarios);
    let printed = fs::read_to_string(file).unwrap();
    let (mut stopped, mut told) = (None, Vec::new());
    for line in printed.lines() {
        match (line.strip_prefix("::stop-commands::"), stopped) {
            (Some(token), None) => stopped = Some(token),
            (None, Some(token)) if line == format!("::{token}::") => stopped = None,
            (_, Some(_)) => {}
            (_, None) => told.push(line),
        }
    }
    assert_eq!(stopped, None, "{printed}");
    let [notice, error] = told.as_slice() else {
        panic!("{told:?}")
    };
    let place = "::notice file=scenarios/deferred-without-side-band.yaml,title=";
    assert!(notice.starts_with(place), "{notice}");
    let title = "deferred-without-side-band%3A expected-failure::A3 violated: ";
    assert!(notice.contains(title), "{notice}");
    let place = "::error file=tests/scenarios/panics.yaml,title=panics%3A guest-panic::";
    assert!(error.starts_with(place), "{error}");
    assert!(error.contains("Kernel panic - not syncing"), "{error}");
}
