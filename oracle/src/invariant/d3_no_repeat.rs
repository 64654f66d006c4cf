//! D3: a deferred sample does not repeat the user chain.

use super::facts::Facts;
use super::m7_inline::is_inline;
use super::verdict::Verdict;
use super::{Check, Invariant};
use crate::trace::Trace;

/// D3. A sample that carries a cookie has no `PERF_CONTEXT_USER` part: `get_perf_callchain`
/// (kernel/events/callchain.c, 7.2) leaves after the cookie.
#[derive(Debug)]
pub struct NoRepeat;

impl Invariant for NoRepeat {
    fn id(&self) -> &'static str {
        "D3"
    }

    fn title(&self) -> &'static str {
        "a deferred sample has no user chain of its own"
    }

    fn check(&self, trace: &Trace) -> Check {
        let facts = Facts::new(trace);
        let mut verdict = Verdict::new(self.id());
        for request in &facts.requests {
            if !is_inline(request.sample) {
                verdict.holds();
                continue;
            }
            let message = format!(
                "the sample with cookie {:#x} has {} user frames too",
                request.cookie,
                request.sample.user_chain().len()
            );
            let instruction = facts.instruction(request.event);
            verdict.violated(message, [request.event.index], instruction);
        }
        verdict.finish("no deferred samples")
    }
}

#[cfg(test)]
mod tests {
    use super::super::testkit::{Kit, SOMEWHERE, holds, not_exercised, violations};
    use super::*;
    use crate::trace::model::{CONTEXT_KERNEL, CONTEXT_USER, CONTEXT_USER_DEFERRED};

    #[test]
    fn a_cookie_alone_holds() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, 3 << 32 | 1);
        assert_eq!(holds(&NoRepeat, &kit).0, 1);
    }

    #[test]
    fn a_cookie_and_a_chain_do_not() {
        let mut kit = Kit::new(1);
        let chain = [
            &[CONTEXT_KERNEL, SOMEWHERE, CONTEXT_USER, 0x40][..],
            &[CONTEXT_USER_DEFERRED, 3 << 32 | 1],
        ];
        kit.sample(0, 1001, 1, chain.concat());
        violations(&NoRepeat, &kit);
    }

    #[test]
    fn an_inline_chain_does_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.inline(0, 1001, &[0x40]);
        not_exercised(&NoRepeat, &kit);
    }
}
