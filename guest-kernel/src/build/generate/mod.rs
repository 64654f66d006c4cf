//! All first-order mutants of the deferred unwinder: a kernel each that differs in one small change.
//!
//! ```text
//! scope.txt ──> functions ──> changes (operators) ──> objects: none, the same, another's, new
//! ```
//!
//! Only what compiles is a mutant. One whose objects are those of the kernel without it is equivalent; of several with the
//! same objects the first counts.

mod argued;
mod calls;
mod change;
mod objects;
mod operators;
mod probe;
mod scope;
mod source;
mod statements;
mod values;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use self::argued::{argued, changed_lines};
use self::change::Change;
pub use self::change::Operator;
use self::objects::{Built, Compiled, Objects};
use self::operators::Changes;
use self::scope::Place;
use self::source::{Definition, Source};
use super::patch::{self, Patch};
use super::workspace::Workspace;
use super::{BuildError, BuildSpec, client, embedded, identity, make, seed, tools, tree};
use crate::cache::{Cache, hex};
use crate::progress::Progress;

/// Part of what a survey is remembered by. Change it when the same source gives other mutants.
const RECIPE: &str = "1";

/// One changed kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct GeneratedMutant {
    /// `FILE:LINE:OPERATOR`, with a number behind it where there are several.
    pub name: String,
    /// The file, from the root of the source.
    pub file: String,
    /// The function or macro.
    pub function: String,
    /// The line of the change, from 1.
    pub line: usize,
    /// What kind of change it is.
    pub operator: Operator,
    /// The change, as a patch of the kernel without it.
    pub diff: String,
    /// What the compiler makes of it.
    pub object: ObjectCode,
    /// A patch with which the kernel dies where it executes the statement that is changed; none for a macro.
    #[serde(skip)]
    pub probe: Option<String>,
}

/// What the compiler makes of a mutant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectCode {
    /// It does not compile.
    None,
    /// Its objects are those of the kernel without it.
    Same,
    /// Its objects are those of the mutant with this name.
    Twin(String),
    /// It has objects of its own.
    New,
}

impl GeneratedMutant {
    /// The change as a patch to build a kernel with.
    #[must_use]
    pub fn patch(&self) -> Patch {
        Patch {
            name: format!("generated:{}", self.name),
            content: self.diff.clone().into_bytes(),
        }
    }

    /// The patch with which the kernel dies where it executes the statement that is changed.
    #[must_use]
    pub fn probe(&self) -> Option<Patch> {
        Some(Patch {
            name: format!("reached:{}", self.name),
            content: self.probe.clone()?.into_bytes(),
        })
    }
}

/// A file in which something is changed.
struct Changed {
    file: &'static str,
    source: Source,
}

/// All mutants of a kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Generated {
    /// The files, by their path from the root of the source, and their text.
    pub sources: Vec<(String, String)>,
    /// In the order of the files and lines.
    pub mutants: Vec<GeneratedMutant>,
}

