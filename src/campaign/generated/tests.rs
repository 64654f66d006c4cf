use std::path::Path;

use tempfile::TempDir;
use unwindlab_engine::plan::Shard;
use unwindlab_guest_kernel::build::generate::{
    GeneratedMutant, MutantSchema, ObjectCode, Operator,
};
use unwindlab_oracle::trace::Recording;
use unwindlab_oracle::trace::recording::TrialEnd;

use super::*;
use crate::campaign::testing::{FakeProvider, Recorded, ended, folder};
use crate::report::mutation::MutationFate;
use crate::report::mutation::{Control, Kill, Survival};

/// A mutant that needs a kernel of its own.
pub(in crate::campaign) fn mutant(name: &str, object: ObjectCode) -> GeneratedMutant {
    GeneratedMutant {
        name: name.to_owned(),
        file: "kernel/unwind/user.c".to_owned(),
        function: "f".to_owned(),
        line: 3,
        operator: Operator::DeleteStatement,
        diff: format!("@@ -1 +1 @@\n-{name}();\n+;\n"),
        object,
        choice: None,
        place: None,
        difference: None,
    }
}

fn passes(count: usize) -> impl Iterator<Item = Recorded> {
    (0..count).map(|_| ended(TrialEnd::Completed))
}

fn panics() -> Recorded {
    ended(TrialEnd::Panic {
        line: "Oops".to_owned(),
    })
}

/// A kernel of its own that dies, also when it is run again.
fn dies() -> [Recorded; 2] {
    [panics(), panics()]
}

/// A chosen mutant that dies each time, while the kernel without it does not.
fn dies_when_chosen() -> impl Iterator<Item = Recorded> {
    let again = || [panics()].into_iter().chain(passes(1));
    [panics()].into_iter().chain(again()).chain(again())
}

fn boots_not() -> Recorded {
    ended(TrialEnd::BootError {
        reason: "nothing came".to_owned(),
        places: Vec::new(),
    })
}

/// Tests these mutants by the scenarios a, b and c, which come to this; the names of kernels that were forgotten, too.
fn tested(
    provider: &FakeProvider,
    scenarios: &Path,
    part: Option<PartRequest>,
) -> Result<Vec<MutationRecord>, CampaignError> {
    let request = GeneratedRequest {
        scenarios: vec![scenarios.to_owned()],
        part,
        ..GeneratedRequest::default()
    };
    let context = provider.context();
    let mut told = Vec::new();
    let results = mutants(&request, context, &mut |event| {
        if let GeneratedEvent::Result(record) = event {
            told.push(record.clone());
        }
        Ok(())
    })?;
    assert!(results.records.ends_with(&told));
    Ok(results.records)
}

pub(in crate::campaign) fn provider(
    mutants: Vec<GeneratedMutant>,
    recorded: impl IntoIterator<Item = Recorded>,
) -> FakeProvider {
    let mut provider = FakeProvider::new(recorded);
    provider.builds = true;
    provider.generated.mutants = mutants;
    provider
}

/// The fates of mutants with objects of their own, after a control that passes.
fn fates(names: &[&str], recorded: Vec<Recorded>) -> Vec<MutationFate> {
    let mutants = names.iter().map(|it| mutant(it, ObjectCode::New)).collect();
    let provider = provider(mutants, passes(3).chain(recorded));
    let records = tested(&provider, folder().path(), None).unwrap();
    assert_eq!(records[0], MutationRecord::Control(Control::Clean));
    let first = format!("generated:{}", names[0]);
    assert!(provider.forgotten.lock().unwrap().contains(&first));
    let fate = |record: &MutationRecord| match record {
        MutationRecord::Mutant(row) => row.fate.clone(),
        MutationRecord::Control(_) => panic!("a second control"),
    };
    records[1..].iter().map(fate).collect()
}

fn killed(by: &str, test: &str, tests: usize) -> MutationFate {
    MutationFate::Killed(Kill {
        by: vec![by.to_owned()],
        test: test.to_owned(),
        tests,
    })
}

#[test]
fn the_first_test_that_fails_kills() {
    let recorded = passes(1).chain(dies()).collect();
    assert_eq!(fates(&["x"], recorded), [killed("guest-panic", "b", 2)]);
}

#[test]
fn a_kernel_that_does_not_boot_is_killed_by_that() {
    assert_eq!(
        fates(&["x"], vec![boots_not(), boots_not()]),
        [killed("boot-error", "a", 1)]
    );
}

#[test]
fn what_killed_a_neighbour_comes_first() {
    let first = passes(2).chain(dies());
    let recorded = first.chain(dies()).collect();
    let both = [killed("guest-panic", "c", 3), killed("guest-panic", "c", 1)];
    assert_eq!(fates(&["x", "y"], recorded), both);
}

