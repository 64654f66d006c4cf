//! The folder `kselftest/` as a target of the kernel's selftests: installed by the tree's own Makefile, run by its
//! `run_kselftest.sh`.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "an integration test is a test module as a whole"
)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{kernel_tree, said, scratch};

/// What the selftests' Makefile reads of a tree.
const OF_THE_TREE: [&str; 5] = [
    "scripts/subarch.include",
    "tools/testing/selftests/Makefile",
    "tools/testing/selftests/lib.mk",
    "tools/testing/selftests/run_kselftest.sh",
    "tools/testing/selftests/kselftest",
];

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    let copied = Command::new("cp").arg("-rL").args([from, to]).status();
    assert!(copied.unwrap().success(), "{}", from.display());
}

/// Installs the target, as somebody does who has a kernel tree.
fn install(folder: &Path) -> PathBuf {
    let tree = kernel_tree();
    for path in OF_THE_TREE {
        copy(&tree.join(path), &folder.join("linux").join(path));
    }
    let selftests = folder.join("linux/tools/testing/selftests");
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("kselftest");
    copy(&ours, &selftests.join("unwindlab"));
    let installed = folder.join("installed");
    let output = Command::new("make")
        .arg("-C")
        .arg(&selftests)
        .args(["TARGETS=unwindlab", "install"])
        .arg(format!("INSTALL_PATH={}", installed.display()))
        .env_remove("MAKEFLAGS")
        .env_remove("MAKELEVEL")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
    installed
}

/// What `run_kselftest.sh` says with these arguments for `unwindlab run`, and its exit code.
fn run(installed: &Path, arguments: &str) -> (String, Option<i32>) {
    let program = Path::new(env!("CARGO_BIN_EXE_unwindlab"));
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", program.parent().unwrap().display());
    let output = Command::new(installed.join("run_kselftest.sh"))
        .args(["-c", "unwindlab"])
        .env("PATH", path)
        .env("KSELFTEST_UNWINDLAB_SH_ARGS", arguments)
        .output()
        .unwrap();
    (said(&output), output.status.code())
}

#[test]
fn the_kernels_runner_runs_the_scenarios() {
    let installed = install(&scratch("kselftest"));
    let list = fs::read_to_string(installed.join("kselftest-list.txt")).unwrap();
    assert_eq!(list, "unwindlab:unwindlab.sh\n");

    let guests = installed.join("guests");
    let options = format!("--artifacts {}", guests.display());
    let (told, code) = run(&installed, &format!("{options} nmi-in-syscall lab-leaving"));
    assert_eq!(code, Some(0), "{told}");
    for line in [
        "# timeout set to 3600",
        "# KTAP version 1",
        "# ok 1 nmi-in-syscall",
        "# ok 2 lab-leaving # SKIP skip: ",
        "\nok 1 selftests: unwindlab: unwindlab.sh\n",
        "# Totals: pass:1 fail:0 xfail:0 xpass:0 skip:0 error:0",
    ] {
        assert!(told.contains(line), "{line}: {told}");
    }

    let (told, code) = run(&installed, &format!("{options} lab-leaving"));
    assert_eq!(code, Some(0), "{told}");
    let skipped = "\nok 1 selftests: unwindlab: unwindlab.sh # SKIP\n";
    assert!(told.contains(skipped), "{told}");

    // An exit code of 2 would be an expected failure.
    for (arguments, code_of_run) in [("no-such-scenario", 2), ("tests/scenarios/panics.yaml", 1)] {
        let scenario = Path::new(env!("CARGO_MANIFEST_DIR")).join(arguments);
        let scenario = scenario.exists().then(|| scenario.display().to_string());
        let scenario = scenario.unwrap_or_else(|| arguments.to_owned());
        let (told, code) = run(&installed, &format!("{options} {scenario}"));
        assert_eq!(code, Some(1), "{told}");
        let failed = "\nnot ok 1 selftests: unwindlab: unwindlab.sh # exit=1\n";
        assert!(told.contains(failed), "{told}");
        let why = format!("# # unwindlab: exit code {code_of_run}");
        assert!(told.contains(&why), "{told}");
    }

    // A target that is not whole is refused.
    fs::remove_file(installed.join("unwindlab/unwindlab.sh")).unwrap();
    let (told, code) = run(&installed, "");
    assert_eq!(code, Some(1), "{told}");
    assert!(
        told.contains("not ok 1 selftests: unwindlab: unwindlab.sh"),
        "{told}"
    );
}
