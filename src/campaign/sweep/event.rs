//! What a sweep tells, and what comes of it.

use std::path::Path;

use crate::host::provider::TestKernel;
use crate::judge::ScenarioResult;
use crate::judge::outcome::OutcomeClass;
use crate::judge::sweep::{SweepSymptom, Verdicts};
use crate::report::sweep::Summary;
use unwindlab_engine::plan::sweep::Point;

/// What happens during a sweep.
#[expect(missing_debug_implementations, reason = "holds trait objects")]
#[derive(Clone, Copy)]
pub enum SweepEvent<'a> {
    /// A trial failed. Only told of a sweep of single points.
    Failed(SweptFailure<'a>),
    /// A trial failed as none before it.
    New(SweptFailure<'a>),
    /// All trials are made.
    Ended(&'a SweptPath<'a>),
    /// A replay file was written.
    Replay(&'a Path),
}

/// A trial of a sweep that failed.
#[expect(missing_debug_implementations, reason = "holds trait objects")]
#[derive(Clone, Copy)]
pub struct SweptFailure<'a> {
    /// Where its NMIs came.
    pub point: Point,
    /// The trial, judged.
    pub result: &'a ScenarioResult,
    /// All trials so far, with their path.
    pub verdicts: &'a Verdicts<'a>,
    /// The kernel under test.
    pub kernel: &'a dyn TestKernel,
}

/// A path that was swept.
#[expect(missing_debug_implementations, reason = "holds trait objects")]
pub struct SweptPath<'a> {
    /// The scenario's name.
    pub scenario: &'a str,
    /// The kernel under test.
    pub kernel: &'a dyn TestKernel,
    /// The kernel as the user named it.
    pub kernel_spec: String,
    /// What the KVM host says of itself.
    pub kvm_host: String,
    /// All trials.
    pub summary: Summary<'a>,
}

impl SweptPath<'_> {
    /// What came of it so far.
    #[must_use]
    pub fn so_far(&self) -> SweepSummary {
        let verdicts = self.summary.verdicts;
        SweepSummary {
            failures: verdicts.failures.keys().cloned().collect(),
            tried: verdicts.tried.len(),
            incomplete: self.summary.cut.is_some()
                || !verdicts.missed.is_empty()
                || !verdicts.unjudged.is_empty()
                || !verdicts.unsteady.is_empty(),
            release: self.kernel.release().to_owned(),
        }
    }
}

/// What came of a sweep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SweepSummary {
    /// The distinct failures.
    pub failures: Vec<SweepSymptom>,
    /// How many points were tried.
    pub tried: usize,
    /// Whether some points were not tried, or gave different results.
    pub incomplete: bool,
    /// `uname -r` of the kernel.
    pub release: String,
}

impl SweepSummary {
    /// What the sweep says of the kernel.
    #[must_use]
    pub fn class(&self) -> OutcomeClass {
        if !self.failures.iter().all(SweepSymptom::is_known) {
            OutcomeClass::Bad
        } else if self.incomplete || self.tried == 0 {
            OutcomeClass::Untested
        } else {
            OutcomeClass::Good
        }
    }
}
