//! Chains of the workloads whose leaf has a name of its own.

use unwindlab_abi::message::ExpectedStack;

use crate::invariant::Tally;
use crate::invariant::evidence::{Facts, flaw_of};

/// Judges the answers of threads whose leaf has this name and whose frame 0 `stands` where all of
/// the stack is; `over` says what was walked.
pub fn judge_at(
    facts: &Facts<'_>,
    tally: &mut Tally,
    (leaf, over): (&str, &str),
    stands: impl Fn(&ExpectedStack, u64) -> bool,
) {
    let mut symbols = facts.trace.user_symbols.iter();
    let Some(leaf) = symbols.find(|it| it.name == leaf) else {
        return;
    };
    for answer in &facts.answers {
        let thread = facts
            .threads(answer.event)
            .into_iter()
            .find(|thread| (leaf.start..leaf.end).contains(&thread.stack.leaf_start));
        let (Some(thread), Some(&frame0)) = (thread, answer.chain.ips.first()) else {
            continue;
        };
        if !stands(&thread.stack, frame0) {
            continue;
        }
        let Some(flaw) = flaw_of(answer.chain, &thread.stack, frame0) else {
            tally.holds();
            continue;
        };
        let cookie = answer.chain.cookie;
        let message = format!("the walk for cookie {cookie:#x} over {over}: {flaw}");
        tally.violated(message, [answer.event.index], None);
    }
}
