//! Parts of runs, made by runs.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::{Told, merged_files};
use crate::campaign::error::CampaignError;
use crate::campaign::part::PartRequest;
use crate::campaign::run::{RunRequest, RunSummary, TrialOptions, run};
use crate::campaign::testing::{FakeProvider, Recorded, ended, folder};
use crate::judge::flaky::{FlakyIs, exit_code_of};
use crate::judge::outcome::{OutcomeClass, class_code};
use crate::judge::{Outcome, ScenarioResult};
use unwindlab_engine::plan::Shard;
use unwindlab_oracle::trace::recording::TrialEnd;

/// Trials of each scenario: three scenarios have twelve.
const TRIALS: u32 = 4;

fn pass() -> Recorded {
    ended(TrialEnd::Completed)
}

fn hang() -> Recorded {
    ended(TrialEnd::Hang { places: Vec::new() })
}

fn request(scenarios: &Path, part: (Shard, &Path), trials: Option<u32>) -> RunRequest {
    RunRequest {
        scenarios: vec![scenarios.to_owned()],
        trials: TrialOptions {
            trials,
            ..TrialOptions::default()
        },
        part: Some(PartRequest {
            shard: part.0,
            file: part.1.to_owned(),
        }),
        ..RunRequest::default()
    }
}

fn ran(request: &RunRequest, provider: &FakeProvider) -> Result<RunSummary, CampaignError> {
    let context = provider.context();
    run(request, context, &mut |_| Ok(()))
}

/// The files of all parts, whose trials come to this, each after the other.
fn parts_of(of: u32, trials: Option<u32>, recorded: &dyn Fn() -> Recorded) -> Vec<String> {
    let (scenarios, files) = (folder(), TempDir::new().unwrap());
    let part = |number| {
        let file = files.path().join(format!("{number}.json"));
        let shard = Shard { number, of };
        let provider = FakeProvider::new((0..20).map(|_| recorded()));
        ran(
            &request(scenarios.path(), (shard, &file), trials),
            &provider,
        )
        .unwrap();
        fs::read_to_string(&file).unwrap()
    };
    (1..=of).map(part).collect()
}

type Merged = (OutcomeClass, Vec<ScenarioResult>, Vec<String>, String);

fn merged(files: &[String]) -> Result<Merged, CampaignError> {
    let (class, told) = merged_files(files)?;
    let Told::Ran(results, lacks, joined) = told else {
        panic!("no run");
    };
    Ok((class, results, lacks, joined))
}

fn names(results: &[ScenarioResult]) -> Vec<String> {
    let name = |it: &ScenarioResult| {
        let made = it.trials.map_or(0, |it| it.made);
        format!("{} {} {made}", it.name, it.outcome.name())
    };
    results.iter().map(name).collect()
}

#[test]
fn any_split_is_the_whole() {
    for of in [1, 2, 3, 8] {
        let (class, results, lacks, _) = merged(&parts_of(of, None, &pass)).unwrap();
        assert_eq!((class, lacks), (OutcomeClass::Good, Vec::new()), "{of}");
        assert_eq!(names(&results), ["a pass 0", "b pass 0", "c pass 0"]);
        let (class, results, lacks, _) = merged(&parts_of(of, Some(TRIALS), &pass)).unwrap();
        assert_eq!((class, lacks), (OutcomeClass::Good, Vec::new()), "{of}");
        assert_eq!(names(&results), ["a pass 4", "b pass 4", "c pass 4"]);
    }
    // The order does not matter, nor that a file comes twice, nor that all are in one file.
    let mut files = parts_of(3, Some(TRIALS), &pass);
    let (_, _, _, joined) = merged(&files).unwrap();
    files.reverse();
    files.push(files[0].clone());
    assert_eq!(merged(&files).unwrap().3, joined);
    assert_eq!(merged(&[files.concat()]).unwrap().3, joined);
    let (class, _, _, again) = merged(std::slice::from_ref(&joined)).unwrap();
    assert_eq!((class, again), (OutcomeClass::Good, joined));
}

#[test]
fn what_stands_in_a_file_is_not_run_again() {
    let (scenarios, files) = (folder(), TempDir::new().unwrap());
    let file = files.path().join("part.json");
    let shard = Shard { number: 1, of: 1 };
    let request = request(scenarios.path(), (shard, &file), None);
    let mut provider = FakeProvider::new([hang(), pass()]);
    provider.interrupt_in = Some(1);
    let summary = ran(&request, &provider).unwrap();
    assert_eq!(summary.results.len(), 1);
    // It is killed in the middle of a line.
    let first = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{first}{{\"part\":\"")).unwrap();
    let summary = ran(&request, &FakeProvider::new([pass(), pass()])).unwrap();
    let outcomes: Vec<Outcome> = summary.results.iter().map(|it| it.outcome).collect();
    assert_eq!(outcomes, [Outcome::Hang, Outcome::Pass, Outcome::Pass]);
    assert_eq!(exit_code_of(&summary.results, FlakyIs::Fail), 1);
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.starts_with(&first) && text.lines().count() == 4);
    // Nothing is left.
    let summary = ran(&request, &FakeProvider::new([])).unwrap();
    assert_eq!(summary.results.len(), 3);
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    assert_eq!(merged(&[text]).unwrap().0, OutcomeClass::Bad);
}

