//! N8: the stack that a program finds by `.eh_frame` is the one that it has.

use std::collections::BTreeMap;
use std::fmt;

use unwindlab_abi::message::ExpectedStack;
use unwindlab_abi::user_stack::{USER_STACK_FRAMES, UserFrame, UserStack};

use super::semantic::{names, semantic};
use super::stacks;
use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, difference};
use crate::invariant::sframe::known::{Place, known};
use crate::trace::Trace;

/// N8. A stack found by `.eh_frame` is the thread's, at each instruction at which that is known: those of code without
/// frame pointers, and those of a leaf with its frame. The semantic stack is the same, with the functions that the interpreter
/// executes, innermost first, in place of the interpreter's own frame.
///
/// Evidence is a stack at such an instruction, of no more frames than the handler has room for. Of a thread that was asked in
/// a system call, it is known where the injector saw it in its leaf, and the sample's chain shows a call that leaves the
/// user registers alone.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    let mut shown = None;
    for (stack, truth) in truths(evidence) {
        let Some(truth) = truth else {
            tally.undecided("a stack at an instruction at which it is not known");
            continue;
        };
        let semantic = semantic(trace, &truth);
        let wrong = if stack.by_dwarf != truth.get(..USER_STACK_FRAMES).unwrap_or(&truth) {
            difference(&stack.by_dwarf, &truth)
        } else if stack.semantic != semantic.get(..USER_STACK_FRAMES).unwrap_or(&semantic) {
            format!("shown as {}", names(trace, &stack.semantic))
        } else if truth.len() > USER_STACK_FRAMES {
            tally.undecided("a stack of more frames than the handler has room for");
            continue;
        } else {
            tally.holds();
            let is_mixed = semantic
                .iter()
                .any(|it| matches!(it, UserFrame::Interpreted(_)));
            if is_mixed && shown.is_none() {
                shown = Some(names(trace, &stack.semantic));
            }
            continue;
        };
        let message = format!("cookie {:#x}, whose stack is known: {wrong}", stack.cookie);
        tally.violated(message, [], truth.first().copied());
    }
    if let Some(shown) = shown {
        tally.excuse(format!("a stack: {shown}"));
    }
}

/// What programs found, and their stacks where they are known.
fn truths<'t>(evidence: &Evidence<'t>) -> Vec<(&'t UserStack, Option<Vec<u64>>)> {
    let facts = evidence.facts();
    let places = known(facts).into_iter().filter_map(|place| match place {
        Place::Known(known) => Some((known.answer.chain.cookie, known.truth)),
        Place::Elsewhere => None,
    });
    let everywhere: BTreeMap<u64, Vec<u64>> = places.collect();
    let truth = |stack: &UserStack| match everywhere.get(&stack.cookie) {
        Some(truth) => Some(truth.clone()),
        None => in_leaf(evidence, stack),
    };
    let stacks = stacks(evidence.trace());
    stacks.map(|stack| (stack, truth(stack))).collect()
}

/// The stack of a thread that was asked in its leaf.
fn in_leaf(evidence: &Evidence<'_>, stack: &UserStack) -> Option<Vec<u64>> {
    let facts = evidence.facts();
    let exchange = facts.exchanges.get(&stack.cookie)?;
    let request = exchange.requests.first()?;
    let threads = facts.threads(request.event);
    let thread = threads.iter().find(|it| it.thread == stack.thread)?;
    let expected: &ExpectedStack = &thread.stack;
    let leaf = expected.leaf_start..expected.leaf_end;
    let ip = match facts.entry_ip(exchange) {
        Some((ip, _)) => leaf.contains(&ip).then_some(ip)?,
        // The injector knows that it was in its leaf; another call may replace the registers.
        None => {
            let of_thread = facts.injection(request.event)?.thread == Some(thread.thread);
            let in_leaf = of_thread && evidence.registers_kept(request.event);
            Some(expected.syscall_return).filter(|&it| in_leaf && it != 0)?
        }
    };
    Some(
        std::iter::once(ip)
            .chain(expected.caller_addresses())
            .collect(),
    )
}

