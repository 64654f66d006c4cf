//! N2: the handler runs before any further instruction of the code that the sample interrupted.

use unwindlab_abi::user_mode::Asked;

use super::pairs::{UNPAIRED, pairs};
use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, Origin};

/// N2. After a sample with a signal, the thread's next return to user mode goes to the handler.
///
/// Evidence is that return, as the witness noted it, and the nonce's result: a return to the
/// interrupted code comes first where the signal is late. A refused signal is told as lost by the
/// program itself. A sample of the handler or its return is left open: the signal waits there, blocked. So is one with
/// another return first that hit user mode at an instruction that is not known.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let Some(user_mode) = &evidence.trace().user_mode else {
        return;
    };
    // A callback in the kernel is no return to user mode.
    if user_mode.handler == 0 {
        tally.undecided("the answer runs in the kernel");
        return;
    }
    let facts = evidence.facts();
    for pairs in pairs(evidence, user_mode) {
        let Some(pairs) = pairs else {
            tally.undecided(UNPAIRED);
            continue;
        };
        for pair in { pairs.iter() }.filter(|it| it.request.asked == Asked::Sent) {
            let nonce = pair.request.nonce;
            let interrupted = facts.user_ip(pair.event);
            let threads = &evidence.trace().threads;
            let thread = { threads.iter() }.find(|it| it.tid == pair.request.tid);
            let in_leaf = |ip| {
                thread.is_some_and(|it| (it.stack.leaf_start..it.stack.leaf_end).contains(&ip))
            };
            let known = |ip| in_leaf(ip) || evidence.trace().program.knows(ip);
            if interrupted.is_some_and(|ip| !known(ip)) {
                tally.undecided("the sample is not of the workload's leaf");
                continue;
            }
            let Some(next) = facts.returns.next(pair.event) else {
                tally.undecided("no return to user mode was noted after the sample");
                continue;
            };
            let in_own_code =
                interrupted.is_some() || matches!(facts.origin(pair.event), Origin::SystemCall(_));
            if next.rip != user_mode.handler && !in_own_code {
                tally.undecided("the sample may be of the handler or its return");
            } else if next.rip != user_mode.handler {
                let message = format!(
                    "after the sample with nonce {nonce:#x} the thread ran on at {:#x} before its handler",
                    next.rip
                );
                tally.violated(message, [pair.event.index], interrupted);
            } else if user_mode.results_of(nonce).next().is_none() {
                tally.undecided("the handler was entered, and wrote no result");
            } else {
                tally.holds();
            }
        }
    }
}
