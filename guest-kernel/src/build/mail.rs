//! Reads a series of patches: from an mbox, a folder of `git format-patch`, or a quilt folder.

use std::fs;
use std::path::{Path, PathBuf};

use super::BuildError;
use super::git::Call;
use super::patch::Patch;
use crate::cache::{At, Cache};

/// The patches of a series, in order. Mails without a diff (the cover letter) and replies are left
/// out. If all subjects are numbered (`[PATCH v9 3/7]`), the numbers give the order.
///
/// # Errors
/// [`BuildError::Tree`] if it cannot be read, [`BuildError::NoPatches`] if it has no patch.
pub fn series(path: &Path, cache: &Cache) -> Result<Vec<Patch>, BuildError> {
    let unreadable = |source| BuildError::Tree {
        path: path.to_path_buf(),
        source,
    };
    let patches = if fs::metadata(path).map_err(unreadable)?.is_dir() {
        folder(path, cache)?
    } else {
        mbox(path, cache)?
    };
    if patches.is_empty() {
        return Err(BuildError::NoPatches(path.to_path_buf()));
    }
    Ok(patches)
}

/// A patch with its place in the series.
struct Mail {
    number: Option<Number>,
    patch: Patch,
}

/// `v9 3/7` in a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Number {
    version: u32,
    number: u32,
}

fn folder(path: &Path, cache: &Cache) -> Result<Vec<Patch>, BuildError> {
    let files = match fs::read_to_string(path.join("series")) {
        // quilt's list: one file per line, followed by options.
        Ok(list) => list
            .lines()
            .filter(|line| !line.trim_start().starts_with('#'))
            .filter_map(|line| line.split_ascii_whitespace().next())
            .map(|name| path.join(name))
            .collect(),
        Err(_) => patch_files(path)?,
    };
    let mut patches = Vec::new();
    for file in files {
        let content = fs::read(&file).map_err(|source| BuildError::Tree {
            path: file.clone(),
            source,
        })?;
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let mail = has_subject(&content)
            .then(|| mail(&content, cache))
            .transpose()?
            .flatten();
        let patch = match mail {
            Some(mail) => mail.patch,
            None if has_diff(&content) => Patch {
                name: name.into_owned(),
                content,
            },
            None => continue,
        };
        patches.push(patch);
    }
    Ok(patches)
}