#[test]
fn a_death_that_does_not_come_again_is_no_kill() {
    let recorded = [panics()].into_iter().chain(passes(3));
    let fates = fates(&["x"], recorded.collect());
    let [MutationFate::Survived(survival)] = fates.as_slice() else {
        panic!("{fates:?}");
    };
    assert_eq!((survival.tests, survival.left), (3, 0));
    assert_eq!(survival.nearest, None);
    assert!(
        survival.unsteady[0].starts_with("a: guest-panic"),
        "{survival:?}"
    );
}

#[test]
fn a_test_that_could_not_be_made_leaves_it_open() {
    let recorded = passes(1).chain([ended(TrialEnd::Timeout)]).chain(passes(1));
    let fates = fates(&["x"], recorded.collect());
    assert!(
        matches!(&fates[..], [MutationFate::Untested(_)]),
        "{fates:?}"
    );
}

/// A kernel with many mutants.
fn schema(places: u32) -> MutantSchema {
    let mut schema = MutantSchema::default();
    schema.places = places;
    schema
}

/// Trials of the kernel with many mutants that pass, and the places that each executes; all were executed by the boot up to `boot`.
fn reaching(places: &[&[u8]], boot: &[u8]) -> Vec<Recorded> {
    let trial = |reached: &&[u8]| {
        ended(TrialEnd::Completed).map(|recording| Recording {
            reached: reached.to_vec(),
            reached_before: boot.to_vec(),
            ..recording
        })
    };
    places.iter().map(trial).collect()
}

/// The fates of mutants that are chosen in one kernel, each with the place of its name: `0`, `1`. One at a time, so that their order is known.
fn chosen(names: &[&str], recorded: Vec<Recorded>) -> (Vec<MutationFate>, Vec<String>) {
    let mutants = names.iter().zip(1..).map(|(name, number)| GeneratedMutant {
        choice: Some(number),
        place: Some(name.parse().unwrap()),
        ..mutant(name, ObjectCode::New)
    });
    let mut provider = provider(mutants.collect(), passes(3).chain(recorded));
    provider.generated.schema = Some(schema(2));
    let records = tested(&provider, folder().path(), None).unwrap();
    let fates = records.iter().filter_map(|record| match record {
        MutationRecord::Mutant(row) => Some(row.fate.clone()),
        MutationRecord::Control(control) => {
            assert_eq!(*control, Control::Clean);
            None
        }
    });
    (fates.collect(), provider.forgotten.into_inner().unwrap())
}

#[test]
fn one_kernel_has_many_and_each_gets_what_executes_it() {
    // Of a, b and c, only b executes place 1.
    let survey = reaching(&[&[1, 0], &[1, 1], &[1, 0]], &[0, 0]);
    let recorded = survey.into_iter().chain(dies_when_chosen());
    let (fates, built) = chosen(&["1"], recorded.collect());
    assert_eq!(fates, [killed("guest-panic", "b", 1)]);
    assert_eq!(built, [] as [&str; 0]);
}

#[test]
fn a_scenario_that_does_something_else_is_soon_tried() {
    let survey = reaching(&[&[1, 0], &[1, 0], &[1, 1]], &[0, 0]);
    let recorded = survey.into_iter().chain(passes(1));
    let (fates, _) = chosen(&["0"], recorded.chain(dies_when_chosen()).collect());
    assert_eq!(fates, [killed("guest-panic", "c", 2)]);
}

#[test]
fn what_the_kernel_without_a_mutant_does_too_is_no_kill() {
    let survey = reaching(&[&[1, 0], &[1, 1], &[1, 0]], &[0, 0]);
    let both_die = [panics(), panics(), panics()];
    let (fates, _) = chosen(&["1"], survey.into_iter().chain(both_die).collect());
    let [MutationFate::Survived(survival)] = fates.as_slice() else {
        panic!("{fates:?}");
    };
    assert!(survival.unsteady[0].starts_with("b: guest-panic"));
}

#[test]
fn what_no_test_executes_is_not_covered() {
    let survey = reaching(&[&[1, 0], &[1, 0], &[1, 0]], &[0, 0]);
    let (fates, _) = chosen(&["1"], survey);
    assert_eq!(fates, [MutationFate::NotCovered]);
}

