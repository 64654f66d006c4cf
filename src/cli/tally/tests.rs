use super::*;
use crate::cli::tests::Kernel;
use crate::plan::ExplorePlan;
use crate::scenario::check::check;
use crate::scenario::parse::parse;
use crate::scenario::resolve;

/// Nothing but the feature has a name.
const KERNEL: Kernel = Kernel { has_feature: true };

fn plan() -> TrialPlan {
    let text = "name: s\ndescription: d\nworkload: { kind: spin, frames: 3 }\n";
    let scenario = parse("s.yaml", text).expect("it is YAML");
    let scenario = check("s.yaml", "s", scenario, &[]).expect("it is right");
    resolve("s.yaml", &scenario, &KERNEL, "hash").expect("it is a plan")
}

fn result(outcome: Outcome) -> ScenarioResult {
    let mut result = ScenarioResult::not_run("s", outcome, "because".to_owned());
    result.duration = std::time::Duration::from_secs(1);
    result
}

fn exploring() -> TrialPlan {
    TrialPlan {
        vcpus: 2,
        explore: Some(ExplorePlan {
            seed: 5,
            trials: 3,
            preemptions: 1,
            places: vec![0x10, 0x20],
        }),
        ..plan()
    }
}

#[test]
fn one_trial_is_its_result() {
    let mut tally = Tally::new(&plan(), None, None);
    let all = tally.take(&plan(), result(Outcome::Pass), &[], &KERNEL);
    let all = all.expect("there is one");
    assert_eq!((all.outcome, all.trials), (Outcome::Pass, None));
}

#[test]
fn the_first_that_does_not_pass_ends_them() {
    let mut tally = Tally::new(&plan(), Some(5), None);
    assert!(
        tally
            .take(&plan(), result(Outcome::Pass), &[], &KERNEL)
            .is_none()
    );
    let expected = result(Outcome::ExpectedFailure);
    assert!(tally.take(&plan(), expected, &[], &KERNEL).is_none());
    let all = tally.take(&plan(), result(Outcome::Fail), &[], &KERNEL);
    let all = all.expect("it is over");
    assert_eq!(all.outcome, Outcome::Fail);
    assert_eq!(all.reasons, ["because", "in trial 3 of 5"]);
    assert_eq!(all.duration.as_secs(), 3);
    let trials = all.trials.expect("more than one");
    assert_eq!((trials.made, trials.expected_failures), (3, 1));
}

#[test]
fn an_expected_failure_is_what_is_seen_of_good_ones() {
    let mut tally = Tally::new(&plan(), Some(3), None);
    assert!(
        tally
            .take(&plan(), result(Outcome::Pass), &[], &KERNEL)
            .is_none()
    );
    let expected = result(Outcome::ExpectedFailure);
    assert!(tally.take(&plan(), expected, &[], &KERNEL).is_none());
    let all = tally.take(&plan(), result(Outcome::Pass), &[], &KERNEL);
    assert_eq!(all.expect("all are made").outcome, Outcome::ExpectedFailure);
}

#[test]
fn a_failure_of_an_exploration_names_its_token() {
    let plan = exploring();
    let mut tally = Tally::new(&plan, None, None);
    let first = tally.preemptions(&plan);
    assert!(
        tally
            .take(&plan, result(Outcome::Pass), &first, &KERNEL)
            .is_none()
    );
    let second = tally.preemptions(&plan);
    let all = tally.take(&plan, result(Outcome::Fail), &second, &KERNEL);
    let all = all.expect("it is over");
    let last = all.reasons.last().map(String::as_str);
    assert_eq!(last, Some("once more: `unwindlab run s --token 5:2`"));
    let token = Token { seed: 5, trial: 2 };
    let again = Tally::new(&plan, None, Some(token));
    assert_eq!(again.preemptions(&plan), second);
}

#[test]
fn an_exploration_without_a_preemption_is_no_pass() {
    let plan = exploring();
    let mut tally = Tally::new(&plan, None, None);
    let mut last = None;
    for _ in 0..3 {
        let preemptions = tally.preemptions(&plan);
        last = tally.take(&plan, result(Outcome::Pass), &preemptions, &KERNEL);
    }
    let last = last.expect("all are made");
    assert_eq!(last.outcome, Outcome::Fail);
}
