//! N5: the program's own behaviour is the same with and without unwinding in user mode.

use unwindlab_abi::Observation;
use unwindlab_abi::behaviour::{Behaviour, SEEN_CALLS, SeenCall};

use crate::invariant::Tally;
use crate::invariant::evidence::Evidence;
use crate::trace::Trace;

/// N5. A process that has opted in sees of the kernel what its twin sees, which has not, makes the same system calls
/// and is sampled alike: what they return, the signals of its own that it handled meanwhile, and its end.
///
/// Evidence is a system call during which a signal with a nonce was handled, and the end of a process that was
/// sent a nonce: where none came there is nothing that could change. What a call returns undisturbed is known of some
/// calls. Where the twin's is disturbed, too, it is no measure.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    let mut full = 0;
    for process in behaviours(trace).filter(|it| it.opts_in) {
        let next = process.thread.checked_add(1);
        let twin = behaviours(trace).find(|it| !it.opts_in && Some(it.thread) == next);
        let Some(twin) = twin else {
            continue;
        };
        for (index, call) in process.calls.iter().enumerate() {
            if call.nonces == 0 {
                continue;
            }
            match twin.calls.get(index) {
                Some(other) if other.number != call.number || other.nonces > 0 => {
                    tally.undecided("the twin did something else");
                }
                Some(other) if other.due.is_some_and(|due| other.answer != due) => {
                    tally.undecided("the twin was disturbed, too");
                }
                Some(other) if (call.answer, call.signals) == (other.answer, other.signals) => {
                    tally.holds();
                }
                Some(other) => tally.violated(difference(process, call, other), [], None),
                None => tally.undecided("the twin did not come so far"),
            }
        }
        full += usize::from(process.calls.len() >= SEEN_CALLS);
        judge_end(trace, process, twin, tally);
    }
    tally.note(full, "processes without room to note more calls");
}

fn judge_end(trace: &Trace, process: &Behaviour, twin: &Behaviour, tally: &mut Tally) {
    let tids = trace.threads.iter();
    let tids = tids
        .filter(|it| it.thread == process.thread)
        .map(|it| it.tid);
    let tids: Vec<u32> = tids.collect();
    let nonces = trace.user_mode.iter().flat_map(|it| it.nonces());
    if !{ nonces }.any(|(_, request)| tids.contains(&request.tid)) {
        return;
    }
    if process.end == twin.end {
        tally.holds();
        return;
    }
    let message = format!(
        "the process of thread {} {}, its twin {}",
        process.thread,
        ended(process.end),
        ended(twin.end)
    );
    tally.violated(message, [], None);
}

fn behaviours(trace: &Trace) -> impl Iterator<Item = &Behaviour> {
    trace.observations.iter().filter_map(|it| match it {
        Observation::Behaviour(behaviour) => Some(behaviour),
        _ => None,
    })
}

fn difference(process: &Behaviour, call: &SeenCall, other: &SeenCall) -> String {
    let saw = |it: &SeenCall| match it.signals {
        0 => answer(it.answer),
        n => format!("{} and {n} signals", answer(it.answer)),
    };
    format!(
        "{} of thread {} returned {} when a nonce came, its twin's {}",
        name(call.number),
        process.thread,
        saw(call),
        saw(other)
    )
}

fn answer(answer: i64) -> String {
    match answer {
        -4 => "EINTR".to_owned(),
        -110 => "ETIMEDOUT".to_owned(),
        other => other.to_string(),
    }
}

/// The name of a system call of 64-bit x86.
fn name(number: u32) -> String {
    let name = match number {
        0 => "read",
        7 => "poll",
        35 => "nanosleep",
        57 => "fork",
        58 => "vfork",
        61 => "wait4",
        202 => "futex",
        232 => "epoll_wait",
        234 => "tgkill",
        other => return format!("system call {other}"),
    };
    name.to_owned()
}

/// A status as `wait` reports it.
fn ended(status: i32) -> String {
    match status & 0x7f {
        0 => format!("ended with {}", status >> 8 & 0xff),
        signal => format!("was killed by signal {signal}"),
    }
}

