//! Switches between tasks that hand their perf events over.

use super::{Evidence, spec};
use crate::trace::Event;

impl Evidence<'_> {
    /// Whether the event that wrote a sample may have been the next task's already. Where two tasks have inherited the same
    /// events, `perf_event_context_sched_out` gives each the context of the other, while the first still runs; and
    /// `perf_callchain` has no user part for an event of another task ("Disallow cross-task user callchains";
    /// kernel/events/core.c, 7.3). The sample shows no more than that it was made in a switch, as far as the kernel's symbols
    /// are known.
    pub fn may_be_handed_over(&self, sample: &Event) -> bool {
        let inherits = spec(self.trace(), sample).is_some_and(|spec| spec.inherit);
        let mut chain = sample.kernel_chain().iter();
        inherits && chain.any(|&address| self.is_in(address, "__schedule"))
    }

    fn is_in(&self, address: u64, function: &str) -> bool {
        self.place(address).is_some_and(|(it, _)| it == function)
    }
}
