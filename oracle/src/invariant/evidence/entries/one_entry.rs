//! The requests that are known to be of one entry.

use crate::invariant::evidence::facts::{Facts, Request};
use crate::invariant::evidence::order::{NESTING, before};
use crate::invariant::evidence::pairs::Pairs;

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
        groups.extend(self.by_answer());
        groups
    }

    fn by_answer(&self) -> Vec<OneEntry<'t>> {
        let mut groups = Vec::new();
        // Where nothing tells entries apart, each cookie would have all requests of its task.
        let mut pairs = Pairs::of(self.trace);
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
                .take_while(|r| pairs.take() && before(r.event, answer.event))
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

    /// An injection that follows another one comes twice in an iteration with two switches, and each may be of an
    /// entry of its own.
    #[test]
    fn what_one_iteration_meets_twice_at_one_place_may_be_of_two_entries() {
        let at = kernel(0xffff_ffff_8100_0000).iteration(1, 7);
        let mut kit = Kit::new(1);
        kit.inject(0, 1001, C, at);
        kit.inject(0, 1001, C + (2 << 32), at);
        assert_eq!(Facts::new(&kit.trace(), None).one_entry().len(), 0);
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
