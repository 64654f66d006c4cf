//! Guests that stand still in their boot. On an emulated KVM host it may be the host's doing: outer machines were seen in which every guest
//! does, whatever its kernel, while the same kernels boot in the next one.

use super::LibraryRun;
use crate::campaign::error::CampaignError;
use unwindlab_engine::plan::{Executor, InfraError, TrialPlan};
use unwindlab_oracle::trace::Recording;
use unwindlab_oracle::trace::recording::TrialEnd;

impl LibraryRun<'_> {
    /// Makes a trial. Where a guest stands still in its boot and the KVM host may have done it, the trial is made once more, on a fresh
    /// one: what comes again is the kernel's, and anything else goes on as told.
    pub(super) fn record_on_a_sound_host(
        &mut self,
        running: &mut Box<dyn Executor>,
        trial: &TrialPlan,
    ) -> Result<Result<Recording, InfraError>, CampaignError> {
        let first = self.record(running.as_mut(), trial);
        let Some(why) = first.as_ref().ok().and_then(stood_still) else {
            return Ok(first);
        };
        if self.context.interrupt.is_set() || !running.distrust() {
            return Ok(first);
        }
        *running = self.start_host(true)?;
        let again = self.record(running.as_mut(), trial);
        Ok(again.map(|again| settled(&why, again)))
    }
}

/// Why the guest of a trial did not come to its agent's first word, if it is that.
fn stood_still(recording: &Recording) -> Option<String> {
    match &recording.end {
        TrialEnd::BootError { reason, .. } if recording.release.is_empty() => Some(reason.clone()),
        _ => None,
    }
}

/// What came of a trial whose guest stood still in its boot on another KVM host before.
fn settled(before: &str, again: Recording) -> Recording {
    match again.end {
        TrialEnd::BootError { reason, places } if again.release.is_empty() => Recording {
            end: TrialEnd::BootError {
                reason: format!("{reason}; as on another outer machine before"),
                places,
            },
            ..again
        },
        _ => Recording {
            restarted: Some(before.to_owned()),
            ..again
        },
    }
}
