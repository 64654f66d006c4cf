//! Has cargo build again what is embedded in the binary when a file of it changes, or is added, and tells the program which commit it
//! is built from.

use std::process::Command;

/// The sources of the program: a change of one of them makes its commit a `-dirty` one.
const SOURCES: [&str; 9] = [
    "Cargo.toml",
    "Cargo.lock",
    "src",
    "engine/src",
    "oracle/src",
    "vmm/src",
    "guest-kernel",
    "guest-userspace",
    "docs/findings",
];

fn main() {
    for path in ["build.rs", "scenarios", "snapshots"]
        .iter()
        .chain(&SOURCES)
    {
        println!("cargo::rerun-if-changed={path}");
    }
    // It grows with each commit and each checkout.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    let commit = git(&["rev-parse", "--short=12", "HEAD"]);
    let changed = git(&[&["status", "--porcelain", "--"][..], &SOURCES[..]].concat());
    let commit = match (commit, changed.as_deref()) {
        (Some(commit), Some("")) => commit,
        (Some(commit), _) => format!("{commit}-dirty"),
        (None, _) => "unknown".to_owned(),
    };
    println!("cargo::rustc-env=PROGRAM_COMMIT={commit}");
}

/// What git says; nothing where there is no git, or no repository.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
