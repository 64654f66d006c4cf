//! N4: a pending nonce is used again.

use super::pairs::{Pair, UNPAIRED, pairs};
use crate::invariant::Tally;
use crate::invariant::evidence::Evidence;
use unwindlab_abi::user_mode::Asked;

/// N4. Samples of one entry get one nonce and one signal.
///
/// Evidence is two samples in a row of a thread, without a noted return to user mode in between: the
/// handler cannot have run. A design that asks anew for each has two nonces there. A nonce that was
/// refused is not pending.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let Some(user_mode) = &evidence.trace().user_mode else {
        return;
    };
    let returns = &evidence.facts().returns;
    for pairs in pairs(evidence, user_mode) {
        let Some(pairs) = pairs else {
            tally.undecided(UNPAIRED);
            continue;
        };
        for two in pairs.windows(2) {
            let [first, second] = two else { continue };
            let [before, after] = [first, second].map(|it| returns.before(it.event));
            let (Some(before), Some(after)) = (before, after) else {
                tally.undecided("returns to user mode were not noted");
                continue;
            };
            let has_nonce = |it: &Pair<'_>| matches!(it.request.asked, Asked::Sent | Asked::Again);
            if before != after || !has_nonce(first) {
                continue;
            }
            if first.request.nonce == second.request.nonce {
                tally.holds();
                continue;
            }
            let message = format!(
                "nonce {:#x} was pending, and a later sample of the entry got {:#x}",
                first.request.nonce, second.request.nonce
            );
            tally.violated(message, [first.event.index, second.event.index], None);
        }
    }
}
