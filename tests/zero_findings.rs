//! The kernel with all fixes and all proposals, in which nothing is known to be wrong, passes everything.
//!
//! This is the last test of a kernel built from source: proposals change headers that everything includes, so the kernel
//! after this one would be compiled from nothing.

#![allow(clippy::tests_outside_test_module, reason = "all of it is a test")]

mod common;

use common::{said, scratch, unwindlab};

/// The kernels built here have no BTF, so that BPF programs call no function of theirs: that is how most of these ask.
const NEED_BTF: [&str; 2] = ["bpf-", "user-mode-"];
/// These ask by timers and by perf, which every kernel has, by a helper, or by a proposal.
const NEED_NO_BTF: [&str; 7] = [
    "bpf-at-once",
    "user-mode-dwarf",
    "user-mode-itimer",
    "user-mode-same-cookie",
    "user-mode-semantic",
    "user-mode-sigtrap",
    "user-mode-thread-timer",
];

/// One line of `run --json`, as far as it matters here.
#[derive(serde::Deserialize)]
struct Record {
    name: String,
    outcome: String,
}

impl Record {
    /// What it must be on a kernel with nothing wrong.
    fn expected(&self) -> &'static str {
        let is_of = |names: &[&str]| names.iter().any(|it| self.name.starts_with(it));
        match is_of(&NEED_BTF) && !is_of(&NEED_NO_BTF) {
            true => "skip",
            false => "pass",
        }
    }
}

/// Nothing fails, and no finding matches. With the proposals, it runs what only they can, each walk of the program's own included.
#[test]
fn the_kernel_with_all_fixes_and_proposals_passes_everything() {
    let folder = scratch("fixed");
    let (json, guests) = (folder.join("results.jsonl"), folder.join("guests"));
    let patches = [
        "proposal:sframe",
        "proposal:own-stack",
        "proposal:tracefs-stack",
        "proposal:user-unwind",
        "fix:all",
    ];
    let mut arguments = vec!["run", "--source", "debian"];
    arguments.extend(["--json", json.to_str().unwrap()]);
    arguments.extend(["--artifacts", guests.to_str().unwrap()]);
    arguments.extend(patches.iter().flat_map(|patch| ["--patch", *patch]));
    let output = unwindlab(&arguments);
    let text = std::fs::read_to_string(&json).unwrap_or_else(|_| panic!("{}", said(&output)));
    let records = text
        .lines()
        .map(|line| serde_json::from_str::<Record>(line).unwrap());
    let mut passed = 0;
    for record in records {
        let told = said(&output);
        assert_eq!(record.outcome, record.expected(), "{}: {told}", record.name);
        passed += u32::from(record.outcome == "pass");
    }
    assert!(passed > 0, "{}", said(&output));
}
