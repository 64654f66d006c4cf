//! What verdicts are made of.

use crate::invariant::Invariant;
use crate::report::Findings;

/// What verdicts are made of.
#[expect(missing_debug_implementations, reason = "holds trait objects")]
pub struct Analysis {
    /// All invariants.
    pub invariants: Vec<&'static dyn Invariant>,
    /// All findings.
    pub findings: Box<dyn Findings>,
}

impl Analysis {
    /// IDs of all invariants.
    #[must_use]
    pub fn invariant_ids(&self) -> Vec<&'static str> {
        self.invariants.iter().map(|it| it.id()).collect()
    }
}
