//! D2: a client is called at most once in an entry.

use super::verdict::Verdict;
use super::{Check, Invariant, lab};
use crate::trace::Trace;

/// D2. A second request of a client in an entry is answered by the one callback, also where it comes
/// behind it: the bit stays set until the reset.
#[derive(Debug)]
pub struct OneCallback;

impl Invariant for OneCallback {
    fn id(&self) -> &'static str {
        "D2"
    }

    fn title(&self) -> &'static str {
        "a client is called at most once in an entry"
    }

    fn check(&self, trace: &Trace) -> Check {
        let mut verdict = Verdict::new(self.id());
        lab::judge(trace, &mut verdict, lab::matching::one_callback);
        verdict.finish("no callback of the lab client")
    }
}
