//! A sweep without a command line and without a machine.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tempfile::TempDir;

use super::{
    PathOrigin, PathRequest, PointChoice, SweepEvent, SweepOptions, SweepRequest, SweepSummary,
    SweptPath, sweep,
};
use crate::campaign::error::CampaignError;
use crate::campaign::testing::FakeProvider;
use crate::judge::outcome::OutcomeClass;
use unwindlab_engine::plan::sweep::{Boundary, Effort, Message, Point, Reach, Step, SweptTrial};
use unwindlab_oracle::trace::Recording;
use unwindlab_oracle::trace::recording::TrialEnd;

/// A folder with a scenario whose request a path can begin with.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let text = "name: a\ndescription: For tests.\nworkload: { kind: spin, frames: 3 }\n\
                inject: [ { nmi: { at: { kernel: unwind_deferred_request } } } ]\n";
    fs::write(folder.path().join("a.yaml"), text).unwrap();
    folder
}

fn request(folder: &TempDir) -> SweepRequest {
    SweepRequest::of(PathRequest::of(folder.path().join("a.yaml")))
}

/// The boundaries of the path.
fn at(number: u32) -> Boundary {
    Boundary {
        rip: 16 * (u64::from(number) + 1),
        occurrence: 1,
    }
}

fn path() -> Message {
    let step = |number| Step {
        rip: at(number).rip,
        task: 1,
        user: false,
        reach: Reach::Stepped,
        local: false,
        clock: None,
    };
    Message::Path {
        common: Box::new(Recording::default()),
        path: (0..2).map(step).collect(),
    }
}

fn trial(number: u32, end: TrialEnd) -> Message {
    Message::Trial(Box::new(SweptTrial {
        point: Point::single(number, at(number)),
        end,
        ..SweptTrial::default()
    }))
}

fn panic() -> TrialEnd {
    TrialEnd::Panic {
        line: "Kernel panic - not syncing".to_owned(),
    }
}

/// Sweeps; the events in a word each.
fn swept(
    request: &SweepRequest,
    messages: impl IntoIterator<Item = Message>,
) -> (
    Result<SweepSummary, CampaignError>,
    Vec<String>,
    FakeProvider,
) {
    interrupted(request, messages, None)
}

/// The same where the user interrupts it before this message.
fn interrupted(
    request: &SweepRequest,
    messages: impl IntoIterator<Item = Message>,
    before: Option<usize>,
) -> (
    Result<SweepSummary, CampaignError>,
    Vec<String>,
    FakeProvider,
) {
    let mut provider = FakeProvider::new([]);
    provider.messages = messages.into_iter().collect();
    provider.interrupt_in = before;
    let context = provider.context();
    let mut events = Vec::new();
    let summary = sweep(request, context, &mut |event| {
        events.push(match event {
            SweepEvent::New(failed) => format!("new at {}", failed.point),
            SweepEvent::Failed(failed) => format!("failed at {}", failed.point),
            SweepEvent::Ended(SweptPath {
                kvm_host, summary, ..
            }) => match summary.cut {
                None => format!("ended on {kvm_host}"),
                Some(why) => {
                    let (tried, of) = (summary.verdicts.tried.len(), summary.chosen);
                    format!("{why:?} on {kvm_host} after {tried} of {of}")
                }
            },
            SweepEvent::Replay(_) => "replay".to_owned(),
        });
        Ok(())
    });
    (summary, events, provider)
}

