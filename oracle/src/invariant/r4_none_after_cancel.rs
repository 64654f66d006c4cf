//! R4: when cancelling has returned, no callback of that client runs.

use super::verdict::Verdict;
use super::{Check, Invariant, lab};
use crate::trace::Trace;

/// R4. A callback ends before the cancellation does; `unwind_deferred_cancel()` waits for the SRCU
/// readers that may run it.
#[derive(Debug)]
pub struct NoneAfterCancel;

impl Invariant for NoneAfterCancel {
    fn id(&self) -> &'static str {
        "R4"
    }

    fn title(&self) -> &'static str {
        "when cancelling has returned, no callback of that client runs"
    }

    fn check(&self, trace: &Trace) -> Check {
        let mut verdict = Verdict::new(self.id());
        lab::judge(trace, &mut verdict, lab::requests::none_after_cancel);
        verdict.finish("no client was called and cancelled")
    }
}
