//! Kernels that cannot be built: one clear message, the right exit code, and the user's tree as it
//! was.

#![allow(
    clippy::tests_outside_test_module,
    reason = "an integration test is a test module as a whole"
)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

type Fallible = Result<(), Box<dyn std::error::Error>>;

fn unwindlab(cache: Option<&Path>, args: &[&str]) -> Result<Output, std::io::Error> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unwindlab"));
    if let Some(cache) = cache {
        command.env("UNWINDLAB_CACHE", cache);
    }
    command.args(args).output()
}

/// Exit code and what was said on stderr.
fn failed(output: &Output) -> (Option<i32>, String) {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), said)
}

#[test]
fn a_folder_that_is_not_linux() -> Fallible {
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("Makefile"), "all:\n")?;
    let path = folder.path().display().to_string();
    let (code, said) = failed(&unwindlab(None, &["run", "--tree", &path])?);
    assert_eq!(
        (code, said.as_str()),
        (
            Some(2),
            format!("error: {path} is not a Linux source tree: it lacks Kconfig\n").as_str()
        )
    );
    let (code, said) = failed(&unwindlab(
        None,
        &["run", "--tree", &path, "--rev", "v6.17"],
    )?);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("has no revision v6.17"), "{said}");
    let (code, said) = failed(&unwindlab(None, &["run", "--tree", "/nonexistent"])?);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("cannot read /nonexistent"), "{said}");
    Ok(())
}

#[test]
fn names_that_are_not_known() -> Fallible {
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
        let (code, said) = failed(&unwindlab(None, &args)?);
        assert_eq!(code, Some(2), "{args:?}: {said}");
        assert!(said.contains(words), "{args:?}: {said}");
    }
    Ok(())
}

#[test]
fn a_patch_that_does_not_apply() -> Fallible {
    let folder = tempfile::tempdir()?;
    let patch = folder.path().join("wrong.patch");
    fs::write(
        &patch,
        "--- a/kernel/unwind/deferred.c\n+++ b/kernel/unwind/deferred.c\n\
         @@ -1,2 +1,2 @@\n no such line\n-nor this\n+but that\n",
    )?;
    let (code, said) = failed(&unwindlab(
        None,
        &[
            "run",
            "--source",
            "debian",
            "--patch",
            &patch.display().to_string(),
        ],
    )?);
    assert_eq!(code, Some(125), "{said}");
    assert!(
        said.starts_with("error: wrong.patch does not apply to debian:7:\n"),
        "{said}"
    );
    assert!(said.contains("kernel/unwind/deferred.c:1"), "{said}");
    Ok(())
}

/// A git repository with Debian's source checked out, whose objects are borrowed from the cache.
fn checked_out(tree: &Path) -> Fallible {
    let built = unwindlab(None, &["kernel", "build", "--source", "debian"])?;
    assert!(built.status.success(), "{}", failed(&built).1);
    let cache = unwindlab_guest_kernel::Cache::open(None)?;
    let source = cache.root().join("builds").join("debian-7").join("git");
    fs::create_dir(tree)?;
    let git = |args: &[&str]| -> Fallible {
        let status = Command::new("git").current_dir(tree).args(args).status()?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("git {args:?}: {status}").into())
        }
    };
    git(&["init", "--quiet"])?;
    fs::write(
        tree.join(".git/objects/info/alternates"),
        format!("{}\n", source.join("objects").display()),
    )?;
    let tree_id = Command::new("git")
        .arg("--git-dir")
        .arg(&source)
        .args(["rev-parse", "refs/unwindlab/source^{tree}"])
        .output()?;
    git(&[
        "read-tree",
        "-u",
        "--reset",
        String::from_utf8(tree_id.stdout)?.trim(),
    ])
}

/// Every file of the tree but git's own index, which nobody but git may judge by its time.
fn state(tree: &Path) -> Result<Vec<String>, std::io::Error> {
    let mut found = Vec::new();
    let mut folders = vec![tree.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for item in fs::read_dir(folder)? {
            let item = item?;
            let about = item.metadata()?;
            if about.is_dir() {
                folders.push(item.path());
            }
            found.push(format!("{:?} {:?}", item.path(), about.modified()?));
        }
    }
    found.sort();
    Ok(found)
}

#[test]
fn a_tree_that_does_not_build_is_unchanged() -> Fallible {
    let folder = tempfile::tempdir()?;
    let tree = folder.path().join("linux");
    checked_out(&tree)?;
    // Among the first that are compiled.
    let file = tree.join("kernel/bounds.c");
    let broken = fs::read_to_string(&file)?.replacen("int main(void)", "int main(viod)", 1);
    fs::write(&file, broken)?;
    let before = state(&tree)?;
    let cache = folder.path().join("cache");
    let path = tree.display().to_string();
    let (code, said) = failed(&unwindlab(
        Some(&cache),
        &["kernel", "build", "--tree", &path],
    )?);
    assert_eq!(code, Some(125), "{said}");
    assert!(said.contains("does not build (vmlinux):"), "{said}");
    assert!(said.contains("kernel/bounds.c"), "{said}");
    assert!(
        said.contains("  kernel/bounds.c:17:5: error: "),
        "the compiler's words: {said}"
    );
    assert_eq!(state(&tree)?, before);
    Ok(())
}
