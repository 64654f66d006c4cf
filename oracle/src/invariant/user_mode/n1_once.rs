//! N1: a nonce is answered at most once.

use crate::invariant::Tally;
use crate::invariant::evidence::Evidence;

/// N1. No nonce has two results, and every result has a nonce for which a signal was sent to its thread.
///
/// Evidence is a nonce with one result: a handler that runs twice for a signal writes two. Results that
/// were not read (no slot left, not finished) leave it open.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let Some(user_mode) = &evidence.trace().user_mode else {
        return;
    };
    if user_mode.no_slot + user_mode.unfinished > 0 {
        tally.undecided("results are missing");
        return;
    }
    for (_, request) in user_mode.nonces() {
        match user_mode.results_of(request.nonce).count() {
            0 => tally.undecided("no result"),
            1 => tally.holds(),
            n => {
                let message = format!("nonce {:#x} has {n} results", request.nonce);
                tally.violated(message, [], None);
            }
        }
    }
    for result in &user_mode.results {
        let asked =
            { user_mode.nonces() }.any(|(_, it)| (it.nonce, it.tid) == (result.nonce, result.tid));
        if !asked {
            let message = format!(
                "thread {} answered nonce {:#x}, for which it was sent no signal",
                result.tid, result.nonce
            );
            tally.violated(message, [], Some(result.ip));
        }
    }
}
