//! The invariants and findings that trials are judged by.

use crate::judge::MatchFinding;
use unwindlab_oracle::invariant::finding::{Findings, FindingsError};
use unwindlab_oracle::invariant::{INVARIANTS, Invariant};

/// The invariants and findings that trials are judged by.
#[expect(missing_debug_implementations, reason = "holds trait objects")]
pub struct Analysis {
    /// All invariants.
    pub invariants: &'static [Invariant],
    /// All findings.
    pub findings: Box<dyn MatchFinding>,
}

impl Analysis {
    /// The invariants and findings that are built into the program.
    ///
    /// # Errors
    /// [`FindingsError`], which a test rules out.
    pub fn embedded() -> Result<Self, FindingsError> {
        Ok(Self {
            invariants: INVARIANTS,
            findings: Box::new(Findings::embedded()?),
        })
    }

    /// IDs of all invariants.
    #[must_use]
    pub fn invariant_ids(&self) -> Vec<&'static str> {
        self.invariants.iter().map(|it| it.id).collect()
    }
}
