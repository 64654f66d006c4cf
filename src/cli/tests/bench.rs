//! What `bench` refuses before it measures anything.

use std::fs;
use std::sync::atomic::Ordering::Relaxed;

use clap::Parser as _;

use crate::campaign::Context;
use crate::campaign::testing::{FakeProvider, analysis};
use crate::cli::args::{Cli, Command};
use crate::cli::bench::bench;
use crate::cli::progress::Spinner;

/// The exit code and the message of a `bench` that measures nothing.
fn refused(arguments: &[&str]) -> (u8, String) {
    let cli = Cli::try_parse_from(["unwindlab", "bench"].iter().chain(arguments)).unwrap();
    let Command::Bench(args) = cli.command else {
        panic!("no bench");
    };
    let (provider, spinner) = (FakeProvider::new([]), Spinner::new());
    let context = Context {
        fresh: true,
        provider: &provider,
        analysis: &analysis(),
        progress: &spinner,
        interrupt: &provider.interrupt,
    };
    let error = bench(&args, context, &spinner).unwrap_err();
    assert!(!provider.fetched.load(Relaxed), "{error}");
    (error.exit_code(), error.to_string())
}

#[test]
fn a_file_that_is_none_of_figures_is_named_with_the_place_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("old.jsonl");
    let path = file.to_str().unwrap();
    let against = |expected: &str| {
        let (code, told) = refused(&["--against", path]);
        assert_eq!(code, 2, "{told}");
        assert!(told.starts_with(&format!("{path}: {expected}")), "{told}");
    };
    against("No such file");
    for (text, expected) in [
        (&b""[..], "no figures in it"),
        (b"\n{\"schema\": \"unwin", "line 2: the file is cut off"),
        (b"\xff\xfe", "invalid utf-8"),
        (b"null", "line 1: "),
    ] {
        fs::write(&file, text).unwrap();
        against(expected);
    }
}

#[test]
fn what_a_row_needs_is_asked_for_at_once() {
    for (arguments, expected) in [
        (
            &["--only", "clean-build"][..],
            "clean-build: say with --checkout where the source is",
        ),
        (
            &["--only", "tests", "--checkout", "/dev"],
            "tests: /dev has no Cargo.toml",
        ),
        (
            &["--only", "edit", "--kernel", "stock"],
            "edit: a kernel of --kernel has no source that could be edited",
        ),
    ] {
        assert_eq!(refused(arguments), (2, expected.to_owned()));
    }
}
