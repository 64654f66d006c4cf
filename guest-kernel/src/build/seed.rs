//! Fills a new workspace with the objects of another one, so that a source that is similar to a known
//! one is not compiled from nothing.
//!
//! kbuild decides by time: it compiles what is older than its prerequisites. The copy therefore keeps
//! all times. Files that both sources share stay older than their objects; files that differ are
//! written by [`Building::check_out`], so they are newer. git decides by hash which files differ.
//!
//! kbuild also remembers commands and dependencies. They name files relative to the folder of the
//! objects, which lies in the tree for this reason. Only objtool's build uses absolute names: they
//! are replaced ([`moved`]).

use std::fs::{self, File, FileTimes};
use std::io;
use std::path::Path;

use super::BuildError;
use super::config::Fragment;
use super::make::CONFIG;
use super::workspace::{Building, Folders, OBJ, lock_key};
use crate::cache::{At, Cache, Lock};
use crate::input;
use crate::progress::Progress;

/// If more files differ, nearly everything is compiled again anyway: a header that everything
/// includes is among them.
const MOST_DIFFERENT: usize = 10_000;

/// So many more files may differ in a workspace that is taken because a better one is locked.
const NEARLY: usize = 100;

/// With these options objects contain the path of the folder in which they were compiled.
const NAMES_FOLDER: &[&str] = &["CONFIG_DEBUG_INFO=y", "CONFIG_GCOV_KERNEL=y"];

/// Largest file with a configuration, commands or dependencies that is read.
const TEXT: u64 = input::RECORDED;

/// Fills a workspace that has no source tree yet. Of the workspaces that have compiled this
/// configuration, it takes the one with the most similar tree, and locks it meanwhile.
///
/// If this is interrupted, nothing is lost but time: what is missing is written and compiled later.
pub(super) fn fill(
    workspace: &Building,
    tree: &str,
    fragments: &[Fragment],
    cache: &Cache,
    progress: &dyn Progress,
) -> Result<(), BuildError> {
    if workspace.folders().src().exists() {
        return Ok(());
    }
    let others = similar(workspace, tree, fragments, cache)?;
    let Some((other, _lock)) = lock_one(others, cache, progress)? else {
        return Ok(());
    };
    let objects = other.obj(fragments);
    // It may have been removed while we waited.
    if !is_folder(&objects) || names_folder(&objects) {
        return Ok(());
    }
    let name = other.name().unwrap_or_default();
    progress.step(&format!("copying the objects of {name}"));
    take_over(&other, workspace, fragments)
}

/// The workspaces that have objects, with the number of files that differ, the fewest first.
fn similar(
    workspace: &Building,
    tree: &str,
    fragments: &[Fragment],
    cache: &Cache,
) -> Result<Vec<(usize, Folders)>, BuildError> {
    let mut others: Vec<_> = Folders::all(cache)?
        .into_iter()
        .filter(|other| other != workspace.folders() && is_folder(&other.obj(fragments)))
        // Without one whose index cannot be read.
        .filter_map(|other| Some((workspace.different(tree, &other).ok()?, other)))
        .filter(|(different, _)| *different <= MOST_DIFFERENT)
        .collect();
    others.sort_by_key(|(different, _)| *different);
    Ok(others)
}

/// Locks the most similar workspace. If another process builds in it, one that is nearly as similar
/// is better than to wait.
///
/// This cannot deadlock: our own workspace has no objects yet, so nobody waits for it here.
fn lock_one(
    others: Vec<(usize, Folders)>,
    cache: &Cache,
    progress: &dyn Progress,
) -> Result<Option<(Folders, Lock)>, BuildError> {
    let key = |other: &Folders| other.name().map(lock_key);
    let Some((fewest, _)) = others.first() else {
        return Ok(None);
    };
    let enough = fewest.saturating_mul(2).saturating_add(NEARLY);
    for (_, other) in others.iter().filter(|(different, _)| *different <= enough) {
        let Some(key) = key(other) else { continue };
        if let Some(lock) = cache.try_lock(&key)? {
            return Ok(Some((other.clone(), lock)));
        }
    }
    for (_, other) in others {
        if let Some(key) = key(&other) {
            let lock = cache.lock(&key, progress)?;
            return Ok(Some((other, lock)));
        }
    }
    Ok(None)
}