/// Makes the mutants of a kernel that have a wanted name, and has each compiled. The kernel itself is built first. The cache
/// remembers what the compiler made of them.
///
/// # Errors
/// [`BuildError`].
pub fn generate(
    spec: &BuildSpec,
    is_wanted: &dyn Fn(&str) -> bool,
    cache: &Cache,
    progress: &(dyn Progress + Sync),
) -> Result<Generated, BuildError> {
    tools::need_git()?;
    tools::need_compiler()?;
    let workspace = Workspace::open(&spec.source, cache, progress)?;
    let tree = tree::of(&spec.source, &workspace, cache, progress)?;
    let tree = patch::apply_all(&workspace, tree, &spec.source.to_string(), &spec.patches)?;
    let (tree, client) = client::add(&workspace, tree)?;
    let fragments = embedded::with_built_in(&spec.fragments, client == client::Client::Added);
    let files = changed_files(&workspace, &tree)?;
    let (mut mutants, changes): (Vec<_>, Vec<_>) = { all(&files).into_iter() }
        .filter(|(mutant, _)| is_wanted(&mutant.name))
        .unzip();

    let source = |it: &Changed| (it.file.to_owned(), it.source.text.clone());
    let sources = files.iter().map(source).collect();
    let note = note(&identity(&tree, &fragments)?, &mutants);
    if let Some(known) = cache.note::<Vec<ObjectCode>>(&note)?
        && known.fact.len() == mutants.len()
    {
        for (mutant, object) in mutants.iter_mut().zip(known.fact) {
            mutant.object = object;
        }
        return Ok(Generated { sources, mutants });
    }
    seed::fill(&workspace, &tree, &fragments, cache, progress)?;
    workspace.check_out(&tree, progress)?;
    make::vmlinux(&workspace, &fragments, &spec.to_string(), progress)?;
    let (src, obj) = (
        workspace.folders().src(),
        workspace.folders().obj(&fragments),
    );
    let built = Built {
        src: &src,
        obj: &obj,
    };
    let compiled = compile(&built, &files, &changes, progress)?;
    judge(&mut mutants, compiled);
    let objects: Vec<&ObjectCode> = mutants.iter().map(|it| &it.object).collect();
    cache.set_note(&note, &objects)?;
    Ok(Generated { sources, mutants })
}

/// All mutants of these files, each with its change.
fn all(files: &[Changed]) -> Vec<(GeneratedMutant, (&Changed, Change))> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut found = Vec::new();
    for file in files {
        for (definition, change) in changes_of(file) {
            let mut mutant = described(file, definition, &change);
            let count = seen.entry(mutant.name.clone()).or_default();
            *count += 1;
            // Those that have the same name get a number.
            if *count > 1 {
                mutant.name = format!("{}.{count}", mutant.name);
            }
            found.push((mutant, (file, change)));
        }
    }
    found
}

/// The name of the note that says what the compiler makes of these mutants.
fn note(kernel: &str, mutants: &[GeneratedMutant]) -> String {
    let mut hash = Sha256::new();
    hash.update(RECIPE);
    hash.update(kernel);
    for mutant in mutants {
        hash.update(&mutant.name);
        hash.update(&mutant.diff);
    }
    format!("generated-{}", hex(&hash.finalize()))
}

/// The files of the table that this kernel has.
fn changed_files(workspace: &Workspace, tree: &str) -> Result<Vec<Changed>, BuildError> {
    let mut files = Vec::new();
    for file in Place::files() {
        if !workspace.has(tree, file) {
            continue;
        }
        let object = format!("{tree}:{file}");
        let call = workspace.git().call("cat-file").args(["blob", &object]);
        let text = String::from_utf8_lossy(&call.bytes()?).into_owned();
        files.extend(Source::parse(text).map(|source| Changed { file, source }));
    }
    Ok(files)
}

/// The changes of a file that the table covers, each with its function or macro.
fn changes_of(changed: &Changed) -> Vec<(Definition<'_>, Change)> {
    let mut found = Vec::new();
    for definition in changed.source.definitions() {
        for change in changes_in(&changed.source, definition) {
            let (_, line) = changed.source.line(change.start());
            if Place::covers(changed.file, definition.name, line) {
                found.push((definition, change));
            }
        }
    }
    found
}

/// The changes of a definition. What a macro stands for is parsed by itself: as statements, or as what initialises a
/// structure.
fn changes_in(source: &Source, definition: Definition<'_>) -> Vec<Change> {
    if !definition.is_macro() {
        return Changes::of(source, definition.body);
    }
    let body = definition.body.byte_range();
    let before = source.text.get(..body.start).unwrap_or_default();
    let value = source
        .text
        .get(body.clone())
        .unwrap_or_default()
        .replace('\\', " ");
    // Blanks keep the places.
    let blank: String = { before.chars() }
        .map(|it| if it == '\n' { '\n' } else { ' ' })
        .collect();
    for (head, tail) in [("int x[]={", "};"), ("void f(){", ";}")] {
        let Some(kept) = blank.len().checked_sub(head.len()) else {
            continue;
        };
        let text = format!(
            "{}{head}{value}{tail}",
            blank.get(..kept).unwrap_or_default()
        );
        let Some(parsed) = Source::parse(text).filter(Source::is_whole) else {
            continue;
        };
        let mut changes = Changes::of(&parsed, parsed.root());
        changes.retain(|it| it.is_in_a_line_of(&body));
        return changes;
    }
    Vec::new()
}

