//! What machines read, and files that are whole or not there.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use crate::judge::flaky::{Attempt, FlakyIs};
use crate::judge::tests::{Trial, VIOLATED};
use crate::judge::{Outcome, ScenarioResult};
use crate::report::artifacts::Artifacts;
use crate::report::json::{Setting, line};
use crate::report::junit::xml;
use crate::report::output_file::{LineFile, OutputFile};
use unwindlab_oracle::trace::Recording;

fn setting() -> Setting {
    Setting {
        kernel_spec: "stock".to_owned(),
        kernel_release: "7.2.0".to_owned(),
        kernel_hash: "abc".to_owned(),
        kvm_host: "emulated".to_owned(),
    }
}

#[test]
fn json_is_one_line_with_all_of_it() {
    let mut trial = Trial::good("snapshot: events\n");
    trial.invariants.push(VIOLATED);
    let text = line(&setting(), &trial.judged()).unwrap();
    assert_eq!(text.matches('\n').count(), 1);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let keys: Vec<&str> = json
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    let mut expected = vec![
        "schema",
        "kernel-spec",
        "kernel-release",
        "kernel-hash",
        "kvm-host",
        "name",
        "outcome",
        "reasons",
        "checks",
        "violations",
        "snapshot",
        "counts",
        "duration",
        "artifacts",
        "canonical",
        "trace",
        "trials",
    ];
    expected.sort_unstable();
    let mut keys = keys;
    keys.sort_unstable();
    assert_eq!(keys, expected);
    assert_eq!(json["schema"], "unwindlab.result/1");
    assert_eq!(json["outcome"], "fail");
    assert_eq!(json["duration"], 1.5);
    assert_eq!(json["counts"]["samples"], 2);
    assert_eq!(json["counts"]["frames"]["3"], 2);
    assert_eq!(json["violations"][0]["invariant"], "V1");
    assert!(json["violations"][0]["finding"].is_null());
    assert_eq!(json["snapshot"]["is"], "missing");
    assert_eq!(json["trace"]["events"].as_array().unwrap().len(), 4);
    assert_eq!(json["checks"][0]["invariant"], "H1");
}

#[test]
fn junit_knows_what_is_wrong_from_what_is_not_known() {
    let results = Outcome::ALL.map(|outcome| {
        let reasons = match outcome {
            Outcome::Pass => "",
            _ => "a < b \u{1b} & c",
        };
        ScenarioResult::not_run(outcome.name(), outcome, reasons.to_owned())
    });
    let text = xml(&setting(), &results, FlakyIs::Fail, Duration::from_secs(3)).unwrap();
    assert!(!text.contains('\u{1b}'), "no XML: {text}");
    let element = |name: &str| -> &str {
        let case = text
            .split("<testcase ")
            .find(|case| case.contains(&format!("name=\"{name}\"")));
        let case = case.unwrap_or_else(|| panic!("no {name} in {text}"));
        ["<failure", "<error", "<skipped"]
            .into_iter()
            .find(|element| case.contains(element))
            .unwrap_or("success")
    };
    let elements = Outcome::ALL.map(|outcome| (outcome.name(), element(outcome.name())));
    assert_eq!(
        elements,
        [
            ("pass", "success"),
            ("expected-failure", "success"),
            ("fail", "<failure"),
            ("guest-panic", "<failure"),
            ("guest-misbehaved", "<failure"),
            ("hang", "<failure"),
            // Without an attempt that says something.
            ("flaky", "<error"),
            ("skip", "<skipped"),
            ("guest-skip", "<error"),
            ("boot-error", "<error"),
            ("timeout", "<error"),
            ("infra-error", "<error"),
        ]
    );
    assert!(text.contains("tests=\"12\""), "{text}");
    assert!(text.contains("failures=\"4\""), "{text}");
    assert!(text.contains("errors=\"5\""), "{text}");
}

#[test]
fn junit_shows_each_attempt_of_a_flaky_scenario() {
    let of = |outcome| ScenarioResult::not_run("a", outcome, "why".to_owned());
    let flaky = of(Outcome::Pass).after(vec![
        Attempt::of(&of(Outcome::InfraError)),
        Attempt::of(&of(Outcome::Hang)),
    ]);
    let written = |flaky_is| {
        let results = std::slice::from_ref(&flaky);
        xml(&setting(), results, flaky_is, Duration::from_secs(3)).unwrap()
    };
    let failed = written(FlakyIs::Fail);
    assert!(failed.contains("<failure "), "{failed}");
    let passed = written(FlakyIs::Pass);
    assert!(!passed.contains("<failure "), "{passed}");
    for text in [failed, passed] {
        assert!(text.contains("<flakyError "), "{text}");
        assert!(text.contains("<flakyFailure "), "{text}");
    }
}

