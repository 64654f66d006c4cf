//! D3: a deferred sample does not repeat the user chain.

use crate::invariant::Tally;
use crate::invariant::evidence::Evidence;

/// D3. A sample that carries a cookie has no `PERF_CONTEXT_USER` part: `get_perf_callchain`
/// (kernel/events/callchain.c, 7.2) returns after the cookie.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let facts = evidence.facts();
    for request in &facts.requests {
        if !request.sample.is_inline() {
            tally.holds();
            continue;
        }
        let message = format!(
            "the sample with cookie {:#x} has {} user frames too",
            request.cookie,
            request.sample.user_chain().len()
        );
        let instruction = facts.instruction(request.event);
        tally.violated(message, [request.event.index], instruction);
    }
}

#[cfg(test)]
mod tests {
    use crate::invariant::testkit::{Kit, SOMEWHERE, holds, not_exercised, violations};
    use crate::trace::model::{CONTEXT_KERNEL, CONTEXT_USER, CONTEXT_USER_DEFERRED};

    #[test]
    fn a_cookie_alone_holds() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, 3 << 32 | 1);
        assert_eq!(holds("D3", &kit).0, 1);
    }

    #[test]
    fn a_cookie_and_a_chain_do_not() {
        let mut kit = Kit::new(1);
        let chain = [
            &[CONTEXT_KERNEL, SOMEWHERE, CONTEXT_USER, 0x40][..],
            &[CONTEXT_USER_DEFERRED, 3 << 32 | 1],
        ];
        kit.sample(0, 1001, 1, chain.concat());
        violations("D3", &kit);
    }

    #[test]
    fn an_inline_chain_does_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.inline(0, 1001, &[0x40]);
        not_exercised("D3", &kit);
    }
}
