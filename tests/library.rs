//! `unwindlab run` passes the whole library on the stock kernel, as the snapshots have it.
//!
//! Needs the stock kernel and a KVM host, native or emulated. `INSTA_UPDATE=always` renews the
//! snapshots.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "an integration test is a test module as a whole"
)]

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Output;

use common::{said, scratch, unwindlab};

/// The fields of a line of `run --json` that matter here.
#[derive(serde::Deserialize)]
struct Record {
    schema: String,
    name: String,
    outcome: String,
    canonical: Option<String>,
}

#[test]
fn the_library_passes_as_in_its_snapshots() {
    let folder = scratch("library");
    let (json, junit) = (folder.join("results.jsonl"), folder.join("results.xml"));
    // Snapshots are compared here, where insta can also renew them.
    let output = unwindlab(&[
        "run",
        "--no-snapshots",
        "--json",
        json.to_str().unwrap(),
        "--junit",
        junit.to_str().unwrap(),
        "--artifacts",
        folder.join("guests").to_str().unwrap(),
    ]);
    let text = std::fs::read_to_string(&json).unwrap_or_else(|_| panic!("{}", said(&output)));
    let mut records: Vec<Record> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();

    // The emulated KVM host dies now and then (docs/stability.md), which says
    // nothing about the kernel: such a scenario runs once more, and this is shown. No other
    // outcome does.
    let mut code = output.status.code();
    // Without `--retries`, what is flaky is a guest that did not come to its agent.
    let hosts = ["infra-error", "flaky"];
    for record in { records.iter_mut() }.filter(|it| hosts.contains(&it.outcome.as_str())) {
        eprintln!(
            "FLAKY: the KVM host failed in {}, running it again\n{}",
            record.name,
            said(&output)
        );
        let file = format!("scenarios/{}.yaml", record.name);
        let json = json.to_str().unwrap();
        code = unwindlab(&["run", "--no-snapshots", "--json", json, &file])
            .status
            .code();
        *record = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    }

    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let names: BTreeSet<String> = records.iter().map(|record| record.name.clone()).collect();
    assert_eq!(
        names,
        stems(&root.join("scenarios"), "yaml"),
        "{}",
        said(&output)
    );
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(root.join("snapshots"));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| {
        for record in &records {
            assert_eq!(record.schema, "unwindlab.result/1");
            if is_lacking(&record.name) {
                // The stock kernel lacks what it needs, and the scenario says so.
                let said = without_passes(&output);
                assert_eq!(record.outcome, "skip", "{}\n{said}", record.name);
                continue;
            }
            let good = ["pass", "expected-failure"].contains(&record.outcome.as_str());
            assert!(good, "{}\n{}", record.name, without_passes(&output));
            if let Some(canonical) = record.canonical.as_deref() {
                insta::assert_snapshot!(record.name.as_str(), canonical);
            }
        }
    });
    let compared = records.iter().filter(|it| it.canonical.is_some());
    let with_snapshot: BTreeSet<String> = compared.map(|it| it.name.clone()).collect();
    assert_eq!(
        stems(&root.join("snapshots"), "snap"),
        with_snapshot,
        "a snapshot without a scenario"
    );
    assert_eq!(code, Some(0), "{}", without_passes(&output));
    let junit = std::fs::read_to_string(junit).unwrap();
    for name in &names {
        assert!(junit.contains(&format!("name=\"{name}\"")), "{junit}");
        if is_lacking(name) {
            continue;
        }
        let console = folder.join("guests").join(name).join("console.log");
        assert!(console.is_file(), "{} is missing", console.display());
    }
}

/// What the program printed of scenarios that did not pass: logs of CI keep a part of a long message only.
fn without_passes(output: &Output) -> String {
    let text = said(output);
    let mut good = false;
    let lines = text.lines().filter(|line| {
        if !line.starts_with(' ') {
            let mut words = line.split_whitespace();
            good = match (words.next(), words.next()) {
                (Some("pass" | "expected-failure"), _) => true,
                (Some("skip"), Some(name)) => is_lacking(name),
                _ => false,
            };
        }
        !good
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Whether a scenario needs what a stock kernel lacks: the lab client, or a proposal.
fn is_lacking(name: &str) -> bool {
    [
        "lab-",
        "own-stack",
        // The C programs of findings that need the lab client.
        "program-f002",
        "program-f003",
        "program-f005",
        "program-f006",
        "program-f012",
        "sframe-",
        "tracefs-",
        "user-mode-same-cookie",
        "user-mode-semantic",
        "user-mode-dwarf",
    ]
    .iter()
    .any(|it| name.starts_with(it))
}

/// The names of the files with this extension, without it.
fn stems(folder: &Path, ending: &str) -> BTreeSet<String> {
    std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|it| it == ending))
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect()
}
