//! Requests of workloads that register sections of their own, with what was done before each.

use std::collections::BTreeMap;

use unwindlab_abi::Observation;
use unwindlab_abi::sframe::{SframeAsks, SframeCase, SframeExpects};

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, Request, difference};

/// A request, and what it may show.
struct Ask<'t> {
    what: &'t SframeAsks,
    number: u32,
    request: Request<'t>,
}

/// All requests in order, if there are as many as the agent made. `None` without such a workload.
fn asks<'t>(evidence: &Evidence<'t>) -> Option<Result<Vec<Ask<'t>>, String>> {
    let seen = evidence.trace().observations.iter();
    let pieces = seen.filter_map(|it| match it {
        Observation::SframeAsks(piece) => Some(piece),
        _ => None,
    });
    let made = pieces.flatten().flat_map(|what| {
        let last = what.first.saturating_add(what.count);
        (what.first..last).map(move |number| (what, number))
    });
    // No trace has more requests than that.
    let requests = &evidence.facts().requests;
    let made: Vec<_> = made.take(requests.len().saturating_add(1)).collect();
    if made.is_empty() {
        return None;
    }
    let one_ring = requests.windows(2).all(|it| match it {
        [a, b] => a.event.ring_index == b.event.ring_index,
        _ => true,
    });
    if made.len() != requests.len() || !one_ring {
        return Some(Err(format!(
            "the workload made {} requests or more, and the rings show {}",
            made.len(),
            requests.len()
        )));
    }
    let ask = |((what, number), &request): (_, &Request<'t>)| Ask {
        what,
        number,
        request,
    };
    Some(Ok(made.into_iter().zip(requests).map(ask).collect()))
}

/// What came of the requests of a case, for the report.
#[derive(Default)]
struct Outcome {
    /// By errno.
    registered: BTreeMap<i32, usize>,
    /// By number of frames.
    frames: BTreeMap<usize, usize>,
    /// Chains with frames that the stack does not have, and the section says.
    said: usize,
}

/// Judges the requests of the cases that `is_mine` picks. Notes what came of each case.
pub(super) fn judge(
    evidence: &Evidence<'_>,
    tally: &mut Tally,
    is_mine: impl Fn(SframeCase) -> bool,
) {
    let asks = match asks(evidence) {
        None => return,
        Some(Err(why)) => return tally.lacks(why),
        Some(Ok(asks)) => asks,
    };
    let stack = evidence.trace().threads.first().map(|it| &it.stack);
    let Some(stack) = stack else {
        return;
    };
    let whole: Vec<u64> = std::iter::once(stack.syscall_return)
        .chain(stack.caller_addresses())
        .collect();
    let mut outcomes: BTreeMap<SframeCase, Outcome> = BTreeMap::new();
    for ask in asks.iter().filter(|it| is_mine(it.what.case)) {
        let outcome = outcomes.entry(ask.what.case).or_default();
        *outcome.registered.entry(ask.what.errno).or_default() += 1;
        let exchange = evidence.facts().exchanges.get(&ask.request.cookie);
        let Some(answer) = exchange.and_then(|it| it.answers.first()) else {
            tally.undecided("a request without an answer");
            continue;
        };
        let ips = &answer.chain.ips;
        *outcome.frames.entry(ips.len()).or_default() += 1;
        match verdict(&ask.what.expects, ips, &whole) {
            Verdict::Holds => tally.holds(),
            Verdict::Said => {
                outcome.said += 1;
                tally.holds();
            }
            Verdict::Undecided => tally.undecided("a chain that nobody has worked out"),
            Verdict::Wrong(what) => {
                let case = ask.what.case.name();
                let number = ask.number;
                let errno = ask.what.errno;
                tally.violated(
                    format!("{case}, number {number} (registration: {errno}): {what}"),
                    [ask.request.event.index, answer.event.index],
                    None,
                );
            }
        }
    }
    for (case, outcome) in outcomes {
        tally.excuse(format!("{}: {}", case.name(), outcome.in_words()));
    }
}

