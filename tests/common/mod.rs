//! Running the real command, as a user would.

#![allow(clippy::expect_used, reason = "all of it is for tests")]

#[allow(dead_code, reason = "not every test program needs it")]
pub mod consumers;

use std::path::PathBuf;
use std::process::{Command, Output};

use unwindlab_guest_kernel::Cache;

/// The command with these arguments, run to its end.
pub fn unwindlab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_unwindlab"))
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("the command can be started")
}

/// Everything it printed, for the message of a failed assertion.
pub fn said(output: &Output) -> String {
    format!(
        "exit {:?}\n{}{}",
        output.status.code(),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// A folder of this test's own, below cargo's for tests.
#[allow(dead_code, reason = "not every test program needs one")]
pub fn scratch(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    folder
}

/// The tree that the built kernels are made from, with the kernel's own tools.
#[allow(dead_code, reason = "not every test program needs one")]
pub fn kernel_tree() -> PathBuf {
    let built = unwindlab(&["kernel", "build", "--source", "debian"]);
    assert!(built.status.success(), "{}", said(&built));
    let cache = Cache::open(None).expect("there is a cache");
    let builds = std::fs::read_dir(cache.root().join("builds")).expect("there are builds");
    let mut trees = builds.map(|it| it.expect("an entry").path().join("src"));
    let tree = trees.find(|it| it.join("tools/testing/kunit/kunit.py").exists());
    tree.expect("the tools are in the tree")
}
