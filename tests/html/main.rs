//! `--html` in a browser: a headless Chromium without a network, driven by keys.
//!
//! It is run where Debian's `chromium` is installed, as `.ci/run` does. Where it is not, the tests say that they were
//! not run.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "an integration test is a test module as a whole"
)]

mod browser;
#[path = "../common/mod.rs"]
mod common;
mod run;
mod sweep;
mod tables;

use std::io::Write as _;
use std::process::Command;

use browser::Browser;

/// A browser, unless there is none.
fn browser() -> Option<Browser> {
    let found = Command::new("chromium").arg("--version").output();
    if found.is_ok_and(|it| it.status.success()) {
        return Some(Browser::start());
    }
    // Not by the macro, whose output a test that passes does not show.
    let _ = std::io::stderr().write_all(b"NOT RUN: no chromium (Debian's package `chromium`)\n");
    None
}

/// Nothing was logged, thrown or fetched but the file.
fn quiet(browser: &Browser) {
    assert_eq!(browser.complaints, Vec::<String>::new());
    let other = browser
        .requests
        .iter()
        .filter(|it| !it.starts_with("file://") && *it != "about:blank");
    assert_eq!(other.collect::<Vec<_>>(), Vec::<&String>::new());
}
