use std::path::Path;

use tempfile::TempDir;
use unwindlab_engine::plan::Shard;
use unwindlab_guest_kernel::build::generate::Operator;
use unwindlab_oracle::trace::recording::TrialEnd;

use super::*;
use crate::campaign::testing::{FakeProvider, Quiet, Recorded, analysis, ended, folder};
use crate::report::mutation::{Control, Kill, Survival};

/// A mutant with a probe of its own.
pub(in crate::campaign) fn mutant(name: &str, object: ObjectCode) -> GeneratedMutant {
    GeneratedMutant {
        name: name.to_owned(),
        file: "kernel/unwind/user.c".to_owned(),
        function: "f".to_owned(),
        line: 3,
        operator: Operator::DeleteStatement,
        diff: format!("@@ -1 +1 @@\n-{name}();\n+;\n"),
        object,
        probe: Some(format!("probe of {name}")),
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
    let context = Context {
        fresh: true,
        provider,
        analysis: &analysis(),
        progress: &Quiet,
        interrupt: &provider.interrupt,
    };
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
    let recorded = passes(1).chain([panics(), panics()]).collect();
    assert_eq!(fates(&["x"], recorded), [killed("guest-panic", "b", 2)]);
}

#[test]
fn a_kernel_that_does_not_boot_is_killed_by_that() {
    assert_eq!(
        fates(&["x"], vec![boots_not()]),
        [killed("boot-error", "a", 1)]
    );
}

#[test]
fn what_killed_a_neighbour_comes_first() {
    let first = passes(2).chain([panics(), panics()]);
    let recorded = first.chain([panics(), panics()]).collect();
    let both = [killed("guest-panic", "c", 3), killed("guest-panic", "c", 1)];
    assert_eq!(fates(&["x", "y"], recorded), both);
}

#[test]
fn a_death_that_does_not_come_again_is_no_kill() {
    let of_mutant = [panics()].into_iter().chain(passes(3));
    let of_probe = passes(2).chain([panics(), panics()]);
    let recorded = of_mutant.chain(of_probe).chain(passes(3));
    let fates = fates(&["x"], recorded.collect());
    let [MutationFate::Survived(survival)] = fates.as_slice() else {
        panic!("{fates:?}");
    };
    assert_eq!(survival.tests, 3);
    assert_eq!(survival.nearest.as_deref(), Some("c"));
    assert!(
        survival.unsteady[0].starts_with("a: guest-panic"),
        "{survival:?}"
    );
}

#[test]
fn what_no_test_executes_is_not_covered() {
    let recorded = passes(6).collect();
    assert_eq!(fates(&["x"], recorded), [MutationFate::NotCovered]);
}

#[test]
fn the_other_mutants_of_a_statement_that_is_not_covered_are_not_tested() {
    let mutants = ["x", "y"].map(|name| GeneratedMutant {
        probe: Some("the same statement".to_owned()),
        ..mutant(name, ObjectCode::New)
    });
    let provider = provider(mutants.into(), passes(12));
    let records = tested(&provider, folder().path(), None).unwrap();
    for record in &records[1..] {
        let MutationRecord::Mutant(row) = record else {
            panic!("{record:?}");
        };
        assert_eq!(row.fate, MutationFate::NotCovered);
    }
}

#[test]
fn a_probe_that_was_not_tested_by_all_leaves_it_open() {
    let recorded = passes(5).chain([ended(TrialEnd::Timeout)]);
    let fates = fates(&["x"], recorded.collect());
    assert!(
        matches!(&fates[..], [MutationFate::Untested(_)]),
        "{fates:?}"
    );
}

#[test]
fn of_a_macro_it_is_not_known_what_executes_it() {
    let mut of_macro = mutant("x", ObjectCode::New);
    of_macro.probe = None;
    let provider = provider(vec![of_macro], passes(9));
    let records = tested(&provider, folder().path(), None).unwrap();
    let MutationRecord::Mutant(row) = &records[1] else {
        panic!("{records:?}");
    };
    let survival = Survival {
        tests: 3,
        ..Survival::default()
    };
    assert_eq!(row.fate, MutationFate::Survived(survival));
}

#[test]
fn a_test_that_could_not_be_made_leaves_it_open() {
    let of_mutant = || passes(1).chain([ended(TrialEnd::Timeout)]).chain(passes(1));
    let of_probe = [panics(), panics()];
    let recorded = of_mutant().chain(of_probe).chain(of_mutant());
    let fates = fates(&["x"], recorded.collect());
    assert!(
        matches!(&fates[..], [MutationFate::Untested(_)]),
        "{fates:?}"
    );
}

#[test]
fn a_control_that_fails_is_told() {
    let provider = provider(Vec::new(), [panics(), panics()]);
    let records = tested(&provider, folder().path(), None).unwrap();
    let unclean = Control::Unclean("a: guest-panic".to_owned());
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
    let recorded = passes(3).chain([panics(), panics()]);
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
