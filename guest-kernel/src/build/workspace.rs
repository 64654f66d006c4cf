//! Where the kernels of one source are built: a folder of the cache that lasts, so that the next
//! build is incremental.
//!
//! ```text
//! builds/NAME/git/          the repository: sources and patched trees
//! builds/NAME/scan.index    what was last seen of a user's folder
//! builds/NAME/src.index     what `src` holds
//! builds/NAME/src/          the tree that `make` compiles
//! builds/NAME/obj-CONFIG/   `O=` of a configuration, with its log
//! builds/NAME/of            the user's folder that it is for
//! ```
//!
//! It is large (2 GiB), so that of a folder that is gone goes too.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::config::{self, Fragment};
use super::git::{Failure, Git};
use super::{BuildError, Source};
use crate::cache::{At, Cache, Lock};
use crate::fetch::hex;
use crate::progress::Progress;

/// The folder of one source. Other processes wait until it is dropped.
#[derive(Debug)]
pub(super) struct Workspace {
    root: PathBuf,
    git: Git,
    _lock: Lock,
}

/// Names the user's folder, where the workspace is for one.
const OF: &str = "of";

/// Removes the workspaces of folders that are no longer there.
fn forget_the_gone(cache: &Cache) -> Result<(), BuildError> {
    let builds = cache.root().join("builds");
    for item in fs::read_dir(&builds).at(&builds)? {
        let root = item.at(&builds)?.path();
        let Ok(folder) = fs::read(root.join(OF)) else {
            continue;
        };
        let name = root.file_name().and_then(|name| name.to_str());
        let (Some(name), false) = (name, Path::new(OsStr::from_bytes(&folder)).exists()) else {
            continue;
        };
        // Somebody may still build in it: it is for the next one to remove then.
        if let Some(_lock) = cache.try_lock(&format!("build-{name}"))? {
            fs::remove_dir_all(&root).at(&root)?;
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
        let lock = cache.lock(&format!("build-{name}"), progress)?;
        let root = cache.root().join("builds").join(name);
        fs::create_dir_all(&root).at(&root)?;
        if let Some(folder) = source.folder()? {
            let of = root.join(OF);
            fs::write(&of, folder.as_os_str().as_encoded_bytes()).at(&of)?;
        }
        forget_the_gone(cache)?;
        let git = Git::open(root.join("git"))?.with_objects_of(source.objects()?);
        Ok(Self {
            root,
            git,
            _lock: lock,
        })
    }

    pub fn git(&self) -> &Git {
        &self.git
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The tree that `make` compiles.
    pub fn src(&self) -> PathBuf {
        self.root.join("src")
    }

    /// Where this configuration is built.
    pub fn obj(&self, fragments: &[Fragment]) -> PathBuf {
        let id = hex(&Sha256::digest(config::merged(fragments)));
        let id = id.get(..12).unwrap_or(&id);
        self.root.join(format!("obj-{id}"))
    }

    /// Makes `src` this tree, by writing the files that differ and no other: their new times
    /// are what tells `make` to compile them.
    pub fn check_out(&self, tree: &str, progress: &dyn Progress) -> Result<(), BuildError> {
        let src = self.src();
        if !src.exists() {
            progress.step("writing the source tree");
            fs::create_dir_all(&src).at(&src)?;
        }
        self.git
            .call("read-tree")
            .args(["--reset", "-u", tree])
            .index(&self.root.join("src.index"))
            .work_tree(&src)
            .run()?;
        Ok(())
    }

    /// The tree `base` with what `change` does to an index that holds it.
    pub fn derive(
        &self,
        base: &str,
        change: impl FnOnce(&Path) -> Result<(), BuildError>,
    ) -> Result<String, BuildError> {
        let index = self.root.join("patch.index");
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
            workspace.root().to_path_buf()
        };
        let [stays, goes, new] = &trees;
        let roots = [open(stays), open(goes)];
        fs::remove_dir(goes).unwrap();
        open(new);
        assert_eq!(roots.map(|root| root.exists()), [true, false]);
    }
}
