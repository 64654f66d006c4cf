//! R2: a cancelled client is refused.

use super::verdict::Verdict;
use super::{Check, Invariant, lab};
use crate::trace::Trace;

/// R2. Judged where the request began behind the end of `unwind_deferred_cancel()`; one that is
/// under way meanwhile may have either answer.
#[derive(Debug)]
pub struct CancelledIsRefused;

impl Invariant for CancelledIsRefused {
    fn id(&self) -> &'static str {
        "R2"
    }

    fn title(&self) -> &'static str {
        "a cancelled client is refused"
    }

    fn check(&self, trace: &Trace) -> Check {
        let mut verdict = Verdict::new(self.id());
        lab::judge(trace, &mut verdict, lab::requests::cancelled_is_refused);
        verdict.finish("no request of a cancelled client")
    }
}
