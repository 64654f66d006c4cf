//! Places tried without a machine: a request in, events and a summary out.

use super::*;
use crate::campaign::testing::{FakeProvider, Recorded, died, ended, folder};
use unwindlab_abi::SurveyedPlace;
use unwindlab_oracle::trace::Recording;
use unwindlab_oracle::trace::recording::TrialEnd;

/// A survey that found these functions.
fn surveyed(functions: &[&str]) -> Recorded {
    let place = |name: &&str| SurveyedPlace {
        system: None,
        name: (*name).to_owned(),
        hits: 1,
        contexts: 1,
    };
    Ok(Recording {
        survey: functions.iter().map(place).collect(),
        end: TrialEnd::Completed,
        ..Recording::default()
    })
}

fn refused() -> Recorded {
    ended(TrialEnd::Unsupported {
        reason: "no kprobe on it".to_owned(),
    })
}

fn tried(
    change: impl FnOnce(&mut PlacesRequest),
    recorded: Vec<Recorded>,
) -> (Result<PlacesSummary, CampaignError>, Vec<String>, u32) {
    interrupted(change, recorded, None)
}

/// The same where the user interrupts the host's work of this number.
fn interrupted(
    change: impl FnOnce(&mut PlacesRequest),
    recorded: Vec<Recorded>,
    during: Option<usize>,
) -> (Result<PlacesSummary, CampaignError>, Vec<String>, u32) {
    let folder = folder();
    let mut request = PlacesRequest {
        scenario: folder.path().join("a.yaml"),
        ..PlacesRequest::default()
    };
    change(&mut request);
    let mut provider = FakeProvider::new(recorded);
    provider.interrupt_in = during;
    let context = provider.context();
    let mut events = Vec::new();
    let summary = requests(&request, context, &mut |event| {
        events.push(match event {
            PlacesEvent::Failed { place, result, .. } => {
                format!("{place} {}", result.outcome.name())
            }
            PlacesEvent::Swept(done) => format!("{} {:?}", done.place, done.class()),
            PlacesEvent::Replay(_) => "replay".to_owned(),
            PlacesEvent::Ended(summary) => {
                match summary.sweeps.is_none() && summary.is_incomplete() {
                    true => format!("{} of {}", summary.verdicts.places.len(), summary.found),
                    false => "ended".to_owned(),
                }
            }
        });
        Ok(())
    });
    let started = provider
        .hosts_started
        .load(std::sync::atomic::Ordering::Relaxed);
    (summary, events, started)
}

#[test]
fn each_place_of_the_surveys_is_tried_once() {
    let mut recorded = vec![surveyed(&["f"]), surveyed(&[])];
    recorded.extend([surveyed(&["f", "g"]), surveyed(&[])]);
    recorded.extend((0..6).map(|_| refused()));
    let (summary, events, _) = tried(|_| {}, recorded);
    let summary = summary.unwrap();
    assert_eq!(events, ["ended"]);
    let places: Vec<String> = summary
        .verdicts
        .places
        .iter()
        .map(|it| it.place.to_string())
        .collect();
    let expected = [
        "kprobe:f (alone)",
        "kretprobe:f (alone)",
        "kprobe:f (beside)",
        "kretprobe:f (beside)",
        "kprobe:g (beside)",
        "kretprobe:g (beside)",
    ];
    assert_eq!(places, expected);
    assert_eq!(
        summary.verdicts.count(|it| matches!(it, Fate::Refused(_))),
        6
    );
    // Nothing was tested.
    assert_eq!(summary.class(), OutcomeClass::Untested);
}

#[test]
fn a_host_that_failed_is_replaced_and_its_place_is_not_tested() {
    let surveys = || (0..4).map(|_| surveyed(&["f"]));
    let mut recorded: Vec<Recorded> = surveys().collect();
    recorded.extend([died(), refused()]);
    let (summary, _, started) = tried(|it| it.only = vec!["f".to_owned()], {
        recorded.extend((0..6).map(|_| refused()));
        recorded
    });
    let summary = summary.unwrap();
    assert_eq!(started, 2);
    assert!(summary.is_incomplete());
    assert_eq!(summary.class(), OutcomeClass::Untested);
}

#[test]
fn without_places_nothing_is_tried() {
    let recorded = (0..4).map(|_| surveyed(&["f"])).collect();
    let (summary, events, _) = tried(|it| it.only = vec!["other".to_owned()], recorded);
    assert!(summary.unwrap_err().is_usage());
    assert!(events.is_empty());
    let (summary, ..) = tried(|_| {}, vec![ended(TrialEnd::Hang { places: Vec::new() })]);
    let why = summary.unwrap_err().to_string();
    assert!(why.contains("not known: the guest hangs"), "{why}");
}

#[test]
fn a_function_is_known_by_its_other_names() {
    // `f` and `g` are one address.
    let mut recorded: Vec<Recorded> = (0..4).map(|_| surveyed(&["f", "h"])).collect();
    recorded.extend((0..8).map(|_| refused()));
    let (summary, ..) = tried(|it| it.only = vec!["g".to_owned()], recorded);
    let verdicts = summary.unwrap().verdicts;
    assert_eq!(verdicts.places.len(), 8);
    assert!(verdicts.places.iter().all(|it| it.place.seat.name() == "f"));
}

#[test]
fn an_interrupt_tells_what_was_tried() {
    let mut recorded: Vec<Recorded> = (0..4).map(|_| surveyed(&["f"])).collect();
    recorded.extend((0..3).map(|_| refused()));
    let (summary, events, _) = interrupted(|_| {}, recorded, Some(6));
    assert!(matches!(summary, Err(CampaignError::Interrupted)));
    assert_eq!(events, ["2 of 8"]);
}

#[test]
fn a_budget_that_is_used_up_leaves_places_untested() {
    let recorded = (0..4).map(|_| surveyed(&["f"])).collect();
    let (summary, ..) = tried(|it| it.budget = Some(Duration::ZERO), recorded);
    let summary = summary.unwrap();
    assert_eq!((summary.verdicts.places.len(), summary.found), (0, 8));
    assert_eq!(summary.class(), OutcomeClass::Untested);
}

#[test]
fn a_path_that_cannot_be_swept_is_not_tested() {
    let recorded = vec![surveyed(&["f", "g"]), surveyed(&[])];
    let (summary, events, started) = tried(|it| it.nmi = true, recorded);
    let summary = summary.unwrap();
    assert_eq!(
        events,
        [
            "kprobe:f (beside) Untested",
            "kprobe:g (beside) Untested",
            "ended"
        ]
    );
    let why = summary.sweeps.as_ref().unwrap()[0]
        .swept
        .clone()
        .unwrap_err();
    assert_eq!(why, "no path");
    assert_eq!(summary.class(), OutcomeClass::Untested);
    // One for the surveys, and one for all sweeps.
    assert_eq!(started, 2);
}