/// A link is none: a stranger's tree may have one there, to a folder of the user's.
fn is_folder(objects: &Path) -> bool {
    fs::symlink_metadata(objects).is_ok_and(|it| it.is_dir())
}

/// One that cannot be read may name it.
fn names_folder(objects: &Path) -> bool {
    let Ok(config) = input::below(objects, CONFIG, TEXT) else {
        return true;
    };
    let named = |line: &[u8]| NAMES_FOLDER.iter().any(|it| it.as_bytes() == line);
    config.split(|&byte| byte == b'\n').any(named)
}

fn take_over(from: &Folders, to: &Building, fragments: &[Fragment]) -> Result<(), BuildError> {
    let into = to.folders();
    // Renamed to `src` at the end, so that a tree of that name is complete.
    let new = into.root().join("src.new");
    if new.exists() {
        fs::remove_dir_all(&new).at(&new)?;
    }
    let (src, objects) = (from.src(), from.obj(fragments));
    let has_objects = |path: &Path| {
        let name = path.file_name().unwrap_or_default();
        path.parent() == Some(&src) && name.as_encoded_bytes().starts_with(OBJ.as_bytes())
    };
    copy(&src, &new, &has_objects, &link)?;
    let [old_place, new_place] = [&src, &into.src()].map(|it| format!("{}/", it.display()));
    let file = |from: &Path, to: &Path| {
        let file = from.strip_prefix(&objects).map_err(io::Error::other)?;
        match moved(&objects, file, &old_place, &new_place) {
            Some(text) => fs::write(to, text).and_then(|()| keep_time(from, to)),
            None => copy_object(&objects, file, to),
        }
    };
    let name = objects.file_name().unwrap_or_default();
    copy(&objects, &new.join(name), &|_| false, &file)?;
    // Before the tree, so that no tree is without its index. With its time: git reads files that are
    // as new as the index again.
    let index = into.src_index();
    copy_file(&from.src_index(), &index).at(&index)?;
    fs::rename(&new, into.src()).at(&new)?;
    to.refresh();
    Ok(())
}

/// The text of a file with commands or dependencies, with the old path replaced by the new one.
/// `None` for other files, and for those without the path.
fn moved(objects: &Path, file: &Path, old: &str, new: &str) -> Option<String> {
    let extension = file.extension()?;
    if extension != "cmd" && extension != "d" {
        return None;
    }
    let text = String::from_utf8(input::below(objects, file, TEXT).ok()?).ok()?;
    text.contains(old).then(|| text.replace(old, new))
}

/// Copies a file of the objects. A process that a build left may put a link there meanwhile.
fn copy_object(objects: &Path, file: &Path, to: &Path) -> io::Result<()> {
    let mut from = input::open_below(objects, file, u64::MAX)?;
    let mut copy = File::create_new(to)?;
    io::copy(&mut from, &mut copy)?;
    let like = from.metadata()?;
    copy.set_permissions(like.permissions())?;
    copy.set_times(FileTimes::new().set_modified(like.modified()?))
}

/// Copies a folder, except what `skip` selects. `file` copies a single file.
fn copy(
    from: &Path,
    to: &Path,
    skip: &dyn Fn(&Path) -> bool,
    file: &dyn Fn(&Path, &Path) -> io::Result<()>,
) -> Result<(), BuildError> {
    fs::create_dir_all(to).at(to)?;
    for item in fs::read_dir(from).at(from)? {
        let item = item.at(from)?;
        let (path, new) = (item.path(), to.join(item.file_name()));
        let kind = item.file_type().at(&path)?;
        if skip(&path) {
            continue;
        }
        if kind.is_dir() {
            copy(&path, &new, skip, file)?;
        } else if kind.is_symlink() {
            let target = fs::read_link(&path).at(&path)?;
            std::os::unix::fs::symlink(target, &new).at(&new)?;
        } else if kind.is_file() {
            file(&path, &new).at(&new)?;
        }
    }
    Ok(())
}

