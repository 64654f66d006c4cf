//! Answers to NMIs at instructions whose whole stack is known by construction.

use std::collections::BTreeSet;
use std::fmt;

use unwindlab_abi::message::Program;

use crate::invariant::evidence::{Answer, Evidence, Facts};
use crate::trace::Trace;
use crate::trace::model::MAX_DEFERRED_FRAMES;

/// A D, and the chain of its task.
pub(in crate::invariant) struct Known<'t> {
    pub(in crate::invariant) answer: Answer<'t>,
    /// The interrupted instruction, then the callers, cut to 510.
    pub(in crate::invariant) truth: Vec<u64>,
    /// The number of the first frame that no section describes.
    pub(in crate::invariant) gap: Option<usize>,
    /// The sample that asked.
    pub(in crate::invariant) asked: usize,
}

impl Known<'_> {
    pub(in crate::invariant) fn found(&self) -> &[u64] {
        &self.answer.chain.ips
    }
}

/// What is known of a D.
pub(in crate::invariant) enum Place<'t> {
    /// Everything.
    Known(Known<'t>),
    /// The instruction is of the workload, and the stack pointer is not one that it has there.
    Elsewhere,
}

/// The D of NMIs into the workload's code. The stack pointer is the one that the VMM saw where it
/// made the NMI.
pub(in crate::invariant) fn known<'t>(facts: &Facts<'t>) -> Vec<Place<'t>> {
    let program = &facts.trace.program;
    let place = |answer: &Answer<'t>| {
        let exchange = facts.exchanges.get(&answer.chain.cookie)?;
        let (ip, asked) = facts.entry_ip(exchange)?;
        if facts.threads(answer.event).is_empty() {
            return None;
        }
        let injection = facts.injection(facts.trace.events.get(asked)?)?;
        if !program.knows(ip) {
            return None;
        }
        let Some(stack) = program.stack_at(ip, injection.stack_pointer) else {
            return Some(Place::Elsewhere);
        };
        let truth = std::iter::once(ip).chain(stack.caller_addresses());
        let truth: Vec<u64> = truth.take(MAX_DEFERRED_FRAMES).collect();
        Some(Place::Known(Known {
            answer: *answer,
            gap: gap(program, &truth),
            truth,
            asked,
        }))
    };
    facts.answers.iter().filter_map(place).collect()
}

/// The first frame that no section describes. Of a caller that is the call, not what follows it.
fn gap(program: &Program, truth: &[u64]) -> Option<usize> {
    let frames = truth.iter().enumerate();
    let mut addresses = frames.map(|(number, &ip)| ip.saturating_sub(u64::from(number > 0)));
    addresses.position(|address| !program.covers(address))
}

/// How many frames of known stacks a kernel showed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shown {
    /// Instructions of the workload at which an NMI was answered.
    pub instructions: usize,
    /// Chains.
    pub chains: usize,
    /// Those that are equal to the stack.
    pub exact: usize,
    /// Frames of the stacks.
    pub frames: usize,
    /// Frames of the stacks that the chains have, in order.
    pub shown: usize,
    /// Frames in the chains that are of no stack, or in another order.
    pub wrong: usize,
}

impl Shown {
    /// Of a trace; `None` if no stack in it is known at each instruction.
    #[must_use]
    pub fn of(trace: &Trace) -> Option<Self> {
        if trace.program.stacks.is_empty() {
            return None;
        }
        let evidence = Evidence::new(trace);
        let mut all = Self::default();
        let mut instructions: BTreeSet<u64> = BTreeSet::new();
        for place in known(evidence.facts()) {
            let Place::Known(known) = place else {
                continue;
            };
            let shown = in_order(known.found(), &known.truth);
            instructions.extend(known.truth.first().copied());
            all.chains += 1;
            all.exact += usize::from(known.found() == known.truth);
            all.frames += known.truth.len();
            all.shown += shown;
            all.wrong += known.found().len() - shown;
        }
        all.instructions = instructions.len();
        Some(all)
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            instructions,
            chains,
            exact,
            frames,
            shown,
            wrong,
        } = self;
        let lost = frames - shown;
        write!(
            out,
            "{chains} chains at {instructions} user instructions with a known stack: {exact} exact; \
             {lost} of {frames} frames lost, {wrong} wrong"
        )
    }
}

/// How many frames of a chain, from its first on, are those of the stack with some left out.
pub(in crate::invariant) fn in_order(found: &[u64], truth: &[u64]) -> usize {
    let mut left = truth.iter();
    let known = found.iter().take_while(|ip| left.any(|it| it == *ip));
    known.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_in_order() {
        assert_eq!(in_order(&[1, 3], &[1, 2, 3]), 2);
        assert_eq!(in_order(&[1, 3, 2], &[1, 2, 3]), 2);
        assert_eq!(in_order(&[1, 4, 3], &[1, 2, 3]), 1);
        assert_eq!(in_order(&[], &[1]), 0);
    }

    #[test]
    fn a_caller_is_where_its_call_is() {
        let program = Program {
            stacks: Vec::new(),
            covered: vec![(0x10, 0x20)],
        };
        assert_eq!(gap(&program, &[0x10, 0x20]), None);
        assert_eq!(gap(&program, &[0x10, 0x10]), Some(1));
        assert_eq!(gap(&program, &[0x20, 0x20]), Some(0));
    }

    #[test]
    fn frames_that_are_lost_and_wrong_are_counted() {
        use crate::invariant::sframe::f2_not_covered::tests::{CHAIN, IP, STACK, kit};
        use crate::invariant::testkit::{Kit, user};

        let shown = |chain: &[u64]| {
            let kit = kit(&[], user(IP).with_stack(STACK), chain);
            Shown::of(&kit.trace()).unwrap().to_string()
        };
        let at = "1 chains at 1 user instructions with a known stack";
        assert_eq!(
            shown(&CHAIN),
            format!("{at}: 1 exact; 0 of 4 frames lost, 0 wrong")
        );
        assert_eq!(
            shown(&[IP, 0x3000, 0x9]),
            format!("{at}: 0 exact; 2 of 4 frames lost, 1 wrong")
        );
        assert_eq!(Shown::of(&Kit::new(1).trace()), None);

        let mut twice = kit(&[], user(IP).with_stack(STACK), &CHAIN[..3]);
        twice.inject(0, 1001, 5 << 32 | 1, user(IP).with_stack(STACK + 40));
        twice.deferred(0, 1001, 5 << 32 | 1, &[IP, 0x2000, 0x3000]);
        let all = Shown::of(&twice.trace()).unwrap();
        let Shown {
            instructions,
            chains,
            exact,
            frames,
            shown,
            wrong,
        } = all;
        assert_eq!((instructions, chains, exact), (1, 2, 1));
        assert_eq!((frames, shown, wrong), (7, 6, 0));
    }
}
