//! What a sweep refuses before anything is started.

use clap::Parser as _;

use super::{Cli, Command, CommandError, Context, FakeProvider, Spinner, analysis, folder};
use crate::cli::sweep::sweep;

fn refused(html: &str, provider: &FakeProvider) -> CommandError {
    let folder = folder();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let words = [
        "unwindlab".to_owned(),
        "sweep".to_owned(),
        at("a.yaml"),
        "--html".to_owned(),
        at(html),
    ];
    let Command::Sweep(args) = Cli::try_parse_from(words).unwrap().command else {
        panic!("no sweep");
    };
    let spinner = Spinner::new();
    let context = Context {
        fresh: true,
        provider,
        analysis: &analysis(),
        progress: &spinner,
        interrupt: &provider.interrupt,
    };
    let error = sweep(&args, context, &spinner).unwrap_err();
    assert!(!folder.path().join(html).exists());
    error
}

#[test]
fn a_report_that_cannot_be_written_is_known_first() {
    let provider = FakeProvider::new([]);
    let error = refused("a.yaml/out.html", &provider);
    assert!(error.to_string().starts_with("cannot write "), "{error}");
    assert!(!provider.fetched.load(super::Relaxed));
}

/// What an option requires is not asked for where another one conflicts with it.
#[test]
fn a_sweep_behind_requests_has_no_parts() {
    let parsed = |more: &[&str]| {
        let words = ["unwindlab", "sweep", "a", "--requests", "--nmi"];
        Cli::try_parse_from(words.iter().chain(more))
    };
    assert!(parsed(&[]).is_ok());
    for more in [&["--shard", "1/2"][..], &["--resume", "file"]] {
        assert!(parsed(more).is_err(), "{more:?}");
    }
}

#[test]
fn a_wrong_place_is_told_what_is_expected() {
    let words = ["unwindlab", "sweep", "a", "--from", "foo:bar"];
    let told = Cli::try_parse_from(words).unwrap_err().to_string();
    assert!(told.contains("expected an instruction such as"), "{told}");
}

#[test]
fn what_would_have_no_effect_is_refused() {
    let no_effect = |words: &str| {
        let words = ["unwindlab", "sweep", "nmi-in-syscall"]
            .into_iter()
            .chain(words.split(' '));
        match Cli::try_parse_from(words).unwrap().command {
            Command::Sweep(args) => args.no_effect(),
            _ => panic!("no sweep"),
        }
    };
    let refused = [
        "--all --point 3",
        "--all --requests",
        "--trace",
        "--instructions 3",
        "--requests --trace",
    ]
    .map(no_effect);
    assert!(refused.iter().all(Option::is_some), "{refused:?}");
    for taken in [
        "--all",
        "--all --pairs --point 3",
        "--all --requests --nmi",
        "--point 3",
        "--point 3 --trace --instructions 3",
    ] {
        assert_eq!(no_effect(taken), None, "{taken}");
    }
}
