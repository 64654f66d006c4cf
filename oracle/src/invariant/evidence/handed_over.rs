//! Switches between tasks that hand their perf events over.

use super::{Evidence, spec};
use crate::trace::Event;

impl Evidence<'_> {
    /// Whether a sample was made in a task switch by an event that may have been the next task's already. Where two tasks have
    /// inherited the same events, `perf_event_context_sched_out` gives each the context of the other while the first still runs.
    /// `perf_callchain` adds no user part for an event of another task ("Disallow cross-task user callchains";
    /// kernel/events/core.c, 7.3). Whether the two have swapped by then, or at all, the sample does not show.
    pub fn may_be_handed_over(&self, sample: &Event) -> bool {
        let inherits = spec(self.trace(), sample).is_some_and(|spec| spec.inherit);
        inherits && self.functions(sample).any(|it| it == "__schedule")
    }
}
