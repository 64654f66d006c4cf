//! Known kernel bugs among violations, and what the oracle asks about the kernel under test.

use unwindlab_oracle::invariant::finding::{Findings, Presence, Resolver};
use unwindlab_oracle::invariant::{EntryCode, Evidence, KernelText, Violation};
use unwindlab_scenario::KernelSymbols;

/// Recognizes violations that are known kernel bugs.
pub trait MatchFinding: Sync {
    /// The ID of the finding that the violation matches exactly, if any.
    fn matching(
        &self,
        violation: &Violation,
        evidence: &Evidence<'_>,
        symbols: &dyn KernelSymbols,
    ) -> Option<String>;

    /// The ID of the finding that the violation would match by its events alone: this kernel's code
    /// is not the finding's, or the events are at other instructions.
    fn matching_but_for_code(
        &self,
        _violation: &Violation,
        _evidence: &Evidence<'_>,
        _symbols: &dyn KernelSymbols,
    ) -> Option<String> {
        None
    }

    /// A line for each finding: what of it is in the code of a kernel.
    fn in_image(&self, _symbols: &dyn KernelSymbols) -> Vec<FindingInImage> {
        Vec::new()
    }
}

/// What of a finding is in a kernel's code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FindingInImage {
    /// Its ID.
    pub id: String,
    /// One line: what goes wrong.
    pub title: String,
    /// What is there.
    pub presence: Presence,
}

impl MatchFinding for Findings {
    fn matching(
        &self,
        violation: &Violation,
        evidence: &Evidence<'_>,
        symbols: &dyn KernelSymbols,
    ) -> Option<String> {
        let found = self.match_finding(violation, evidence, &FindingSymbols(symbols))?;
        Some(found.as_str().to_owned())
    }

    fn matching_but_for_code(
        &self,
        violation: &Violation,
        evidence: &Evidence<'_>,
        symbols: &dyn KernelSymbols,
    ) -> Option<String> {
        let found = self.match_but_for_code(violation, evidence, &FindingSymbols(symbols))?;
        Some(found.as_str().to_owned())
    }

    fn in_image(&self, symbols: &dyn KernelSymbols) -> Vec<FindingInImage> {
        let found = Self::in_image(self, &FindingSymbols(symbols));
        let told = found.into_iter().map(|(finding, presence)| FindingInImage {
            id: finding.id.to_string(),
            title: finding.title.clone(),
            presence,
        });
        told.collect()
    }
}

/// The kernel's symbols and text, as the oracle asks for them.
struct FindingSymbols<'a>(&'a dyn KernelSymbols);

impl KernelText for FindingSymbols<'_> {
    fn symbol(&self, address: u64) -> Option<(String, u64)> {
        self.0.resolve(address)
    }

    fn code(&self, address: u64, length: usize) -> Option<Vec<u8>> {
        self.0.code(address, length)
    }
}

/// The entry code of a kernel.
pub(super) fn entry_code(symbols: &dyn KernelSymbols) -> EntryCode<'_> {
    EntryCode::new(FindingSymbols(symbols))
}

impl Resolver for FindingSymbols<'_> {
    fn function(&self, address: u64) -> Option<String> {
        self.0.resolve(address).map(|(name, _)| name)
    }

    fn has(&self, name: &str) -> bool {
        !self.0.addresses(name).is_empty()
    }

    fn address(&self, name: &str) -> Option<u64> {
        self.0.addresses(name).first().copied()
    }

    fn code(&self, function: &str) -> Option<(u64, Vec<u8>)> {
        let start = self.address(function)?;
        let length = usize::try_from(self.0.size(function)?).ok()?;
        Some((start, self.0.code(start, length)?))
    }

    fn text(&self, address: u64, length: usize) -> Option<Vec<u8>> {
        self.0.code(address, length)
    }

    fn current_task(&self) -> Option<u64> {
        self.0.current_task_offset()
    }

    fn is_unknown(&self) -> bool {
        self.0.is_unknown()
    }

    fn identity(&self) -> Option<String> {
        self.0.identity()
    }
}
