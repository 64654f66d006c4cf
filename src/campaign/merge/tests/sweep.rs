//! Parts of a sweep as files, merged.

use super::{Told, merged_files};
use crate::campaign::error::CampaignError;
use crate::judge::outcome::OutcomeClass;
use crate::judge::sweep::{PairCounts, Unsteady};
use crate::judge::sweep_record::{
    RecordedFailure, RecordedPath, SweepChoice, SweepIdentity, SweepLeft, SweepRecord, VERSION,
};
use unwindlab_engine::plan::Shard;
use unwindlab_engine::plan::sweep::{Boundary, Point, Points};
use unwindlab_oracle::trace::recording::TrialEnd;

/// Boundaries of the path.
const LENGTH: u32 = 40;
/// Boundaries at which it fails.
const FAILS: [u32; 3] = [7, 8, 9];

fn at(number: u32) -> Boundary {
    Boundary {
        rip: (1 << 63) + 3 * u64::from(number),
        occurrence: 1,
    }
}

/// What a part leaves in which nothing goes wrong but at those three.
pub(super) fn part(number: u32, of: u32) -> SweepRecord {
    let shard = Shard { number, of };
    let all = (0..LENGTH).map(at);
    let own = (0..LENGTH).filter(|number| shard.has(at(*number)));
    let points = own.clone().map(|number| Point::single(number, at(number)));
    let fails = points.clone().filter(|it| FAILS.contains(&it.number));
    let failure = RecordedFailure {
        died: None,
        fell: [("C4".to_owned(), Some("F001".to_owned()))].into(),
        points: fails.collect(),
        messages: vec![format!("by part {number}")],
    };
    SweepRecord {
        version: VERSION,
        identity: SweepIdentity {
            scenario: "name: s".to_owned(),
            kernel: "abc".to_owned(),
            asks: true,
            from: None,
            pairs: false,
        },
        passed: u32::try_from(points.clone().count() - failure.points.len()).unwrap(),
        exercised: [("H1".to_owned(), u32::try_from(own.count()).unwrap())].into(),
        tried: points.collect(),
        failures: match failure.points.is_empty() {
            true => Vec::new(),
            false => vec![failure],
        },
        shard: Some(shard),
        choice: SweepChoice {
            program: "p".to_owned(),
            points: Points::In {
                functions: None,
                once: false,
                each: false,
            },
            second: None,
            witness: None,
        },
        path: RecordedPath {
            release: "7.3".to_owned(),
            instructions: all.clone().map(|it| it.rip).collect(),
            left_out: [].into(),
            chosen: all.collect(),
            names: [(1 << 63, "f".to_owned())].into(),
        },
        pairs: None,
        left: SweepLeft {
            ended: true,
            ..SweepLeft::default()
        },
    }
}

fn parts(of: u32) -> Vec<SweepRecord> {
    (1..=of).map(|number| part(number, of)).collect()
}

pub(super) fn text(record: &SweepRecord) -> String {
    format!("{}\n", serde_json::to_string(record).unwrap())
}

/// Class, merged record and what it lacks.
type Merged = (OutcomeClass, SweepRecord, Vec<String>);

fn merged(files: &[String]) -> Result<Merged, CampaignError> {
    let (class, told) = merged_files(files)?;
    let Told::Swept(record, lacks) = told else {
        panic!("no sweep");
    };
    Ok((class, *record, lacks))
}

fn merged_records(records: &[SweepRecord]) -> Result<Merged, CampaignError> {
    merged(&records.iter().map(text).collect::<Vec<_>>())
}

#[test]
fn any_split_is_the_whole() {
    let whole = SweepRecord {
        shard: None,
        ..part(1, 1)
    };
    for of in [1, 2, 3, 8] {
        let (class, mut record, lacks) = merged_records(&parts(of)).unwrap();
        assert_eq!((class, lacks), (OutcomeClass::Good, Vec::new()));
        record.failures[0]
            .messages
            .clone_from(&whole.failures[0].messages);
        assert_eq!(record, whole, "{of}");
    }
    // The order does not matter, nor that a file comes twice, nor that all are in one file.
    let mut files: Vec<String> = parts(3).iter().map(text).collect();
    files.reverse();
    files.push(files[0].clone());
    let (class, record, _) = merged(&files).unwrap();
    assert_eq!((class, &record.tried), (OutcomeClass::Good, &whole.tried));
    assert_eq!((record.passed, &record.exercised), (37, &whole.exercised));
    let (class, again, _) = merged(&[files.concat()]).unwrap();
    assert_eq!((class, again), (OutcomeClass::Good, record));
}

#[test]
fn what_is_missing_is_named_and_is_no_pass() {
    let mut some = parts(3);
    some.remove(1);
    let (class, record, lacks) = merged_records(&some).unwrap();
    assert_eq!(class, OutcomeClass::Untested);
    assert_eq!(lacks, ["part 2/3 is missing"]);
    assert!(!record.left.ended);

    let mut cut = parts(3);
    cut[2].left.ended = false;
    let (class, _, lacks) = merged_records(&cut).unwrap();
    assert_eq!(class, OutcomeClass::Untested);
    assert!(
        lacks[0].starts_with("part 3/3 did not come to its end: "),
        "{lacks:?}"
    );

    let mut missed = parts(2);
    let point = missed[0].tried.pop_first().unwrap();
    missed[0].left.missed.push(point);
    assert_eq!(merged_records(&missed).unwrap().0, OutcomeClass::Untested);
    // Another file of the same part has it.
    missed.push(part(1, 2));
    assert_eq!(merged_records(&missed).unwrap().0, OutcomeClass::Good);

    // A boundary that only the path of the other part has.
    let mut other = parts(2);
    let lost = *other[1].tried.first().unwrap();
    other[1].tried.remove(&lost);
    other[1].path.chosen.retain(|it| *it != lost.at);
    let (class, _, lacks) = merged_records(&other).unwrap();
    assert_eq!(class, OutcomeClass::Untested);
    let place = format!("f+{:#x}, time 1", lost.at.rip - (1 << 63));
    assert!(
        lacks[0].starts_with("1 points were") && lacks[0].contains(&place),
        "{lacks:?}"
    );
}