fn described(changed: &Changed, definition: Definition<'_>, change: &Change) -> GeneratedMutant {
    let text = &changed.source.text;
    let probe = probe::of(&changed.source, definition, change.start());
    let (line, _) = changed.source.line(change.start());
    let base = changed.file.rsplit('/').next().unwrap_or(changed.file);
    GeneratedMutant {
        name: format!("{base}:{line}:{}", change.operator),
        file: changed.file.to_owned(),
        function: definition.name.to_owned(),
        line,
        operator: change.operator,
        diff: change.diff(changed.file, text),
        object: ObjectCode::New,
        probe: probe.map(|it| it.diff(changed.file, text)),
    }
}

/// What the compiler makes of a change, and of the file without it.
struct Compilation {
    changed: Compiled,
    unchanged: Compiled,
}

/// Compiles all changes, on all CPUs.
fn compile(
    built: &Built<'_>,
    files: &[Changed],
    changes: &[(&Changed, Change)],
    progress: &(dyn Progress + Sync),
) -> Result<Vec<Compilation>, BuildError> {
    let mut objects: BTreeMap<&str, (Objects<'_>, Compiled)> = BTreeMap::new();
    let is_changed = |file: &&Changed| changes.iter().any(|(of, _)| of.file == file.file);
    for file in files.iter().filter(is_changed) {
        progress.step(&format!("compiling what uses {}", file.file));
        let mut of = Objects::of(built.clone(), file.file)?;
        let text = &file.source.text;
        if file.file.ends_with(".h") {
            of.keep_those_that_use(&probe::of_all(&file.source), text, 0, progress)?;
        }
        let unchanged = of.compile(text, 0, progress)?;
        objects.insert(file.file, (of, unchanged));
    }
    let jobs = thread::available_parallelism().map_or(1, usize::from);
    let next = Mutex::new(0..changes.len());
    let results: Mutex<BTreeMap<usize, Result<Compilation, BuildError>>> = Mutex::default();
    thread::scope(|scope| {
        for number in 0..jobs {
            let (next, results, objects) = (&next, &results, &objects);
            scope.spawn(move || {
                while let Some(at) = next.lock().ok().and_then(|mut it| it.next()) {
                    let Some((file, change)) = changes.get(at) else {
                        break;
                    };
                    let Some((of, unchanged)) = objects.get(file.file) else {
                        break;
                    };
                    progress.step(&format!("compiling mutant {} of {}", at + 1, changes.len()));
                    let text = change.apply(&file.source.text);
                    let compiled = of
                        .compile(&text, number, progress)
                        .map(|changed| Compilation {
                            changed,
                            unchanged: unchanged.clone(),
                        });
                    let failed = compiled.is_err();
                    if let Ok(mut results) = results.lock() {
                        results.insert(at, compiled);
                    }
                    if failed {
                        break;
                    }
                }
            });
        }
    });
    let results = results.into_inner().unwrap_or_default();
    results.into_values().collect()
}

/// Says of each mutant what the compiler makes of it.
fn judge(mutants: &mut [GeneratedMutant], compiled: Vec<Compilation>) {
    let mut seen: BTreeMap<(String, String), String> = BTreeMap::new();
    for (mutant, of) in mutants.iter_mut().zip(compiled) {
        mutant.object = match of.changed {
            None => ObjectCode::None,
            changed if changed == of.unchanged => ObjectCode::Same,
            Some(hash) => {
                let key = (mutant.file.clone(), hash);
                match seen.get(&key) {
                    Some(twin) => ObjectCode::Twin(twin.clone()),
                    None => {
                        seen.insert(key, mutant.name.clone());
                        ObjectCode::New
                    }
                }
            }
        };
    }
}

#[cfg(test)]
mod tests;
