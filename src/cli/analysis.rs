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

struct NoFindings;
impl Findings for NoFindings {
    fn matching(&self, _: &crate::trace::Trace, _: &crate::invariant::Violation) -> Option<String> {
        None
    }
}

impl Analysis {
    /// Everything this binary knows.
    #[must_use]
    pub fn everything() -> Self {
        Self {
            invariants: crate::invariant::registry(),
            findings: Box::new(NoFindings),
        }
    }

    /// IDs of all invariants.
    #[must_use]
    pub fn invariant_ids(&self) -> Vec<&'static str> {
        self.invariants.iter().map(|it| it.id()).collect()
    }
}
