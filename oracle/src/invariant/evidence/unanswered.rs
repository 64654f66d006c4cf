//! The excuses for a missing answer, each proved from the trace.
//!
//! * XA: data was lost in a buffer that the record may have gone to. Proved by a LOST record.
//! * XB: the tracking event was off between request and answer. A trace has no record of an
//!   event being enabled or disabled, so this cannot be proved from it and is never granted: the
//!   harness enables the tracking events before the sampling ones and disables them after.
//! * XC: the task left on a CPU that has no event to receive the record. Proved by the session
//!   (a CPU without one) and by the task's next record, which must be on that CPU.
//! * XD: the session ended with the task still in the kernel. Proved by the task being switched
//!   out, or inside a system call, as the last thing the trace has of it, and no record of it
//!   being of a later entry.
//! * XF: the answer went to another session earlier in the same entry. All sessions of a trial
//!   are in one trace, so such an answer is in the trace, before the request: M1 and M5 count the
//!   request as late and need no excuse. XF does not apply to an answer that is in no buffer at
//!   all, so it is never granted either.

use super::facts::{Facts, Request};
use super::order::before;
use super::role::receivers;
use crate::trace::{Event, EventKind};

impl<'t> Facts<'t> {
    /// The excuse for a request that no record answers, proved; `None` if there is none.
    pub fn unanswered(&self, request: &Request<'t>) -> Option<String> {
        let over_by = self.entry_over_by(request);
        self.losses
            .between(request.event.time, over_by.and_then(|it| it.time))
            .or_else(|| self.left_unwatched(request))
            .or_else(|| self.still_inside(request).filter(|_| over_by.is_none()))
    }

    /// By when the entry of `request` was over at the latest: the task's next record that is proved
    /// to be of another entry, or carries another cookie. This only narrows XA and XD, so relying on
    /// cookies excuses nothing.
    pub fn entry_over_by(&self, request: &Request<'t>) -> Option<&'t Event> {
        let other = |e: &Event| e.cookie().is_some_and(|cookie| cookie != request.cookie);
        self.after(request.task?, request.event)
            .find(|e| other(e) || self.separated(request.event, e).is_some())
    }

    /// XC.
    fn left_unwatched(&self, request: &Request<'t>) -> Option<String> {
        let watched = |cpu: u32| receivers(self.trace).any(|(_, open)| open.cpu == cpu);
        let next = self.after(request.task?, request.event).next();
        let cpu = next.map_or(request.event.cpu, |e| e.cpu);
        (!watched(cpu)).then(|| format!("XC CPU {cpu} has no event that receives the answer"))
    }

    /// XD. A task whose exit record is there did not outlive the session.
    fn still_inside(&self, request: &Request<'t>) -> Option<String> {
        let task = request.task?;
        if self.tasks.exit(task).is_some() {
            return None;
        }
        let event = request.event;
        let last = self.records.get(&task)?.last()?;
        let out = matches!(last.kind, EventKind::Switch { out: true, .. });
        if out && before(event, last) {
            return Some(format!(
                "XD the task was switched out at event {} and never came back",
                last.index
            ));
        }
        // Being sampled again is all that the task did after the request.
        let asleep = matches!(last.kind, EventKind::Sample(_));
        (asleep && self.syscalls.in_last_syscall(task, event))
            .then(|| "XD the task was in a system call to the end".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::evidence::order::NESTING;
    use crate::invariant::testkit::{Kit, violations};

    const C: u64 = 3 << 32 | 1;

    fn excuse_of_first(kit: &Kit) -> Option<String> {
        let trace = kit.trace();
        let facts = Facts::new(&trace, None);
        facts.unanswered(&facts.requests[0])
    }

    #[test]
    fn none_without_proof() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        assert_eq!(excuse_of_first(&kit), None);
    }

    #[test]
    fn xa_needs_a_loss_before_the_entry_was_over() {
        let mut kit = Kit::new(2);
        kit.nmi(0, 1001, C);
        kit.switch_in(1, 1002);
        kit.lost(1, 3);
        assert!(
            excuse_of_first(&kit)
                .unwrap()
                .starts_with("XA ring 1 lost 3")
        );

        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.nmi(0, 1001, C + (2 << 32));
        for _ in 0..NESTING {
            kit.nmi(0, 1001, C + (2 << 32));
        }
        kit.lost(0, 1);
        assert_eq!(excuse_of_first(&kit), None);

        // The witness saw the task leave before anything was lost.
        let mut kit = Kit::new(1);
        kit.witness();
        kit.nmi(0, 1001, C);
        for _ in 0..2 {
            kit.returns(0, 1001);
        }
        for _ in 0..=NESTING {
            kit.switch_in(0, 1001);
        }
        kit.lost(0, 1);
        assert_eq!(excuse_of_first(&kit), None);
    }

    #[test]
    fn a_lost_record_of_nothing_is_no_proof() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.lost(0, 0);
        assert_eq!(excuse_of_first(&kit), None);
    }

    #[test]
    fn xc_needs_a_cpu_without_a_receiver() {
        let mut kit = Kit::new(2);
        kit.close(1, "track");
        kit.nmi(0, 1001, C);
        assert_eq!(excuse_of_first(&kit), None);
        kit.sys_exit(1, 1001);
        assert!(excuse_of_first(&kit).unwrap().starts_with("XC CPU 1"));
    }

    #[test]
    fn xd_by_a_switch_that_is_never_undone() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.switch_out(0, 1001);
        assert!(excuse_of_first(&kit).unwrap().starts_with("XD"));
        kit.switch_in(0, 1001);
        assert_eq!(excuse_of_first(&kit), None);
    }

    #[test]
    fn xd_by_a_system_call_that_never_ends() {
        let mut kit = Kit::new(1);
        kit.sys_enter(0, 1001);
        kit.nmi(0, 1001, C);
        assert!(excuse_of_first(&kit).unwrap().starts_with("XD"));
        kit.exit(0, 1001);
        assert_eq!(excuse_of_first(&kit), None);
    }

    /// What comes later of the task shows that it has left the request's entry.
    #[test]
    fn xd_is_for_the_last_entry_only() {
        let mut kit = Kit::new(1);
        for (cookie, answered) in [(C, false), (C + (2 << 32), true)] {
            kit.sys_enter(0, 1001);
            kit.nmi(0, 1001, cookie);
            kit.sys_exit(0, 1001);
            if answered {
                kit.deferred(0, 1001, cookie, &[0x40]);
            }
        }
        kit.switch_out(0, 1001);
        assert_eq!(excuse_of_first(&kit), None);
        violations("M1", &kit);

        // Nor need there be another cookie, or a time.
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.sys_exit(0, 1001);
        kit.sys_enter(0, 1001);
        let last = kit.switch_out(0, 1001);
        let mut trace = kit.trace();
        for time in [trace.events[last].time, None] {
            trace.events[last].time = time;
            let facts = Facts::new(&trace, None);
            assert_eq!(facts.unanswered(&facts.requests[0]), None, "{time:?}");
        }
    }
}
