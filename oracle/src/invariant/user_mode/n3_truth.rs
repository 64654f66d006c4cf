//! N3: the handler's stack is the thread's at the interruption.

use unwindlab_abi::user_mode::Asked;

use super::pairs::{UNPAIRED, pairs};
use super::truth::{mixed, truth, wrong};
use crate::invariant::Tally;
use crate::invariant::evidence::Evidence;

/// N3. The result shows the stack as built, from the instruction at which the sample's thread is to go on: of an
/// NMI in user mode that at which the vCPU stood, in a system call, as its kernel chain says, the one behind it. A semantic stack has the
/// functions that the interpreter executes in place of its own frame.
///
/// Evidence is such a result of a thread in its leaf, or at an instruction at which its stack is known anyway. That the
/// kernel's own unwinder shows the same is not needed: both could be late.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let Some(user_mode) = &evidence.trace().user_mode else {
        return;
    };
    let mut shown = None;
    for pairs in pairs(evidence, user_mode) {
        let Some(pairs) = pairs else {
            tally.undecided(UNPAIRED);
            continue;
        };
        for pair in { pairs.iter() }.filter(|it| it.request.asked == Asked::Sent) {
            let Some(truth) = truth(evidence, pair) else {
                tally.undecided("the interrupted instruction is not known");
                continue;
            };
            for result in user_mode.results_of(pair.request.nonce) {
                let Some(wrong) = wrong(evidence.trace(), result, &truth) else {
                    tally.holds();
                    shown = shown.or_else(|| mixed(evidence.trace(), result));
                    continue;
                };
                let message = format!("the result of nonce {:#x}: {wrong}", result.nonce);
                tally.violated(message, [pair.event.index], truth.first().copied());
            }
        }
    }
    if let Some(shown) = shown {
        tally.excuse(format!("a stack: {shown}"));
    }
}
