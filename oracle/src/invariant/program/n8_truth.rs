//! N8: the stack that a program finds by `.eh_frame` is the one that it has.

use std::collections::BTreeMap;
use std::fmt;

use unwindlab_abi::message::ExpectedStack;
use unwindlab_abi::user_stack::{UserFrame, UserStack};

use super::semantic::{names, semantic};
use super::stacks;
use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, Facts, difference};
use crate::invariant::sframe::known::{Place, known};
use crate::trace::Trace;

/// N8. A stack found by `.eh_frame` is the thread's, at each instruction at which that is known: those of code without
/// frame pointers, and those of a leaf with its frame. The semantic stack is the same, with the functions that the interpreter
/// executes, innermost first, in place of the interpreter's own frame.
///
/// Evidence is a stack at such an instruction. Where a thread was asked in a system call, the instruction must be
/// of its leaf.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    let mut shown = None;
    for (stack, truth) in truths(evidence) {
        let Some(truth) = truth else {
            tally.undecided("a stack at an instruction at which it is not known");
            continue;
        };
        let semantic = semantic(trace, &truth);
        let wrong = if stack.by_dwarf != truth {
            difference(&stack.by_dwarf, &truth)
        } else if stack.semantic != semantic {
            format!("shown as {}", names(trace, &stack.semantic))
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
        None => in_leaf(facts, stack),
    };
    let stacks = stacks(evidence.trace());
    stacks.map(|stack| (stack, truth(stack))).collect()
}

/// The stack of a thread that was asked in its leaf.
fn in_leaf(facts: &Facts<'_>, stack: &UserStack) -> Option<Vec<u64>> {
    let exchange = facts.exchanges.get(&stack.cookie)?;
    let request = exchange.requests.first()?;
    let threads = facts.threads(request.event);
    let thread = threads.iter().find(|it| it.thread == stack.thread)?;
    let expected: &ExpectedStack = &thread.stack;
    let leaf = expected.leaf_start..expected.leaf_end;
    let ip = match facts.entry_ip(exchange) {
        Some((ip, _)) => leaf.contains(&ip).then_some(ip)?,
        // It made the system call in its leaf, and in no other place.
        None => expected.syscall_return,
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
    use unwindlab_abi::message::UserSymbol;
    use unwindlab_abi::user_stack::UserFrame::{self, Interpreted, Native};

    use crate::invariant::Check;
    use crate::invariant::program::testkit::{C, CHAIN, stack, trace};
    use crate::invariant::testkit::check;

    #[test]
    fn the_stack_by_construction_holds() {
        let found = check("N8", &trace(vec![stack(C, &CHAIN)]));
        assert!(matches!(found, Check::Holds { evidence: 1, .. }));
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
