//! All first-order mutants of the deferred unwinder: a kernel each that differs in one small change.
//!
//! ```text
//! scope.txt ──> functions ──> changes (operators) ──> objects: none, the same, another's, new ──> one kernel with those (schema)
//! ```
//!
//! Only what compiles is a mutant. One whose objects are those of the kernel without it is equivalent; of several with the
//! same objects the first counts. What is left is put into one kernel, as far as C allows that.

mod argued;
mod calls;
mod change;
mod differs;
mod killed;
mod objects;
mod operators;
mod schema;
mod scope;
mod sites;
mod source;
mod statements;
mod survey;
mod values;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use self::argued::{argued, changed_lines};
use self::change::Change;
pub use self::change::Operator;
pub use self::killed::killed;
use self::objects::Built;
use self::operators::Changes;
pub use self::schema::{MUTANT, REACHED};
use self::scope::Place;
use self::source::{Definition, Source};
use self::survey::{Survey, judge};
use super::patch::{self, Patch};
use super::workspace::Workspace;
use super::{BuildError, BuildSpec, client, embedded, identity, make, seed, tools, tree};
use crate::cache::{Cache, hex};
use crate::progress::Progress;

/// Part of what a survey is remembered by. Change it when the same source gives other mutants.
const RECIPE: &str = "1";
/// The same of the kernel that has many mutants.
const SCHEMA_RECIPE: &str = "4";

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
    /// The number by which it is chosen in the kernel that has many; none where it is a kernel of its own.
    #[serde(skip)]
    pub choice: Option<u32>,
    /// The place in that kernel at which it is noted that the changed statement is executed, if there is one.
    #[serde(skip)]
    pub place: Option<u32>,
    /// Where that kernel notes that the mutant would have made a difference, if that can be noted.
    #[serde(skip)]
    pub difference: Option<u32>,
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
}

/// A file in which something is changed.
struct Changed {
    file: &'static str,
    source: Source,
}

/// A change, and where it is made.
struct ChangeOf<'a> {
    file: &'a Changed,
    definition: Definition<'a>,
    change: Change,
}

/// All mutants of a kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Generated {
    /// The files, by their path from the root of the source, and their text.
    pub sources: Vec<(String, String)>,
    /// In the order of the files and lines.
    pub mutants: Vec<GeneratedMutant>,
    /// The kernel that has those of them that can be chosen; none where there are none.
    pub schema: Option<MutantSchema>,
}

/// A kernel that has many mutants: see [`MUTANT`] and [`REACHED`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MutantSchema {
    /// What it differs in from the kernel without a mutant.
    diff: String,
    /// The number of its places.
    pub places: u32,
    /// The numbers of the mutants that can be chosen.
    chosen: BTreeSet<u32>,
    /// By number of a mutant: its place.
    of: BTreeMap<u32, u32>,
    /// By number of a mutant: where it is noted that it makes a difference.
    differs: BTreeMap<u32, u32>,
}

impl MutantSchema {
    /// What it differs in from the kernel without a mutant, as a patch to build it with.
    #[must_use]
    pub fn patch(&self) -> Patch {
        Patch {
            name: "generated:all".to_owned(),
            content: self.diff.clone().into_bytes(),
        }
    }
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
    let (workspace, tree) = tree::open(&spec.source, cache, progress)?;
    let tree = patch::apply_all(&workspace, tree, &spec.source.to_string(), &spec.patches)?;
    let (tree, client) = client::add(&workspace, tree)?;
    let fragments = embedded::with_built_in(&spec.fragments, client == client::Client::Added);
    let files = changed_files(&workspace, &tree)?;
    let (mut mutants, changes): (Vec<_>, Vec<_>) = { all(&files).into_iter() }
        .filter(|(mutant, _)| is_wanted(&mutant.name))
        .unzip();
    let source = |it: &Changed| (it.file.to_owned(), it.source.text.clone());
    let sources = files.iter().map(source).collect();
    let notes = Notes::of(&identity(&tree, &fragments)?, &mutants);
    let known = cache.note::<Vec<ObjectCode>>(&notes.objects)?;
    let known = known.filter(|it| it.fact.len() == mutants.len());
    let are_known = known.is_some();
    for (mutant, object) in mutants
        .iter_mut()
        .zip(known.into_iter().flat_map(|it| it.fact))
    {
        mutant.object = object;
    }
    if are_known && let Some(schema) = cache.note::<Option<MutantSchema>>(&notes.schema)? {
        return Ok(Generated::new(sources, mutants, schema.fact));
    }
    let workspace = workspace.for_building(cache, progress)?;
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
    let survey = Survey::of(&built, &files, &changes, progress)?;
    if !are_known {
        judge(&mut mutants, survey.compile(&changes, progress)?);
        let objects: Vec<&ObjectCode> = mutants.iter().map(|it| &it.object).collect();
        cache.set_note(&notes.objects, &objects)?;
    }
    let schema = survey.schema(&files, &mutants, &changes, progress)?;
    cache.set_note(&notes.schema, &schema)?;
    Ok(Generated::new(sources, mutants, schema))
}

impl Generated {
    fn new(
        sources: Vec<(String, String)>,
        mut mutants: Vec<GeneratedMutant>,
        schema: Option<MutantSchema>,
    ) -> Self {
        for (mutant, number) in mutants.iter_mut().zip(1..) {
            let known = schema.as_ref();
            mutant.choice = known.and_then(|it| it.chosen.get(&number)).map(|_| number);
            mutant.place = known.and_then(|it| it.of.get(&number)).copied();
            mutant.difference = known.and_then(|it| it.differs.get(&number)).copied();
        }
        Self {
            sources,
            mutants,
            schema,
        }
    }
}

/// The names of the notes that say what is known of mutants.
struct Notes {
    objects: String,
    schema: String,
}

impl Notes {
    fn of(kernel: &str, mutants: &[GeneratedMutant]) -> Self {
        let mut hash = Sha256::new();
        hash.update(RECIPE);
        hash.update(kernel);
        for mutant in mutants {
            hash.update(&mutant.name);
            hash.update(&mutant.diff);
        }
        let hash = hex(&hash.finalize());
        Self {
            objects: format!("generated-{hash}"),
            schema: format!("schema-{SCHEMA_RECIPE}-{hash}"),
        }
    }
}

/// All mutants of these files, each with its change.
fn all(files: &[Changed]) -> Vec<(GeneratedMutant, ChangeOf<'_>)> {
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
            let made = ChangeOf {
                file,
                definition,
                change,
            };
            found.push((mutant, made));
        }
    }
    found
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
        choice: None,
        place: None,
        difference: None,
    }
}

#[cfg(test)]
mod tests;
