//! `unwindlab bench` measures every row, and names a peer that it cannot measure. No time is
//! asserted.
//!
//! Needs the stock kernel and, unless this machine's /dev/kvm can run it, QEMU and the outer
//! kernel; the first test needs Debian's QEMU as the peer.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "an integration test is a test module as a whole"
)]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use common::{said, scratch, unwindlab};

/// Runs one round of these rows; the exit code, all that was said, and the records.
fn bench(rows: &[&str], peer: Option<&Path>, folder: &Path) -> (Option<i32>, String, Vec<Value>) {
    let json = folder.join("figures.jsonl");
    let mut arguments = vec!["bench", "--rounds", "1", "--json", json.to_str().unwrap()];
    arguments.extend(rows.iter().flat_map(|row| ["--only", row]));
    if let Some(peer) = peer {
        arguments.extend(["--peer", peer.to_str().unwrap()]);
    }
    let output = unwindlab(&arguments);
    let records = fs::read_to_string(&json).unwrap_or_default();
    let records = records
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    (output.status.code(), said(&output), records.collect())
}

/// Whether median and spread are numbers above 0.
fn is_figure(spread: &Value) -> bool {
    ["min", "median", "max"].iter().all(|key| {
        spread[key]
            .as_f64()
            .is_some_and(|it| it.is_finite() && it > 0.0)
    })
}

#[test]
fn every_row_has_a_figure_with_a_unit_and_a_peer_where_there_is_one() {
    let rows = ["boot", "memory", "restore", "decode", "judge"];
    let (code, told, records) = bench(&rows, None, &scratch("bench"));
    println!("{told}");
    assert_eq!(code, Some(0), "{told}");
    let found: BTreeSet<&str> = records.iter().filter_map(|it| it["row"].as_str()).collect();
    assert_eq!(found, BTreeSet::from(rows), "{told}");
    for record in &records {
        assert_eq!(record["measured"], true, "{record}");
        assert!(is_figure(&record["spread"]), "{record}");
        assert!(
            record["unit"].as_str().is_some_and(|it| !it.is_empty()),
            "{record}"
        );
        let has_peer = record["row"] != "decode";
        assert_eq!(is_figure(&record["peer-spread"]), has_peer, "{record}");
        assert_eq!(is_figure(&record["ratio"]), has_peer, "{record}");
    }
}

#[test]
fn a_peer_that_does_not_start_is_reported_and_ours_is_measured() {
    let folder = scratch("bench-broken-peer");
    let cache = unwindlab_guest_kernel::Cache::open(None).unwrap();
    let whole =
        unwindlab_guest_kernel::qemu::debian(&cache, &unwindlab_guest_kernel::Silent).unwrap();
    for part in ["lib", "firmware"] {
        std::os::unix::fs::symlink(whole.join(part), folder.join(part)).unwrap();
    }
    let program = folder.join(unwindlab_guest_kernel::qemu::PROGRAM);
    fs::write(&program, "no program").unwrap();
    let (code, told, records) = bench(&["boot", "restore"], Some(&folder), &folder);
    assert_eq!(code, Some(125), "{told}");
    assert!(
        told.contains("QEMU microvm    not measured: ended (exit status: 127)"),
        "{told}"
    );
    assert_eq!(records.len(), 2, "{told}");
    for record in &records {
        assert_eq!(record["measured"], false, "{record}");
        assert!(is_figure(&record["spread"]), "{record}");
        assert_eq!(record["ratio"], Value::Null, "{record}");
    }
}

#[test]
fn a_missing_peer_is_reported_and_ours_is_measured() {
    let folder = scratch("bench-no-peer");
    let (code, told, records) = bench(&["boot"], Some(&folder), &folder);
    assert_eq!(code, Some(125), "{told}");
    assert!(
        told.contains("lib/ld-linux-x86-64.so.2 is missing"),
        "{told}"
    );
    assert!(records.iter().all(|it| is_figure(&it["spread"])), "{told}");
    assert_eq!(records.len(), 1, "{told}");
}