#[test]
fn a_part_that_tried_less_than_it_had_to_is_told() {
    let mut all = parts(3);
    let left_out = all[1].tried.pop_last().unwrap();
    let (class, _, lacks) = merged_records(&all).unwrap();
    assert_eq!(class, OutcomeClass::Untested);
    let place = format!("f+{:#x}", left_out.at.rip - (1 << 63));
    assert!(lacks[0].starts_with("1 points were tried by no part") && lacks[0].contains(&place));

    let pairs = |near: u64| {
        let mut all = parts(2);
        for part in &mut all {
            part.identity.pairs = true;
            part.pairs = Some(PairCounts {
                near: part.tried.len() as u64,
                ..PairCounts::default()
            });
        }
        all[0].pairs.as_mut().unwrap().near += near;
        merged_records(&all).unwrap()
    };
    assert_eq!(pairs(0).0, OutcomeClass::Good);
    let (class, _, lacks) = pairs(1);
    assert_eq!(class, OutcomeClass::Untested);
    assert!(lacks[0].starts_with("part 1/2 tried "), "{lacks:?}");
}

#[test]
fn a_failure_of_one_part_is_one_of_all() {
    let mut all = parts(4);
    all[2].failures = vec![RecordedFailure {
        died: None,
        fell: [("M1".to_owned(), None)].into(),
        points: all[2].tried.clone(),
        messages: Vec::new(),
    }];
    assert_eq!(merged_records(&all).unwrap().0, OutcomeClass::Bad);
    // Also where another part is missing.
    all.remove(0);
    assert_eq!(merged_records(&all).unwrap().0, OutcomeClass::Bad);
}

/// Some documentation, say.
#[test]
fn a_file_of_another_kind_is_told_in_few_lines() {
    let good: Vec<String> = parts(3).iter().map(text).collect();
    let with = [good, vec!["# Words\n".repeat(137)]].concat();
    let (class, _, lacks) = merged(&with).unwrap();
    assert_eq!(class, OutcomeClass::Untested);
    assert_eq!(lacks.len(), 4, "{lacks:?}");
    assert!(lacks[3].contains("134 more lines like these"), "{lacks:?}");
}

#[test]
fn files_that_are_empty_or_cut_off_are_no_pass() {
    let good: Vec<String> = parts(3).iter().map(text).collect();
    let half = good[1][..good[1].len() / 2].to_owned();
    for (file, why) in [
        (String::new(), "the file is empty"),
        (half, "the file is cut off"),
        ("[]\n".to_owned(), "not the result of a part"),
        ("3\n".to_owned(), "not the result of a part"),
        (
            "text\n".to_owned(),
            "not the result of a part: it is not JSON",
        ),
        ("{}\n".to_owned(), "not the result of a part"),
    ] {
        let (class, _, lacks) = merged(&[good[0].clone(), file.clone(), good[2].clone()]).unwrap();
        assert_eq!(class, OutcomeClass::Untested);
        assert!(lacks[0].contains(why), "{lacks:?}");
        assert_eq!(lacks[1], "part 2/3 is missing");
        // Beside a whole set it is no pass either: something was lost.
        let with = [good.clone(), vec![file.clone()]].concat();
        assert_eq!(merged(&with).unwrap().0, OutcomeClass::Untested);
        let error = merged(&[file]).unwrap_err();
        assert!(
            !error.is_usage() && error.to_string().contains(why),
            "{error}"
        );
    }
    let wrong = good[0].replace("{\"number\":1,\"of\":3}", "{\"number\":4,\"of\":3}");
    assert_ne!(wrong, good[0]);
    assert!(merged(&[wrong]).is_err());
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let refused = |change: fn(&mut SweepRecord), what: &str| {
        let mut all = parts(2);
        change(&mut all[1]);
        let error = merged_records(&all).unwrap_err();
        assert!(error.is_usage(), "{error}");
        assert!(error.to_string().ends_with(what), "{error}");
    };
    refused(|it| it.identity.kernel.push('d'), "another kernel");
    refused(|it| it.identity.scenario.push(' '), "another scenario");
    refused(|it| it.identity.asks = false, "--no-request");
    refused(|it| it.identity.pairs = true, "--pairs");
    refused(|it| it.choice.program.push('d'), "build of unwindlab");
    refused(
        |it| it.choice.points = Points::These(vec![1]),
        "--static or --all",
    );
    refused(|it| it.choice.witness = Some(true), "--no-witness");
    refused(
        |it| it.shard = Some(Shard { number: 3, of: 5 }),
        "(--shard)",
    );
    refused(|it| it.shard = None, "(--shard)");
}

#[test]
fn what_was_unsteady_is_told_once() {
    let mut records = parts(2);
    let unsteady = |console: &str| Unsteady {
        point: Point::single(3, at(3)),
        end: TrialEnd::Completed,
        console: console.to_owned(),
    };
    let (one, other) = (unsteady("a"), unsteady("b"));
    records[0].left.unsteady = vec![other.clone(), one.clone(), other.clone()];
    records[1].left.unsteady = vec![one.clone()];
    let (_, merged, _) = merged_records(&records).unwrap();
    assert_eq!(merged.left.unsteady, [other, one]);
}
