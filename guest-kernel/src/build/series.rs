//! Reads a series of patches: from an mbox, a folder of mails or patches, or a quilt folder.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::BuildError;
use super::git::Call;
use super::mail::{Mail, Number, has_diff, has_subject};
use super::patch::Patch;
use crate::cache::{At, Cache};
use crate::input;

/// Numbers above this are no places in a series.
const MAX_PATCHES: u32 = 2_000;

/// A series of patches as it comes from a mailing list, or from a folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Series {
    /// The places of the series in order.
    pub places: Vec<SeriesPlace>,
    /// `v9` of the subjects, if they are numbered.
    pub version: Option<u32>,
    /// The mails that are no patches of it.
    pub left_out: LeftOut,
}

/// A place in a series.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SeriesPlace {
    /// A patch.
    Patch(SeriesPatch),
    /// The subjects say that there is a patch with this number, and no mail has it.
    Missing(u32),
}

/// A patch of a series.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeriesPatch {
    /// The patch.
    pub patch: Patch,
    /// Trailers that replies to it have (`Reviewed-by: ...`).
    pub trailers: Vec<String>,
}

/// What is left out of a thread.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Cover letters.
    pub covers: usize,
    /// Replies.
    pub replies: usize,
    /// Subjects of the replies among them that have a diff of their own.
    pub replies_with_diff: Vec<String>,
    /// Patches of older versions, and those that were sent again.
    pub superseded: usize,
    /// Other mails and files without a diff.
    pub without_diff: usize,
}

impl Series {
    /// Reads a series. If all subjects are numbered (`[PATCH v9 3/7]`), the numbers give the order, and the newest
    /// version is taken.
    ///
    /// # Errors
    /// [`BuildError::Tree`] if it cannot be read, [`BuildError::NoPatches`] if it has no patch.
    pub fn read(path: &Path, cache: &Cache) -> Result<Self, BuildError> {
        let unreadable = |source| BuildError::Tree {
            path: path.to_path_buf(),
            source,
        };
        let series = if fs::metadata(path).map_err(unreadable)?.is_dir() {
            match input::text(&path.join("series"), input::WRITTEN) {
                Ok(list) => quilt(path, &list, cache)?,
                Err(_) => folder(path, cache)?,
            }
        } else {
            let mut mails = Vec::new();
            for content in split(path, cache)? {
                mails.push(Mail::read(&content, cache)?);
            }
            of_mails(mails)
        };
        if series.patches().next().is_none() {
            return Err(BuildError::NoPatches(path.to_path_buf()));
        }
        Ok(series)
    }

    /// The series that mails are of which git has decoded subject, text and diff.
    #[must_use]
    pub fn of_decoded<'a>(mails: impl IntoIterator<Item = (&'a str, &'a [u8], &'a [u8])>) -> Self {
        let mails = mails.into_iter();
        of_mails(
            mails
                .map(|(subject, text, diff)| Mail::of(subject, text, diff.to_vec()))
                .collect(),
        )
    }

    /// The patches that are there.
    pub fn patches(&self) -> impl Iterator<Item = &Patch> {
        self.places.iter().filter_map(SeriesPlace::patch)
    }
}

impl SeriesPlace {
    /// Its patch, if it is there.
    #[must_use]
    pub const fn patch(&self) -> Option<&Patch> {
        match self {
            Self::Patch(patch) => Some(&patch.patch),
            Self::Missing(_) => None,
        }
    }
}

/// The files of quilt's list: one a line, followed by options.
fn quilt(path: &Path, list: &str, cache: &Cache) -> Result<Series, BuildError> {
    let names = list
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .filter_map(|line| line.split_ascii_whitespace().next());
    let mut series = Series::default();
    for name in names {
        let content = read(&path.join(name))?;
        match patch(name, content, cache)? {
            Some(patch) => series.push(patch, Vec::new()),
            None => series.left_out.without_diff += 1,
        }
    }
    Ok(series)
}

/// The files `*.patch`, `*.diff` and `*.eml`; by the numbers in their subjects, or else by name.
fn folder(path: &Path, cache: &Cache) -> Result<Series, BuildError> {
    let mut mails = Vec::new();
    for file in patch_files(path)? {
        let name = file
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let content = read(&file)?;
        if has_subject(&content) {
            for content in split(&file, cache)? {
                mails.push(Mail::read(&content, cache)?);
            }
            continue;
        }
        mails.push(Mail {
            subject: name,
            number: None,
            is_reply: false,
            diff: has_diff(&content).then_some(content),
            trailers: Vec::new(),
        });
    }
    Ok(of_mails(mails))
}