#[test]
fn failures_are_told_apart_from_passes() {
    let folder = folder();
    let done = || Message::Done(Effort::default());
    let completed = |number| trial(number, TrialEnd::Completed);
    let (summary, events, _) = swept(
        &request(&folder),
        [path(), completed(0), completed(1), done()],
    );
    let summary = summary.unwrap();
    assert_eq!((summary.class(), summary.tried), (OutcomeClass::Good, 2));
    assert_eq!(events, ["ended on bench"]);

    let (summary, events, _) = swept(
        &request(&folder),
        [path(), completed(0), trial(1, panic()), done()],
    );
    let summary = summary.unwrap();
    assert_eq!(summary.class(), OutcomeClass::Bad);
    assert_eq!(summary.failures.len(), 1);
    assert_eq!(events, ["new at 1", "ended on bench"]);

    // The second fails as the first did.
    let twice = [path(), trial(0, panic()), trial(1, panic()), done()];
    let (_, events, _) = swept(&request(&folder), twice);
    assert_eq!(events, ["new at 0", "ended on bench"]);

    let single = SweepRequest {
        points: PointChoice::Numbered(vec!["1".parse().unwrap()]),
        ..request(&folder)
    };
    let (_, events, _) = swept(&single, [path(), trial(1, panic()), done()]);
    assert_eq!(events, ["new at 1", "failed at 1", "ended on bench"]);

    let missed = Message::Missed {
        point: Point::single(1, at(1)),
    };
    let (summary, ..) = swept(&request(&folder), [path(), completed(0), missed, done()]);
    assert_eq!(summary.unwrap().class(), OutcomeClass::Untested);
}

#[test]
fn a_hang_for_want_of_a_cpu_is_not_decided() {
    let folder = folder();
    let sweep = |end| {
        let messages = [path(), trial(0, TrialEnd::Completed), trial(1, end)];
        let done = Message::Done(Effort::default());
        let (summary, events, _) = swept(&request(&folder), messages.into_iter().chain([done]));
        (summary.unwrap().class(), events.len())
    };
    let places = Vec::new;
    let starved = TrialEnd::Starved {
        places: places(),
        percent: 97,
    };
    assert_eq!(sweep(starved), (OutcomeClass::Untested, 1));
    let hang = TrialEnd::Hang { places: places() };
    assert_eq!(sweep(hang), (OutcomeClass::Bad, 2));
}

#[test]
fn a_sweep_that_breaks_off_is_no_success() {
    let folder = folder();
    let failed = || Message::Failed {
        reason: "no memory".to_owned(),
    };
    let (summary, events, _) = swept(&request(&folder), [failed()]);
    assert_eq!(summary.unwrap_err().to_string(), "no memory");
    assert!(events.is_empty());

    let messages = [path(), trial(0, TrialEnd::Completed), failed()];
    let (summary, events, _) = swept(&request(&folder), messages);
    let error = summary.unwrap_err();
    assert_eq!(error.to_string(), "the sweep broke off: no memory");
    assert!(!error.is_usage());
    assert_eq!(events, ["Failure on bench after 1 of 2"]);
}

#[test]
fn an_interrupted_sweep_tells_what_it_tried_and_is_no_pass() {
    let folder = folder();
    let all = || {
        let completed = |number| trial(number, TrialEnd::Completed);
        let done = Message::Done(Effort::default());
        [path(), completed(0), completed(1), done]
    };
    let (summary, events, _) = interrupted(&request(&folder), all(), Some(2));
    assert!(matches!(summary, Err(CampaignError::Interrupted)));
    assert_eq!(events, ["Interrupt on bench after 1 of 2"]);

    // A trial that comes behind it is not judged.
    let (summary, events, _) = interrupted(&request(&folder), all(), Some(1));
    assert!(matches!(summary, Err(CampaignError::Interrupted)));
    assert_eq!(events, ["Interrupt on bench after 0 of 2"]);

    let (summary, events, _) = interrupted(&request(&folder), [], Some(0));
    assert!(summary.is_err() && events.is_empty());
}

#[test]
fn a_sweep_that_ends_at_its_budget_is_no_pass() {
    let folder = folder();
    let limited = SweepRequest {
        options: SweepOptions {
            budget: Some(Duration::ZERO),
            ..SweepOptions::default()
        },
        ..request(&folder)
    };
    let (summary, events, _) = swept(&limited, [path(), trial(0, TrialEnd::Completed)]);
    let summary = summary.unwrap();
    assert_eq!(
        (summary.class(), summary.tried),
        (OutcomeClass::Untested, 1)
    );
    assert_eq!(events, ["Budget on bench after 1 of 2"]);
}

