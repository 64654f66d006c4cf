//! The folder of the cache in which kernels of one source are built. It is kept, so that the next
//! build is incremental.
//!
//! ```text
//! builds/NAME/git/              the repository: sources and patched trees
//! builds/NAME/scan.index        git's index of the user's folder
//! builds/NAME/src.index         git's index of `src`
//! builds/NAME/src/              the tree that `make` compiles
//! builds/NAME/src/obj-CONFIG/   the objects of a configuration (`O=`), with its log
//! builds/NAME/generated-N/      the changed file that a thread compiles, and its object
//! builds/NAME/of                the path of the user's folder
//! ```
//!
//! The folder of the objects lies in the tree, because kbuild then uses relative names for source
//! files (`srctree=..`). So objects stay valid when they are copied elsewhere ([`super::seed`]).
//!
//! A workspace takes up to 2.5 GB, so it is removed when the user's folder no longer exists.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::config::{self, Fragment};
use super::git::{Call, Failure, Git};
use super::{BuildError, Source};
use crate::cache::{At, Cache, CacheError, Lock, hex, taken};
use crate::progress::Progress;

/// The workspace of a source. Others that want to make trees in it wait until it is dropped, or until it is
/// [for building](Self::for_building).
#[derive(Debug)]
pub(super) struct Workspace {
    folders: Folders,
    git: Git,
    lock: Lock,
    used: Lock,
    /// Whether it was not there before.
    is_new: bool,
}

/// The same for what reads and writes `src`. Others that want to build in it wait until it is dropped; they may make trees
/// meanwhile.
#[derive(Debug)]
pub(super) struct Building {
    folders: Folders,
    git: Git,
    _lock: Lock,
    _used: Lock,
}

/// The paths in a workspace.
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

    /// The paths of all workspaces.
    pub fn all(cache: &Cache) -> Result<Vec<Self>, CacheError> {
        let builds = cache.root().join("builds");
        if !builds.exists() {
            return Ok(Vec::new());
        }
        let items = fs::read_dir(&builds).at(&builds)?;
        items
            .map(|item| {
                Ok(Self {
                    root: item.at(&builds)?.path(),
                })
            })
            .collect()
    }

    /// The workspace's name.
    pub fn name(&self) -> Option<&str> {
        self.root.file_name()?.to_str()
    }

    /// The workspace's folder.
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

    /// The folder of this configuration's objects.
    pub fn obj(&self, fragments: &[Fragment]) -> PathBuf {
        let id = hex(&Sha256::digest(config::merged(fragments)));
        let id = id.get(..12).unwrap_or(&id);
        self.src().join(format!("{OBJ}{id}"))
    }
}

/// Prefix of the names of folders with objects.
pub(super) const OBJ: &str = "obj-";

/// Prefix of the names of folders with a changed file.
pub(super) const GENERATED: &str = "generated-";

/// The lock of what lies in `src` of the workspace with this name.
pub(super) fn lock_key(name: &str) -> String {
    format!("build-{name}")
}

/// The lock of what makes trees in it, `patch.index` and `scan.index`. A build takes minutes, and one whose kernel is in the cache need not wait for it.
fn trees_key(name: &str) -> String {
    format!("trees-{name}")
}

/// The lock that all who use it share, those who wait for one of the two above too: what is removed meanwhile would be missing
/// when their turn comes.
fn use_key(name: &str) -> String {
    format!("use-{name}")
}

/// The file with the path of the user's folder.
const OF: &str = "of";

/// Removes the workspaces whose folders no longer exist.
fn forget_the_gone(cache: &Cache) -> Result<(), BuildError> {
    for folders in Folders::all(cache)? {
        let Ok(folder) = fs::read(folders.root().join(OF)) else {
            continue;
        };
        if !Path::new(OsStr::from_bytes(&folder)).exists() {
            // If another process still builds in it, the next call removes it.
            remove(cache, &folders)?;
        }
    }
    Ok(())
}

/// Removes a workspace, unless a process uses it; whether it did.
fn remove(cache: &Cache, folders: &Folders) -> Result<bool, BuildError> {
    let name = folders.name().unwrap_or_default();
    let Some(_used) = cache.try_lock(&use_key(name))? else {
        return Ok(false);
    };
    // Another workspace may just be copying its objects.
    let Some(_src) = cache.try_lock(&lock_key(name))? else {
        return Ok(false);
    };
    cache.remove(folders.root())?;
    Ok(true)
}

/// What [`prune`] did.
#[derive(Debug, Default)]
pub struct Pruned {
    /// How many workspaces it removed.
    pub removed: usize,
    /// The bytes that they took.
    pub freed: u64,
    /// The names of those that a process uses, which stay.
    pub in_use: Vec<String>,
}

/// Removes all workspaces but those that a process uses. The kernels built in them stay in the cache; the next build of a
/// source begins anew.
///
/// # Errors
/// [`BuildError`].
pub fn prune(cache: &Cache) -> Result<Pruned, BuildError> {
    let mut pruned = Pruned::default();
    for folders in Folders::all(cache)? {
        let bytes = taken(folders.root())?;
        match remove(cache, &folders)? {
            true => {
                pruned.removed += 1;
                pruned.freed += bytes;
            }
            false => pruned.in_use.extend(folders.name().map(str::to_owned)),
        }
    }
    Ok(pruned)
}