/// `*.patch` of a folder, by name.
fn patch_files(path: &Path) -> Result<Vec<PathBuf>, BuildError> {
    let mut files = Vec::new();
    for item in fs::read_dir(path).at(path)? {
        let file = item.at(path)?.path();
        if file
            .extension()
            .is_some_and(|it| it == "patch" || it == "diff")
        {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

fn mbox(path: &Path, cache: &Cache) -> Result<Vec<Patch>, BuildError> {
    let scratch = cache.scratch()?;
    let full = path.canonicalize().at(path)?;
    let mut output = std::ffi::OsString::from("-o");
    output.push(scratch.path());
    Call::new("mailsplit")
        .arg(output)
        .arg("--")
        .arg(&full)
        .run()?;
    let mut files: Vec<PathBuf> = Vec::new();
    for item in fs::read_dir(scratch.path()).at(scratch.path())? {
        files.push(item.at(scratch.path())?.path());
    }
    files.sort();
    let mut mails = Vec::new();
    for file in files {
        let content = fs::read(&file).at(&file)?;
        mails.extend(mail(&content, cache)?);
    }
    if mails.iter().all(|mail| mail.number.is_some()) {
        // A thread may hold several versions: take the newest.
        let newest = mails
            .iter()
            .filter_map(|mail| mail.number)
            .map(|it| it.version)
            .max();
        mails.retain(|mail| mail.number.map(|it| it.version) == newest);
        mails.sort_by_key(|mail| mail.number);
    }
    Ok(mails.into_iter().map(|mail| mail.patch).collect())
}

/// Decodes a mail with a patch; `None` for a reply, or without a diff.
fn mail(content: &[u8], cache: &Cache) -> Result<Option<Mail>, BuildError> {
    let scratch = cache.scratch()?;
    let (message, diff) = (scratch.path().join("message"), scratch.path().join("diff"));
    let info = Call::new("mailinfo")
        .arg("-k")
        .args([&message, &diff])
        .input(content)
        .run()?;
    let subject = info
        .lines()
        .find_map(|line| line.strip_prefix("Subject: "))
        .unwrap_or("(no subject)");
    let content = fs::read(&diff).at(&diff)?;
    if subject.to_ascii_lowercase().starts_with("re:") || !has_diff(&content) {
        return Ok(None);
    }
    Ok(Some(Mail {
        number: number(subject),
        patch: Patch {
            name: subject.to_owned(),
            content,
        },
    }))
}

fn has_diff(content: &[u8]) -> bool {
    memchr::memmem::find(content, b"\n--- ").is_some() || content.starts_with(b"--- ")
}

fn has_subject(content: &[u8]) -> bool {
    content.starts_with(b"Subject: ") || memchr::memmem::find(content, b"\nSubject: ").is_some()
}

/// `v9 3/7` in `[PATCH v9 3/7] perf: ...`. The default version is 1.
fn number(subject: &str) -> Option<Number> {
    let (tag, _) = subject.strip_prefix('[')?.split_once(']')?;
    let mut words = tag.split_ascii_whitespace();
    let mut version = 1;
    let number = words.find_map(|word| {
        if let Some(digits) = word.strip_prefix(['v', 'V']) {
            version = digits.parse().unwrap_or(version);
        }
        word.split_once('/')?.0.parse().ok()
    })?;
    Some(Number { version, number })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIFF: &str =
        "---\n f | 2 +-\n\ndiff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n-- \n2.47\n";

    fn cache() -> (tempfile::TempDir, Cache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(folder.path().join("cache"))).unwrap();
        (folder, cache)
    }

    fn message(subject: &str, body: &str) -> String {
        format!(
            "From 0123456789012345678901234567890123456789 Mon Sep 17 00:00:00 2001\n\
             From: A <a@example.org>\nDate: Mon, 1 Jan 2024 00:00:00 +0000\n\
             Subject: {subject}\n\nText.\n{body}\n"
        )
    }

    #[test]
    fn reads_the_newest_version_of_a_thread_in_order() {
        let (folder, cache) = cache();
        let text = [
            message("[PATCH v8 1/2] old", DIFF),
            message("[PATCH v9 0/2] cover", ""),
            message("[PATCH v9 2/2] second", DIFF),
            message("Re: [PATCH v9 2/2] second", &DIFF.replace('\n', "\n> ")),
            message("[PATCH v9 1/2] first", DIFF),
        ]
        .concat();
        let path = folder.path().join("v9.mbox");
        fs::write(&path, text).unwrap();
        let names: Vec<String> = series(&path, &cache)
            .unwrap()
            .into_iter()
            .map(|patch| patch.name)
            .collect();
        assert_eq!(names, ["[PATCH v9 1/2] first", "[PATCH v9 2/2] second"]);
    }

    #[test]
    fn reads_folders() {
        let (folder, cache) = cache();
        let dir = folder.path().join("patches");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("0001-mail.patch"), message("[PATCH] one", DIFF)).unwrap();
        fs::write(dir.join("0002-plain.patch"), "words\n--- a/f\n+++ b/f\n").unwrap();
        fs::write(dir.join("0003-none.patch"), "no diff in it").unwrap();
        fs::write(dir.join("README"), "--- a/f\n").unwrap();
        let names = |dir: &Path| -> Vec<String> {
            let patches = series(dir, &cache).unwrap();
            patches.into_iter().map(|patch| patch.name).collect()
        };
        assert_eq!(names(&dir), ["[PATCH] one", "0002-plain.patch"]);
        fs::write(dir.join("series"), "# quilt\n0002-plain.patch -p1\n").unwrap();
        assert_eq!(names(&dir), ["0002-plain.patch"]);
        fs::write(dir.join("series"), "").unwrap();
        let error = series(&dir, &cache).unwrap_err().to_string();
        assert!(error.starts_with("no patch in "), "{error}");
    }
}
