//! O3: a call for one's own stack that its arguments refuse does not walk the stack.

use std::collections::BTreeSet;

use unwindlab_abi::own_stack::{OwnStackCalls, OwnStackCase};

use super::{calls, what};
use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, announced_spec};

/// O3. A call without room, with an unknown flag or with a buffer of the kernel is refused before the walk: no page of
/// the stack, all of which the thread dropped from its page tables before, is in them afterwards. What a buffer in user
/// mode turns out to be is known by the copy only, behind the walk.
///
/// Evidence is such a call of a thread whose call with the same stack dropped was answered and brought a page in: a
/// walk is seen there. Where a tracer asks for stacks in the same trial, its walk may be the one that is seen, and nothing is judged.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    if others_walk(evidence) {
        return tally.lacks("a tracer has the stack walked too");
    }
    let sees = |call: &OwnStackCalls| {
        call.case == OwnStackCase::StackNotPresent
            && call.answer > 0
            && call.touched_stack == Some(true)
    };
    let seeing: BTreeSet<u32> = calls(evidence)
        .filter(|it| sees(it))
        .map(|it| it.thread)
        .collect();
    for call in calls(evidence) {
        if !is_refused_by_arguments(call.case) {
            continue;
        }
        match call.touched_stack {
            Some(true) => {
                let flaw = "a page of the stack, which was not present, is present after it";
                tally.violated(format!("{}: {flaw}", what(call)), [], None);
            }
            Some(false) if seeing.contains(&call.thread) => {
                tally.holds_on(usize::try_from(call.count).unwrap_or(usize::MAX));
            }
            Some(false) => tally.undecided("a refused call of a thread that saw no walk"),
            None => tally.undecided("a refused call after which the thread did not look"),
        }
    }
}

fn is_refused_by_arguments(case: OwnStackCase) -> bool {
    matches!(
        case,
        OwnStackCase::NoRoom | OwnStackCase::Flags | OwnStackCase::BeyondAddressSpace
    )
}

/// Whether anything else in the trial has stacks walked where pages may be brought in.
fn others_walk(evidence: &Evidence<'_>) -> bool {
    let trace = evidence.trace();
    let by_perf = { trace.session.iter() }
        .filter_map(|open| announced_spec(trace, open))
        .any(|spec| spec.defer_callchain);
    by_perf || trace.lab.is_some() || trace.tracefs.is_some() || trace.user_mode.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::Check;
    use crate::invariant::testkit::{Kit, check};
    use unwindlab_abi::Observation;

    const REFUSED: [OwnStackCase; 3] = [
        OwnStackCase::NoRoom,
        OwnStackCase::Flags,
        OwnStackCase::BeyondAddressSpace,
    ];

    fn call(case: OwnStackCase, answer: i64, touched_stack: Option<bool>) -> OwnStackCalls {
        OwnStackCalls {
            thread: 0,
            case,
            count: 1,
            answer,
            frames: Vec::new(),
            touched_stack,
            handler: [0; 2],
        }
    }

    fn judged(calls: Vec<OwnStackCalls>, tracer: bool) -> &'static str {
        let mut kit = Kit::new(1);
        kit.spec("nmi", |it| it.defer_callchain = tracer);
        let mut trace = kit.trace();
        trace.observations.push(Observation::OwnStack(calls));
        match check("O3", &trace) {
            Check::Holds { .. } => "holds",
            Check::Violated(_) => "violated",
            Check::NotExercised { .. } => "not exercised",
        }
    }

    #[test]
    fn a_walk_before_the_refusal_does_not_hold() {
        for case in REFUSED {
            let seen = || call(OwnStackCase::StackNotPresent, 6, Some(true));
            let of = |touched| judged(vec![seen(), call(case, -22, touched)], false);
            assert_eq!(of(Some(false)), "holds");
            assert_eq!(of(Some(true)), "violated");
            assert_eq!(of(None), "not exercised");
            let alone = call(case, -22, Some(true));
            assert_eq!(judged(vec![alone], false), "violated");
        }
    }

    #[test]
    fn without_a_walk_that_was_seen_nothing_holds() {
        let refused = || call(OwnStackCase::Flags, -22, Some(false));
        for control in [
            call(OwnStackCase::StackNotPresent, 6, Some(false)),
            call(OwnStackCase::StackNotPresent, -14, Some(true)),
            call(OwnStackCase::Whole, 6, None),
            OwnStackCalls {
                thread: 1,
                ..call(OwnStackCase::StackNotPresent, 6, Some(true))
            },
        ] {
            assert_eq!(judged(vec![control, refused()], false), "not exercised");
        }
    }

    #[test]
    fn beside_a_tracer_nothing_is_judged() {
        let seen = call(OwnStackCase::StackNotPresent, 6, Some(true));
        let refused = call(OwnStackCase::Flags, -22, Some(true));
        assert_eq!(judged(vec![seen, refused], true), "not exercised");
    }

    #[test]
    fn beside_another_client_nothing_is_judged() {
        type Change = fn(&mut crate::trace::Trace);
        let changes: [(Change, bool); 4] = [
            (|_| (), true),
            (|trace| trace.lab = Some(Default::default()), false),
            (|trace| trace.tracefs = Some(Default::default()), false),
            (|trace| trace.user_mode = Some(Default::default()), false),
        ];
        for (number, (change, is_judged)) in changes.into_iter().enumerate() {
            let mut kit = Kit::new(1);
            kit.spec("nmi", |it| it.defer_callchain = false);
            let mut trace = kit.trace();
            let refused = call(OwnStackCase::Flags, -22, Some(true));
            let calls = Observation::OwnStack(vec![refused]);
            trace.observations.push(calls);
            change(&mut trace);
            let found = matches!(check("O3", &trace), Check::Violated(_));
            assert_eq!(found, is_judged, "{number}");
        }
    }

    /// A call that wrote no frame need not have walked.
    #[test]
    fn a_walk_that_found_nothing_is_no_control() {
        let seen = call(OwnStackCase::StackNotPresent, 0, Some(true));
        let refused = call(OwnStackCase::Flags, -22, Some(false));
        assert_eq!(judged(vec![seen, refused], false), "not exercised");
    }
}
