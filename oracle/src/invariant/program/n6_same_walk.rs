//! N6: two walks of one cookie agree.

use unwindlab_abi::user_stack::USER_STACK_FRAMES;

use super::stacks;
use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, difference};

/// N6. What a program finds by frame pointers, asked by a signal, is what the kernel found for the same cookie.
///
/// Evidence is a stack whose cookie has a D with frames. A stack whose cookie no D carries is undecided: the D may be
/// lost, and N7 judges the cookie.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let facts = evidence.facts();
    for stack in stacks(evidence.trace()) {
        let exchange = facts.exchanges.get(&stack.cookie);
        let Some(answer) = exchange.and_then(|it| it.answers.first()) else {
            tally.undecided("a stack of the program whose cookie no record 22 carries");
            continue;
        };
        let kernels = &answer.chain.ips;
        if stack.by_frame_pointers == kernels.get(..USER_STACK_FRAMES).unwrap_or(kernels) {
            match kernels.len() > USER_STACK_FRAMES {
                true => tally.undecided("a stack of more frames than the handler has room for"),
                false => tally.holds(),
            }
            continue;
        }
        tally.violated(
            format!(
                "cookie {:#x}: the program's walk is not the kernel's: {}",
                stack.cookie,
                difference(&stack.by_frame_pointers, kernels)
            ),
            [answer.event.index],
            kernels.first().copied(),
        );
    }
}

#[cfg(test)]
mod tests {
    use crate::invariant::Check;
    use crate::invariant::program::testkit::{C, CHAIN, stack, trace};
    use crate::invariant::testkit::check;

    #[test]
    fn the_kernels_walk_holds() {
        let found = check("N6", &trace(vec![stack(C, &CHAIN)]));
        assert!(matches!(found, Check::Holds { evidence: 1, .. }));
    }

    #[test]
    fn another_walk_does_not() {
        for chain in [&CHAIN[..3], &[CHAIN[0], 0x2000, 0x2008, 0x3000]] {
            let found = check("N6", &trace(vec![stack(C, chain)]));
            assert!(matches!(found, Check::Violated(_)));
        }
    }

    #[test]
    fn a_cookie_without_a_record_does_not_exercise_it() {
        let found = check("N6", &trace(vec![stack(C + 2, &CHAIN)]));
        assert!(matches!(found, Check::NotExercised { undecided: 1, .. }));
    }
}