/// What programs found of their own stacks, where those are known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnStacks {
    /// Stacks.
    pub stacks: usize,
    /// Those that `.eh_frame` showed exactly.
    pub by_dwarf: usize,
    /// Those that frame pointers showed exactly.
    pub by_frame_pointers: usize,
    /// One that shows what an interpreter executes, by its functions' names, innermost first.
    pub mixed: Option<String>,
}

impl OwnStacks {
    /// Of a trace; `None` if no program found its own stack where it is known.
    #[must_use]
    pub fn of(trace: &Trace) -> Option<Self> {
        let mut own = Self::default();
        for (stack, truth) in truths(&Evidence::new(trace)) {
            let Some(truth) = truth else {
                continue;
            };
            own.stacks += 1;
            own.by_dwarf += usize::from(stack.by_dwarf == truth);
            own.by_frame_pointers += usize::from(stack.by_frame_pointers == truth);
            let is_mixed = |it: &UserFrame| matches!(it, UserFrame::Interpreted(_));
            if own.mixed.is_none() && stack.semantic.iter().any(is_mixed) {
                own.mixed = Some(names(trace, &stack.semantic));
            }
        }
        (own.stacks > 0).then_some(own)
    }
}

impl fmt::Display for OwnStacks {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{} stacks that the program found itself where they are known: {} exact by .eh_frame, {} by frame pointers",
            self.stacks, self.by_dwarf, self.by_frame_pointers
        )?;
        match &self.mixed {
            Some(mixed) => write!(out, "; one of them: {mixed}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use unwindlab_abi::Observation;
    use unwindlab_abi::message::UserSymbol;
    use unwindlab_abi::user_stack::UserFrame::{self, Interpreted, Native};

    use crate::invariant::Check;
    use crate::invariant::program::testkit::{C, CHAIN, stack, trace};
    use crate::invariant::testkit::{Hit, Kit, SOMEWHERE, check, check_in, kernel};
    use crate::trace::EventKind;

    #[test]
    fn the_stack_by_construction_holds() {
        let found = check("N8", &trace(vec![stack(C, &CHAIN)]));
        assert!(matches!(found, Check::Holds { evidence: 1, .. }));
    }

    /// A right program shows another instruction than that behind the leaf's system call.
    #[test]
    fn where_the_thread_was_asked_must_be_known() {
        let chain = |frame0: u64| [frame0, 0x2000, 0x2000, 0x3000];
        let asked = |hit: Option<Hit>, function: &str, found: u64| {
            let mut kit = Kit::new(1);
            kit.thread(0, 1001);
            match hit {
                Some(hit) => kit.inject(0, 1001, C, hit),
                None => kit.nmi(0, 1001, C),
            };
            let mut trace = kit.trace();
            trace.observations = vec![Observation::UserStacks(vec![stack(C, &chain(found))])];
            check_in("N8", &trace, function)
        };
        let hit = || kernel(SOMEWHERE).iteration(0, 1);
        let call = "__x64_sys_getppid";
        let found = asked(Some(hit()), call, 0x1080);
        assert!(
            matches!(found, Check::Holds { evidence: 1, .. }),
            "{found:?}"
        );
        assert!(matches!(
            asked(Some(hit()), call, 0x1084),
            Check::Violated(_)
        ));
        // No injection is known, the call may replace the registers, it is not the thread's leaf.
        for found in [
            asked(None, call, 0x1084),
            asked(Some(hit()), "__x64_sys_rt_sigreturn", 0x1084),
            asked(Some(hit()), "do_syscall_64", 0x1084),
            asked(Some(kernel(SOMEWHERE)), call, 0x1084),
        ] {
            assert!(
                matches!(found, Check::NotExercised { undecided: 1, .. }),
                "{found:?}"
            );
        }
    }

    #[test]
    fn more_frames_than_the_handler_has_room_for_are_judged_as_far_as_they_go() {
        let mut whole = vec![CHAIN[0]; 31];
        whole[1..].fill(0x2000);
        whole[30] = 0x3000;
        let judged = |chain: &[u64]| {
            let mut trace = trace(vec![stack(C, chain)]);
            trace.threads[0].stack.callers = vec![(0x2000, 29), (0x3000, 1)];
            for event in &mut trace.events {
                if let EventKind::CallchainDeferred(answer) = &mut event.kind {
                    (answer.nr, answer.ips) = (31, whole.clone());
                }
            }
            ["N6", "N8"].map(|id| check(id, &trace))
        };
        for found in judged(&whole[..24]) {
            assert!(
                matches!(found, Check::NotExercised { undecided: 1, .. }),
                "{found:?}"
            );
        }
        let mut wrong = whole[..24].to_vec();
        wrong[23] += 8;
        for chain in [&whole[..23], &wrong] {
            for found in judged(chain) {
                assert!(matches!(found, Check::Violated(_)), "{found:?}");
            }
        }
    }

    #[test]
    fn a_missing_frame_does_not() {
        let found = check("N8", &trace(vec![stack(C, &CHAIN[..3])]));
        assert!(matches!(found, Check::Violated(_)));
    }

    /// With the first caller an interpreter's.
    fn interpreted(semantic: Vec<UserFrame>) -> Check {
        let mut found = stack(C, &CHAIN);
        found.semantic = semantic;
        let mut trace = trace(vec![found]);
        trace.threads[0].stack.callers = vec![(0x2000, 1), (0x2100, 1), (0x3000, 1)];
        let chain = [CHAIN[0], 0x2000, 0x2100, 0x3000];
        let observed = &mut trace.observations[0];
        if let unwindlab_abi::Observation::UserStacks(stacks) = observed {
            stacks[0].by_dwarf = chain.to_vec();
        }
        trace.user_symbols = vec![UserSymbol {
            name: "interpret".to_owned(),
            start: 0x1f00,
            end: 0x2010,
        }];
        check("N8", &trace)
    }

    #[test]
    fn what_was_found_is_counted() {
        let mut short = stack(C, &CHAIN);
        short.by_frame_pointers.pop();
        let found = super::OwnStacks::of(&trace(vec![short, stack(C + 2, &CHAIN)]));
        let found = found.map(|it| (it.stacks, it.by_dwarf, it.by_frame_pointers));
        assert_eq!(found, Some((1, 1, 0)));
        assert_eq!(super::OwnStacks::of(&trace(Vec::new())), None);
    }

    #[test]
    fn an_interpreters_functions_stand_in_its_place() {
        let [leaf, outer, root] = [CHAIN[0], 0x2100, 0x3000].map(Native);
        let [f, g, h] = [0, 1, 2].map(Interpreted);
        let right = interpreted(vec![leaf, h, g, f, outer, root]);
        let Check::Holds {
            evidence: 1,
            excused,
            ..
        } = right
        else {
            panic!("{right:?}");
        };
        assert!(
            excused.concat().contains("0x1010, h, g, f, 0x20ff, 0x2fff"),
            "{excused:?}"
        );
        for wrong in [
            vec![leaf, f, g, h, outer, root],
            vec![leaf, h, f, outer, root],
            vec![leaf, Native(0x2000), outer, root],
        ] {
            assert!(matches!(interpreted(wrong), Check::Violated(_)));
        }
    }

    #[test]
    fn a_stack_without_an_interpreter_is_not_shown_as_one_with() {
        let found = check("N8", &trace(vec![stack(C, &CHAIN)]));
        assert!(matches!(found, Check::Holds { excused, .. } if excused.is_empty()));
    }

    #[test]
    fn all_own_stacks_are_counted_and_one_with_an_interpreter_is_named() {
        let own = |stacks| super::OwnStacks::of(&trace(stacks)).unwrap();
        let mut short = stack(C, &CHAIN);
        short.by_dwarf.pop();
        let found = own(vec![stack(C, &CHAIN), stack(C, &CHAIN), short]);
        assert_eq!(
            found.to_string(),
            "3 stacks that the program found itself where they are known: 2 exact by .eh_frame, 3 by frame pointers"
        );
        let mut mixed = stack(C, &CHAIN);
        mixed.semantic[1] = Interpreted(0);
        let found = own(vec![mixed, stack(C, &CHAIN)]);
        assert_eq!(found.mixed.as_deref(), Some("0x1010, f, 0x1fff, 0x2fff"));
        assert!(
            found
                .to_string()
                .ends_with("; one of them: 0x1010, f, 0x1fff, 0x2fff")
        );
    }
}
