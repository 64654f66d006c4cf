//! What is run by itself.

use super::SkipReason;
use crate::campaign::error::CampaignError;
use crate::campaign::part::Unit;
use crate::judge::ScenarioResult;
use unwindlab_engine::plan::TrialPlan;
use unwindlab_engine::runner::boot::MachineKind;
use unwindlab_scenario::Loaded;

/// What is run by itself: a scenario, or one of its trials.
#[derive(Debug, Clone, Copy)]
pub(in crate::campaign) struct RunUnit<'l> {
    pub(super) loaded: &'l Loaded,
    pub(super) plan: &'l Result<TrialPlan, SkipReason>,
    /// The number of the trial.
    pub(super) trial: Option<u32>,
}

impl<'l> RunUnit<'l> {
    /// By what a file of a part calls it.
    pub(super) fn name(&self) -> Unit {
        Unit {
            name: self.loaded.scenario.name.to_string(),
            trial: self.trial,
        }
    }

    /// The kind of its machine; none where it is not run.
    pub(in crate::campaign) fn kind(&self) -> Option<MachineKind> {
        self.plan.as_ref().ok().map(MachineKind::of)
    }

    /// A scenario as a whole.
    pub(in crate::campaign) const fn whole(
        loaded: &'l Loaded,
        plan: &'l Result<TrialPlan, SkipReason>,
    ) -> Self {
        Self {
            loaded,
            plan,
            trial: None,
        }
    }
}

/// Who is told what came of a unit, and on which KVM host.
pub(super) type UnitFinished<'f> =
    dyn FnMut(&RunUnit<'_>, &ScenarioResult, &str) -> Result<(), CampaignError> + 'f;
