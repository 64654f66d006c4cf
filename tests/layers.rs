//! The folders of a crate use each other in one direction only: that of the list in its `lib.rs`.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "an integration test is a test module as a whole"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The sources of the crates that have such a list.
const CRATES: [&str; 5] = [
    "src",
    "engine/src",
    "oracle/src",
    "guest-kernel/src",
    "vmm/src",
];

/// The list: name to rank, lowest first.
fn order(lib: &str) -> BTreeMap<String, usize> {
    let items = lib.lines().filter_map(|line| line.strip_prefix("//! - "));
    // Modules that are not public have no links.
    let named = items.filter_map(|item| item.trim_start_matches('[').strip_prefix('`'));
    let name = |line: &str| {
        let (name, _) = line.split_once('`').expect("a name between backticks");
        name.trim_start_matches("mod@").to_owned()
    };
    named.map(name).zip(0..).collect()
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => sources(&path, found),
            false if path.extension().is_some_and(|it| it == "rs") => found.push(path),
            false => {}
        }
    }
}

/// Folders that a line of code names by their path from the root of the crate.
fn named(line: &str) -> impl Iterator<Item = &str> {
    let code = line.split("//").next().unwrap_or_default();
    let behind = code.split("crate::").skip(1);
    behind.flat_map(|rest| {
        let group = rest
            .strip_prefix('{')
            .map(|it| it.split('}').next().unwrap_or(it));
        let names = group.unwrap_or(rest).split(',').take(match group {
            Some(_) => usize::MAX,
            None => 1,
        });
        names.map(|name| {
            let name = name.trim();
            let end = name.find(|c: char| c != '_' && !c.is_ascii_alphanumeric());
            &name[..end.unwrap_or(name.len())]
        })
    })
}

/// The uses in a crate of a folder that is further down its list.
fn wrong_uses(sources_of: &str) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(sources_of);
    let lib = fs::read_to_string(root.join("lib.rs")).unwrap();
    let order = order(&lib);
    let modules = lib.lines().filter_map(|line| line.trim().strip_suffix(';'));
    let modules = modules.filter_map(|line| line.split_once("mod ").map(|(_, name)| name));
    for module in modules {
        assert!(
            order.contains_key(module),
            "{module} is not in the list of {sources_of}"
        );
    }

    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut wrong = Vec::new();
    for file in files {
        let inside = file.strip_prefix(&root).unwrap();
        let first = inside.iter().next().unwrap().to_str().unwrap();
        let Some(own) = order.get(first.trim_end_matches(".rs")) else {
            assert!(
                ["lib.rs", "main.rs"].contains(&first),
                "{first} is not in the list of {sources_of}"
            );
            continue;
        };
        for (line, number) in fs::read_to_string(&file).unwrap().lines().zip(1..) {
            assert!(
                !line.ends_with("crate::{"),
                "{}:{number}: give each a `use`",
                file.display()
            );
            let above = named(line).filter(|name| order.get(*name).is_some_and(|it| it > own));
            let inside = inside.display();
            wrong.extend(above.map(|name| format!("{sources_of}/{inside}:{number}: {name}")));
        }
    }
    wrong
}

#[test]
fn folders_use_each_other_in_the_order_of_the_list() {
    let wrong: Vec<String> = CRATES.into_iter().flat_map(wrong_uses).collect();
    assert!(wrong.is_empty(), "used from below:\n{}", wrong.join("\n"));
}

#[test]
fn a_use_is_found_in_each_way_to_write_it() {
    let found = |line| named(line).collect::<Vec<_>>();
    assert_eq!(found("use crate::plan::Token;"), ["plan"]);
    assert_eq!(found("    let x = crate::text::printable(&y);"), ["text"]);
    assert_eq!(found("use crate::{plan, host::choice};"), ["plan", "host"]);
    assert!(found("//! see crate::cli").is_empty());
}