#[test]
fn a_test_in_which_it_makes_no_difference_is_not_made() {
    let of = |difference, recorded: Vec<Recorded>| {
        let mutants = vec![GeneratedMutant {
            choice: Some(1),
            place: Some(0),
            difference: Some(difference),
            ..mutant("x", ObjectCode::New)
        }];
        let survey = reaching(&[&[1, 0, 0], &[1, 0, 1], &[1, 0, 0]], &[1, 0, 0]);
        let recorded = passes(3).chain(survey).chain(recorded);
        let mut provider = provider(mutants, recorded);
        provider.generated.schema = Some(schema(3));
        let records = tested(&provider, folder().path(), None).unwrap();
        let MutationRecord::Mutant(row) = &records[1] else {
            panic!("{records:?}");
        };
        row.fate.clone()
    };
    let dies = dies_when_chosen().collect();
    assert_eq!(of(2, dies), killed("guest-panic", "b", 1));
    let survival = Survival {
        same: true,
        nearest: Some("a".to_owned()),
        ..Survival::default()
    };
    assert_eq!(of(1, Vec::new()), MutationFate::Survived(survival));
}

#[test]
fn what_the_boot_executes_is_booted() {
    let survey = reaching(&[&[1, 0], &[1, 0], &[1, 0]], &[0, 1]);
    let booted = survey.clone().into_iter().chain(passes(1));
    let (fates, built) = chosen(&["1"], booted.collect());
    let survival = Survival {
        tests: 1,
        nearest: Some("the boot".to_owned()),
        ..Survival::default()
    };
    assert_eq!(fates, [MutationFate::Survived(survival)]);
    // The kernel is the one that has all.
    assert_eq!(built, [] as [&str; 0]);
    let dies = { [boots_not(), boots_not()].into_iter() }
        .chain(passes(1))
        .chain([boots_not()])
        .chain(passes(1));
    let (fates, _) = chosen(&["1"], survey.into_iter().chain(dies).collect());
    assert_eq!(fates, [killed("boot-error", "a", 1)]);
}

#[test]
fn a_kernel_with_many_that_does_not_pass_without_one_is_told() {
    let mutants = vec![GeneratedMutant {
        choice: Some(1),
        place: Some(0),
        ..mutant("x", ObjectCode::New)
    }];
    let recorded = passes(3).chain([panics()]).chain(passes(2));
    let recorded = recorded.chain([panics()]).chain(passes(1));
    let mut provider = provider(mutants, recorded);
    provider.generated.schema = Some(schema(1));
    let records = tested(&provider, folder().path(), None).unwrap();
    let told = records.iter().any(|record| {
        matches!(record, MutationRecord::Control(Control::Unclean(why)) if why.starts_with("a: guest-panic"))
    });
    assert!(told, "{records:?}");
}

#[test]
fn a_control_that_fails_is_told() {
    let recorded = [panics()].into_iter().chain(passes(2)).chain([panics()]);
    let provider = provider(Vec::new(), recorded);
    let records = tested(&provider, folder().path(), None).unwrap();
    let unclean = Control::Unclean("a: guest-panic Oops".to_owned());
    assert_eq!(records, [MutationRecord::Control(unclean)]);
}

#[test]
fn what_stands_in_the_file_is_not_tested_again() {
    let objects = [
        ObjectCode::None,
        ObjectCode::Same,
        ObjectCode::Twin("x".to_owned()),
        ObjectCode::New,
    ];
    let mutants = { ["w", "x", "y", "z"].into_iter().zip(objects) }
        .map(|(name, object)| mutant(name, object));
    let mutants: Vec<GeneratedMutant> = mutants.collect();
    let (scenarios, files) = (folder(), TempDir::new().unwrap());
    let part = Some(PartRequest {
        shard: Shard { number: 1, of: 1 },
        file: files.path().join("results.jsonl"),
    });
    let recorded = passes(3).chain(dies());
    let first = provider(mutants.clone(), recorded);
    let whole = tested(&first, scenarios.path(), part.clone()).unwrap();
    let fates: Vec<&MutationFate> = { whole.iter() }
        .filter_map(|record| match record {
            MutationRecord::Mutant(row) => Some(&row.fate),
            MutationRecord::Control(_) => None,
        })
        .collect();
    assert_eq!(
        fates,
        [
            &MutationFate::DoesNotCompile,
            &MutationFate::Equivalent,
            &MutationFate::Twin("x".to_owned()),
            &killed("guest-panic", "a", 1),
        ]
    );
    let again = tested(&provider(mutants, []), scenarios.path(), part).unwrap();
    assert_eq!(again.len(), whole.len());
}

#[test]
fn files_and_names_are_read_before_mutants_are_generated() {
    let folder = folder();
    let missing = folder.path().join("none");
    let known = |scenario: &str| vec![folder.path().join(scenario)];
    for (scenarios, learn) in [
        (known("none"), Vec::new()),
        (known("a.yaml"), vec![missing]),
    ] {
        let request = GeneratedRequest {
            scenarios,
            learn,
            ..GeneratedRequest::default()
        };
        let provider = provider(Vec::new(), []);
        let mut told = 0;
        let result = mutants(&request, provider.context(), &mut |_| {
            told += 1;
            Ok(())
        });
        assert!(result.is_err());
        assert_eq!(told, 0);
    }
}