#[test]
fn another_part_does_not_go_on_in_a_file() {
    let (scenarios, files) = (folder(), TempDir::new().unwrap());
    let file = files.path().join("part.json");
    let of = |number, trials| {
        let shard = Shard { number, of: 2 };
        ran(
            &request(scenarios.path(), (shard, &file), trials),
            &FakeProvider::new((0..20).map(|_| pass())),
        )
    };
    of(1, None).unwrap();
    let refused = |made: Result<RunSummary, CampaignError>, what: &str| {
        let error = made.unwrap_err();
        assert!(
            error.is_usage() && error.to_string().contains(what),
            "{error}"
        );
    };
    refused(of(2, None), "another part (--shard)");
    refused(of(1, Some(2)), "another number of --trials");
    fs::write(&file, "{\"schema\":\"unwindlab.result/1\"}\n").unwrap();
    refused(of(1, None), "not of the file of a part");
}

#[test]
fn what_is_missing_is_named_and_is_no_pass() {
    let good = parts_of(3, Some(TRIALS), &pass);
    let (class, results, lacks, _) = merged(&[good[0].clone(), good[2].clone()]).unwrap();
    assert_eq!(class, OutcomeClass::Untested);
    let [lack] = lacks.as_slice() else {
        panic!("{lacks:?}");
    };
    assert!(lack.starts_with("part 2/3 is missing: a trial "), "{lack}");
    // Of a scenario of which trials are missing, no pass is shown.
    assert!(results.iter().all(|it| it.outcome == Outcome::InfraError));

    // A part that has nothing to run has a file all the same.
    let mut many = parts_of(8, None, &pass);
    let empty = many.iter().position(|it| it.lines().count() == 1).unwrap();
    many.remove(empty);
    let (class, results, lacks, _) = merged(&many).unwrap();
    assert_eq!((class, results.len()), (OutcomeClass::Untested, 3));
    assert_eq!(lacks, [format!("part {}/8 is missing", empty + 1)]);

    // The last line is lost: nothing in the file says so.
    let mut cut = good.clone();
    let end = cut[1].trim_end().rfind('\n').unwrap();
    cut[1].truncate(end + 1);
    let (class, _, lacks, _) = merged(&cut).unwrap();
    assert_eq!(class, OutcomeClass::Untested);
    let lack = "part 2/3 did not come to its end: it lacks ";
    assert!(lacks.len() == 1 && lacks[0].starts_with(lack), "{lacks:?}");
    // Two files of one part are not two parts.
    let twice = [good[0].clone(), good[0].clone(), good[2].clone()];
    assert_eq!(merged(&twice).unwrap().0, OutcomeClass::Untested);
}

#[test]
fn files_that_are_empty_or_cut_off_are_no_pass() {
    let good = parts_of(2, None, &pass);
    for (file, why) in [
        (String::new(), "the file is empty"),
        (
            good[1][..good[1].len() - 20].to_owned(),
            "the file is cut off",
        ),
        ("{}\n".to_owned(), "not the result of a part"),
    ] {
        let with = [good.clone(), vec![file.clone()]].concat();
        for files in [vec![good[0].clone(), file], with] {
            let (class, _, lacks, _) = merged(&files).unwrap();
            assert_eq!(class, OutcomeClass::Untested);
            assert!(lacks[0].contains(why), "{lacks:?}");
        }
    }
    // The head of a part is lost, and its lines stand behind those of another.
    let (_, lines) = good[1].split_once('\n').unwrap();
    let (class, _, lacks, _) = merged(&[good[0].clone() + lines]).unwrap();
    assert_eq!(class, OutcomeClass::Untested);
    assert!(
        lacks[0].ends_with("the first line of its part is missing"),
        "{lacks:?}"
    );
    let error = merged(&[lines.to_owned()]).unwrap_err();
    assert!(!error.is_usage(), "{error}");
}

#[test]
fn what_failed_once_is_no_pass() {
    let (mut good, bad) = (parts_of(2, None, &pass), parts_of(2, None, &hang));
    let (class, results, _, _) = merged(&[good[0].clone(), bad[1].clone()]).unwrap();
    assert_eq!(class, OutcomeClass::Bad);
    assert!(results.iter().any(|it| it.outcome == Outcome::Hang));
    // One part was made twice, by two machines, and only one of them saw the failure.
    good.push(bad[0].clone());
    for files in [good.clone(), {
        good.reverse();
        good
    }] {
        let (class, results, _, _) = merged(&files).unwrap();
        assert_eq!(class_code(class), 1);
        assert!(results.iter().any(|it| it.outcome == Outcome::Flaky));
    }
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let good = parts_of(2, None, &pass);
    let refused = |other: &str, what: &str| {
        let error = merged(&[good[0].clone(), other.to_owned()]).unwrap_err();
        assert!(error.is_usage(), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    };
    let changed = |from: &str, to: &str| {
        let text = good[1].replacen(from, to, 1);
        assert_ne!(text, good[1]);
        text
    };
    refused(
        &changed("[\"kernel\",\"abc\"]", "[\"kernel\",\"abd\"]"),
        "another kernel",
    );
    refused(
        &changed("[\"build of unwindlab\",\"", "[\"build of unwindlab\",\"0"),
        "another build of unwindlab",
    );
    refused(
        &changed(
            "[\"choice of --deterministic or --seed\",\"\"]",
            "[\"choice of --deterministic or --seed\",\"7\"]",
        ),
        "--seed",
    );
    refused(
        &changed(
            "[\"choice of --witness or --no-witness\",\"\"]",
            "[\"choice of --witness or --no-witness\",\"true\"]",
        ),
        "--witness",
    );
    refused(&changed("\"hash\":\"", "\"hash\":\"0"), "another scenario");
    refused(
        &changed("{\"name\":\"c\"", "{\"name\":\"d\""),
        "another choice of scenarios",
    );
    refused(&parts_of(3, None, &pass)[1], "number of parts (--shard)");
    refused(
        &parts_of(2, Some(TRIALS), &pass)[1],
        "another number of --trials",
    );
    refused(
        &super::sweep::text(&super::sweep::part(1, 2)),
        "another command",
    );
}
