//! The kernel that all others are made from, and one that dies in its boot.

use super::common::{said, scratch, unwindlab};
use super::turn;

/// One line of `run --json`, as far as it matters here.
#[derive(serde::Deserialize)]
struct Record {
    name: String,
    outcome: String,
}

/// What the stock kernel, of the same source, cannot run in tests/library.rs, and shows a finding. What is left passes on the
/// kernel of tests/zero_findings.rs.
#[test]
fn the_good_kernel_shows_nothing_but_what_is_known() {
    let _turn = turn();
    let folder = scratch("built");
    let json = folder.join("results.jsonl");
    let output = unwindlab(&[
        "run",
        "--source",
        "debian",
        "--json",
        json.to_str().unwrap(),
        "--artifacts",
        folder.join("guests").to_str().unwrap(),
        "lab-behind-exit-work",
        "lab-cancel*",
        "lab-io-worker",
        "lab-nmi-in-request",
        "program-*",
    ]);
    let text = std::fs::read_to_string(&json).unwrap_or_else(|_| panic!("{}", said(&output)));
    let records: Vec<Record> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(!records.is_empty(), "{}", said(&output));
    for record in &records {
        // As in tests/library.rs: only a KVM host that died is run again, and shown.
        if record.outcome == "infra-error" {
            eprintln!("FLAKY: the KVM host failed in {}", record.name);
            let again = unwindlab(&["run", "--source", "debian", &record.name]);
            assert_eq!(again.status.code(), Some(0), "{}", said(&again));
            continue;
        }
        let good = ["pass", "expected-failure"].contains(&record.outcome.as_str());
        assert!(good, "{}: {}", record.name, said(&output));
    }
    let shows = |it: &&Record| it.name.starts_with("lab-") && it.outcome == "expected-failure";
    assert!(records.iter().any(|it| shows(&it)), "{}", said(&output));
}

/// On an emulated host it is started again, and what comes again is the kernel's; a third start tells where.
#[test]
fn a_kernel_that_dies_without_a_word_is_told_with_its_place() {
    let _turn = turn();
    let output = unwindlab(&[
        "run",
        "frames-1",
        "--source",
        "debian",
        "--patch",
        "guest-kernel/tests/dies-in-initcall.patch",
        "--artifacts",
        scratch("dies").to_str().unwrap(),
    ]);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for part in [
        "guest-panic",
        "triple fault or reset on vCPU 0, nothing on the console; as on another machine before",
        ": calling  dies_in_its_boot+",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}