#[cfg(test)]
mod tests {
    use unwindlab_abi::Observation;
    use unwindlab_abi::behaviour::{Behaviour, SEEN_CALLS, SeenCall};
    use unwindlab_abi::user_mode::Asked;

    use crate::invariant::Check;
    use crate::invariant::testkit::{Kit, check, user};

    const SLEEP: SeenCall = SeenCall {
        number: 35,
        answer: 0,
        due: Some(0),
        signals: 0,
        nonces: 1,
    };
    const UNDISTURBED: SeenCall = SeenCall { nonces: 0, ..SLEEP };

    fn process(call: SeenCall, end: i32) -> Behaviour {
        Behaviour {
            thread: 0,
            opts_in: true,
            calls: vec![call],
            end,
        }
    }

    fn twin(call: SeenCall) -> Behaviour {
        Behaviour {
            thread: 1,
            opts_in: false,
            calls: vec![call],
            end: 0,
        }
    }

    /// Thread 0 was sent a nonce, its twin was not.
    fn judged(process: Behaviour, twin: Behaviour) -> Check {
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        kit.thread(1, 1002);
        kit.user_mode(0x5000);
        kit.inject(0, 1001, 3 << 32 | 1, user(0x1004));
        kit.nonce(1001, 1 << 48 | 1, Asked::Sent);
        let mut trace = kit.trace();
        trace.observations = [process, twin].map(Observation::Behaviour).to_vec();
        check("N5", &trace)
    }

    #[test]
    fn what_the_twin_sees_holds() {
        let found = judged(process(SLEEP, 0), twin(UNDISTURBED));
        assert!(
            matches!(found, Check::Holds { evidence: 2, .. }),
            "{found:?}"
        );
    }

    #[test]
    fn another_answer_signal_or_end_does_not_hold() {
        let cut = SeenCall {
            answer: -4,
            ..SLEEP
        };
        let signalled = SeenCall {
            signals: 1,
            ..SLEEP
        };
        for (seen, says) in [
            (
                process(cut, 0),
                "nanosleep of thread 0 returned EINTR when a nonce came, its twin's 0",
            ),
            (process(signalled, 0), "returned 0 and 1 signals"),
            (
                process(SLEEP, 11),
                "was killed by signal 11, its twin ended with 0",
            ),
            (process(SLEEP, 256), "ended with 1"),
        ] {
            let Check::Violated(list) = judged(seen, twin(UNDISTURBED)) else {
                panic!("{says}");
            };
            assert!(list[0].message.contains(says), "{}", list[0].message);
        }
    }

    #[test]
    fn a_call_without_a_nonce_is_no_evidence() {
        let found = judged(process(UNDISTURBED, 0), twin(UNDISTURBED));
        assert!(
            matches!(found, Check::Holds { evidence: 1, .. }),
            "{found:?}"
        );
    }

    #[test]
    fn a_twin_that_is_disturbed_decides_nothing() {
        let cut = SeenCall {
            answer: -4,
            ..SLEEP
        };
        for other in [
            SeenCall { nonces: 0, ..cut },
            SLEEP,
            SeenCall {
                number: 202,
                ..UNDISTURBED
            },
        ] {
            let found = judged(process(cut, 0), twin(other));
            let Check::Holds {
                evidence: 1,
                undecided: 1,
                ..
            } = found
            else {
                panic!("{found:?}");
            };
        }
    }

    #[test]
    fn a_process_without_a_twin_or_a_nonce_is_no_evidence() {
        for thread in [2, u32::MAX] {
            let alone = Behaviour {
                thread,
                ..process(SLEEP, 0)
            };
            let found = judged(alone, twin(UNDISTURBED));
            assert!(matches!(found, Check::NotExercised { .. }), "{found:?}");
        }
    }

    #[test]
    fn that_there_was_no_room_for_more_is_said() {
        let many = |mut it: Behaviour| {
            it.calls = it.calls.repeat(SEEN_CALLS);
            it
        };
        let found = judged(many(process(SLEEP, 0)), many(twin(UNDISTURBED)));
        let Check::Holds { excused, .. } = found else {
            panic!("{found:?}");
        };
        assert_eq!(excused, ["1 processes without room to note more calls"]);
    }
}