impl Outcome {
    fn in_words(&self) -> String {
        let registered = self.registered.iter().map(|(errno, count)| match errno {
            0 => format!("{count} accepted"),
            errno => format!("{count} refused with {errno}"),
        });
        let frames = { self.frames.iter() }.map(|(frames, count)| format!("{count} of {frames}"));
        let join = |parts: Vec<String>| parts.join(", ");
        let said = match self.said {
            0 => String::new(),
            said => format!("; {said} with frames that only the section says"),
        };
        format!(
            "{}; chains by frames: {}{said}",
            join(registered.collect()),
            join(frames.collect())
        )
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Holds,
    /// As the section says, and the stack does not.
    Said,
    Undecided,
    Wrong(String),
}

fn verdict(expects: &SframeExpects, ips: &[u64], whole: &[u64]) -> Verdict {
    let first = |of: &[u64]| !ips.is_empty() && of.starts_with(ips);
    let right = match expects {
        SframeExpects::Whole => ips == whole,
        SframeExpects::Alone => ips.len() == 1 && first(whole),
        SframeExpects::Shorter | SframeExpects::Unknown => first(whole),
        SframeExpects::Says(said) => first(whole) || first(said),
    };
    match (right, expects) {
        (true, SframeExpects::Says(_)) if !first(whole) => Verdict::Said,
        (true, _) => Verdict::Holds,
        (false, SframeExpects::Unknown) => Verdict::Undecided,
        (false, SframeExpects::Alone) => Verdict::Wrong(format!(
            "{} frames, where nothing describes the code",
            ips.len()
        )),
        (false, SframeExpects::Says(said)) => Verdict::Wrong(format!(
            "neither the stack ({}) nor what the section says ({})",
            difference(ips, whole),
            difference(ips, said)
        )),
        (false, _) => Verdict::Wrong(difference(ips, whole)),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::invariant::Check;
    use crate::invariant::testkit::{Kit, check};

    /// The whole stack of a thread of [`Kit`], at its system call.
    pub const WHOLE: [u64; 4] = [0x1080, 0x2000, 0x2000, 0x3000];

    /// What an invariant says of one request that expected this and was answered so.
    pub fn one(id: &str, case: SframeCase, expects: SframeExpects, ips: &[u64]) -> Check {
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        kit.nmi(0, 1001, 1 << 32 | 1);
        kit.deferred(0, 1001, 1 << 32 | 1, ips);
        let mut trace = kit.trace();
        trace.observations = vec![Observation::SframeAsks(vec![SframeAsks {
            case,
            first: 7,
            count: 1,
            errno: 0,
            expects,
        }])];
        check(id, &trace)
    }

    #[test]
    fn a_frame_that_neither_stack_nor_section_has_is_wrong() {
        let says = SframeExpects::Says(vec![0x1080, 0x99, 0x98]);
        let verdict = |ips: &[u64]| verdict(&says, ips, &WHOLE);
        assert_eq!(verdict(&[0x1080, 0x99]), Verdict::Said);
        assert_eq!(verdict(&[0x1080, 0x2000]), Verdict::Holds);
        for ips in [&[0x1080, 0x98][..], &[0x1080, 0x2000, 0x98], &[]] {
            assert!(matches!(verdict(ips), Verdict::Wrong(_)), "{ips:x?}");
        }
    }

    #[test]
    fn requests_that_are_not_all_there_decide_nothing() {
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        kit.nmi(0, 1001, 1 << 32 | 1);
        kit.deferred(0, 1001, 1 << 32 | 1, &[0x77]);
        let mut trace = kit.trace();
        trace.observations = vec![Observation::SframeAsks(vec![SframeAsks {
            case: SframeCase::Right,
            first: 0,
            count: u32::MAX,
            errno: 0,
            expects: SframeExpects::Whole,
        }])];
        assert!(matches!(check("F3", &trace), Check::NotExercised { .. }));
    }

    fn notes(check: Check) -> String {
        match check {
            Check::Holds { excused, .. } => excused.concat(),
            Check::NotExercised { reason, .. } => reason,
            Check::Violated(list) => panic!("{list:?}"),
        }
    }

    #[test]
    fn what_came_of_each_case_is_counted() {
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        for (number, frames) in [(1, &WHOLE[..]), (2, &WHOLE), (3, &[0x1080, 0x99])] {
            kit.nmi(0, 1001, number << 33 | 1);
            kit.deferred(0, 1001, number << 33 | 1, frames);
        }
        let case = SframeCase::RowsBeyond;
        let asks = |first, count, errno| SframeAsks {
            case,
            first,
            count,
            errno,
            expects: SframeExpects::Says(vec![0x1080, 0x99]),
        };
        let mut trace = kit.trace();
        let made = vec![asks(0, 2, 0), asks(2, 1, 22)];
        trace.observations = vec![Observation::SframeAsks(made)];
        let counted = "2 accepted, 1 refused with 22; chains by frames: 1 of 2, 2 of 4; \
                       1 with frames that only the section says";
        let notes = notes(check("F3", &trace));
        assert_eq!(notes, format!("{}: {counted}", case.name()));
    }

    /// Each number names a request only where no ring can have them in another order.
    #[test]
    fn requests_of_two_rings_have_no_numbers() {
        let of_rings = |cpus: [u32; 2]| {
            let mut kit = Kit::new(2);
            kit.thread(0, 1001);
            for (cpu, cookie) in cpus.into_iter().zip([1 << 33 | 1, 2 << 33 | 1]) {
                kit.nmi(cpu, 1001, cookie);
                kit.deferred(cpu, 1001, cookie, &WHOLE);
            }
            let mut trace = kit.trace();
            trace.observations = vec![Observation::SframeAsks(vec![SframeAsks {
                case: SframeCase::RowsBeyond,
                first: 0,
                count: 2,
                errno: 0,
                expects: SframeExpects::Shorter,
            }])];
            check("F3", &trace)
        };
        assert!(matches!(of_rings([0, 0]), Check::Holds { evidence: 2, .. }));
        assert!(matches!(of_rings([0, 1]), Check::NotExercised { .. }));
    }
}