#[test]
fn output_files_are_whole_or_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.json");
    let names = || -> Vec<_> {
        let entries = fs::read_dir(folder.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect()
    };
    drop(OutputFile::create(&path).unwrap());
    assert!(names().is_empty());
    OutputFile::create(&path).unwrap().finish("one\n").unwrap();
    let second = OutputFile::create(&path).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "one\n");
    // Who is killed now leaves nothing; who was killed in `finish` left this.
    assert_eq!(names(), ["out.json"]);
    fs::write(folder.path().join(".out.json.unwindlab"), "left").unwrap();
    second.finish("two\n").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "two\n");
    assert_eq!(names(), ["out.json"]);
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o600, 0o600);
}

#[test]
fn lines_are_there_as_soon_as_they_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.jsonl");
    let read = || fs::read_to_string(&path).unwrap();
    fs::write(&path, "before\n").unwrap();
    let mut file = LineFile::create(&path).unwrap();
    assert_eq!(read(), "before\n");
    file.write("one\n").unwrap();
    assert_eq!(read(), "one\n");
    file.write("two\n").unwrap();
    assert_eq!(read(), "one\ntwo\n");
    // What a run that is killed does.
    drop(file);
    assert_eq!(read(), "one\ntwo\n");
    let names = fs::read_dir(folder.path()).unwrap();
    assert_eq!(names.count(), 1);
    LineFile::create(&path).unwrap().finish().unwrap();
    assert_eq!(read(), "", "a run without results");
    let mut null = LineFile::create("/dev/null".as_ref()).unwrap();
    null.write("one\n").unwrap();
    null.finish().unwrap();
}

#[test]
fn two_names_of_one_output_file_are_known() {
    let folder = tempfile::tempdir().unwrap();
    let create = |name: &str| OutputFile::create(&folder.path().join(name)).unwrap();
    assert!(create("a").is_same(&create("./a")));
    assert!(!create("a").is_same(&create("b")));
    let null = || OutputFile::create("/dev/null".as_ref()).unwrap();
    assert!(!null().is_same(&null()));
}

#[test]
fn output_files_that_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let error = OutputFile::create(folder.path()).unwrap_err().to_string();
    assert!(error.ends_with(": is a directory"), "{error}");
    let nowhere = folder.path().join("no/out.json");
    let error = OutputFile::create(&nowhere).unwrap_err().to_string();
    assert!(
        error.starts_with("cannot write ")
            && error.ends_with("no/out.json: No such file or directory (os error 2)"),
        "{error}"
    );
    let fifo = folder.path().join("fifo");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let error = OutputFile::create(&fifo).unwrap_err().to_string();
    assert!(error.contains("No such device or address"), "{error}");
    OutputFile::create("/dev/null".as_ref())
        .unwrap()
        .finish("x")
        .unwrap();
}

#[test]
fn artifacts_of_what_did_not_pass() {
    let folder = tempfile::tempdir().unwrap();
    let recording = Recording {
        console: "hello\n".to_owned(),
        ..Recording::default()
    };
    let artifacts = Artifacts::open(Some(folder.path())).unwrap();
    let stale = folder.path().join("x/kernel.log");
    fs::create_dir_all(stale.parent().unwrap()).unwrap();
    fs::write(&stale, "of an earlier run").unwrap();
    let mut result = Trial::good("").judged();
    artifacts.keep(&mut result, &recording).unwrap();
    assert_eq!(result.outcome, Outcome::Pass);
    let console = folder.path().join("x/console.log");
    assert_eq!(fs::read_to_string(&console).unwrap(), "hello\n");
    assert!(!stale.exists());
    let kept: Vec<_> = result.artifacts.iter().map(|it| &it.path).collect();
    assert_eq!(kept, [&console]);
}

#[test]
fn artifacts_of_a_pass_are_not_kept_unasked() {
    let artifacts = Artifacts::open(None).unwrap();
    let mut result = Trial::good("").judged();
    artifacts.keep(&mut result, &Recording::default()).unwrap();
    assert!(result.artifacts.is_empty());
}