#[test]
fn how_a_guest_died_is_kept_by_a_later_sweep() {
    let folder = folder();
    let file = folder.path().join("resume.json");
    let resumed = SweepRequest {
        options: SweepOptions {
            resume: Some(file.clone()),
            ..SweepOptions::default()
        },
        ..request(&folder)
    };
    let misbehaved = || TrialEnd::Misbehaved {
        what: "a message out of turn".to_owned(),
    };
    for (end, name) in [
        (misbehaved(), "guest-misbehaved"),
        (panic(), "guest-panic"),
        (TrialEnd::Hang { places: Vec::new() }, "hang"),
    ] {
        let died = format!("\"died\":\"{name}\"");
        for messages in [
            [path(), trial(0, end)],
            [path(), trial(1, TrialEnd::Completed)],
        ] {
            swept(&resumed, messages).0.unwrap();
            let record = std::fs::read_to_string(&file).unwrap();
            assert!(record.contains(&died), "{record}");
        }
        std::fs::remove_file(&file).unwrap();
    }
}

#[test]
fn a_later_sweep_goes_on_from_its_file() {
    let folder = folder();
    let resumed = SweepRequest {
        options: SweepOptions {
            resume: Some(folder.path().join("resume.json")),
            ..SweepOptions::default()
        },
        ..request(&folder)
    };
    let (first, _, provider) = swept(&resumed, [path(), trial(0, panic())]);
    assert_eq!(first.unwrap().tried, 1);
    assert!(provider.plans.lock().unwrap()[0].done.is_empty());
    let (second, _, provider) = swept(&resumed, [path(), trial(1, TrialEnd::Completed)]);
    let second = second.unwrap();
    assert_eq!((second.class(), second.tried), (OutcomeClass::Bad, 2));
    assert!(
        provider.plans.lock().unwrap()[0]
            .done
            .contains(&(at(0), None))
    );

    let other = SweepRequest {
        path: PathRequest {
            start: PathOrigin::WithoutRequest,
            ..resumed.path.clone()
        },
        ..resumed
    };
    let error = swept(&other, []).0.unwrap_err();
    assert!(error.is_usage(), "{error}");
    assert!(error.to_string().contains("--no-request"), "{error}");
}

#[test]
fn a_wrong_request_is_known_before_a_host_is_started() {
    let folder = folder();
    let plain = folder.path().join("b.yaml");
    let text = "name: b\ndescription: For tests.\nworkload: { kind: spin, frames: 3 }\n";
    fs::write(&plain, text).unwrap();
    let with = |points| SweepRequest {
        points,
        ..request(&folder)
    };
    let of = |scenario: PathBuf| SweepRequest::of(PathRequest::of(scenario));
    let nowhere = PointChoice::In {
        functions: vec!["nowhere".to_owned()],
        once: false,
        each: false,
    };
    for (request, words) in [
        (of(folder.path().to_owned()), "a sweep is of one scenario"),
        (of(plain), "the scenario has none"),
        (with(nowhere), "the kernel has no function `nowhere`"),
        (
            with(PointChoice::Numbered(vec!["3:4".parse().unwrap()])),
            "add --pairs",
        ),
    ] {
        let (error, events, provider) = swept(&request, []);
        let error = error.unwrap_err();
        assert!(error.is_usage(), "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert!(events.is_empty() && provider.plans.lock().unwrap().is_empty());
    }
}

#[test]
fn what_is_wrong_with_a_request_is_known_before_a_kernel_is_fetched() {
    let folder = folder();
    let mut misspelt = request(&folder);
    misspelt.path.scenario = folder.path().join("b.yaml");
    let mut resumed = request(&folder);
    resumed.options.resume = Some(folder.path().to_owned());
    for wrong in [misspelt, resumed] {
        let (result, _, provider) = swept(&wrong, []);
        assert!(result.unwrap_err().is_usage());
        assert!(!provider.fetched.load(Relaxed));
    }
}
