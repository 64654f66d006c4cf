//! A run without a command line: a request in, events and a summary out.

use std::io;
use std::sync::atomic::Ordering::Relaxed;

use super::{RunEvent, RunRequest, RunSummary, run};
use crate::campaign::Context;
use crate::campaign::error::CampaignError;
use crate::campaign::kernel::KernelChoice;
use crate::campaign::replay_file::{ReplayFile, ReplayTrial};
use crate::campaign::testing::{FakeProvider, Quiet, analysis, died, ended, folder};
use crate::judge::Outcome;
use crate::report::artifacts::Artifacts;
use unwindlab_oracle::trace::recording::TrialEnd;

/// Runs a request; its events in a word each.
fn ran(
    request: &RunRequest,
    provider: &FakeProvider,
) -> (Result<RunSummary, CampaignError>, Vec<String>) {
    let mut events = Vec::new();
    let context = Context {
        provider,
        analysis: &analysis(),
        progress: &Quiet,
        interrupt: &provider.interrupt,
    };
    let summary = run(request, context, &mut |event| {
        events.push(match event {
            RunEvent::Started { scenarios } => format!("started {}", scenarios.len()),
            RunEvent::Finished { result, .. } => {
                format!("{} {}", result.name, result.outcome.name())
            }
            RunEvent::Ended(summary) => format!("ended {}", summary.results.len()),
        });
        Ok(())
    });
    (summary, events)
}

#[test]
fn events_come_in_order() {
    let folder = folder();
    let request = RunRequest {
        scenarios: vec![folder.path().to_owned()],
        filter: vec!["a".to_owned(), "c".to_owned()],
        ..RunRequest::default()
    };
    let provider = FakeProvider::new([
        ended(TrialEnd::Completed),
        ended(TrialEnd::Hang { places: Vec::new() }),
    ]);
    let (summary, events) = ran(&request, &provider);
    assert_eq!(events, ["started 2", "a pass", "c hang", "ended 2"]);
    let summary = summary.unwrap();
    assert_eq!(summary.setting.kernel_spec, "stock");
    assert_eq!(summary.setting.kernel_release, "7.2.0");
    let outcomes: Vec<Outcome> = summary.results.iter().map(|it| it.outcome).collect();
    assert_eq!(outcomes, [Outcome::Pass, Outcome::Hang]);
}

#[test]
fn a_failure_leaves_a_replay_file() {
    let folder = folder();
    let kept = folder.path().join("kept");
    let request = RunRequest {
        scenarios: vec![folder.path().join("a.yaml")],
        artifacts: Some(Artifacts::open(Some(&kept)).unwrap()),
        ..RunRequest::default()
    };
    let provider = FakeProvider::new([ended(TrialEnd::Hang { places: Vec::new() })]);
    assert!(ran(&request, &provider).0.unwrap().unkept.is_empty());
    let replay = ReplayFile::read(&kept.join("a/replay.json"))
        .unwrap()
        .replay;
    assert_eq!(
        (replay.name.as_str(), replay.kernel.hash.as_str()),
        ("a", "abc")
    );
    assert_eq!(replay.kernel.choice, KernelChoice::default());
    assert!(matches!(replay.trial, ReplayTrial::Run(_)));
}

#[test]
fn a_wrong_request_is_told_from_what_failed() {
    let folder = folder();
    let of = |kernel: KernelChoice| RunRequest {
        scenarios: vec![folder.path().to_owned()],
        kernel,
        ..RunRequest::default()
    };
    let wrong = of(KernelChoice {
        source: Some("elsewhere".to_owned()),
        ..KernelChoice::default()
    });
    let provider = FakeProvider::new([]);
    let (error, events) = ran(&wrong, &provider);
    assert!(error.unwrap_err().is_usage());
    assert!(events.is_empty() && !provider.fetched.load(Relaxed));

    let mut provider = FakeProvider::new([died()]);
    provider.interrupt_in = Some(0);
    let (summary, events) = ran(&of(KernelChoice::default()), &provider);
    assert_eq!(events, ["started 3", "ended 0"]);
    assert!(summary.unwrap().results.is_empty());
}

#[test]
fn a_receiver_that_fails_ends_the_run() {
    let folder = folder();
    let request = RunRequest {
        scenarios: vec![folder.path().to_owned()],
        ..RunRequest::default()
    };
    let provider = FakeProvider::new([ended(TrialEnd::Completed)]);
    let context = Context {
        provider: &provider,
        analysis: &analysis(),
        progress: &Quiet,
        interrupt: &provider.interrupt,
    };
    let error = run(&request, context, &mut |event| match event {
        RunEvent::Finished { .. } => Err(io::ErrorKind::StorageFull.into()),
        _ => Ok(()),
    });
    assert!(matches!(error, Err(CampaignError::Io(_))));
}
