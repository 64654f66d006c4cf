//! `run` with a provider that has one kernel, and hosts that bring home what they are told.

mod accept;
mod bench;
mod sweep;

use std::fs;
use std::sync::atomic::Ordering::Relaxed;

use clap::Parser as _;
use tempfile::TempDir;

use super::args::{Cli, Command};
use super::error::CommandError;
use super::progress::Spinner;
use super::run::run;
use crate::campaign::Context;
use crate::campaign::testing::{FakeProvider, analysis, died, ended, folder};
use unwindlab_oracle::trace::Recording;
use unwindlab_oracle::trace::recording::TrialEnd;

/// Runs the scenarios of a folder with more arguments; results go to `out.json` there.
fn run_in(folder: &TempDir, more: &[&str], provider: &FakeProvider) -> Result<u8, CommandError> {
    let at = |name: &str| folder.path().join(name).display().to_string();
    let fixed = [
        "unwindlab".to_owned(),
        "run".to_owned(),
        folder.path().display().to_string(),
        "--json".to_owned(),
        at("out.json"),
        "--artifacts".to_owned(),
        at("kept"),
        // Hosts bring home what they are told in the order in which they are asked.
        "--jobs".to_owned(),
        "1".to_owned(),
    ];
    let more = more.iter().map(ToString::to_string);
    run_words(fixed.into_iter().chain(more), provider)
}

/// Runs a command line.
fn run_words(
    words: impl IntoIterator<Item = String>,
    provider: &FakeProvider,
) -> Result<u8, CommandError> {
    let cli = Cli::try_parse_from(words).unwrap();
    let Command::Run(args) = cli.command else {
        panic!("no run");
    };
    let spinner = Spinner::new();
    let context = Context {
        fresh: true,
        provider,
        analysis: &analysis(),
        progress: &spinner,
        interrupt: &provider.interrupt,
    };
    run(args, context, &spinner)
}

/// Name and outcome of every result in `out.json`.
fn outcomes(folder: &TempDir) -> Vec<String> {
    let text = fs::read_to_string(folder.path().join("out.json")).unwrap();
    text.lines()
        .map(|line| {
            let json: serde_json::Value = serde_json::from_str(line).unwrap();
            let field = |name: &str| json[name].as_str().unwrap().to_owned();
            format!("{} {}", field("name"), field("outcome"))
        })
        .collect()
}

#[test]
fn all_pass() {
    let folder = folder();
    let provider = FakeProvider::new([(); 3].map(|()| ended(TrialEnd::Completed)));
    assert_eq!(run_in(&folder, &[], &provider).unwrap(), 0);
    assert_eq!(outcomes(&folder), ["a pass", "b pass", "c pass"]);
    assert_eq!(
        provider.hosts_started.load(Relaxed),
        1,
        "one host for all of them"
    );
    let console = folder.path().join("kept/a/console.log");
    assert_eq!(fs::read_to_string(console).unwrap(), "hello\n");
}

#[test]
fn a_part_ends_with_the_code_of_what_is_in_it() {
    let folder = folder();
    let code = |shard: &str, recorded: Vec<TrialEnd>| {
        let _ = fs::remove_file(folder.path().join("out.json"));
        let provider = FakeProvider::new(recorded.into_iter().map(ended));
        run_in(&folder, &["--shard", shard], &provider).unwrap()
    };
    // By their hashes: b, a, c.
    assert_eq!(code("1/3", vec![TrialEnd::Completed]), 0);
    let hang = TrialEnd::Hang { places: Vec::new() };
    assert_eq!(code("2/3", vec![hang]), 1);
    // The file says so, and nothing is run again.
    let provider = FakeProvider::new([]);
    assert_eq!(run_in(&folder, &["--shard", "2/3"], &provider).unwrap(), 1);
    let error = run_in(&folder, &["--shard", "3/3"], &provider).unwrap_err();
    assert_eq!(error.exit_code(), 2, "{error}");
    // There is nothing in it.
    assert_eq!(code("2/8", Vec::new()), 125);
}

