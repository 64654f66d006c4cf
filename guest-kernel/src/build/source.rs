//! Where a kernel's source comes from, and how it becomes a tree in our repository.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::BuildError;
use super::git::{self, Call, Object};
use super::workspace::Workspace;
use crate::cache::{At, Cache, hex};
use crate::debian::apt::{Apt, AptError, Offer};
use crate::debian::deb;
use crate::debian::version::{Version, dotted, parse_numbers};
use crate::kernel::KernelSpec;
use crate::progress::Progress;

/// A kernel's source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The newest package `linux-source-X.Y` of Debian's archive whose version begins with these
    /// numbers.
    Debian(Vec<u64>),
    /// A folder of the user's as it is now: of a git repository, what is tracked and what is new
    /// and not ignored.
    Tree(PathBuf),
    /// A revision of the user's git repository.
    Revision {
        /// A folder of the repository.
        tree: PathBuf,
        /// Anything that `git rev-parse` takes for a commit.
        revision: String,
    },
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Debian(numbers) => write!(f, "debian:{}", dotted(numbers)),
            Self::Tree(path) => write!(f, "{}", path.display()),
            Self::Revision { tree, revision } => write!(f, "{} at {revision}", tree.display()),
        }
    }
}

/// What only a source of Linux has, for the machine that is emulated.
const LANDMARKS: &[&str] = &["Kconfig", "Makefile", "kernel", "arch/x86/Kconfig"];

/// Where the repository keeps the tree of Debian's package.
const PACKAGE_REF: &str = "refs/unwindlab/source";
/// Which package that is.
const PACKAGE_FILE: &str = "package";

/// More than any source of Linux has.
const MAX_SOURCE: u64 = 8 << 30;

impl Source {
    /// `debian`, or `debian:7.2`; nothing else is one of Debian's.
    #[must_use]
    pub fn debian(text: &str) -> Option<Self> {
        let numbers = match text.split_once(':') {
            None if text == "debian" => Some(KernelSpec::NEWEST.to_vec()),
            Some(("debian", version)) => parse_numbers(version),
            _ => None,
        };
        numbers.map(Self::Debian)
    }

    /// The name of its workspace: revisions of a repository share one with its folder.
    pub(super) fn workspace(&self) -> Result<String, BuildError> {
        let Some(folder) = self.folder()? else {
            return Ok(self.to_string().replace(':', "-"));
        };
        let id = hex(&Sha256::digest(folder.as_os_str().as_encoded_bytes()));
        Ok(format!("tree-{}", id.get(..16).unwrap_or(&id)))
    }

    /// The user's folder, where it is one.
    pub(super) fn folder(&self) -> Result<Option<PathBuf>, BuildError> {
        match self {
            Self::Debian(_) => Ok(None),
            Self::Tree(tree) | Self::Revision { tree, .. } => readable(tree).map(Some),
        }
    }

    /// The objects of the user's repository, where there is one.
    pub(super) fn objects(&self) -> Result<Option<PathBuf>, BuildError> {
        let Some(folder) = self.folder()? else {
            return Ok(None);
        };
        let objects = Call::in_tree(&folder, "rev-parse")
            .args(["--git-path", "objects"])
            .run();
        Ok(objects.ok().map(|objects| folder.join(objects)))
    }

    /// Its tree, as an object of the workspace's repository.
    pub(super) fn tree(
        &self,
        workspace: &Workspace,
        cache: &Cache,
        progress: &dyn Progress,
    ) -> Result<String, BuildError> {
        let tree = match self {
            Self::Debian(numbers) => package(numbers, workspace, cache, progress)?,
            Self::Tree(folder) => scan(folder, workspace, progress)?,
            Self::Revision { tree, revision } => {
                git::resolve(&readable(tree)?, revision, Object::Tree)?
            }
        };
        match LANDMARKS.iter().find(|path| !workspace.has(&tree, path)) {
            None => Ok(tree),
            Some(lacking) => Err(BuildError::NotLinux(self.to_string(), lacking)),
        }
    }
}

