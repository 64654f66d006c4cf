//! Kernels that cannot be built: one clear message, the right exit code, and an unchanged user's tree.

#![allow(
    clippy::tests_outside_test_module,
    clippy::expect_used,
    reason = "an integration test is a test module as a whole"
)]

use std::fs;
use std::io::{Seek as _, Write as _};
use std::path::Path;
use std::process::{Command, Output};

mod common;
#[path = "common/source.rs"]
mod source;

use common::{scratch, unwindlab};
use source::{Fallible, repository, state};

/// Exit code and text on stderr.
fn failed(output: &Output) -> (Option<i32>, String) {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), said)
}

#[test]
fn a_folder_that_is_not_linux() -> Fallible<()> {
    let folder = scratch("not-linux");
    fs::write(folder.join("Makefile"), "all:\n")?;
    let path = folder.display().to_string();
    let (code, said) = failed(&unwindlab(&["run", "--tree", &path]));
    assert_eq!(
        (code, said.as_str()),
        (
            Some(2),
            format!("error: {path} is not a Linux source tree: it lacks Kconfig\n").as_str()
        )
    );
    let (code, said) = failed(&unwindlab(&["run", "--tree", &path, "--rev", "v6.17"]));
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("has no revision v6.17"), "{said}");
    let (code, said) = failed(&unwindlab(&["run", "--tree", "/nonexistent"]));
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("cannot read /nonexistent"), "{said}");
    Ok(())
}

#[test]
fn names_that_are_not_known() -> Fallible<()> {
    for (args, words) in [
        (
            ["run", "--patch", "mutant:nothing"],
            "no mutant \"nothing\"; there are:",
        ),
        (["run", "--patch", "no.patch"], "cannot read no.patch"),
        (
            ["run", "--config", "no.config"],
            "no configuration fragment \"no.config\"",
        ),
        (["run", "--source", "gentoo"], "unknown --source \"gentoo\""),
        (
            ["mutants", "--only", "nothing"],
            "no mutant \"nothing\"; there are:",
        ),
        (
            ["variants", "--only", "nothing"],
            "no variant \"nothing\"; there are:",
        ),
    ] {
        let (code, said) = failed(&unwindlab(&args));
        assert_eq!(code, Some(2), "{args:?}: {said}");
        assert!(said.contains(words), "{args:?}: {said}");
    }
    Ok(())
}

#[test]
fn a_patch_that_does_not_apply() -> Fallible<()> {
    let folder = scratch("bad-patch");
    let patch = folder.join("wrong.patch");
    fs::write(
        &patch,
        "--- a/kernel/unwind/deferred.c\n+++ b/kernel/unwind/deferred.c\n\
         @@ -1,2 +1,2 @@\n no such line\n-nor this\n+but that\n",
    )?;
    let (code, said) = failed(&unwindlab(&[
        "run",
        "--source",
        "debian",
        "--patch",
        &patch.display().to_string(),
    ]));
    assert_eq!(code, Some(125), "{said}");
    assert!(
        said.starts_with("error: wrong.patch does not apply to debian:7:\n"),
        "{said}"
    );
    assert!(said.contains("kernel/unwind/deferred.c:1"), "{said}");
    Ok(())
}

/// What a build reads, besides the Kconfig and Makefiles of all: a fifth of the files. Where a file takes milliseconds to
/// remove, the rest takes minutes.
const COMPILED: [&str; 36] = [
    "arch/x86/",
    "block/",
    "certs/",
    "crypto/",
    "drivers/base/",
    "drivers/block/",
    "drivers/char/",
    "drivers/clocksource/",
    "drivers/pci/",
    "drivers/rtc/",
    "drivers/tty/",
    "fs/",
    "include/",
    "init/",
    "io_uring/",
    "ipc/",
    "kernel/",
    "lib/",
    "mm/",
    "net/bpf/",
    "net/core/",
    "net/ethernet/",
    "net/ethtool/",
    "net/ipv6/",
    "net/netlink/",
    "net/sched/",
    "scripts/",
    "security/",
    "tools/arch/",
    "tools/build/",
    "tools/include/",
    "tools/lib/",
    "tools/objtool/",
    "tools/scripts/",
    "usr/",
    "virt/",
];

/// Whether a build needs a file of the source.
fn is_needed(path: &str) -> bool {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let rules = ["Kconfig", "Makefile", "Kbuild", "Build"];
    rules.iter().any(|rule| name.starts_with(rule))
        || ["", "drivers/net", "net"].contains(&folder)
        || COMPILED.iter().any(|it| path.starts_with(it))
}

/// Checks out what is needed of a tree.
fn check_out_needed(repository: &Path, tree: &str) -> Fallible<()> {
    let git = |args: &[&str], input: &str| -> Fallible<String> {
        let mut stdin = tempfile::tempfile()?;
        stdin.write_all(input.as_bytes())?;
        stdin.rewind()?;
        let mut git = Command::new("git");
        let git = git
            .current_dir(repository)
            .args(args)
            .stdin(stdin)
            .output()?;
        assert!(git.status.success(), "git {args:?}: {git:?}");
        Ok(String::from_utf8(git.stdout)?)
    };
    git(&["read-tree", tree], "")?;
    let files = git(&["ls-files", "-z"], "")?;
    let unneeded: Vec<&str> = { files.split('\0') }.filter(|it| !is_needed(it)).collect();
    let remove = ["update-index", "--force-remove", "-z", "--stdin"];
    git(&remove, &unneeded.join("\0"))?;
    git(&["checkout-index", "--all"], "")?;
    Ok(())
}

#[test]
fn a_tree_that_does_not_build_is_unchanged() -> Fallible<()> {
    // Not removed behind the test: that may take minutes.
    let folder = scratch("bad-tree");
    let tree = folder.join("linux");
    let id = repository(&tree)?;
    check_out_needed(&tree, &id)?;
    // One of the first files that are compiled.
    let file = tree.join("kernel/bounds.c");
    let broken = fs::read_to_string(&file)?.replacen("int main(void)", "int main(viod)", 1);
    fs::write(&file, broken)?;
    let before = state(&tree)?;
    let cache = folder.join("cache");
    let path = tree.display().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_unwindlab"))
        .env("UNWINDLAB_CACHE", &cache)
        .args(["kernel", "build", "--tree", &path])
        .output()?;
    let (code, said) = failed(&output);
    assert_eq!(code, Some(125), "{said}");
    assert!(said.contains("does not build (vmlinux):"), "{said}");
    assert!(said.contains("kernel/bounds.c"), "{said}");
    assert!(
        said.contains("  kernel/bounds.c:17:5: error: "),
        "the compiler's words: {said}"
    );
    assert_eq!(state(&tree)?, before);

    let pruned = Command::new(env!("CARGO_BIN_EXE_unwindlab"))
        .env("UNWINDLAB_CACHE", &cache)
        .args(["cache", "prune", "--builds"])
        .output()?;
    let said = String::from_utf8(pruned.stdout)?;
    assert!(said.starts_with("1 build folders removed, "), "{said}");
    assert_eq!(fs::read_dir(cache.join("builds"))?.count(), 0, "{said}");
    Ok(())
}