#[test]
fn a_part_needs_a_file_and_takes_no_option_that_ends_it_early() {
    let refused = |words: &[&str]| {
        let words = ["unwindlab", "run", "--shard", "1/2"].iter().chain(words);
        assert!(Cli::try_parse_from(words).is_err());
    };
    refused(&[]);
    refused(&["--json", "f", "--fail-fast"]);
    refused(&["--json", "f", "--token", "1:2"]);
    refused(&["--json", "f", "--junit", "g"]);
    refused(&["--json", "f", "--format", "tap"]);
}

#[test]
fn one_fails() {
    let folder = folder();
    let provider = FakeProvider::new([
        ended(TrialEnd::Completed),
        ended(TrialEnd::Hang { places: Vec::new() }),
        ended(TrialEnd::Completed),
    ]);
    assert_eq!(run_in(&folder, &[], &provider).unwrap(), 1);
    assert_eq!(outcomes(&folder), ["a pass", "b hang", "c pass"]);
}

#[test]
fn a_host_that_died_is_replaced_but_its_scenario_is_not_run_again() {
    let folder = folder();
    let provider = FakeProvider::new([
        died(),
        ended(TrialEnd::Completed),
        ended(TrialEnd::Completed),
    ]);
    assert_eq!(run_in(&folder, &[], &provider).unwrap(), 125);
    assert_eq!(outcomes(&folder), ["a infra-error", "b pass", "c pass"]);
    assert_eq!(provider.hosts_started.load(Relaxed), 2);
    let console = folder.path().join("kept/a/host-console.log");
    assert_eq!(
        fs::read_to_string(console).unwrap(),
        "Oops: the outer kernel\n"
    );
    // It is no line of the guest's log, which W0 judges.
    let results = fs::read_to_string(folder.path().join("out.json")).unwrap();
    assert!(!results.contains("the outer kernel"), "{results}");
}

#[test]
fn a_kernel_without_the_feature_is_skipped_unbooted() {
    let folder = folder();
    let mut provider = FakeProvider::new([]);
    provider.has_feature = false;
    assert_eq!(
        run_in(&folder, &["--kvm-host", "native"], &provider).unwrap(),
        125
    );
    assert_eq!(outcomes(&folder), ["a skip", "b skip", "c skip"]);
    assert_eq!(provider.hosts_started.load(Relaxed), 0);
}

#[test]
fn no_host() {
    let folder = folder();
    let error = run_in(&folder, &["--kvm-host", "native"], &FakeProvider::new([])).unwrap_err();
    assert_eq!(
        (error.to_string(), error.exit_code()),
        ("no /dev/kvm".to_owned(), 125)
    );
    assert!(!folder.path().join("out.json").exists());
}

#[test]
fn a_deterministic_run_has_a_host_of_its_own_kind() {
    let folder = folder();
    let native = ["--deterministic", "--kvm-host", "native"];
    let error = run_in(&folder, &native, &FakeProvider::new([])).unwrap_err();
    assert_eq!(error.exit_code(), 2, "{error}");
    let provider = FakeProvider::new([(); 3].map(|()| ended(TrialEnd::Completed)));
    assert_eq!(run_in(&folder, &["--deterministic"], &provider).unwrap(), 0);
    assert_eq!(provider.hosts_started.load(Relaxed), 0);
    let text = fs::read_to_string(folder.path().join("out.json")).unwrap();
    let hash = Recording {
        end: TrialEnd::Completed,
        console: "hello\n".to_owned(),
        ..Recording::default()
    }
    .sha256()
    .unwrap();
    assert_eq!(text.matches(&hash).count(), 3, "of each scenario");
    assert!(text.contains("bench of seed 0"), "{text}");
}

#[test]
fn no_such_kernel() {
    let error = run_in(&folder(), &["--kernel", "stock:1"], &FakeProvider::new([])).unwrap_err();
    assert_eq!(error.to_string(), "no such kernel: stock:1");
    assert_eq!(error.exit_code(), 2);
}