fn readable(tree: &Path) -> Result<PathBuf, BuildError> {
    let failed = |source| BuildError::Tree {
        path: tree.to_path_buf(),
        source,
    };
    let full = tree.canonicalize().map_err(failed)?;
    fs::read_dir(&full).map_err(failed)?;
    Ok(full)
}

/// The tree of a folder as it is now. Our index of it remembers sizes and times, so that only what
/// changed since is read again.
fn scan(
    folder: &Path,
    workspace: &Workspace,
    progress: &dyn Progress,
) -> Result<String, BuildError> {
    let folder = readable(folder)?;
    // Looked at first: any other folder might be huge.
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
            // What is tracked counts, whatever .gitignore says of it.
            git.call("read-tree")
                .args(["-m", &head])
                .index(&index)
                .run()?;
            add.arg(".").run()?;
        }
        // No commit to go by, and no trust in .gitignore: that of Debian's source ignores it all.
        Err(_) => {
            add.args(["--force", "--", "."])
                .args(BUILT.map(|it| format!(":(exclude,glob){it}")))
                .run()?;
        }
    }
    Ok(git.call("write-tree").index(&index).run()?)
}

/// What a build in the source leaves there.
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

/// The tree of Debian's package, which is fetched unless the repository has it. What the newest one
/// is, is asked once: delete the workspace, or name more numbers, for a newer one.
fn package(
    numbers: &[u64],
    workspace: &Workspace,
    cache: &Cache,
    progress: &dyn Progress,
) -> Result<String, BuildError> {
    let git = workspace.git();
    let known = workspace.folders().root().join(PACKAGE_FILE);
    if known.exists() && !cache.wants_refresh() {
        return Ok(tree_of_package(workspace)?);
    }
    let apt = Apt::open(cache, progress)?;
    let try_once = || -> Result<(String, String), BuildError> {
        let offers = apt.offers(|name| series(name).is_some())?;
        let offer = newest(&offers, numbers).ok_or_else(|| BuildError::NoSuchSource {
            asked: dotted(numbers),
            offered: offered(&offers),
        })?;
        let name = format!("{} {}", offer.name, offer.version);
        if fs::read_to_string(&known).is_ok_and(|known| known == name) {
            return Ok((name, tree_of_package(workspace)?));
        }
        progress.step(&format!("downloading {name}"));
        let downloads = cache.scratch()?;
        let debs = apt.download(&[offer], downloads.path(), progress)?;
        progress.step(&format!("unpacking {name}"));
        git.call("fast-import")
            .args(["--quiet", "--force", "--depth=0"])
            .feed(|to| debs.iter().try_for_each(|deb| import(deb, to)))?;
        Ok((name, tree_of_package(workspace)?))
    };
    let stale = |error: &BuildError| {
        matches!(
            error,
            BuildError::Apt(AptError::Gone(_)) | BuildError::NoSuchSource { .. }
        )
    };
    let (name, tree) = apt.with_new_lists_if(stale, progress, try_once)?;
    fs::write(&known, name).at(&known)?;
    Ok(tree)
}

fn tree_of_package(workspace: &Workspace) -> Result<String, super::git::Failure> {
    workspace
        .git()
        .call("rev-parse")
        .args(["--verify", &format!("{PACKAGE_REF}^{{tree}}")])
        .run()
}

/// Writes what `git fast-import` reads (git-fast-import(1)) for the source in a package.
fn import(path: &Path, to: &mut dyn Write) -> Result<(), BuildError> {
    let damaged = |error| BuildError::from(deb::damaged(path)(error));
    let wanted =
        |path: &Path| path.starts_with("usr/src") && path.extension() == Some(OsStr::new("xz"));
    deb::read(path, wanted, |archive| {
        let source = liblzma::read::XzDecoder::new(archive).take(MAX_SOURCE);
        write_commit(tar::Archive::new(source), to)
    })?
    .ok_or_else(|| damaged(io::Error::other("it holds no source")))?
    .map_err(damaged)
}

