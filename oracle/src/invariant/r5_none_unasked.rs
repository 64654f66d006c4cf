//! R5: no client is called where it did not ask.

use super::verdict::Verdict;
use super::{Check, Invariant, lab};
use crate::trace::Trace;

/// R5. By registration: a client that takes the place of a cancelled one did not ask for what that
/// one asked for.
#[derive(Debug)]
pub struct NoneUnasked;

impl Invariant for NoneUnasked {
    fn id(&self) -> &'static str {
        "R5"
    }

    fn title(&self) -> &'static str {
        "no client is called where it did not ask"
    }

    fn check(&self, trace: &Trace) -> Check {
        let mut verdict = Verdict::new(self.id());
        lab::judge(trace, &mut verdict, lab::requests::none_unasked);
        verdict.finish("no callback of the lab client")
    }
}
