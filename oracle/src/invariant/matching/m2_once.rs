//! M2: a cookie is answered at most once.

use std::collections::BTreeMap;

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, spec_number};

/// M2. No event writes two D of one cookie. Two events that receive record 22 and share a ring
/// write one each into it, so the event counts, not the ring; where the record does not name its
/// event, the ring does. Evidence is a cookie with one D where nothing was lost after it: on a
/// kernel that writes a second one, that may be among what was lost. Migration makes no second D: the callback runs once, on one CPU.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    let facts = evidence.facts();
    for (cookie, exchange) in facts.cookies() {
        // The same spec is open on every CPU: those are one receiver, for one answer is
        // written on one CPU only.
        let mut of: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for answer in &exchange.answers {
            let event = answer.event;
            let key = match spec_number(trace, event) {
                Some(spec) => (Some(spec), None),
                None => (None, Some(event.ring)),
            };
            of.entry(key).or_default().push(answer);
        }
        for answers in of.values() {
            let [_, second, ..] = answers.as_slice() else {
                let until_end = answers.first().and_then(|it| it.event.time);
                match facts.losses.between(until_end, None) {
                    None => tally.holds(),
                    Some(_) => tally.undecided("records were lost later"),
                }
                continue;
            };
            let message = format!("{} records 22 for cookie {cookie:#x}", answers.len());
            // The request that led to the second one.
            let raised = exchange
                .requests
                .iter()
                .take_while(|r| r.event.index < second.event.index)
                .last();
            let events = answers.iter().map(|a| a.event.index);
            let events = events.chain(raised.map(|r| r.event.index));
            let instruction = raised.and_then(|r| facts.instruction(r.event));
            tally.violated(message, events, instruction);
        }
    }
}

#[cfg(test)]
mod tests {
    use unwindlab_abi::plan::EventSource;

    use crate::invariant::testkit::{Kit, holds, not_exercised, spec, violations};

    const C: u64 = 3 << 32 | 1;

    #[test]
    fn one_each_of_two_events_in_one_ring_holds() {
        let mut kit = Kit::new(1);
        let second = kit.open(spec("second", EventSource::Dummy));
        kit.nmi(0, 1001, C);
        kit.deferred(0, 1001, C, &[0x40]);
        kit.deferred_to(second, 0, 1001, C, &[0x40]);
        assert_eq!(holds("M2", &kit).0, 2);
    }

    #[test]
    fn two_do_not_on_whatever_cpu() {
        for cpu in [0, 1] {
            let mut kit = Kit::new(2);
            kit.nmi(0, 1001, C);
            let a = kit.deferred(0, 1001, C, &[0x40]);
            let late = kit.nmi(0, 1001, C);
            let b = kit.deferred(cpu, 1001, C, &[0x40]);
            assert_eq!(violations("M2", &kit)[0].events, [a, late, b]);
        }
    }

    #[test]
    fn a_trace_without_answers_does_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        not_exercised("M2", &kit);
    }
}