fn write_commit(mut archive: tar::Archive<impl Read>, to: &mut dyn Write) -> io::Result<()> {
    let message = "source";
    write!(
        to,
        "commit {PACKAGE_REF}\ncommitter unwindlab <unwindlab@localhost> 0 +0000\n\
         data {}\n{message}\ndeleteall\n",
        message.len()
    )?;
    for entry in archive.entries()? {
        let mut entry = entry?;
        let full = entry.path_bytes().into_owned();
        // Below the package's one folder.
        let Some(slash) = full.iter().position(|&byte| byte == b'/') else {
            continue;
        };
        let path = full.get(slash + 1..).unwrap_or_default();
        if path.is_empty() || path.starts_with(b"\"") || path.contains(&b'\n') {
            continue;
        }
        let (mode, content) = match entry.header().entry_type() {
            tar::EntryType::Regular => {
                let mode = entry.header().mode()?;
                let mut content = Vec::new();
                entry.read_to_end(&mut content)?;
                (
                    if mode & 0o111 == 0 {
                        "100644"
                    } else {
                        "100755"
                    },
                    content,
                )
            }
            tar::EntryType::Symlink => {
                let target = entry.link_name_bytes().unwrap_or_default().into_owned();
                ("120000", target)
            }
            _ => continue,
        };
        write!(to, "M {mode} inline ")?;
        to.write_all(path)?;
        writeln!(to, "\ndata {}", content.len())?;
        to.write_all(&content)?;
        writeln!(to)?;
    }
    writeln!(to, "done")
}

/// The numbers in the name of a package with a source: `[7, 3]` of `linux-source-7.3`.
fn series(package: &str) -> Option<Vec<u64>> {
    parse_numbers(package.strip_prefix("linux-source-")?)
}

fn newest<'a>(offers: &'a [Offer], numbers: &[u64]) -> Option<&'a Offer> {
    offers
        .iter()
        .filter(|offer| series(&offer.name).is_some())
        .filter(|offer| offer.version.numbers().starts_with(numbers))
        .max_by(|a, b| a.version.cmp(&b.version))
}

fn offered(offers: &[Offer]) -> String {
    let mut all: Vec<&Version> = offers.iter().map(|offer| &offer.version).collect();
    all.sort();
    let all: Vec<String> = all.iter().map(ToString::to_string).collect();
    if all.is_empty() {
        "none".to_owned()
    } else {
        all.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(name: &str, version: &str) -> Offer {
        Offer {
            name: name.to_owned(),
            version: Version::new(version),
            suite: "suite".to_owned(),
        }
    }

    #[test]
    fn takes_the_newest_source_that_is_asked_for() {
        let offers = [
            offer("linux-source-7.2", "7.2.12-1~bpo13+1"),
            offer("linux-source-7.3", "7.3.4-1~bpo13+1"),
            offer("linux-source-7.2", "7.2.9-1"),
            offer("linux-source-6.12", "6.12.107-1"),
        ];
        let take = |numbers: &[u64]| newest(&offers, numbers).map(|it| it.version.to_string());
        assert_eq!(take(&[7]).as_deref(), Some("7.3.4-1~bpo13+1"));
        assert_eq!(take(&[7, 2]).as_deref(), Some("7.2.12-1~bpo13+1"));
        assert_eq!(take(&[7, 2, 9]).as_deref(), Some("7.2.9-1"));
        assert_eq!(take(&[7, 1]), None);
        assert_eq!(series("linux-source"), None);
        assert_eq!(series("linux-source-7.x"), None);
    }

    #[test]
    fn writes_a_stream_for_fast_import() {
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(3);
        header.set_mode(0o755);
        tar.append_data(&mut header, "linux/scripts/run", &b"hi\n"[..])
            .unwrap();
        let tar = tar.into_inner().unwrap();
        let mut stream = Vec::new();
        write_commit(tar::Archive::new(&tar[..]), &mut stream).unwrap();
        let stream = String::from_utf8(stream).unwrap();
        assert!(
            stream.ends_with("deleteall\nM 100755 inline scripts/run\ndata 3\nhi\n\ndone\n"),
            "{stream}"
        );
    }
}
