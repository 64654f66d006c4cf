//! Finds scenarios: in files and folders that the user names, in `./scenarios`, and in the copies in
//! the binary.

use std::io;
use std::path::{Path, PathBuf};
use unwindlab_guest_kernel::input;

use glob::{Pattern, PatternError};
use include_dir::{Dir, include_dir};

use super::check::check;
use super::error::{ScenarioError, ScenarioErrors};
use super::model::Scenario;
use super::parse::parse;

static SCENARIOS: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../scenarios");
static SNAPSHOTS: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../snapshots");

/// The folder that is used if the user names none.
const DEFAULT_FOLDER: &str = "scenarios";
/// The folder in it whose scenarios run only if the user names them.
const LONG_FOLDER: &str = "long";

/// A checked scenario with its files.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The file's name in messages.
    pub file: String,
    /// The file's text.
    pub text: String,
    /// The scenario.
    pub scenario: Scenario,
    /// The text of its snapshot file, if there is one.
    pub snapshot: Option<String>,
}

/// Why scenarios cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum LibraryError {
    /// Neither a file nor a scenario of the library has this name.
    #[error(
        "no file, folder or library scenario `{name}`{near}; `unwindlab list` shows the library"
    )]
    NotFound { name: String, near: String },
    /// A pattern that cannot be read.
    #[error("`{pattern}` is no pattern: {source}")]
    Pattern {
        pattern: String,
        source: PatternError,
    },
    /// A pattern that no name matches.
    #[error("no library scenario is named like `{0}`; `unwindlab list` shows the library")]
    NoMatch(String),
    /// A file or folder cannot be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A folder without scenarios.
    #[error("no *.yaml in {path}; name another folder or a file", path = .0.display())]
    Empty(PathBuf),
    /// The errors in the files, a line each.
    #[error(transparent)]
    Scenario(#[from] ScenarioErrors),
}

/// The scenarios of a run, by name.
#[derive(Debug, Clone, Default)]
pub struct Library {
    /// In the order of the command line; those of a folder by name.
    pub scenarios: Vec<Loaded>,
}

impl Library {
    /// Reads the named scenarios: files, folders, or names of the library, which may be patterns
    /// (`*`, `?`, `[..]`) of what `./scenarios` and the binary have. Without a name, reads
    /// the whole library: `./scenarios` if it exists, otherwise the copies in the binary.
    /// `invariants` are the IDs of all invariants.
    ///
    /// # Errors
    /// [`LibraryError`]; [`LibraryError::Scenario`] has the errors of all files.
    pub fn open(names: &[PathBuf], invariants: &[&str]) -> Result<Self, LibraryError> {
        Self::open_beside(Path::new(DEFAULT_FOLDER), names, invariants)
    }

    /// As [`Library::open`], with another folder in the place of `./scenarios`.
    pub fn open_beside(
        folder: &Path,
        names: &[PathBuf],
        invariants: &[&str],
    ) -> Result<Self, LibraryError> {
        let sources = if names.is_empty() {
            default_sources(folder)?
        } else {
            let mut sources = Vec::new();
            for path in names {
                match pattern(path)? {
                    Some(pattern) => add_matching(&mut sources, folder, &pattern)?,
                    None => sources.extend(named_sources(folder, path)?),
                }
            }
            sources
        };
        Self::load(sources, invariants)
    }

    /// Reads the copies in the binary.
    ///
    /// # Errors
    /// [`LibraryError::Scenario`] if they had errors.
    pub fn embedded(invariants: &[&str]) -> Result<Self, LibraryError> {
        Self::load(embedded_sources(&SCENARIOS), invariants)
    }

    fn load(sources: Vec<Source>, invariants: &[&str]) -> Result<Self, LibraryError> {
        let mut scenarios: Vec<Loaded> = Vec::new();
        let mut errors = Vec::new();
        for source in sources {
            let read = parse(&source.file, &source.text)
                .and_then(|written| check(&source.file, &source.stem, written, invariants));
            match read {
                Err(ScenarioErrors(found)) => errors.extend(found),
                Ok(scenario) => {
                    let twin = scenarios
                        .iter()
                        .find(|other| *other.scenario.name == *scenario.name);
                    if let Some(twin) = twin {
                        let name = scenario.name.as_str();
                        errors.push(ScenarioError {
                            file: source.file.clone(),
                            location: scenario.name.location(),
                            message: format!("scenario `{name}` is also in {}", twin.file),
                        });
                    }
                    scenarios.push(Loaded {
                        file: source.file,
                        text: source.text,
                        scenario,
                        snapshot: source.snapshot,
                    });
                }
            }
        }
        if errors.is_empty() {
            Ok(Self { scenarios })
        } else {
            Err(ScenarioErrors(errors).into())
        }
    }
}

/// A file's text.
struct Source {
    file: String,
    stem: String,
    text: String,
    snapshot: Option<String>,
}

/// The scenarios of a command that names none.
fn default_sources(folder: &Path) -> Result<Vec<Source>, LibraryError> {
    let embedded = embedded_sources(&SCENARIOS);
    if !folder.is_dir() {
        return Ok(embedded);
    }
    let sources = folder_sources(folder)?;
    if lacks_one_of(&sources, &embedded) {
        let folder = folder.display();
        tracing::warn!("scenarios of ./{folder}, not the built-in library");
    }
    Ok(sources)
}

/// Whether a folder hides a scenario of the binary. In a clone of the repository it hides none.
fn lacks_one_of(sources: &[Source], embedded: &[Source]) -> bool {
    let has = |name: &str| sources.iter().any(|it| it.stem == name);
    embedded.iter().any(|it| !has(&it.stem))
}

