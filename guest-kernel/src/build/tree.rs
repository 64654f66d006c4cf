//! Turns a source into a tree in our repository.

use std::path::Path;

use super::git::{self, Call, Object};
use super::source::readable;
use super::workspace::Workspace;
use super::{BuildError, Source, package, upstream};
use crate::cache::Cache;
use crate::progress::Progress;

/// Files that identify a source of Linux with support for x86.
const LANDMARKS: &[&str] = &["Kconfig", "Makefile", "kernel", "arch/x86/Kconfig"];

/// The tree of a source, as an object of the workspace's repository.
pub(super) fn of(
    source: &Source,
    workspace: &Workspace,
    cache: &Cache,
    progress: &dyn Progress,
) -> Result<String, BuildError> {
    let tree = match source {
        Source::Debian(numbers) => package::tree(numbers, workspace, cache, progress)?,
        Source::Upstream(numbers) => upstream::tree(numbers, workspace, cache, progress)?,
        Source::Tree(folder) => scan(folder, workspace, progress)?,
        Source::Revision { tree, revision } => {
            git::resolve(&readable(tree)?, revision, Object::Tree)?
        }
    };
    match LANDMARKS.iter().find(|path| !workspace.has(&tree, path)) {
        None => Ok(tree),
        Some(lacking) => Err(BuildError::NotLinux(source.to_string(), lacking)),
    }
}

/// The tree of a folder as it is now. Our index of it remembers sizes and times, so that only files
/// that have changed since are read again.
fn scan(
    folder: &Path,
    workspace: &Workspace,
    progress: &dyn Progress,
) -> Result<String, BuildError> {
    let folder = readable(folder)?;
    // Before reading the folder: if it is not Linux, it may be huge.
    if let Some(lacking) = LANDMARKS.iter().find(|path| !folder.join(path).exists()) {
        return Err(BuildError::NotLinux(folder.display().to_string(), lacking));
    }
    progress.step(&format!("reading {}", folder.display()));
    let index = workspace.folders().root().join("scan.index");
    let git = workspace.git();
    let add = git
        .call("add")
        .arg("--all")
        .index(&index)
        .work_tree(&folder);
    let head = Call::in_tree(&folder, "rev-parse")
        .args(["--verify", "--quiet", "HEAD^{tree}"])
        .run();
    match head {
        Ok(head) => {
            // Tracked files count even if .gitignore names them.
            git.call("read-tree")
                .args(["-m", &head])
                .index(&index)
                .run()?;
            add.arg(".").run()?;
        }
        // Without a commit, .gitignore is not trusted: that of Debian's source ignores everything.
        Err(_) => {
            add.args(["--force", "--", "."])
                .args(BUILT.map(|it| format!(":(exclude,glob){it}")))
                .run()?;
        }
    }
    Ok(git.call("write-tree").index(&index).run()?)
}

/// What a build in the source tree leaves there.
const BUILT: [&str; 16] = [
    "**/*.o",
    "**/*.a",
    "**/*.ko",
    "**/*.cmd",
    "**/*.mod",
    "**/*.mod.c",
    "**/.*.d",
    "**/modules.order",
    "Module.symvers",
    "System.map",
    "vmlinux*",
    ".vmlinux*",
    ".config*",
    "include/config/**",
    "include/generated/**",
    "arch/*/include/generated/**",
];
