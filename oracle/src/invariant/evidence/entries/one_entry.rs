//! The requests that are known to be of one entry.

use std::collections::BTreeMap;

use crate::invariant::evidence::facts::{Facts, Request};
use crate::invariant::evidence::order::{NESTING, before};
use crate::invariant::evidence::tasks::Task;

/// Records that are known to be of one entry.
#[derive(Debug)]
pub(crate) struct OneEntry<'t> {
    pub requests: Vec<Request<'t>>,
    /// For the message.
    pub why: String,
    /// The marker records that show it.
    pub events: Vec<usize>,
}

impl<'t> Facts<'t> {
    /// The requests that are known to be of one entry, at least two in each group.
    pub fn one_entry(&self) -> Vec<OneEntry<'t>> {
        let mut groups = self.by_bracket();
        groups.extend(self.by_arrival());
        groups.extend(self.by_answer());
        groups
    }

    fn by_answer(&self) -> Vec<OneEntry<'t>> {
        let mut groups = Vec::new();
        for (cookie, exchange) in self.cookies() {
            let (Some(first), Some(answer)) = (exchange.birth(), exchange.answers.first()) else {
                continue;
            };
            let Some(task) = first.task else { continue };
            let list = self.requests_of(task);
            // The answer of another task ends nothing. M1 and S4 judge one that is proved to be of
            // another entry.
            if answer.task != first.task || self.separated(first.event, answer.event).is_some() {
                continue;
            }
            let from = list.partition_point(|r| r.event.index < first.event.index);
            let requests: Vec<Request<'t>> = list
                .get(from..)
                .unwrap_or_default()
                .iter()
                .take_while(|r| before(r.event, answer.event))
                .copied()
                .collect();
            if requests.len() > 1 {
                groups.push(OneEntry {
                    requests,
                    why: format!("before the record 22 of {cookie:#x} was written"),
                    events: vec![answer.event.index],
                });
            }
        }
        groups
    }

    fn by_bracket(&self) -> Vec<OneEntry<'t>> {
        let mut groups = Vec::new();
        for bracket in self.syscalls.brackets() {
            let list = self.requests_of(bracket.task);
            let (Some(enter), Some(exit)) = (
                self.trace.events.get(bracket.enter),
                self.trace.events.get(bracket.exit),
            ) else {
                continue;
            };
            // As in `Facts::after`: start a little early and let `before` decide.
            let from = list.partition_point(|r| r.event.index < bracket.enter);
            let requests: Vec<Request<'t>> = list
                .get(from.saturating_sub(NESTING)..)
                .unwrap_or_default()
                .iter()
                .take_while(|r| !before(exit, r.event))
                .filter(|r| before(enter, r.event) && before(r.event, exit))
                .copied()
                .collect();
            if requests.len() > 1 {
                groups.push(OneEntry {
                    requests,
                    why: "between one sys_enter and its sys_exit".into(),
                    events: vec![bracket.enter, bracket.exit],
                });
            }
        }
        groups
    }

    fn by_arrival(&self) -> Vec<OneEntry<'t>> {
        let mut arrivals: BTreeMap<_, Vec<Request<'t>>> = BTreeMap::new();
        for &request in &self.requests {
            let (Some(injection), Some(task)) = (self.injection(request.event), request.task)
            else {
                continue;
            };
            let (Some(thread), Some(iteration), 0) =
                (injection.thread, injection.iteration, injection.cpl)
            else {
                continue;
            };
            let place = (injection.spec, injection.vcpu, injection.rip);
            let key = (task, thread, iteration, place);
            arrivals.entry(key).or_default().push(request);
        }
        let mut groups = Vec::new();
        for ((task, thread, iteration, (_, _, rip)), requests) in arrivals {
            for requests in self.unanswered_runs(task, requests) {
                groups.push(OneEntry {
                    requests,
                    why: format!(
                        "injected at one arrival at {rip:#x}, iteration {iteration} of thread {thread}"
                    ),
                    events: Vec::new(),
                });
            }
        }
        groups
    }

    /// Cuts a list of requests of a task where an answer to it, or a return that the witness noted, lies in
    /// between: an injection that follows another one may be made twice in an iteration. Leaves out runs of
    /// one.
    fn unanswered_runs(&self, task: Task, requests: Vec<Request<'t>>) -> Vec<Vec<Request<'t>>> {
        let mut runs: Vec<Vec<Request<'t>>> = Vec::new();
        for request in requests {
            let run = runs.last_mut().filter(|run| {
                let answered = |from: &Request<'t>| {
                    let later = self.after(task, from.event);
                    { later }
                        .take_while(|e| e.index < request.event.index)
                        .any(|e| e.deferred_chain().is_some())
                };
                let returned = |from: &Request<'t>| {
                    let [from, to] = [from, &request].map(|it| self.returns.before(it.event));
                    from.zip(to).is_some_and(|(from, to)| from != to)
                };
                run.last()
                    .is_some_and(|last| !answered(last) && !returned(last))
            });
            match run {
                Some(run) => run.push(request),
                None => runs.push(vec![request]),
            }
        }
        runs.retain(|run| run.len() > 1);
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::testkit::{Kit, kernel};

    const C: u64 = 3 << 32 | 1;

    #[test]
    fn a_bracket_with_a_loss_in_it_is_none() {
        let mut kit = Kit::new(1);
        kit.sys_enter(0, 1001);
        kit.nmi(0, 1001, C);
        kit.nmi(0, 1001, C);
        kit.sys_exit(0, 1001);
        assert_eq!(Facts::new(&kit.trace(), None).one_entry().len(), 1);

        let mut kit = Kit::new(2);
        kit.sys_enter(0, 1001);
        kit.nmi(0, 1001, C);
        kit.lost(1, 2);
        kit.nmi(0, 1001, C);
        kit.sys_exit(0, 1001);
        assert_eq!(Facts::new(&kit.trace(), None).one_entry().len(), 0);
    }

    #[test]
    fn an_arrival_is_one_entry_and_two_are_not() {
        let at = kernel(0xffff_ffff_8100_0000);
        let mut kit = Kit::new(1);
        kit.inject(0, 1001, C, at.iteration(1, 7));
        kit.inject(0, 1001, C, at.iteration(1, 7));
        kit.inject(0, 1001, C, at.iteration(1, 8));
        let trace = kit.trace();
        let groups = Facts::new(&trace, None).one_entry();
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0].requests.len(), 2);
    }

    #[test]
    fn an_answer_between_two_arrivals_takes_the_proof_away() {
        let at = kernel(0xffff_ffff_8100_0000).iteration(1, 7);
        let mut kit = Kit::new(1);
        kit.inject(0, 1001, C, at);
        kit.deferred(0, 1001, C, &[0x40]);
        kit.inject(0, 1001, C + (2 << 32), at);
        assert_eq!(Facts::new(&kit.trace(), None).one_entry().len(), 0);
    }

    #[test]
    fn a_return_between_two_arrivals_takes_the_proof_away() {
        let groups = |returns: bool| {
            let at = kernel(0xffff_ffff_8100_0000).iteration(1, 7);
            let mut kit = Kit::new(1);
            kit.witness();
            kit.inject(0, 1001, C, at);
            if returns {
                kit.returns(0, 1001);
            }
            kit.inject(0, 1001, C + (2 << 32), at);
            Facts::new(&kit.trace(), None).one_entry().len()
        };
        assert_eq!((groups(false), groups(true)), (1, 0));
    }

    #[test]
    fn what_comes_before_the_answer_is_of_its_entry() {
        let mut kit = Kit::new(2);
        kit.nmi(0, 1001, C);
        kit.nmi(0, 1002, C + (2 << 32));
        kit.nmi(1, 1001, C + (4 << 32));
        kit.deferred(1, 1001, C, &[0x40]);
        kit.nmi(1, 1001, C);
        let trace = kit.trace();
        let groups = Facts::new(&trace, None).one_entry();
        assert_eq!(groups.len(), 1);
        let of: Vec<usize> = groups[0].requests.iter().map(|r| r.event.index).collect();
        assert_eq!(of, [0, 2]);

        // An answer after the next system call ends nothing.
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.sys_enter(0, 1001);
        kit.sys_enter(0, 1001);
        kit.nmi(0, 1001, C + (2 << 32));
        kit.deferred(0, 1001, C, &[0x40]);
        assert_eq!(Facts::new(&kit.trace(), None).one_entry().len(), 0);
    }

    /// Lists are searched from a place near the `sys_enter`.
    #[test]
    fn a_bracket_among_many_requests_has_its_own() {
        let mut kit = Kit::new(1);
        let outside = |kit: &mut Kit| {
            for _ in 0..20 {
                kit.nmi(0, 1001, C);
            }
        };
        outside(&mut kit);
        kit.sys_enter(0, 1001);
        let inside = [(); 2].map(|()| kit.nmi(0, 1001, C));
        kit.sys_exit(0, 1001);
        outside(&mut kit);
        let trace = kit.trace();
        let groups = Facts::new(&trace, None).one_entry();
        assert_eq!(groups.len(), 1);
        let of: Vec<usize> = groups[0].requests.iter().map(|r| r.event.index).collect();
        assert_eq!(of, inside);
    }

    #[test]
    fn one_request_is_no_group_and_two_system_calls_are_no_bracket() {
        let mut kit = Kit::new(1);
        kit.sys_enter(0, 1001);
        kit.nmi(0, 1001, C);
        kit.sys_exit(0, 1001);
        kit.nmi(0, 1001, C);
        kit.nmi(0, 1001, C);
        kit.sys_enter(0, 1001);
        let trace = kit.trace();
        assert_eq!(Facts::new(&trace, None).one_entry().len(), 0);
    }
}
