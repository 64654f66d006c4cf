//! Debian's source as a repository of the user's, and whether a folder is as it was.

use std::fs;
use std::io::{Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::common::{said, unwindlab};

pub type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

/// What the kernels of the tests are compiled from, besides the Kconfig and Makefiles of all: a sixth of the files. Where
/// a file takes milliseconds to remove, the rest takes minutes.
const COMPILED: [&str; 43] = [
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
    "fs/debugfs/",
    "fs/hugetlbfs/",
    "fs/iomap/",
    "fs/kernfs/",
    "fs/proc/",
    "fs/ramfs/",
    "fs/sysfs/",
    "fs/tracefs/",
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
        || ["", "drivers/net", "fs", "net"].contains(&folder)
        || COMPILED.iter().any(|it| path.starts_with(it))
}

/// Makes a git repository in the new folder `tree` that borrows its objects: those of Debian's source from the cache,
/// and of what is needed of that a tree, whose id this is, from `objects` beside it.
pub fn repository(tree: &Path) -> Fallible<String> {
    let built = unwindlab(&["kernel", "build", "--source", "debian"]);
    assert!(built.status.success(), "{}", said(&built));
    let cache = unwindlab_guest_kernel::Cache::open(None)?;
    let source = cache.root().join("builds").join("debian-7").join("git");
    let objects = tree.with_file_name("objects");
    let git = |args: &[&str], input: &str| git(&source, &objects, args, input);
    fs::create_dir(&objects)?;
    git(&["read-tree", "refs/unwindlab/source^{tree}"], "")?;
    let files = git(&["ls-files", "-z"], "")?;
    let unneeded: Vec<&str> = { files.split('\0') }.filter(|it| !is_needed(it)).collect();
    let remove = ["update-index", "--force-remove", "-z", "--stdin"];
    git(&remove, &unneeded.join("\0"))?;
    let id = git(&["write-tree"], "")?;

    let tree = tree.display().to_string();
    git(&["init", "--quiet", &tree], "")?;
    let borrowed = [source.join("objects"), objects.clone()];
    let borrowed = borrowed.map(|it| format!("{}\n", it.display()));
    let alternates = Path::new(&tree).join(".git/objects/info/alternates");
    fs::write(alternates, borrowed.concat())?;
    Ok(id.trim().to_owned())
}

/// What git prints that writes objects to a folder, and reads those of a repository.
fn git(repository: &Path, objects: &Path, args: &[&str], input: &str) -> Fallible<String> {
    let mut stdin = tempfile::tempfile()?;
    stdin.write_all(input.as_bytes())?;
    stdin.rewind()?;
    let mut git = Command::new("git");
    git.args(args).stdin(stdin);
    if !args.contains(&"init") {
        git.env("GIT_DIR", repository)
            .env("GIT_INDEX_FILE", objects.join("index"))
            .env("GIT_OBJECT_DIRECTORY", objects)
            .env(
                "GIT_ALTERNATE_OBJECT_DIRECTORIES",
                repository.join("objects"),
            );
    }
    let git = git.output()?;
    assert!(git.status.success(), "git {args:?}: {git:?}");
    Ok(String::from_utf8(git.stdout)?)
}

/// Everything below a folder, with the time of its last change.
pub fn state(folder: &Path) -> Fallible<Vec<String>> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = vec![folder.to_path_buf()];
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