/// The scenarios of the folder, if there are any, and those of the binary that it has no other of.
fn with_embedded(folder: &Path, mut embedded: Vec<Source>) -> Result<Vec<Source>, LibraryError> {
    let mut sources = match folder.is_dir().then(|| folder_sources(folder)) {
        None | Some(Err(LibraryError::Empty(_))) => Vec::new(),
        Some(read) => read?,
    };
    embedded.retain(|it| sources.iter().all(|other| other.stem != it.stem));
    sources.append(&mut embedded);
    Ok(sources)
}

/// Scenarios that take too long for every run.
fn long_sources(folder: &Path) -> Result<Vec<Source>, LibraryError> {
    let embedded = SCENARIOS.get_dir(LONG_FOLDER).map(embedded_sources);
    with_embedded(&folder.join(LONG_FOLDER), embedded.unwrap_or_default())
}

/// The pattern that a name is, if it is one and no file has it as its name.
fn pattern(name: &Path) -> Result<Option<Pattern>, LibraryError> {
    let text = name.to_string_lossy();
    if !text.contains(['*', '?', '[']) || name.exists() {
        return Ok(None);
    }
    let pattern = Pattern::new(&text).map_err(|source| LibraryError::Pattern {
        pattern: text.to_string(),
        source,
    })?;
    Ok(Some(pattern))
}

/// Adds the scenarios of the library whose names match and that are not there yet.
fn add_matching(
    sources: &mut Vec<Source>,
    folder: &Path,
    pattern: &Pattern,
) -> Result<(), LibraryError> {
    let mut matching = with_embedded(folder, embedded_sources(&SCENARIOS))?;
    matching.retain(|source| pattern.matches(&source.stem));
    if matching.is_empty() {
        return Err(LibraryError::NoMatch(pattern.to_string()));
    }
    matching.retain(|source| sources.iter().all(|it| it.file != source.file));
    sources.extend(matching);
    Ok(())
}

fn named_sources(folder: &Path, path: &Path) -> Result<Vec<Source>, LibraryError> {
    if path.is_dir() {
        return folder_sources(path);
    }
    if path.exists() {
        return Ok(vec![file_source(path)?]);
    }
    let name = path.to_string_lossy();
    let mut sources = with_embedded(folder, embedded_sources(&SCENARIOS))?;
    sources.append(&mut long_sources(folder)?);
    match sources.iter().position(|source| source.stem == name) {
        Some(at) => Ok(vec![sources.swap_remove(at)]),
        None => Err(LibraryError::NotFound {
            near: near(&name, &sources),
            name: name.into_owned(),
        }),
    }
}

/// Text to append to the name of a missing scenario: up to three that are like it, or nothing.
fn near(name: &str, sources: &[Source]) -> String {
    let far = |it: &Source| strsim::damerau_levenshtein(&it.stem, name);
    let mut near: Vec<(usize, &str)> = { sources.iter() }
        .map(|it| (far(it), it.stem.as_str()))
        .filter(|(far, _)| far * 4 <= name.chars().count())
        .collect();
    near.sort_unstable();
    let names: Vec<&str> = near.into_iter().take(3).map(|it| it.1).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!(" (near it: {})", names.join(", ")),
    }
}

fn folder_sources(folder: &Path) -> Result<Vec<Source>, LibraryError> {
    let unreadable = |source| LibraryError::Read {
        path: folder.to_owned(),
        source,
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "yaml")
        {
            files.push(path);
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(LibraryError::Empty(folder.to_owned()));
    }
    files.iter().map(|path| file_source(path)).collect()
}

fn file_source(path: &Path) -> Result<Source, LibraryError> {
    let unreadable = |path: &Path, source| LibraryError::Read {
        path: path.to_owned(),
        source,
    };
    let text = input::text(path, input::WRITTEN).map_err(|error| unreadable(path, error))?;
    let stem = stem(path);
    let snapshot_path = snapshot_path(path, &stem);
    let snapshot = match input::text(&snapshot_path, input::RECORDED) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(unreadable(&snapshot_path, error)),
    };
    Ok(Source {
        file: path.display().to_string(),
        stem,
        text,
        snapshot,
    })
}

/// Where the snapshot of a scenario that is a file is looked for.
#[must_use]
pub fn snapshot_file(loaded: &Loaded) -> Option<PathBuf> {
    let file = Path::new(&loaded.file);
    let is_file = file.is_file();
    is_file.then(|| snapshot_path(file, &loaded.scenario.name))
}

/// `snapshots/NAME.snap` beside the scenario's folder.
fn snapshot_path(scenario: &Path, stem: &str) -> PathBuf {
    let folder = scenario.parent().unwrap_or(Path::new(""));
    folder.join("../snapshots").join(format!("{stem}.snap"))
}

fn embedded_sources(folder: &Dir<'_>) -> Vec<Source> {
    let mut sources: Vec<Source> = folder
        .files()
        .filter(|file| file.path().extension().is_some_and(|it| it == "yaml"))
        .filter_map(|file| {
            let stem = stem(file.path());
            let snapshot = SNAPSHOTS.get_file(format!("{stem}.snap"));
            Some(Source {
                file: format!("scenarios/{}", file.path().display()),
                text: file.contents_utf8()?.to_owned(),
                snapshot: snapshot
                    .and_then(|file| file.contents_utf8())
                    .map(str::to_owned),
                stem,
            })
        })
        .collect();
    sources.sort_by(|a, b| a.file.cmp(&b.file));
    sources
}

fn stem(path: &Path) -> String {
    path.file_stem()
        .map(|stem| stem.to_string_lossy().into_owned())
        .unwrap_or_default()
}
