//! What a recording of perf's own does not show: requests of others, and what came before it and after.
//!
//! perf is one client of deferred unwinding for all its sessions, and every answer goes to every event that wants
//! answers (`perf_unwind_deferred_callback`, kernel/events/core.c, 7.3). In a trial all sessions are in the trace. On
//! a machine that only perf watched, another session may have asked, and a task may have been in the kernel already.

use super::facts::{Answer, Facts, Request};
use super::order::before;
use crate::trace::{Event, EventKind};

impl<'t> Facts<'t> {
    /// Why the request of an answer may lie before the first record. A request that waited then is answered
    /// before anything else is asked of its task or answered to it: what that asks for meanwhile has its cookie.
    pub fn may_have_asked_before(&self, answer: &Answer<'t>) -> Option<&'static str> {
        if !self.trace.begins_late {
            return None;
        }
        let is_first = answer.task.is_none_or(|task| {
            let first = self.answers_of(task).first();
            let mut requests = self.requests_of(task).iter();
            first.is_some_and(|it| it.event.index == answer.event.index)
                && requests.all(|it| before(answer.event, it.event))
        });
        is_first.then_some("its request may lie before the first record")
    }

    /// Why a request that is not in the trace may have been made; `None` in a trial, or if somebody says that
    /// nothing else asked.
    pub fn others_may_ask(&self) -> Option<&'static str> {
        let recorded = self.trace.recorded?;
        (!recorded.alone).then_some(
            "another session of perf may have asked, before the recording or beside it \
             (--alone says that none did)",
        )
    }

    /// Why a request without an answer proves nothing; `None` where the answer must be in the trace.
    ///
    /// It must be there if every CPU was recorded, the whole entry lies in the time in which the events of all were
    /// on, and so the answer was written while they were. The entry begins behind a record of the task with another
    /// cookie, and has ended before one, or in its exit.
    pub fn answer_may_be_elsewhere(&self, request: &Request<'t>) -> Option<&'static str> {
        let recorded = self.trace.recorded?;
        if !recorded.every_cpu {
            return Some("not every CPU was recorded, and the answer may be on another one");
        }
        let other = |event: &&Event| event.cookie().is_some_and(|it| it != request.cookie);
        let within = |event: &Event| event.time.is_some_and(|time| recorded.is_whole(time));
        let records = request.task.and_then(|task| self.records.get(&task));
        let records = records.map_or(&[][..], Vec::as_slice);
        let at = records.partition_point(|it| it.index < request.event.index);
        let (earlier, later) = records.split_at_checked(at).unwrap_or_default();
        let earlier = earlier.iter().copied().rfind(other).filter(|it| within(it));
        let ended = |it: &&Event| other(it) || matches!(it.kind, EventKind::Exit { .. });
        let later = later.iter().copied().find(ended).filter(|it| within(it));
        (earlier.is_none() || later.is_none())
            .then_some("the entry may have begun before the recording, or ended behind it")
    }

    /// Whether a task may have begun to exit before a record, and its exit record come behind the recording.
    ///
    /// An answer shows nothing: `do_exit` sets `PF_EXITING` before what is pending is answered (kernel/exit.c, 7.3).
    pub fn may_exit_unseen(&self, event: &'t Event) -> bool {
        let task = self.tasks.of(event);
        self.trace.recorded.is_some() && !task.is_some_and(|task| self.lives_on(task, event))
    }
}

#[cfg(test)]
mod tests {
    use crate::invariant::testkit::{Kit, check};
    use crate::invariant::{Check, Evidence, INVARIANTS};
    use crate::trace::Trace;
    use crate::trace::fixtures::RESET_PERF_DATA;
    use crate::trace::model::{EventKind, Recorded};
    use crate::trace::perf_data::{Limits, PerfData};

    const COOKIES: [u64; 3] = [3 << 32 | 1, 5 << 32 | 1, 7 << 32 | 1];

    /// Three entries of a task, the second of which is not answered; as perf would record them.
    fn unanswered() -> Trace {
        let mut kit = Kit::new(1);
        for (at, cookie) in COOKIES.into_iter().enumerate() {
            kit.nmi(0, 1001, cookie);
            if at != 1 {
                kit.deferred(0, 1001, cookie, &[0x40]);
            }
        }
        let mut trace = kit.trace();
        trace.recorded = Some(Recorded {
            every_cpu: true,
            alone: false,
            steady: Some((0, u64::MAX)),
        });
        trace
    }

    fn is_violated(id: &str, trace: &Trace) -> bool {
        matches!(check(id, trace), Check::Violated(_))
    }