impl Workspace {
    /// Opens the workspace of a source, which is created if it is missing.
    pub fn open(
        source: &Source,
        cache: &Cache,
        progress: &dyn Progress,
    ) -> Result<Self, BuildError> {
        let name = source.workspace()?;
        let used = cache.share(&use_key(&name))?;
        let lock = cache.lock(&trees_key(&name), progress)?;
        let folders = Folders::of(cache, &name);
        let root = folders.root();
        let is_new = !root.exists();
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
            lock,
            used,
            is_new,
        })
    }

    /// Removes it if it was not there before: no other process builds in it.
    pub fn discard_new(self, cache: &Cache) -> Result<(), CacheError> {
        match self.is_new {
            true => cache.remove(self.folders.root()),
            false => Ok(()),
        }
    }

    /// The workspace for what reads and writes `src`, once no other process builds in it.
    pub fn for_building(
        self,
        cache: &Cache,
        progress: &dyn Progress,
    ) -> Result<Building, BuildError> {
        let Self {
            folders,
            git,
            lock,
            used,
            ..
        } = self;
        // Before the wait, which is long: what asks for trees meanwhile may find its kernel.
        drop(lock);
        let name = folders.name().unwrap_or_default();
        let _lock = cache.lock(&lock_key(name), progress)?;
        Ok(Building {
            folders,
            git,
            _lock,
            _used: used,
        })
    }

    pub fn git(&self) -> &Git {
        &self.git
    }

    pub fn folders(&self) -> &Folders {
        &self.folders
    }

    /// The tree that results when `change` modifies an index with the tree `base`.
    pub fn derive(
        &self,
        base: &str,
        change: impl FnOnce(&Path) -> Result<(), BuildError>,
    ) -> Result<String, BuildError> {
        let index = self.folders.root().join("patch.index");
        // A killed process may have left it.
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

    /// Stores a file's content in the repository, and returns its id.
    pub fn store(&self, content: &[u8]) -> Result<String, Failure> {
        self.git
            .call("hash-object")
            .args(["-w", "--stdin"])
            .input(content)
            .run()
    }
}

impl Building {
    pub fn folders(&self) -> &Folders {
        &self.folders
    }

    /// Turns `src` into this tree. Writes only the files that differ: their new times make `make`
    /// compile them.
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

    /// Reads the files of `src` whose times or inodes are not those in the index. If the content is
    /// the right one, the index is updated, so [`Building::check_out`] does not write them.
    pub fn refresh(&self) {
        // git fails if a file has another content: `check_out` writes it.
        let _ = self.on_src("update-index").args(["-q", "--refresh"]).run();
    }

    /// The number of files in which another workspace's `src` and this tree differ.
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
            // A new link to a file, in another workspace, changes its ctime and nothing else.
            .call_with(&["-c", "core.trustctime=false"], subcommand)
            .index(&self.folders.src_index())
            .work_tree(&self.folders.src())
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

    #[test]
    fn pruning_leaves_what_is_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(folder.path().join("cache"))).unwrap();
        assert_eq!(prune(&cache).unwrap().removed, 0, "nothing was built");
        let open = |name: &str| {
            let tree = folder.path().join(name);
            fs::create_dir_all(&tree).unwrap();
            Workspace::open(&Source::Tree(tree), &cache, &Silent).unwrap()
        };
        let idle = open("idle").folders().root().to_path_buf();
        let trees = open("trees");
        let builds = open("builds").for_building(&cache, &Silent).unwrap();
        // As who waits for a build of it has.
        let waits = open("waits");
        let Workspace { lock, used, .. } = waits;
        drop(lock);
        let pruned = prune(&cache).unwrap();
        assert_eq!(pruned.removed, 1);
        assert!(pruned.freed > 0 && !idle.exists());
        assert_eq!(pruned.in_use.len(), 3);
        for folders in [trees.folders(), builds.folders()] {
            assert!(folders.root().join("git").exists());
        }
        drop((trees, builds, used));
        assert_eq!(prune(&cache).unwrap().removed, 3);
    }

    /// A kernel that is known is found while another one is compiled.
    #[test]
    fn trees_are_made_while_another_process_builds() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(folder.path().join("cache"))).unwrap();
        let source = Source::Tree(folder.path().to_path_buf());
        let open = || Workspace::open(&source, &cache, &Silent).unwrap();
        let builds = open().for_building(&cache, &Silent).unwrap();
        let name = builds.folders().name().unwrap().to_owned();
        let free = |key: String| cache.try_lock(&key).unwrap().is_some();
        let waits = || [lock_key(&name), trees_key(&name)].map(|key| !free(key));
        assert_eq!(waits(), [true, false]);
        let trees = open();
        assert_eq!(waits(), [true, true]);
        drop(builds);
        assert_eq!(waits(), [false, true]);
        drop(trees.for_building(&cache, &Silent).unwrap());
        assert_eq!(waits(), [false, false]);
    }
}
