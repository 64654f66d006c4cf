//! A run without a command line: a request in, events and a summary out.

use std::io;
use std::sync::atomic::Ordering::Relaxed;

use super::{
    FailedFast, RunEvent, RunRequest, RunSummary, TrialOptions, in_time, resolve_all, run,
};
use crate::campaign::error::CampaignError;
use crate::campaign::kernel::KernelChoice;
use crate::campaign::replay_file::{ReplayFile, ReplayTrial};
use crate::campaign::testing::{FakeKernel, FakeProvider, Recorded, died, ended, folder};
use crate::judge::Outcome;
use crate::judge::flaky::{FlakyIs, exit_code_of};
use crate::judge::outcome::OutcomeClass;
use crate::report::artifacts::Artifacts;
use unwindlab_oracle::trace::Recording;
use unwindlab_oracle::trace::recording::TrialEnd;
use unwindlab_scenario::Library;

/// Runs a request; its events in a word each.
fn ran(
    request: &RunRequest,
    provider: &FakeProvider,
) -> (Result<RunSummary, CampaignError>, Vec<String>) {
    let mut events = Vec::new();
    let context = provider.context();
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
fn results_of_scenarios_side_by_side_come_in_order() {
    let folder = folder();
    let request = RunRequest {
        scenarios: vec![folder.path().to_owned()],
        trials: TrialOptions {
            jobs: 3,
            ..TrialOptions::default()
        },
        ..RunRequest::default()
    };
    let count = Library::open(&request.scenarios, &[]).map_or(0, |it| it.scenarios.len());
    let one_by_one = {
        let provider = FakeProvider::new((0..count).map(|_| ended(TrialEnd::Completed)));
        let request = RunRequest {
            trials: TrialOptions::default(),
            ..request.clone()
        };
        ran(&request, &provider).1
    };
    assert!(one_by_one.len() > 3, "{one_by_one:?}");
    for _ in 0..20 {
        let provider = FakeProvider::new((0..count).map(|_| ended(TrialEnd::Completed)));
        let (summary, events) = ran(&request, &provider);
        assert_eq!(events, one_by_one);
        assert!((1..=3).contains(&provider.hosts_started.load(Relaxed)));
        assert_eq!(summary.unwrap().results.len(), count);
    }
}

/// A guest that did not come to its agent's first word.
fn stood_still() -> Recorded {
    Ok(Recording {
        end: TrialEnd::BootError {
            reason: "no agent after 60 s".to_owned(),
            places: Vec::new(),
        },
        ..Recording::default()
    })
}

#[test]
fn a_boot_that_stands_still_is_tried_on_another_host_and_told() {
    let folder = folder();
    let request = RunRequest {
        scenarios: vec![folder.path().to_owned()],
        filter: vec!["a".to_owned()],
        ..RunRequest::default()
    };
    let result = |is_doubtful, recorded: Vec<Recorded>| {
        let mut provider = FakeProvider::new(recorded);
        provider.is_doubtful = is_doubtful;
        let mut results = ran(&request, &provider).0.unwrap().results;
        (results.remove(0), provider.hosts_started.load(Relaxed))
    };

    let (booted, hosts) = result(true, vec![stood_still(), ended(TrialEnd::Completed)]);
    assert_eq!((booted.outcome, hosts), (Outcome::Flaky, 2));
    let told = "boot-error: no agent after 60 s; pass when it was booted again";
    assert_eq!(booted.reasons[0], told);
    assert_eq!(exit_code_of(&[booted], FlakyIs::Fail), 125);

    let (again, hosts) = result(true, vec![stood_still(), stood_still()]);
    assert_eq!((again.outcome, hosts), (Outcome::BootError, 2));
    assert!(again.reasons[0].contains("as on another outer machine before"));
    assert!(again.attempts.is_empty());

    // Nothing of this machine's own KVM is doubted.
    let (once, hosts) = result(false, vec![stood_still()]);
    assert_eq!((once.outcome, hosts), (Outcome::BootError, 1));
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
    let context = provider.context();
    let error = run(&request, context, &mut |event| match event {
        RunEvent::Finished { .. } => Err(io::ErrorKind::StorageFull.into()),
        _ => Ok(()),
    });
    assert!(matches!(error, Err(CampaignError::Io(_))));
}

#[test]
fn a_soak_makes_all_trials_whatever_comes_of_them() {
    let folder = folder();
    let kept = folder.path().join("kept");
    let request = RunRequest {
        scenarios: vec![folder.path().join("a.yaml")],
        artifacts: Some(Artifacts::open(Some(&kept)).unwrap()),
        trials: TrialOptions {
            trials: Some(4),
            ..TrialOptions::default()
        },
        ..RunRequest::default()
    };
    let provider = FakeProvider::new([
        ended(TrialEnd::Completed),
        ended(TrialEnd::Hang { places: Vec::new() }),
        died(),
        ended(TrialEnd::Completed),
    ]);
    let context = provider.context();
    let summary = super::soak::soak(&request, context, &mut |_| Ok(())).unwrap();
    let [soaked] = summary.soaked.as_slice() else {
        panic!("{:?}", summary.soaked)
    };
    assert_eq!(
        (soaked.made(), soaked.judged(), soaked.failures()),
        (4, 3, 1)
    );
    assert_eq!(soaked.verdict(), OutcomeClass::Bad);
    let numbers: Vec<u32> = soaked.reasons.iter().map(|it| it.0).collect();
    assert_eq!(numbers, [2, 3]);
    assert_eq!(provider.hosts_started.load(Relaxed), 2);
    // Of the first that is not good.
    let replay = ReplayFile::read(&kept.join("a/replay.json"))
        .unwrap()
        .replay;
    assert_eq!(replay.verdict.outcome, Outcome::Hang);
}

/// Outcomes of a run of the three scenarios with these options.
fn outcomes_of(trials: TrialOptions, provider: &FakeProvider) -> (Vec<Outcome>, RunSummary) {
    let folder = folder();
    let kept = folder.path().join("kept");
    let request = RunRequest {
        scenarios: vec![folder.path().to_owned()],
        artifacts: Some(Artifacts::open(Some(&kept)).unwrap()),
        trials,
        ..RunRequest::default()
    };
    let summary = ran(&request, provider).0.unwrap();
    let outcomes = summary.results.iter().map(|it| it.outcome).collect();
    // Of each attempt, what is said to be kept is kept.
    for result in &summary.results {
        let of_attempts = result.attempts.iter().flat_map(|it| &it.artifacts);
        for path in of_attempts.chain(result.artifacts.iter().map(|it| &it.path)) {
            assert!(path.exists(), "{path:?}");
        }
    }
    (outcomes, summary)
}

#[test]
fn a_scenario_that_passes_when_it_is_run_once_more_is_flaky() {
    let hang = || ended(TrialEnd::Hang { places: Vec::new() });
    let pass = || ended(TrialEnd::Completed);
    let provider = FakeProvider::new([died(), hang(), pass(), pass(), hang(), hang(), hang()]);
    let retries = TrialOptions {
        retries: 2,
        ..TrialOptions::default()
    };
    let (outcomes, summary) = outcomes_of(retries, &provider);
    assert_eq!(outcomes, [Outcome::Flaky, Outcome::Pass, Outcome::Hang]);
    let attempts: Vec<usize> = { summary.results.iter() }
        .map(|it| it.attempts.len())
        .collect();
    assert_eq!(attempts, [2, 0, 2]);
    assert_eq!(provider.hosts_started.load(Relaxed), 2);
    let [first, second] = summary.results[0].attempts.as_slice() else {
        panic!("{:?}", summary.results[0].attempts)
    };
    assert!(
        first
            .artifacts
            .iter()
            .all(|it| !second.artifacts.contains(it))
    );
    assert!(
        second
            .artifacts
            .iter()
            .any(|it| it.ends_with("a/attempt-2/replay.json"))
    );
}

#[test]
fn the_first_that_fails_ends_a_run_that_is_to_fail_fast() {
    let fail_fast = TrialOptions {
        fail_fast: true,
        retries: 1,
        ..TrialOptions::default()
    };
    let hang = || ended(TrialEnd::Hang { places: Vec::new() });
    let pass = || ended(TrialEnd::Completed);
    // What says nothing of the kernel is no failure.
    let provider = FakeProvider::new([died(), died(), hang(), pass()]);
    let (outcomes, summary) = outcomes_of(fail_fast.clone(), &provider);
    assert_eq!(outcomes, [Outcome::InfraError, Outcome::Flaky]);
    let failed = FailedFast {
        name: "b".to_owned(),
        not_run: 1,
    };
    assert_eq!(summary.failed_fast, Some(failed));

    let provider = FakeProvider::new([hang(), pass(), pass(), pass()]);
    let flaky_is = FlakyIs::Pass;
    let (outcomes, summary) = outcomes_of(
        TrialOptions {
            flaky_is,
            ..fail_fast
        },
        &provider,
    );
    assert_eq!(outcomes, [Outcome::Flaky, Outcome::Pass, Outcome::Pass]);
    assert_eq!(summary.failed_fast, None);
}

#[test]
fn time_limits_are_multiplied() {
    let of = |factor| {
        let folder = folder();
        let path = folder.path().join("a.yaml");
        let library = Library::open(&[path], &[]).unwrap().scenarios;
        let kernel = FakeKernel {
            has_feature: true,
            generated: None,
        };
        let mut plans = in_time(resolve_all(&library, &kernel).unwrap(), factor);
        plans.remove(0).unwrap().limits
    };
    let (once, more) = (of(None), of(Some(2.5)));
    assert_eq!(more.run_ms * 2, once.run_ms * 5);
    assert_eq!(more.boot_ms * 2, once.boot_ms * 5);
}