/// Links a source file into the other workspace. Only git writes source files, and it replaces a
/// file instead of changing it.
fn link(from: &Path, to: &Path) -> io::Result<()> {
    fs::hard_link(from, to).or_else(|_| copy_file(from, to))
}

fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    fs::copy(from, to)?;
    keep_time(from, to)
}

fn keep_time(from: &Path, to: &Path) -> io::Result<()> {
    let modified = fs::metadata(from)?.modified()?;
    let times = FileTimes::new().set_modified(modified);
    File::open(to)?.set_times(times)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::time::SystemTime;

    use super::super::{Source, tree};
    use super::*;
    use crate::build::workspace::Workspace;
    use crate::progress::Silent;

    const OBJECT: &str = "kernel/fork.o";
    const COMMAND: &str = "tools/objtool/.check.o.cmd";

    /// The workspace and tree of a user's source in which `kernel/fork.c` contains `fork`.
    fn opened(cache: &Cache, folder: &Path, fork: &str) -> (Building, String) {
        for (file, content) in [
            ("Kconfig", "config"),
            ("Makefile", "all:\n"),
            ("arch/x86/Kconfig", "config"),
            ("kernel/exit.c", "exit"),
            ("kernel/fork.c", fork),
        ] {
            let path = folder.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let source = Source::Tree(folder.to_path_buf());
        let workspace = Workspace::open(&source, cache, &Silent).unwrap();
        let tree = tree::of(&source, &workspace, cache, &Silent).unwrap();
        let workspace = workspace.for_building(cache, &Silent).unwrap();
        (workspace, tree)
    }

    /// A workspace with a source and fake objects.
    fn compiled(cache: &Cache, folder: &Path, config: &str) -> Folders {
        let (workspace, tree) = opened(cache, folder, "old");
        workspace.check_out(&tree, &Silent).unwrap();
        let folders = workspace.folders().clone();
        let object = folders.obj(&[]);
        let command = format!("cmd_{0}/tools/x.o := gcc {0}/x.c", object.display());
        for (file, content) in [(OBJECT, "object"), (COMMAND, &command), (".config", config)] {
            let path = object.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        fs::create_dir(folders.src().join("obj-other")).unwrap();
        folders
    }

    fn changed(path: &Path) -> SystemTime {
        fs::metadata(path).unwrap().modified().unwrap()
    }

    fn caches() -> (tempfile::TempDir, Cache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(folder.path().join("cache"))).unwrap();
        (folder, cache)
    }

    #[test]
    fn what_both_have_is_taken_over_with_its_time() {
        let (folder, cache) = caches();
        let old = compiled(&cache, &folder.path().join("old"), "CONFIG_SMP=y\n");
        let (workspace, tree) = opened(&cache, &folder.path().join("new"), "new");
        fill(&workspace, &tree, &[], &cache, &Silent).unwrap();
        workspace.check_out(&tree, &Silent).unwrap();

        let new = workspace.folders();
        let (exit, fork) = ("kernel/exit.c", "kernel/fork.c");
        let inode = |path: &Path| fs::metadata(path).unwrap().ino();
        assert_eq!(inode(&old.src().join(exit)), inode(&new.src().join(exit)));
        assert_eq!(fs::read_to_string(old.src().join(fork)).unwrap(), "old");
        assert_eq!(fs::read_to_string(new.src().join(fork)).unwrap(), "new");
        let object = new.obj(&[]).join(OBJECT);
        assert_eq!(changed(&object), changed(&old.obj(&[]).join(OBJECT)));
        assert!(changed(&object) < changed(&new.src().join(fork)));
        let command = fs::read_to_string(new.obj(&[]).join(COMMAND)).unwrap();
        let place = new.obj(&[]).display().to_string();
        assert_eq!(command, format!("cmd_{place}/tools/x.o := gcc {place}/x.c"));
        assert!(!new.src().join("obj-other").exists());
    }

    #[test]
    fn the_other_workspace_stays_as_it_was() {
        let (folder, cache) = caches();
        let old = compiled(&cache, &folder.path().join("old"), "");
        let exit = old.src().join("kernel/exit.c");
        let before = changed(&exit);
        let (workspace, tree) = opened(&cache, &folder.path().join("new"), "new");
        fill(&workspace, &tree, &[], &cache, &Silent).unwrap();
        let (workspace, tree) = opened(&cache, &folder.path().join("old"), "newer");
        workspace.check_out(&tree, &Silent).unwrap();
        assert_eq!(changed(&exit), before, "it would be compiled again");
    }

    #[test]
    fn objects_that_name_their_folder_stay_there() {
        let (folder, cache) = caches();
        compiled(&cache, &folder.path().join("old"), "CONFIG_DEBUG_INFO=y\n");
        let (workspace, tree) = opened(&cache, &folder.path().join("new"), "new");
        fill(&workspace, &tree, &[], &cache, &Silent).unwrap();
        assert!(!workspace.folders().src().exists());
    }

    /// A stranger's tree and its Makefiles may have left them, to what is the user's.
    #[test]
    fn no_objects_are_taken_over_through_links() {
        let (folder, cache) = caches();
        let old = compiled(&cache, &folder.path().join("old"), "");
        let object = old.obj(&[]);
        let private = folder.path().join("private");
        let is_filled = || {
            let (workspace, tree) = opened(&cache, &folder.path().join("new"), "new");
            fill(&workspace, &tree, &[], &cache, &Silent).unwrap();
            workspace.folders().src().exists()
        };
        fs::rename(object.join(".config"), &private).unwrap();
        symlink(&private, object.join(".config")).unwrap();
        assert!(!is_filled());
        fs::remove_file(object.join(".config")).unwrap();
        fs::rename(&private, object.join(".config")).unwrap();
        symlink("fork.o", object.join("kernel/link.o")).unwrap();
        let copy = folder.path().join("copy");
        assert!(copy_object(&object, Path::new("kernel/link.o"), &copy).is_err());
        assert!(copy_object(&object, Path::new(OBJECT), &copy).is_ok());
        fs::rename(&object, &private).unwrap();
        symlink(&private, &object).unwrap();
        assert!(!is_filled());
        fs::remove_file(&object).unwrap();
        fs::rename(&private, &object).unwrap();
        assert!(is_filled());
    }

    #[test]
    fn a_file_that_is_not_what_the_index_says_is_written_again() {
        let (folder, cache) = caches();
        let old = compiled(&cache, &folder.path().join("old"), "");
        fs::write(old.src().join("kernel/exit.c"), "damaged").unwrap();
        let (workspace, tree) = opened(&cache, &folder.path().join("new"), "new");
        fill(&workspace, &tree, &[], &cache, &Silent).unwrap();
        workspace.check_out(&tree, &Silent).unwrap();
        let exit = workspace.folders().src().join("kernel/exit.c");
        assert_eq!(fs::read_to_string(exit).unwrap(), "exit");
    }

    #[test]
    fn a_workspace_in_use_is_left_alone() {
        let (folder, cache) = caches();
        compiled(&cache, &folder.path().join("old"), "");
        let (busy, tree) = opened(&cache, &folder.path().join("busy"), "new");
        fill(&busy, &tree, &[], &cache, &Silent).unwrap();
        busy.check_out(&tree, &Silent).unwrap();
        let (workspace, tree) = opened(&cache, &folder.path().join("new"), "new");
        let others = similar(&workspace, &tree, &[], &cache).unwrap();
        let different: Vec<usize> = others.iter().map(|(different, _)| *different).collect();
        assert_eq!(different, [0, 1]);
        assert_eq!(&others[0].1, busy.folders());
        let (other, _lock) = lock_one(others, &cache, &Silent).unwrap().unwrap();
        assert_ne!(&other, busy.folders());
    }
}