#[test]
fn wrong_scenarios_are_known_before_anything_is_started() {
    let folder = folder();
    fs::write(
        folder.path().join("b.yaml"),
        "\
name: b
description: For tests.
workload: { kind: spin, frames: 3 }
inject: [ { nmi: { at: { kernel: nowhere } } } ]
",
    )
    .unwrap();
    let provider = FakeProvider::new([]);
    let error = run_in(&folder, &[], &provider).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    let text = error.to_string();
    assert!(
        text.ends_with("b.yaml:4:24: the kernel has no symbol `nowhere`"),
        "{text}"
    );
    assert_eq!(provider.hosts_started.load(Relaxed), 0);

    fs::write(folder.path().join("b.yaml"), "name: c\n").unwrap();
    let provider = FakeProvider::new([]);
    assert_eq!(run_in(&folder, &[], &provider).unwrap_err().exit_code(), 2);
    assert!(!provider.fetched.load(Relaxed));
}

#[test]
fn results_that_cannot_be_written_are_known_before_anything_is_started() {
    for option in ["--junit", "--artifacts"] {
        let folder = folder();
        fs::write(folder.path().join("file"), "").unwrap();
        let path = folder.path().join("file/x").display().to_string();
        let provider = FakeProvider::new([]);
        let more = match option {
            "--artifacts" => vec!["--junit", "/dev/null"],
            _ => vec![option, &path],
        };
        if option == "--artifacts" {
            // The option is given once by `run_in` already: make that one a file.
            fs::write(folder.path().join("kept"), "").unwrap();
        }
        let error = run_in(&folder, &more, &provider).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{error}");
        assert!(error.to_string().starts_with("cannot write "), "{error}");
        assert!(!provider.fetched.load(Relaxed));
    }
}

#[test]
fn a_token_needs_schedules_and_two_results_two_files() {
    let folder = folder();
    let provider = FakeProvider::new([]);
    let refused = |more: &[&str]| run_in(&folder, more, &provider).unwrap_err();
    let error = refused(&["--token", "1:37"]);
    assert_eq!(error.exit_code(), 2);
    assert!(
        error.to_string().starts_with("a has no `explore`"),
        "{error}"
    );
    let same = folder.path().join("./out.json").display().to_string();
    let error = refused(&["--junit", &same]);
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().contains("the same file"), "{error}");
    let html = folder.path().join("out.html").display().to_string();
    for (more, names) in [
        (vec!["--html", &same], "--json and --html"),
        (
            vec!["--html", &html, "--junit", &html],
            "--junit and --html",
        ),
    ] {
        let error = refused(&more);
        assert_eq!(error.exit_code(), 2);
        assert_eq!(error.to_string(), format!("{names} name the same file"));
    }
}

#[test]
fn filters() {
    let folder = folder();
    let provider = FakeProvider::new([ended(TrialEnd::Completed)]);
    assert_eq!(run_in(&folder, &["--filter", "b"], &provider).unwrap(), 0);
    assert_eq!(outcomes(&folder), ["b pass"]);
    let error = run_in(&folder, &["--filter", "z"], &FakeProvider::new([])).unwrap_err();
    assert_eq!(error.exit_code(), 2);
}

#[test]
fn an_interrupt_keeps_what_is_done() {
    let folder = folder();
    let mut provider = FakeProvider::new([ended(TrialEnd::Completed), died()]);
    provider.interrupt_in = Some(1);
    assert_eq!(run_in(&folder, &[], &provider).unwrap(), 130);
    assert_eq!(outcomes(&folder), ["a pass"]);
}

#[test]
fn command_line() {
    use clap::CommandFactory as _;
    Cli::command().debug_assert();
    for wrong in [
        &["unwindlab"][..],
        &["unwindlab", "walk"],
        &["unwindlab", "run", "--kvm-host", "magic"],
        &["unwindlab", "run", "--seed", "3"],
        &["unwindlab", "run", "--deterministic", "--seed", "x"],
        &["unwindlab", "sweep", "--requests"],
        &["unwindlab", "sweep", "--nmi", "a"],
        &["unwindlab", "costs", "--frames", "0"],
        &["unwindlab", "sweep", "--requests", "--static", "a"],
    ] {
        assert_eq!(Cli::try_parse_from(wrong).unwrap_err().exit_code(), 2);
    }
    let nmi = ["unwindlab", "sweep", "--requests", "--nmi", "--static", "a"];
    assert!(Cli::try_parse_from(nmi).is_ok());
}
