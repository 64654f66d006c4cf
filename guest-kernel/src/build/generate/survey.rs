//! What the compiler makes of changed files.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::thread;

use super::change::{Operator, diff};
use super::objects::{Built, Compiled, Objects};
use super::schema::{Part, Schema, parameter, variables};
use super::source::Source;
use super::{BuildError, ChangeOf, Changed, GeneratedMutant, MutantSchema, ObjectCode};
use crate::progress::Progress;

/// What the compiler makes of a change, and of the file without it.
pub(super) struct Compilation {
    pub changed: Compiled,
    pub unchanged: Compiled,
}

/// How to compile what uses the changed files.
pub(super) struct Survey<'a> {
    /// By file, with what it becomes without a change.
    objects: BTreeMap<&'a str, (Objects<'a>, Compiled)>,
}

impl<'a> Survey<'a> {
    /// Finds the objects of a build that use the files in which something is changed.
    pub fn of(
        built: &Built<'a>,
        files: &'a [Changed],
        changes: &[ChangeOf<'_>],
        progress: &dyn Progress,
    ) -> Result<Self, BuildError> {
        let mut objects = BTreeMap::new();
        let is_changed = |file: &&Changed| changes.iter().any(|it| it.file.file == file.file);
        for file in files.iter().filter(is_changed) {
            progress.step(&format!("compiling what uses {}", file.file));
            let mut of = Objects::of(built.clone(), file.file)?;
            let text = &file.source.text;
            if file.file.ends_with(".h") {
                of.keep_those_that_use(&nonsense(&file.source), text, 0, progress)?;
            }
            let unchanged = of.compile(text, 0, progress)?;
            objects.insert(file.file, (of, unchanged));
        }
        Ok(Self { objects })
    }

    /// Compiles all changes, on all CPUs.
    pub fn compile(
        &self,
        changes: &[ChangeOf<'_>],
        progress: &(dyn Progress + Sync),
    ) -> Result<Vec<Compilation>, BuildError> {
        let objects = &self.objects;
        let jobs = thread::available_parallelism().map_or(1, usize::from);
        let next = Mutex::new(0..changes.len());
        let results: Mutex<BTreeMap<usize, Result<Compilation, BuildError>>> = Mutex::default();
        thread::scope(|scope| {
            for number in 0..jobs {
                let (next, results) = (&next, &results);
                scope.spawn(move || {
                    while let Some(at) = next.lock().ok().and_then(|mut it| it.next()) {
                        let Some(ChangeOf { file, change, .. }) = changes.get(at) else {
                            break;
                        };
                        let Some((of, unchanged)) = objects.get(file.file) else {
                            break;
                        };
                        progress.step(&format!("compiling mutant {} of {}", at + 1, changes.len()));
                        let text = change.apply(&file.source.text);
                        let compiled =
                            of.compile(&text, number, progress)
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

    /// The kernel that has as many mutants with objects of their own as the compiler takes together.
    pub fn schema(
        &self,
        files: &[Changed],
        mutants: &[GeneratedMutant],
        changes: &[ChangeOf<'_>],
        progress: &dyn Progress,
    ) -> Result<Option<MutantSchema>, BuildError> {
        let mut schema = MutantSchema::default();
        let mut written: Vec<(&Changed, String)> = Vec::new();
        for file in files {
            let Some((of, _)) = self.objects.get(file.file) else {
                continue;
            };
            progress.step(&format!("putting the mutants of {} together", file.file));
            let numbered = mutants.iter().zip(changes).zip(1..);
            let parts = numbered.filter(|((mutant, made), _)| {
                mutant.object == ObjectCode::New
                    && made.file.file == file.file
                    && !is_for_the_compiler(mutant, made)
            });
            let parts: Vec<Part<'_>> = parts
                .map(|((_, made), number)| Part {
                    definition: made.definition,
                    change: &made.change,
                    number,
                    compares: true,
                })
                .collect();
            let of = Schema::of(&file.source, &parts, schema.places, &mut |text| {
                Ok(of.compile(text, 0, progress)?.is_some())
            })?;
            schema.places = of.end;
            schema.chosen.extend(of.chosen);
            schema.of.extend(of.places);
            schema.differs.extend(of.differs);
            written.push((file, of.text));
        }
        if schema.of.is_empty() {
            return Ok(None);
        }
        // A header is in many objects, the variables are in one.
        let is_source = |it: &&Changed| it.file.ends_with(".c");
        let variables = variables(schema.places) + &parameter();
        match written.iter_mut().find(|(file, _)| is_source(file)) {
            Some((_, text)) => text.push_str(&variables),
            None => {
                let file = files.iter().find(is_source);
                let with = |file: &Changed| file.source.text.clone() + &variables;
                written.extend(file.map(|file| (file, with(file))));
            }
        }
        let diffs = written
            .iter()
            .map(|(file, text)| diff(file.file, &file.source.text, text));
        schema.diff = diffs.collect();
        Ok(Some(schema))
    }
}

/// Whether a change only takes freedom from the compiler, or gives it: what that makes of the code, the kernel of its own shows, and one
/// that has both versions side by side does not.
fn is_for_the_compiler(mutant: &GeneratedMutant, made: &ChangeOf<'_>) -> bool {
    let is_barrier = |(range, _): &(Range<usize>, String)| {
        made.file.source.text.get(range.clone()) == Some("barrier();")
    };
    mutant.operator == Operator::DropOnce || made.change.edits().iter().any(is_barrier)
}

/// Says of each mutant what the compiler makes of it.
pub(super) fn judge(mutants: &mut [GeneratedMutant], compiled: Vec<Compilation>) {
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

/// The file with a trap in all its functions and nonsense in all its macros: no object that uses one of them becomes what it
/// is without.
fn nonsense(source: &Source) -> String {
    let mut text = source.text.clone();
    for definition in source.definitions().iter().rev() {
        let start = definition.body.start_byte();
        match definition.is_macro() {
            true => text.insert_str(start, "@ "),
            false => text.insert_str(start + 1, "__builtin_trap();"),
        }
    }
    text
}
