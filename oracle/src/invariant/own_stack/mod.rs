//! O: what a thread gets that asks for its own stack (`proposal:own-stack`).

pub(super) mod o1_truth;
pub(super) mod o2_refused;
pub(super) mod o3_untouched;

use unwindlab_abi::Observation;
use unwindlab_abi::own_stack::OwnStackCalls;

use crate::invariant::evidence::Evidence;

/// All calls of a trial, those with one outcome together.
fn calls<'t>(evidence: &Evidence<'t>) -> impl Iterator<Item = &'t OwnStackCalls> {
    let seen = evidence.trace().observations.iter();
    let pieces = seen.filter_map(|it| match it {
        Observation::OwnStack(calls) => Some(calls),
        _ => None,
    });
    pieces.flatten()
}

/// The beginning of a message on a call.
fn what(call: &OwnStackCalls) -> String {
    let times = match call.count {
        1 => "once".to_owned(),
        count => format!("{count} times"),
    };
    format!("thread {}, {} ({times})", call.thread, call.case.name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::Check;
    use crate::invariant::testkit::{Kit, check};
    use unwindlab_abi::own_stack::OwnStackCase;

    /// What an invariant says of one call of a thread with six frames: one in the leaf from 0x1000 on, four at 0x2000, one at 0x3000.
    pub(super) fn one(id: &str, case: OwnStackCase, answer: i64, frames: &[u64]) -> Check {
        let mut kit = Kit::new(1);
        kit.deep_thread(0, 1001, 4);
        let mut trace = kit.trace();
        trace
            .observations
            .push(Observation::OwnStack(vec![OwnStackCalls {
                thread: 0,
                case,
                count: 1,
                answer,
                frames: frames.to_vec(),
                touched_stack: None,
                handler: [0x5000, 0x6000],
            }]));
        check(id, &trace)
    }

    #[test]
    fn without_a_call_nothing_is_judged() {
        let trace = Kit::new(1).trace();
        for id in ["O1", "O2", "O3"] {
            assert!(matches!(check(id, &trace), Check::NotExercised { .. }));
        }
    }

    #[test]
    fn a_violation_names_thread_case_and_how_often() {
        let case = OwnStackCase::Whole;
        let Check::Violated(list) = one("O1", case, -14, &[]) else {
            panic!("not violated");
        };
        let named = format!("thread 0, {} (once)", case.name());
        assert!(list[0].message.starts_with(&named), "{}", list[0].message);
    }
}
