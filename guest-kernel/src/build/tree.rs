//! Turns a source into a tree in our repository.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::git::{self, Call, Failure, Git, Object};
use super::source::readable;
use super::workspace::Workspace;
use super::{BuildError, Source, package, upstream};
use crate::cache::Cache;
use crate::progress::Progress;

/// Files that identify a source of Linux with support for x86.
const LANDMARKS: &[&str] = &["Kconfig", "Makefile", "kernel", "arch/x86/Kconfig"];

/// Opens the workspace of a source, with its tree. That of a source which is refused stays only if it was there before.
pub(super) fn open(
    source: &Source,
    cache: &Cache,
    progress: &dyn Progress,
) -> Result<(Workspace, String), BuildError> {
    let workspace = Workspace::open(source, cache, progress)?;
    match of(source, &workspace, cache, progress) {
        Ok(tree) => Ok((workspace, tree)),
        Err(error) => {
            workspace.discard_new(cache)?;
            Err(error)
        }
    }
}

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
            add.args(["--", ".", NOT_OUTPUT])
                .args(repositories(git, &index, &folder)?)
                .run()?;
        }
        // Without a commit, .gitignore is not trusted: that of Debian's source ignores everything.
        Err(_) => {
            add.args(["--force", "--", ".", NOT_OUTPUT])
                .args(BUILT.map(|it| format!(":(exclude,glob){it}")))
                .args(repositories(git, &index, &folder)?)
                .run()?;
        }
    }
    Ok(git.call("write-tree").index(&index).run()?)
}

/// Excludes the folders of the index that are repositories of their own. `git add` would run `git status` in each, and
/// that runs programs that the repository's configuration names (`filter.*.clean`). No kernel has a file of them.
fn repositories(git: &Git, index: &Path, folder: &Path) -> Result<Vec<OsString>, Failure> {
    let listed = git
        .call("ls-files")
        .args(["--stage", "-z"])
        .index(index)
        .bytes()?;
    let repository = |entry: &[u8]| {
        let tab = entry.iter().position(|&byte| byte == b'\t')?;
        let path = OsStr::from_bytes(entry.get(tab + 1..)?);
        let is_one = entry.starts_with(b"160000 ") && folder.join(path).join(".git").exists();
        is_one.then(|| {
            let mut excluded = OsString::from(":(exclude,top,literal)");
            excluded.push(path);
            excluded
        })
    };
    Ok(listed
        .split(|&byte| byte == 0)
        .filter_map(repository)
        .collect())
}

/// What a run in the source tree leaves there by itself. With it, each run would make another tree, and build it.
const NOT_OUTPUT: &str = ":(exclude,top)unwindlab-out";

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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;

    use super::*;
    use crate::progress::Silent;

    /// Trees of Linux, and a cache.
    struct Trees {
        folder: tempfile::TempDir,
        cache: Cache,
    }

    impl Trees {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let cache = Cache::open(Some(folder.path().join("cache"))).unwrap();
            Self { folder, cache }
        }

        fn add(&self, name: &str) -> PathBuf {
            let tree = self.folder.path().join(name);
            for file in ["Kconfig", "Makefile", "kernel/fork.c", "arch/x86/Kconfig"] {
                write(&tree.join(file), "text\n");
            }
            tree
        }

        fn id(&self, tree: &Path) -> String {
            let source = Source::Tree(tree.to_path_buf());
            let workspace = Workspace::open(&source, &self.cache, &Silent).unwrap();
            of(&source, &workspace, &self.cache, &Silent).unwrap()
        }
    }

    #[test]
    fn a_source_that_is_refused_leaves_no_folder() {
        let trees = Trees::new();
        let tree = trees.add("tree");
        let source = Source::Tree(tree.clone());
        let builds = trees.cache.root().join("builds");
        let folders = || fs::read_dir(&builds).unwrap().count();
        let landmark = tree.join("Kconfig");
        fs::remove_file(&landmark).unwrap();
        open(&source, &trees.cache, &Silent).unwrap_err();
        assert_eq!(folders(), 0);
        write(&landmark, "text\n");
        open(&source, &trees.cache, &Silent).unwrap();
        fs::remove_file(&landmark).unwrap();
        open(&source, &trees.cache, &Silent).unwrap_err();
        assert_eq!(folders(), 1, "what was there before stays");
    }

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Makes a repository of a folder, with all of its files in a commit.
    fn commit(folder: &Path) {
        let call = |subcommand| Call::in_tree(folder, subcommand);
        call("init").arg("--quiet").run().unwrap();
        call("add").arg(".").run().unwrap();
        let tree = call("write-tree").run().unwrap();
        let mut commit = call("commit-tree").arg(tree).input("text");
        for who in ["AUTHOR", "COMMITTER"] {
            commit = commit
                .env(&format!("GIT_{who}_NAME"), "a")
                .env(&format!("GIT_{who}_EMAIL"), "a@b");
        }
        let commit = commit.run().unwrap();
        call("update-ref").args(["HEAD", &commit]).run().unwrap();
    }

    #[test]
    fn what_a_run_leaves_is_no_part_of_the_tree() {
        let trees = Trees::new();
        for has_commit in [false, true] {
            let tree = trees.add(&format!("tree-{has_commit}"));
            if has_commit {
                commit(&tree);
            }
            let before = trees.id(&tree);
            write(&tree.join("unwindlab-out/x"), "text\n");
            assert_eq!(trees.id(&tree), before);
            write(&tree.join("kernel/unwindlab-out/x"), "text\n");
            assert_ne!(trees.id(&tree), before);
        }
    }

    /// Those of a stranger's tree have a stranger's configuration.
    #[test]
    fn a_repository_in_the_tree_starts_no_program() {
        let trees = Trees::new();
        let program = trees.folder.path().join("program");
        let ran = trees.folder.path().join("ran");
        write(&program, &format!("#!/bin/sh\ntouch {}\n", ran.display()));
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        for has_commit in [false, true] {
            let tree = trees.add(&format!("tree-{has_commit}"));
            let inner = tree.join("kernel/inner");
            write(&inner.join("file"), "1\n");
            commit(&inner);
            if has_commit {
                commit(&tree);
            }
            let before = trees.id(&tree);
            for (key, value) in [
                ("filter.evil.clean", &*program.to_string_lossy()),
                ("core.fsmonitor", &program.to_string_lossy()),
            ] {
                let config = Call::in_tree(&inner, "config");
                config.args([key, value]).run().unwrap();
            }
            write(&inner.join(".gitattributes"), "* filter=evil\n");
            write(&inner.join("file"), "2\n");
            assert_eq!(trees.id(&tree), before);
            assert!(!ran.exists(), "{has_commit}");
            write(&tree.join("kernel/fork.c"), "other\n");
            assert_ne!(trees.id(&tree), before);
        }
    }
}
