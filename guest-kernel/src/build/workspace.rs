//! Where the kernels of one source are built: a folder of the cache that lasts, so that the next
//! build is incremental.
//!
//! ```text
//! builds/NAME/git/          the repository: sources and patched trees
//! builds/NAME/scan.index    what was last seen of a user's folder
//! builds/NAME/src.index     what `src` holds
//! builds/NAME/src/          the tree that `make` compiles
//! builds/NAME/src/obj-CONFIG/   `O=` of a configuration, with its log
//! builds/NAME/of            the user's folder that it is for
//! ```
//!
//! The objects lie in the tree: there kbuild names source files relative to them (`srctree=..`), so
//! that objects stay valid in a copy at another place ([`super::seed`]).
//!
//! A workspace takes up to 2 GiB, so when a user's folder is gone, its workspace is removed.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::config::{self, Fragment};
use super::git::{Call, Failure, Git};
use super::{BuildError, Source};
use crate::cache::{At, Cache, CacheError, Lock, hex};
use crate::progress::Progress;

/// The folder of one source. Other processes wait until it is dropped.
#[derive(Debug)]
pub(super) struct Workspace {
    folders: Folders,
    git: Git,
    _lock: Lock,
}

/// Where the parts of a workspace lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Folders {
    root: PathBuf,
}

impl Folders {
    fn of(cache: &Cache, name: &str) -> Self {
        Self {
            root: cache.root().join("builds").join(name),
        }
    }

    /// Those of all workspaces.
    pub fn all(cache: &Cache) -> Result<Vec<Self>, CacheError> {
        let builds = cache.root().join("builds");
        let items = fs::read_dir(&builds).at(&builds)?;
        items
            .map(|item| {
                Ok(Self {
                    root: item.at(&builds)?.path(),
                })
            })
            .collect()
    }

    /// The workspace's name, where it has one that we gave.
    pub fn name(&self) -> Option<&str> {
        self.root.file_name()?.to_str()
    }

    /// All of it.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The tree that `make` compiles.
    pub fn src(&self) -> PathBuf {
        self.root.join("src")
    }

    /// git's index of that tree.
    pub fn src_index(&self) -> PathBuf {
        self.root.join("src.index")
    }

    /// Where this configuration is built.
    pub fn obj(&self, fragments: &[Fragment]) -> PathBuf {
        let id = hex(&Sha256::digest(config::merged(fragments)));
        let id = id.get(..12).unwrap_or(&id);
        self.src().join(format!("{OBJ}{id}"))
    }
}

/// What the names of the folders with objects begin with.
pub(super) const OBJ: &str = "obj-";

/// Under which building in this workspace takes turns.
pub(super) fn lock_key(name: &str) -> String {
    format!("build-{name}")
}

/// Names the user's folder, where the workspace is for one.
const OF: &str = "of";

/// Removes the workspaces of folders that are no longer there.
fn forget_the_gone(cache: &Cache) -> Result<(), BuildError> {
    for folders in Folders::all(cache)? {
        let root = folders.root();
        let Ok(folder) = fs::read(root.join(OF)) else {
            continue;
        };
        let gone = !Path::new(OsStr::from_bytes(&folder)).exists();
        let Some(name) = folders.name().filter(|_| gone) else {
            continue;
        };
        // Where somebody still builds in it, the next one to open a workspace removes it.
        if let Some(_lock) = cache.try_lock(&lock_key(name))? {
            fs::remove_dir_all(root).at(root)?;
        }
    }
    Ok(())
}

