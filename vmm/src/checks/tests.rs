use std::collections::BTreeSet;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn verdict(body: fn(&Lab) -> Outcome, limit: Duration) -> Verdict {
    let check = Check {
        name: "x",
        needs: Needs::Machines,
        body,
    };
    check.run(&Lab::of_unfit("it is not there"), limit)
}

fn failed(body: fn(&Lab) -> Outcome, limit: Duration) -> String {
    match verdict(body, limit) {
        Verdict::Failed(failure) => failure.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn only_ok_is_ok() {
    assert_eq!(verdict(|_| Ok(()), SECOND), Verdict::Ok);
    let told = failed(
        |_| {
            failure::same!(0x12, 0x34, "turn {}", 5);
            Ok(())
        },
        SECOND,
    );
    assert!(
        told.contains("seen 12, expected 34 (turn 5) (vmm/src/checks/tests.rs:"),
        "{told}"
    );
    let told = failed(|_| Ok("".parse::<u8>().map(drop)?), SECOND);
    assert!(told.contains("vmm/src/checks/tests.rs:"), "{told}");
    let told = failed(|_| panic!("on {}", "purpose"), SECOND);
    assert!(told.contains("on purpose"), "{told}");
    let told = failed(
        |_| {
            thread::sleep(SECOND);
            Ok(())
        },
        Duration::from_millis(10),
    );
    assert!(told.contains("no end of the check"), "{told}");
}

#[test]
fn what_takes_kernel_code_says_so_where_there_is_none() {
    let check = Check {
        name: "x",
        needs: Needs::KernelCode,
        body: |_| Ok(()),
    };
    let Verdict::NotAvailable(why) = check.run(&Lab::of_unfit("it is not there"), SECOND) else {
        panic!("it ran");
    };
    assert!(why.contains("kernel code"), "{why}");
}

#[test]
fn every_name_is_that_of_one_check() {
    let names: BTreeSet<&str> = all().map(|it| it.name).collect();
    assert_eq!(names.len(), all().count());
}

#[test]
fn every_check_is_a_test_too() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let files = std::fs::read_dir(folder)
        .unwrap()
        .map(|it| it.unwrap().path());
    let tests: String = files
        .filter(|it| it.is_file())
        .map(|it| std::fs::read_to_string(it).unwrap())
        .collect();
    let lines: BTreeSet<&str> = tests.lines().map(str::trim).collect();
    // Whether a KVM is fit is no test's business.
    let without = all().map(|it| it.name).filter(|it| !lines.contains(it));
    assert_eq!(without.collect::<Vec<_>>(), ["this_kvm_runs_kernel_code"]);
}
