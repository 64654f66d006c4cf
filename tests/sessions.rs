//! The sessions of the README and the tutorial, repeated on real kernels.

#![allow(
    clippy::tests_outside_test_module,
    clippy::panic,
    clippy::expect_used,
    reason = "an integration test is a test module as a whole"
)]

#[allow(dead_code, reason = "commands are run as they are written, by a shell")]
mod common;
#[path = "common/markdown.rs"]
mod markdown;

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use common::scratch;
use markdown::{Page, session};

/// Two KVM hosts at once would only slow each other down.
static TURN: Mutex<()> = Mutex::new(());

/// Repeats a page's commands, one after the other in one folder. What is not unwindlab's is left out: it installs
/// or tests unwindlab itself.
fn repeat(path: &str, name: &str) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = scratch(name);
    let mut session = session(&Page::read(Path::new(path)));
    session.retain(|typed| !typed.command.starts_with("cargo "));
    let boots = session.iter().any(|typed| !typed.needs_no_machine());
    assert!(boots, "{path} shows no machine");
    for typed in session {
        typed.check(&folder);
    }
}

#[test]
fn the_readme() {
    repeat("README.md", "session-readme");
}

#[test]
fn the_tutorial() {
    repeat("docs/tutorial.md", "session-tutorial");
}