impl Workspace {
    /// Opens the workspace of a source, made when it is missing.
    pub fn open(
        source: &Source,
        cache: &Cache,
        progress: &dyn Progress,
    ) -> Result<Self, BuildError> {
        let name = source.workspace()?;
        let lock = cache.lock(&lock_key(&name), progress)?;
        let folders = Folders::of(cache, &name);
        let root = folders.root();
        fs::create_dir_all(root).at(root)?;
        if let Some(folder) = source.folder()? {
            let of = root.join(OF);
            fs::write(&of, folder.as_os_str().as_encoded_bytes()).at(&of)?;
        }
        forget_the_gone(cache)?;
        let git = Git::open(root.join("git"))?.with_objects_of(source.objects()?);
        Ok(Self {
            folders,
            git,
            _lock: lock,
        })
    }

    pub fn git(&self) -> &Git {
        &self.git
    }

    pub fn folders(&self) -> &Folders {
        &self.folders
    }

    /// Makes `src` this tree, by writing the files that differ and no other: their new times
    /// are what tells `make` to compile them.
    pub fn check_out(&self, tree: &str, progress: &dyn Progress) -> Result<(), BuildError> {
        let src = self.folders.src();
        if !src.exists() {
            progress.step("writing the source tree");
            fs::create_dir_all(&src).at(&src)?;
        }
        self.on_src("read-tree")
            .args(["--reset", "-u", tree])
            .run()?;
        Ok(())
    }

    /// Looks at the files of `src` that may be other than the index says: those that have the
    /// content that it says are not written again by [`Workspace::check_out`].
    pub fn refresh(&self) {
        // Those that have another are.
        let _ = self.on_src("update-index").args(["-q", "--refresh"]).run();
    }

    /// How many files of another workspace's `src` differ from this tree.
    pub fn different(&self, tree: &str, other: &Folders) -> Result<usize, Failure> {
        let lines = self
            .git
            .call("diff-index")
            .args(["--cached", "--raw", "--no-renames", tree])
            .index(&other.src_index())
            .run()?;
        Ok(lines.lines().count())
    }

    fn on_src(&self, subcommand: &str) -> Call {
        self.git
            // The time of the inode's last change: a file that is linked into another workspace
            // has a new one, and is as it was.
            .call_with(&["-c", "core.trustctime=false"], subcommand)
            .index(&self.folders.src_index())
            .work_tree(&self.folders.src())
    }

    /// The tree `base` with what `change` does to an index that holds it.
    pub fn derive(
        &self,
        base: &str,
        change: impl FnOnce(&Path) -> Result<(), BuildError>,
    ) -> Result<String, BuildError> {
        let index = self.folders.root().join("patch.index");
        // It may be left over from a process that was killed.
        let _ = fs::remove_file(&index);
        self.git.call("read-tree").arg(base).index(&index).run()?;
        change(&index)?;
        let tree = self.git.call("write-tree").index(&index).run()?;
        fs::remove_file(&index).at(&index)?;
        Ok(tree)
    }

    /// Whether the tree has this file or folder.
    pub fn has(&self, tree: &str, path: &str) -> bool {
        let object = format!("{tree}:{path}");
        self.git
            .call("cat-file")
            .args(["-e", &object])
            .run()
            .is_ok()
    }

    /// A file's content as an object of the repository: its id.
    pub fn store(&self, content: &[u8]) -> Result<String, Failure> {
        self.git
            .call("hash-object")
            .args(["-w", "--stdin"])
            .input(content)
            .run()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Silent;

    #[test]
    fn the_workspace_of_a_folder_that_is_gone_goes_too() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(folder.path().join("cache"))).unwrap();
        let trees = ["stays", "goes", "new"].map(|name| folder.path().join(name));
        let open = |tree: &Path| {
            fs::create_dir_all(tree).unwrap();
            let source = Source::Tree(tree.to_path_buf());
            let workspace = Workspace::open(&source, &cache, &Silent).unwrap();
            workspace.folders().root().to_path_buf()
        };
        let [stays, goes, new] = &trees;
        let roots = [open(stays), open(goes)];
        fs::remove_dir(goes).unwrap();
        open(new);
        assert_eq!(roots.map(|root| root.exists()), [true, false]);
    }
}
