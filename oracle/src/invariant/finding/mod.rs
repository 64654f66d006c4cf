//! Findings: kernel bugs that are understood, as data.
//!
//! A violation that matches the signature of a finding exactly is that bug. The list is
//! docs/findings/findings.yaml, which is built in; docs/findings/README.md explains its form.

mod behind;
mod image;
mod places;
mod signature;
mod uprobes;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;

use super::{Evidence, INVARIANTS, Violation};
pub use image::FoundWindow;
use image::{Code, Image, Window};
use places::Places;
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
    /// The address of a symbol.
    fn address(&self, _name: &str) -> Option<u64> {
        None
    }
    /// The address and the code of a function, as linked. Without it, no finding matches that says
    /// something of the code.
    fn code(&self, _function: &str) -> Option<(u64, Vec<u8>)> {
        None
    }
    /// Up to so many bytes of text at an address, as linked.
    fn text(&self, _address: u64, _length: usize) -> Option<Vec<u8>> {
        None
    }
    /// Offset of the pointer to the running task from the CPU's GS base.
    fn current_task(&self) -> Option<u64> {
        None
    }
    /// Nothing is known of the kernel: every question is open.
    fn is_unknown(&self) -> bool {
        false
    }
    /// What no other kernel has, so that its code is decoded once only.
    fn identity(&self) -> Option<String> {
        None
    }
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
    /// What the code of a kernel with the bug looks like: all of it.
    #[serde(default)]
    code: Vec<Code>,
    /// The instructions between which the request falls.
    window: Option<Window>,
    /// Windows of the same cause in functions that those of the first call.
    #[serde(default, rename = "inner-windows")]
    inner: Vec<Window>,
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

/// What of a finding is in a kernel's code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Presence {
    /// Its window, or another part of what it says, is not there: nothing matches it.
    Absent,
    /// All that it says of the code, which names no window.
    Code,
    /// Its window, in each of the functions that have it.
    Windows(Vec<FoundWindow>),
}

impl Presence {
    /// Whether an address is in one of the windows.
    fn contains(&self, ip: u64) -> bool {
        match self {
            Self::Windows(windows) => windows.iter().any(|it| it.instructions.contains(&ip)),
            Self::Absent | Self::Code => false,
        }
    }

    /// The window in this function.
    fn window_in(&self, function: &str) -> Option<&FoundWindow> {
        match self {
            Self::Windows(windows) => windows.iter().find(|it| it.function == function),
            Self::Absent | Self::Code => None,
        }
    }
}

/// The findings that are known.
#[derive(Debug, Clone, Default)]
pub struct Findings {
    list: Vec<Finding>,
    /// What is in the code of the kernels that were looked at.
    seen: Arc<Mutex<BTreeMap<(String, FindingId), Presence>>>,
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
        Ok(Self {
            list,
            seen: Arc::default(),
        })
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
                && self.shows(finding, violation, evidence, kernel)
        };
        self.list.iter().find(matches).map(|f| f.id.clone())
    }

    /// The finding that a violation would match by its events, if the code of this kernel were as
    /// the finding says, and they were at the instructions that it names. Of a kernel that is not known no instruction
    /// is looked at.
    #[must_use]
    pub fn match_but_for_code<K: Resolver + ?Sized>(
        &self,
        violation: &Violation,
        evidence: &Evidence<'_>,
        kernel: &K,
    ) -> Option<FindingId> {
        let places = Places::anywhere(kernel, &|| &Presence::Absent);
        let matches = |finding: &&Finding| {
            let mut signatures = finding.signatures();
            finding.says_of_code()
                && finding.invariants.contains(&violation.invariant)
                && finding.kernels.include(&evidence.trace().release, kernel)
                && signatures.any(|it| it.matches(violation, evidence, &places))
        };
        self.list.iter().find(matches).map(|f| f.id.clone())
    }

    /// Whether a violation shows a finding, and the kernel's code is as the finding says.
    fn shows<K: Resolver + ?Sized>(
        &self,
        finding: &Finding,
        violation: &Violation,
        evidence: &Evidence<'_>,
        kernel: &K,
    ) -> bool {
        let presence = OnceCell::new();
        let look = || presence.get_or_init(|| self.presence(finding, kernel));
        let places = Places::new(kernel, &look);
        let mut signatures = finding.signatures();
        signatures.any(|it| it.matches(violation, evidence, &places))
            && (!finding.says_of_code() || *look() != Presence::Absent)
    }

    /// Each finding, and what of it is in the code of a kernel.
    #[must_use]
    pub fn in_image<K: Resolver + ?Sized>(&self, kernel: &K) -> Vec<(&Finding, Presence)> {
        let all = self.list.iter();
        all.map(|it| (it, self.presence(it, kernel))).collect()
    }

    /// What of a finding is in the code of a kernel, which is decoded once.
    fn presence<K: Resolver + ?Sized>(&self, finding: &Finding, kernel: &K) -> Presence {
        let Some(identity) = kernel.identity() else {
            return finding.presence(kernel);
        };
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (identity, finding.id.clone());
        let known = seen.entry(key).or_insert_with(|| finding.presence(kernel));
        known.clone()
    }
}

impl Finding {
    /// What of it is in the code of a kernel: all that it says, and the window in at least one
    /// function, or nothing.
    fn presence<K: Resolver + ?Sized>(&self, kernel: &K) -> Presence {
        let image = Image::new(kernel);
        let probed = self.kernels.symbols.iter().all(|name| kernel.has(name));
        if !probed || !self.code.iter().all(|code| image.has(code)) {
            return Presence::Absent;
        }
        let Some(window) = &self.window else {
            return Presence::Code;
        };
        let mut found = image.windows(window);
        if found.is_empty() {
            return Presence::Absent;
        }
        found.extend(self.inner.iter().flat_map(|it| image.windows(it)));
        Presence::Windows(found)
    }

    /// Whether it says anything of the code.
    fn says_of_code(&self) -> bool {
        self.window.is_some() || !self.code.is_empty()
    }

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
        let window = self.window.as_ref();
        let mut windows = window.iter().copied().chain(&self.inner);
        if let Some(flaw) = windows.find_map(Window::flaw) {
            return Some(flaw.into());
        }
        if let Some(flaw) = self.code.iter().find_map(Code::flaw) {
            return Some(flaw.into());
        }
        if window.is_none() && self.signatures().any(Signature::names_window) {
            return Some("its signature names a window, but it has none".into());
        }
        self.signatures().find_map(Signature::flaw)
    }
}

impl Kernels {
    fn include<K: Resolver + ?Sized>(&self, release: &str, kernel: &K) -> bool {
        self.releases.iter().any(|pattern| like(pattern, release))
            && (kernel.is_unknown() || self.symbols.iter().all(|name| kernel.has(name)))
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
mod behind_tests;
#[cfg(test)]
mod flaw_tests;
#[cfg(test)]
mod instance_tests;
#[cfg(test)]
mod overtaken_tests;
#[cfg(test)]
mod perf_tests;
#[cfg(test)]
mod reset_tests;
#[cfg(test)]
mod sysret_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod uprobe_tests;
