//! Findings: kernel bugs that are understood, as data.
//!
//! A violation that matches the signature of a finding exactly is that bug. The list is
//! docs/findings/findings.yaml, which is built in; docs/findings/README.md explains its form.

mod signature;

use std::collections::BTreeSet;

use serde::Deserialize;

use super::{Evidence, INVARIANTS, Violation};
use signature::Signature;

/// The built-in list.
const EMBEDDED: &str = include_str!("../../../../docs/findings/findings.yaml");

/// The id of a finding (`F001`), as in docs/findings.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(transparent)]
pub struct FindingId(String);

impl FindingId {
    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for FindingId {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

/// What a signature needs to know about the kernel under test.
pub trait Resolver {
    /// The function that holds a kernel address.
    fn function(&self, address: u64) -> Option<String>;
    /// Whether the kernel has a symbol of this name.
    fn has(&self, name: &str) -> bool;
}

/// Why a list of findings is refused.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum FindingsError {
    /// The YAML is not of the form that docs/findings/README.md describes.
    #[error("findings.yaml: {0}")]
    Yaml(#[from] serde_saphyr::Error),
    /// An entry is malformed.
    #[error("finding {id}: {what}")]
    Entry { id: String, what: String },
}

/// One entry.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finding {
    /// Its id.
    pub id: FindingId,
    /// One line: what goes wrong.
    pub title: String,
    /// The invariants it violates.
    pub invariants: Vec<String>,
    /// The kernels that have it.
    pub kernels: Kernels,
    /// The event sequence that identifies it.
    signature: Signature,
    /// Other sequences that the same bug produces, also in the lab client's log.
    #[serde(default)]
    also: Vec<Signature>,
}

/// Kernels that have a bug.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kernels {
    /// Patterns of `uname -r`; `*` stands for anything. One of them must match.
    pub releases: Vec<String>,
    /// Names that the kernel's symbol table must have, all of them.
    #[serde(default)]
    pub symbols: Vec<String>,
}

/// The findings that are known.
#[derive(Debug, Clone, Default)]
pub struct Findings {
    list: Vec<Finding>,
}

impl Findings {
    /// The built-in findings.
    ///
    /// # Errors
    /// [`FindingsError`] if the built-in list is malformed; a test rules that out.
    pub fn embedded() -> Result<Self, FindingsError> {
        Self::parse(EMBEDDED)
    }

    /// Reads a list.
    ///
    /// # Errors
    /// [`FindingsError`] for anything but a list of well-formed entries with ids of their own.
    pub fn parse(yaml: &str) -> Result<Self, FindingsError> {
        let list: Vec<Finding> = serde_saphyr::from_str(yaml)?;
        let mut ids = BTreeSet::new();
        for finding in &list {
            let flaw = if ids.insert(finding.id.clone()) {
                finding.flaw()
            } else {
                Some("the id is used twice".to_owned())
            };
            if let Some(what) = flaw {
                let id = finding.id.0.clone();
                return Err(FindingsError::Entry { id, what });
            }
        }
        Ok(Self { list })
    }

    /// All of them, in the order of the list.
    pub fn iter(&self) -> impl Iterator<Item = &Finding> {
        self.list.iter()
    }

    /// The finding that a violation matches exactly, if any: by invariant, kernel, and the whole
    /// sequence of its events. Any other violation stays a failure.
    #[must_use]
    pub fn match_finding<K: Resolver + ?Sized>(
        &self,
        violation: &Violation,
        evidence: &Evidence<'_>,
        kernel: &K,
    ) -> Option<FindingId> {
        let matches = |finding: &&Finding| {
            finding.invariants.contains(&violation.invariant)
                && finding.kernels.include(&evidence.trace().release, kernel)
                && finding
                    .signatures()
                    .any(|signature| signature.matches(violation, evidence, kernel))
        };
        self.list.iter().find(matches).map(|f| f.id.clone())
    }
}

impl Finding {
    fn signatures(&self) -> impl Iterator<Item = &Signature> {
        std::iter::once(&self.signature).chain(&self.also)
    }

    /// What is wrong with an entry, if anything is.
    fn flaw(&self) -> Option<String> {
        let number = self.id.0.strip_prefix('F').unwrap_or_default();
        if number.len() != 3 || !number.bytes().all(|b| b.is_ascii_digit()) {
            return Some("the id is not F and three digits".into());
        }
        if self.invariants.is_empty() || self.kernels.releases.is_empty() {
            return Some("it names no invariants or no kernels".into());
        }
        let known = |id: &&String| INVARIANTS.iter().any(|it| it.id == id.as_str());
        if let Some(id) = self.invariants.iter().find(|id| !known(id)) {
            return Some(format!("there is no invariant {id}"));
        }
        self.signatures().find_map(Signature::flaw)
    }
}

impl Kernels {
    fn include<K: Resolver + ?Sized>(&self, release: &str, kernel: &K) -> bool {
        self.releases.iter().any(|pattern| like(pattern, release))
            && self.symbols.iter().all(|name| kernel.has(name))
    }
}

/// Whether `text` matches `pattern`, in which `*` stands for any text, even none.
fn like(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests;
