//! Accesses to a field of a workload thread's `task_struct`, as triggers.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;
use serde::de::Deserializer;

use super::{Injection, TriggerPlace, When};
use crate::error::Complaints;
use crate::events::source::{SourceError, aligned, task_field};
use crate::located::At;
use crate::model::Scenario;
use crate::resolve::KernelSymbols;
use crate::units::{Notation, NotationError, notation};
use unwindlab_engine::plan::CodePlace;

/// Hardware breakpoints of a CPU.
const BREAKPOINTS: usize = 4;

/// Accesses to a field of the workload thread's `task_struct`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct WatchedField {
    /// The field, with the number of bytes to watch if that is not its size:
    /// `task.unwind_info.id`, `task.comm/8`.
    pub field: TaskField,
    /// The accesses that count (default: writes).
    #[serde(default)]
    pub access: FieldAccess,
}

/// Accesses to a field.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FieldAccess {
    /// Writes.
    #[default]
    Write,
    /// Reads and writes.
    ReadWrite,
}

/// A field of a task: `task.FIELD` or `task.FIELD/BYTES`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskField {
    path: String,
    bytes: Option<u8>,
}

impl Notation for TaskField {
    const EXPECTED: &'static str =
        "a field of the task such as `task.unwind_info.id` or `task.comm/8` (1, 2, 4 or 8 bytes)";
    const NAME: &'static str = "TaskField";
    const PATTERN: &'static str = "^task(\\.[A-Za-z_][A-Za-z0-9_]*)+(/[1248])?$";
}

impl FromStr for TaskField {
    type Err = NotationError;

    fn from_str(text: &str) -> Result<Self, NotationError> {
        let path = text.strip_prefix("task.").ok_or(NotationError)?;
        let (path, bytes) = match path.split_once('/') {
            None => (path, None),
            Some((path, bytes)) => (path, Some(bytes.parse().map_err(|_| NotationError)?)),
        };
        let is_name = |name: &str| {
            name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        if !path.split('.').all(is_name) || !matches!(bytes, None | Some(1 | 2 | 4 | 8)) {
            return Err(NotationError);
        }
        Ok(Self {
            path: path.to_owned(),
            bytes,
        })
    }
}
notation!(TaskField);

impl WatchedField {
    /// Where it is in this kernel's tasks.
    pub(super) fn place(&self, symbols: &dyn KernelSymbols) -> Result<CodePlace, SourceError> {
        let TaskField { path, bytes } = &self.field;
        let (offset, bytes) = task_field(path, *bytes, symbols)?;
        // A task_struct lies on a multiple of its cache line.
        aligned(&format!("task.{path}"), offset, bytes)?;
        Ok(CodePlace::TaskField {
            offset,
            bytes,
            reads: self.access == FieldAccess::ReadWrite,
        })
    }
}

fn watched(at: Option<&At<TriggerPlace>>) -> Option<&WatchedField> {
    match &**at? {
        TriggerPlace::Watch(watched) => Some(watched),
        _ => None,
    }
}

/// Refuses what takes an instruction, or a task that is not known.
pub(super) fn check(when: &When<'_>, complaints: &mut Complaints<'_>) {
    if watched(when.at).is_none() {
        return;
    }
    let any = when.task.filter(|it| ***it == super::TaskKind::Any);
    let keys = [
        ("times", when.times.map(At::location)),
        ("sweep", when.sweep.map(At::location)),
        ("task", any.map(At::location)),
    ];
    let why = "`watch` takes `first`, `hit`, `repeat`, `vcpu`, `thread` and `in-nmi`, and is on the \
               workload threads' own tasks";
    super::check::refuse(keys, why, complaints);
}

/// Each field of each thread takes a breakpoint of the CPU.
pub(super) fn check_number(scenario: &Scenario, complaints: &mut Complaints<'_>) {
    let threads = *scenario.workload.threads;
    let mut all = BTreeSet::new();
    let mut last = None;
    for when in scenario.inject.iter().filter_map(Injection::when) {
        let Some(WatchedField { field, access }) = watched(when.at) else {
            continue;
        };
        last = when.at;
        match when.thread {
            Some(thread) => all.extend([(field, access, **thread)]),
            None => all.extend((0..threads).map(|thread| (field, access, thread))),
        }
    }
    if let Some(last) = last {
        complaints.require(all.len() <= BREAKPOINTS, last.location(), || {
            let found = all.len();
            format!(
                "{found} fields of threads are watched, a CPU has {BREAKPOINTS} breakpoints: name \
                 a `thread`, or use fewer threads"
            )
        });
    }
}