fn patch_files(path: &Path) -> Result<Vec<PathBuf>, BuildError> {
    let mut files = Vec::new();
    for item in fs::read_dir(path).at(path)? {
        let file = item.at(path)?.path();
        if file
            .extension()
            .is_some_and(|it| it == "patch" || it == "diff" || it == "eml")
        {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

fn read(file: &Path) -> Result<Vec<u8>, BuildError> {
    input::read(file, input::RECORDED).map_err(|source| BuildError::Tree {
        path: file.to_path_buf(),
        source,
    })
}

/// A file's patch, with the subject as its name if it is a mail.
fn patch(name: &str, content: Vec<u8>, cache: &Cache) -> Result<Option<Patch>, BuildError> {
    let named = |name: String| move |content| Patch { name, content };
    if has_subject(&content) {
        let mail = Mail::read(&content, cache)?;
        return Ok(mail.diff.map(named(mail.subject)));
    }
    Ok(has_diff(&content)
        .then_some(content)
        .map(named(name.to_owned())))
}

/// The mails of an mbox, or the one mail of another file (git-mailsplit(1)).
fn split(path: &Path, cache: &Cache) -> Result<Vec<Vec<u8>>, BuildError> {
    // Only looked at: git reads it.
    input::open(path, input::RECORDED).map_err(|source| BuildError::Tree {
        path: path.to_path_buf(),
        source,
    })?;
    let scratch = cache.scratch()?;
    let full = path.canonicalize().at(path)?;
    let mut output = OsString::from("-o");
    output.push(scratch.path());
    Call::new("mailsplit")
        .arg("-b")
        .arg(output)
        .arg("--")
        .arg(&full)
        .run()?;
    let mut files: Vec<PathBuf> = Vec::new();
    for item in fs::read_dir(scratch.path()).at(scratch.path())? {
        files.push(item.at(scratch.path())?.path());
    }
    files.sort();
    files
        .iter()
        .map(|file| Ok(fs::read(file).at(file)?))
        .collect()
}

/// The series that these mails are.
fn of_mails(mails: Vec<Mail>) -> Series {
    let mut series = Series::default();
    let mut patches = Vec::new();
    let mut replies = Vec::new();
    for mail in mails {
        if mail.is_reply {
            series.left_out.replies += 1;
            if mail.diff.is_some() {
                series.left_out.replies_with_diff.push(mail.subject.clone());
            }
            replies.push(mail);
        } else if mail.number.is_some_and(|it| it.number == 0) && mail.diff.is_none() {
            series.left_out.covers += 1;
        } else if let Some(content) = mail.diff {
            let name = mail.subject;
            patches.push((mail.number, Patch { name, content }));
        } else {
            series.left_out.without_diff += 1;
        }
    }
    let trailers = |patch: &Patch| {
        let to_it = replies.iter().filter(|reply| reply.subject == patch.name);
        let mut trailers: Vec<String> = to_it.flat_map(|reply| reply.trailers.clone()).collect();
        trailers.sort();
        trailers.dedup();
        trailers
    };
    let numbers: Option<Vec<Number>> = patches.iter().map(|(number, _)| *number).collect();
    let Some(newest) = numbers.and_then(|all| all.iter().map(|it| it.version).max()) else {
        for (_, patch) in patches {
            let trailers = trailers(&patch);
            series.push(patch, trailers);
        }
        return series;
    };
    series.version = Some(newest);
    let sent = patches.len();
    let mut numbered = BTreeMap::new();
    let mut total = 0;
    for (number, patch) in patches {
        // One that was sent again replaces the first.
        if let Some(it) = number.filter(|it| it.version == newest) {
            total = total.max(it.total.min(MAX_PATCHES));
            numbered.insert(it.number, patch);
        }
    }
    series.left_out.superseded = sent - numbered.len();
    let mut places: BTreeMap<u32, SeriesPlace> = (1..=total)
        .map(|number| (number, SeriesPlace::Missing(number)))
        .collect();
    for (number, patch) in numbered {
        let trailers = trailers(&patch);
        places.insert(number, SeriesPlace::Patch(SeriesPatch { patch, trailers }));
    }
    series.places = places.into_values().collect();
    series
}

impl Series {
    fn push(&mut self, patch: Patch, trailers: Vec<String>) {
        self.places
            .push(SeriesPlace::Patch(SeriesPatch { patch, trailers }));
    }
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

    /// Its places, a missing one as its number.
    fn names(series: &Series) -> Vec<String> {
        let name = |place: &SeriesPlace| match place {
            SeriesPlace::Patch(patch) => patch.patch.name.clone(),
            SeriesPlace::Missing(number) => number.to_string(),
        };
        series.places.iter().map(name).collect()
    }

    #[test]
    fn reads_the_newest_version_of_a_thread_in_order() {
        let (folder, cache) = cache();
        let reply = format!(
            "Reviewed-by: B <b@example.org>\n{}",
            DIFF.replace('\n', "\n> ")
        );
        let text = [
            message("[PATCH v8 1/2] old", DIFF),
            message("[PATCH v9 0/4] cover", ""),
            message("[PATCH v9 4/4] fourth", DIFF),
            message("Re: [PATCH v9 2/4] second", &reply),
            message("[PATCH v9 2/4] second", DIFF),
            message("Re: [PATCH v9 1/4] first", DIFF),
            message("[PATCH v9 1/4] first", DIFF),
        ]
        .concat();
        let path = folder.path().join("v9.mbox");
        fs::write(&path, text).unwrap();
        let series = Series::read(&path, &cache).unwrap();
        assert_eq!(
            names(&series),
            [
                "[PATCH v9 1/4] first",
                "[PATCH v9 2/4] second",
                "3",
                "[PATCH v9 4/4] fourth"
            ]
        );
        assert_eq!(series.version, Some(9));
        assert_eq!(
            series.left_out,
            LeftOut {
                covers: 1,
                replies: 2,
                replies_with_diff: vec!["[PATCH v9 1/4] first".to_owned()],
                superseded: 1,
                without_diff: 0,
            }
        );
        let trailers = series.places.iter().filter_map(|place| match place {
            SeriesPlace::Patch(patch) => Some(patch.trailers.len()),
            SeriesPlace::Missing(_) => None,
        });
        assert_eq!(trailers.collect::<Vec<_>>(), [0, 1, 0]);
    }

    #[test]
    fn a_number_beyond_any_series_makes_no_places() {
        let (folder, cache) = cache();
        let path = folder.path().join("huge.mbox");
        fs::write(&path, message("[PATCH 1/4294967295] one", DIFF)).unwrap();
        let series = Series::read(&path, &cache).unwrap();
        assert_eq!(series.places.len(), MAX_PATCHES as usize);
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
        let series = |dir: &Path| Series::read(dir, &cache);
        assert_eq!(
            names(&series(&dir).unwrap()),
            ["[PATCH] one", "0002-plain.patch"]
        );
        fs::write(dir.join("series"), "# quilt\n0002-plain.patch -p1\n").unwrap();
        assert_eq!(names(&series(&dir).unwrap()), ["0002-plain.patch"]);
        fs::write(dir.join("series"), "").unwrap();
        let error = series(&dir).unwrap_err().to_string();
        assert!(error.starts_with("no patch in "), "{error}");
    }

    #[test]
    fn reads_a_folder_of_single_mails_by_their_numbers() {
        let (folder, cache) = cache();
        let dir = folder.path().join("mails");
        fs::create_dir(&dir).unwrap();
        let eml = |subject: &str| {
            let mail = message(subject, DIFF);
            let (_, without_from_line) = mail.split_once('\n').unwrap();
            without_from_line.replace('\n', "\r\n")
        };
        fs::write(dir.join("a.eml"), eml("[PATCH 2/2] two")).unwrap();
        fs::write(dir.join("b.eml"), eml("[PATCH 1/2] one")).unwrap();
        let series = Series::read(&dir, &cache).unwrap();
        assert_eq!(names(&series), ["[PATCH 1/2] one", "[PATCH 2/2] two"]);
        let with_cr = series.patches().any(|patch| patch.content.contains(&b'\r'));
        assert!(!with_cr, "{series:?}");
    }
}
