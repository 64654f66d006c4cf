//! R3: clients are limited, the next one gets -EBUSY.

use super::verdict::Verdict;
use super::{Check, Invariant, lab};
use crate::trace::Trace;

/// R3. The mask has 64 bits and two are the kernel's own (kernel/unwind/deferred.c, 7.3).
#[derive(Debug)]
pub struct Limited;

impl Invariant for Limited {
    fn id(&self) -> &'static str {
        "R3"
    }

    fn title(&self) -> &'static str {
        "clients are limited, the next one gets -EBUSY"
    }

    fn check(&self, trace: &Trace) -> Check {
        let mut verdict = Verdict::new(self.id());
        lab::judge(trace, &mut verdict, lab::requests::limited);
        verdict.finish("no registration was refused")
    }
}
