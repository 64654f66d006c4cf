//! O1: a thread that asks for its own stack gets it.

use unwindlab_abi::message::ExpectedStack;
use unwindlab_abi::own_stack::{OwnStackCalls, OwnStackCase};

use super::{calls, what};
use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, at_leaf, difference, expected};
use crate::trace::model::MAX_DEFERRED_FRAMES;

/// `EFAULT`.
const FAULT: i64 = -14;
/// Room of [`OwnStackCase::Cut`].
const FEW: usize = 4;

/// O1. The stack of a thread is known by construction, and frame 0 is in its leaf. The call returns the number of
/// frames of the whole stack, and writes as many as there is room for, whether or not stack and buffer are present.
/// Where another thread unmaps the buffer meanwhile, the call may end with EFAULT instead, and what it wrote is
/// not known.
///
/// In a signal handler, frames 0 and 1 are the handler and the function that it returns to, and behind them come the
/// leaf's callers. The leaf, which the signal interrupted, is in no stack by frame pointers: the handler saved the leaf's frame
/// pointer, and what was interrupted is in the signal's frame, which no unwinder here reads.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    for call in calls(evidence) {
        let threads = &evidence.trace().threads;
        let thread = threads.iter().find(|it| it.thread == call.thread);
        let Some(stack) = thread.map(|it| &it.stack) else {
            tally.undecided("a call of a thread whose stack is not known");
            continue;
        };
        let count = usize::try_from(call.count).unwrap_or(usize::MAX);
        match call.case {
            OwnStackCase::Unmapped if call.answer == FAULT => {
                tally.note(count, "EFAULT while another thread unmapped the buffer");
            }
            OwnStackCase::Whole
            | OwnStackCase::NotPresent
            | OwnStackCase::StackNotPresent
            | OwnStackCase::Cut
            | OwnStackCase::Unmapped
            | OwnStackCase::InHandler => match flaw(call, stack) {
                None => tally.holds_on(count),
                Some(flaw) => tally.violated(format!("{}: {flaw}", what(call)), [], None),
            },
            _ => {}
        }
    }
}

/// What is wrong with an answer, if anything is.
fn flaw(call: &OwnStackCalls, stack: &ExpectedStack) -> Option<String> {
    let frame0 = call.frames.first().copied().unwrap_or(stack.leaf_start);
    let in_handler = call.case == OwnStackCase::InHandler;
    let mut wanted: Vec<u64> = match call.handler {
        [handler, restorer] if in_handler => [handler]
            .into_iter()
            .chain(expected(stack, restorer))
            .take(MAX_DEFERRED_FRAMES)
            .collect(),
        _ => expected(stack, frame0).collect(),
    };
    if call.answer != i64::try_from(wanted.len()).unwrap_or(i64::MAX) {
        return Some(format!("it returned {}, not {}", call.answer, wanted.len()));
    }
    match call.case {
        OwnStackCase::Unmapped => return None,
        OwnStackCase::Cut => wanted.truncate(FEW),
        _ => {}
    }
    if !in_handler && !at_leaf(stack, frame0) {
        return Some(format!("frame 0 is {frame0:#x}, which is not in the leaf"));
    }
    (call.frames != wanted).then(|| difference(&call.frames, &wanted))
}

#[cfg(test)]
mod tests {
    use super::super::tests::one;
    use super::*;
    use crate::invariant::Check;

    const STACK: [u64; 6] = [0x1080, 0x2000, 0x2000, 0x2000, 0x2000, 0x3000];

    fn says(case: OwnStackCase, answer: i64, frames: &[u64]) -> &'static str {
        match one("O1", case, answer, frames) {
            Check::Holds { .. } => "holds",
            Check::Violated(_) => "violated",
            Check::NotExercised { .. } => "not exercised",
        }
    }

    #[test]
    fn the_whole_stack_holds_and_nothing_else_does() {
        for case in [
            OwnStackCase::Whole,
            OwnStackCase::NotPresent,
            OwnStackCase::StackNotPresent,
        ] {
            assert_eq!(says(case, 6, &STACK), "holds");
            for (answer, frames) in [
                (5, &STACK[..5]),
                (5, &STACK[..]),
                (6, &STACK[..5]),
                (1, &STACK[..1]),
                (0, &[]),
                (FAULT, &[]),
                (6, &[0x1200, 0x2000, 0x2000, 0x2000, 0x2000, 0x3000]),
                (6, &[0x1080, 0x2000, 0x2000, 0x2000, 0x2000, 0x2000]),
            ] {
                assert_eq!(
                    says(case, answer, frames),
                    "violated",
                    "{answer} {frames:x?}"
                );
            }
        }
    }

    #[test]
    fn in_a_handler_the_interrupted_leaf_is_in_no_stack() {
        const IN_HANDLER: [u64; 7] = [0x5000, 0x6000, 0x2000, 0x2000, 0x2000, 0x2000, 0x3000];
        let case = OwnStackCase::InHandler;
        assert_eq!(says(case, 7, &IN_HANDLER), "holds");
        let with_leaf: Vec<u64> = [0x5000, 0x6000].into_iter().chain(STACK).collect();
        assert_eq!(says(case, 8, &with_leaf), "violated");
        assert_eq!(says(case, 6, &IN_HANDLER[1..]), "violated");
        assert_eq!(says(case, 6, &STACK), "violated");
        assert_eq!(says(case, 2, &IN_HANDLER[..2]), "violated");
    }

    #[test]
    fn with_little_room_the_rest_is_counted_and_not_written() {
        assert_eq!(says(OwnStackCase::Cut, 6, &STACK[..4]), "holds");
        assert_eq!(says(OwnStackCase::Cut, 4, &STACK[..4]), "violated");
        assert_eq!(says(OwnStackCase::Cut, 6, &STACK[..5]), "violated");
    }

    #[test]
    fn a_buffer_that_goes_away_may_be_refused() {
        assert_eq!(says(OwnStackCase::Unmapped, FAULT, &[]), "not exercised");
        assert_eq!(says(OwnStackCase::Unmapped, 6, &[]), "holds");
        assert_eq!(says(OwnStackCase::Unmapped, -22, &[]), "violated");
        assert_eq!(says(OwnStackCase::Unmapped, 1, &[]), "violated");
    }
}