    fn undecided(id: &str, trace: &Trace) -> usize {
        match check(id, trace) {
            Check::Holds { undecided, .. } | Check::NotExercised { undecided, .. } => undecided,
            Check::Violated(list) => panic!("{list:?}"),
        }
    }

    #[test]
    fn an_answer_that_must_be_in_the_recording_is_missed() {
        let mut trace = unanswered();
        assert!(is_violated("M1", &trace));
        let steady = |from, to| Recorded {
            steady: Some((from, to)),
            ..trace.recorded.unwrap()
        };
        let time = |index: usize| trace.events[index].time.unwrap();
        let unsteady = [
            steady(time(1) + 1, u64::MAX),
            steady(0, time(3) - 1),
            Recorded {
                steady: None,
                ..trace.recorded.unwrap()
            },
            Recorded {
                every_cpu: false,
                ..trace.recorded.unwrap()
            },
        ];
        for recorded in unsteady {
            trace.recorded = Some(recorded);
            assert!(!is_violated("M1", &trace), "{recorded:?}");
            assert!(undecided("M1", &trace) > 0);
        }
        // The last thing the task did.
        let mut trace = unanswered();
        trace.events.truncate(3);
        assert!(!is_violated("M1", &trace));
    }

    #[test]
    fn markers_count_where_all_are_there() {
        let mut kit = Kit::new(1);
        kit.sys_enter(0, 1001);
        kit.nmi(0, 1001, COOKIES[0]);
        kit.nmi(0, 1001, COOKIES[1]);
        kit.sys_exit(0, 1001);
        let mut trace = kit.trace();
        assert!(is_violated("C1", &trace));
        let begin = trace.events[0].time.unwrap();
        for (every_cpu, from, counts) in
            [(true, 0, true), (true, begin + 1, false), (false, 0, false)]
        {
            trace.recorded = Some(Recorded {
                every_cpu,
                alone: true,
                steady: Some((from, u64::MAX)),
            });
            assert_eq!(is_violated("C1", &trace), counts);
        }
    }

    #[test]
    fn what_another_session_asked_for_is_no_violation() {
        let mut trace = unanswered();
        // Nothing asked for the second, which is answered; and the first is of an earlier time.
        trace.events.remove(2);
        let answer = trace.events[1].clone();
        trace.events.insert(2, answer);
        for (index, event) in trace.events.iter_mut().enumerate() {
            (event.index, event.position) = (index, index);
            event.time = Some(100 * index as u64);
        }
        let EventKind::CallchainDeferred(chain) = &mut trace.events[2].kind else {
            panic!("an answer");
        };
        chain.cookie = COOKIES[1];
        for id in ["C7", "M3"] {
            assert!(!is_violated(id, &trace), "{id}");
            assert!(undecided(id, &trace) > 0, "{id}");
        }
        trace.recorded.as_mut().unwrap().alone = true;
        for id in ["C7", "M3"] {
            assert!(is_violated(id, &trace), "{id}");
        }
        // Nobody asks for 0.
        trace.recorded.as_mut().unwrap().alone = false;
        let EventKind::CallchainDeferred(chain) = &mut trace.events[2].kind else {
            panic!("an answer");
        };
        chain.cookie = 0;
        for id in ["C4", "C7", "M3"] {
            assert!(is_violated(id, &trace), "{id}");
        }
    }

    #[test]
    fn f001_is_seen_in_what_perf_itself_wrote() {
        let data = PerfData::read(RESET_PERF_DATA, Limits::default()).unwrap();
        let evidence = Evidence::new(&data.trace);
        let violated: Vec<&str> = { INVARIANTS.iter() }
            .filter(|it| matches!(it.check(&evidence), Check::Violated(_)))
            .map(|it| it.id)
            .collect();
        assert_eq!(violated, ["C4", "C7", "M3"]);
    }

    #[test]
    fn a_cookie_of_another_session_may_be_older_and_of_another_cpu() {
        let mut kit = Kit::new(2);
        kit.nmi(0, 1001, 7 << 32 | 1);
        kit.nmi(0, 1002, 3 << 32 | 1);
        kit.nmi(0, 1003, 3 << 32 | 2);
        let mut trace = kit.trace();
        assert!(is_violated("C5", &trace) && is_violated("C6", &trace));
        trace.recorded = Some(Recorded::default());
        assert!(!is_violated("C5", &trace) && !is_violated("C6", &trace));
        trace.recorded.as_mut().unwrap().alone = true;
        assert!(is_violated("C5", &trace) && is_violated("C6", &trace));
    }
}
