//! Parts of the generated mutants.

use super::{Told, merged_files};
use crate::campaign::generated::{CONTROL, GeneratedRecord};
use crate::campaign::part::{PartHead, PartOf, Units};
use crate::judge::outcome::OutcomeClass;
use crate::report::mutation::{Control, Kill, MutationFate, MutationRecord, MutationRow};
use unwindlab_engine::plan::Shard;
use unwindlab_guest_kernel::build::generate::{GeneratedMutant, ObjectCode, Operator};

fn row(name: &str, fate: MutationFate) -> MutationRow {
    MutationRow {
        mutant: GeneratedMutant {
            name: name.to_owned(),
            file: "kernel/unwind/user.c".to_owned(),
            function: "f".to_owned(),
            line: 3,
            operator: Operator::DeleteStatement,
            diff: String::new(),
            object: ObjectCode::New,
            choice: None,
            place: None,
            difference: None,
        },
        fate,
        argued: None,
        seconds: 1.0,
    }
}

fn killed() -> MutationFate {
    MutationFate::Killed(Kill {
        by: vec!["M1".to_owned()],
        test: "a".to_owned(),
        tests: 1,
    })
}

/// One of two parts with these results.
fn part(number: u32, results: &[MutationRecord]) -> String {
    let names = [CONTROL, "x", "y"];
    let units = names.map(|name| Units {
        name: name.to_owned(),
        hash: String::new(),
        trials: None,
        explores: false,
    });
    let shard = Shard { number, of: 2 };
    let same = [("kernel", "abc".to_owned())];
    let head = PartHead::new(PartOf::Generated, shard, same, units.to_vec(), "7.2.0");
    let head = serde_json::to_string(&head).unwrap();
    let hash = PartHead::hash_of(&head);
    let line = |result: &MutationRecord| {
        let name = match result {
            MutationRecord::Control(_) => CONTROL,
            MutationRecord::Mutant(row) => &row.mutant.name,
        };
        let record = GeneratedRecord {
            result: result.clone(),
        };
        let record = serde_json::to_string(&record).unwrap();
        let record = record.strip_prefix('{').unwrap();
        format!("{{\"part\":\"{hash}\",\"unit\":{{\"name\":\"{name}\"}},{record}\n")
    };
    head + "\n" + &results.iter().map(line).collect::<String>()
}

/// Both parts, each with those results that are its own.
fn merged(
    fates: [MutationFate; 2],
    control: Control,
) -> (
    OutcomeClass,
    Vec<MutationFate>,
    Option<Control>,
    Vec<String>,
) {
    let [x, y] = fates;
    let all = [
        MutationRecord::Control(control),
        MutationRecord::Mutant(Box::new(row("x", x))),
        MutationRecord::Mutant(Box::new(row("y", y))),
    ];
    let of = |number: u32| {
        let shard = Shard { number, of: 2 };
        let is_own = |record: &&MutationRecord| {
            let name = match record {
                MutationRecord::Control(_) => CONTROL,
                MutationRecord::Mutant(row) => &row.mutant.name,
            };
            shard.has_name(name, None)
        };
        let own: Vec<MutationRecord> = all.iter().filter(is_own).cloned().collect();
        part(number, &own)
    };
    let (class, told) = merged_files(&[of(1), of(2)]).unwrap();
    let Told::Generated(score, lacks) = told else {
        panic!("no generated mutants");
    };
    let fates = score.rows.iter().map(|it| it.fate.clone()).collect();
    (class, fates, score.control, lacks)
}

#[test]
fn parts_are_the_whole() {
    let (class, fates, control, lacks) = merged([killed(), killed()], Control::Clean);
    assert_eq!((class, lacks), (OutcomeClass::Good, Vec::new()));
    assert_eq!(fates, [killed(), killed()]);
    assert_eq!(control, Some(Control::Clean));
}

#[test]
fn a_survivor_or_a_bad_control_is_no_good_score() {
    let (class, ..) = merged([killed(), MutationFate::NotCovered], Control::Clean);
    assert_eq!(class, OutcomeClass::Bad);
    let unclean = Control::Unclean("a: M1".to_owned());
    let (class, ..) = merged([killed(), killed()], unclean);
    assert_eq!(class, OutcomeClass::Bad);
}

#[test]
fn what_is_missing_is_no_pass() {
    for number in [1, 2] {
        let (class, told) = merged_files(&[part(number, &[])]).unwrap();
        assert_eq!(class, OutcomeClass::Untested);
        let Told::Generated(_, lacks) = told else {
            panic!("no generated mutants");
        };
        assert!(!lacks.is_empty());
    }
}
