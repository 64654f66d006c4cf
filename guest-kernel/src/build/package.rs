//! Debian's package of a kernel's source.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;

use super::BuildError;
use super::workspace::Workspace;
use crate::cache::{At, Cache};
use crate::debian::apt::{Apt, AptError, Offer};
use crate::debian::deb;
use crate::debian::version::{Version, dotted, parse_numbers};
use crate::progress::Progress;

/// The repository's name for the tree of Debian's package.
const PACKAGE_REF: &str = "refs/unwindlab/source";
/// The file with that package's name and version.
const PACKAGE_FILE: &str = "package";

/// More than any source of Linux has.
pub(super) const MAX_SOURCE: u64 = 8 << 30;

/// The tree of Debian's package, which is fetched unless the repository has it. The newest package is
/// looked up once. For a newer one, delete the workspace or name more numbers.
pub(super) fn tree(
    numbers: &[u64],
    workspace: &Workspace,
    cache: &Cache,
    progress: &dyn Progress,
) -> Result<String, BuildError> {
    let git = workspace.git();
    let known = workspace.folders().root().join(PACKAGE_FILE);
    if known.exists() {
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

/// The tree that was imported.
pub(super) fn tree_of_package(workspace: &Workspace) -> Result<String, super::git::Failure> {
    workspace
        .git()
        .call("rev-parse")
        .args(["--verify", &format!("{PACKAGE_REF}^{{tree}}")])
        .run()
}

/// Writes the source in a package as input for git-fast-import(1).
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

/// Writes an archive as input for git-fast-import(1), as one commit.
pub(super) fn write_commit(
    mut archive: tar::Archive<impl Read>,
    to: &mut dyn Write,
) -> io::Result<()> {
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

/// The numbers in the name of a source package: `[7, 3]` of `linux-source-7.3`.
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
