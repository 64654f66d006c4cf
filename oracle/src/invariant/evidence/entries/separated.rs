//! The proof that user instructions ran between two records of a task.

use crate::invariant::evidence::facts::{Facts, Request};
use crate::invariant::evidence::order::before;
use crate::invariant::evidence::tasks::Task;
use crate::trace::Event;

/// Why two records of a task are known to be of different entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Separation {
    /// For the message.
    pub why: Why,
    /// The marker records that show it.
    pub events: Vec<usize>,
}

/// What separates two records. The text is made only for a message: most proofs need none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    Syscall,
    /// Iterations of a workload thread.
    Iterations {
        first: u64,
        second: u64,
        thread: u32,
    },
    /// Instructions in user mode.
    UserMode {
        from: u64,
        to: u64,
    },
    /// The same; a walk found the first.
    Walk {
        from: u64,
        to: u64,
    },
}

impl std::fmt::Display for Why {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Syscall => out.write_str("the task made a system call in between"),
            Self::Iterations {
                first,
                second,
                thread,
            } => write!(
                out,
                "injected in iterations {first} and {second} of thread {thread}"
            ),
            Self::UserMode { from, to } => write!(out, "user mode went from {from:#x} to {to:#x}"),
            Self::Walk { from, to } => write!(
                out,
                "user mode went from {from:#x}, where a walk found it, to {to:#x}"
            ),
        }
    }
}

impl<'t> Facts<'t> {
    /// The proof that a user instruction of their task retired between two records.
    ///
    /// Both must be of one task and in this order. Two NMIs that hit user mode at different
    /// instructions count: between them the task executed at least the first of the two, or an
    /// entry of its own (the self-IPI's) has ended and changed the instruction pointer. So does a
    /// walk between them that began at another user instruction than the second hit.
    pub fn separated(&self, first: &Event, second: &Event) -> Option<Separation> {
        let task = self.tasks.of(first)?;
        if self.tasks.of(second)? != task || !before(first, second) {
            return None;
        }
        let markers = self
            .syscalls
            .markers_between(self.trace, task, first, second);
        if let Some(events) = markers {
            return Some(Separation {
                why: Why::Syscall,
                events: events.to_vec(),
            });
        }
        if let Some(proof) = self.left_with_answer(task, first, second) {
            return Some(proof);
        }
        let (a, b) = (self.injection(first)?, self.injection(second)?);
        let why = match (a.thread, a.iteration, b.thread, b.iteration) {
            (Some(s), Some(i), Some(t), Some(j)) if s == t && i != j => Why::Iterations {
                first: i,
                second: j,
                thread: t,
            },
            _ if a.cpl == 3 && b.cpl == 3 && a.rip != b.rip => Why::UserMode {
                from: a.rip,
                to: b.rip,
            },
            _ => return None,
        };
        let events = Vec::new();
        Some(Separation { why, events })
    }

    /// The proof by an answer between the two, written on the way to the user instruction that is
    /// its frame 0, if the second hit user mode at another one.
    fn left_with_answer(&self, task: Task, first: &Event, second: &Event) -> Option<Separation> {
        let b = self.injection(second).filter(|b| b.cpl == 3)?;
        let from = self
            .answers
            .partition_point(|it| it.event.index <= first.index);
        let mut later = self.answers.get(from..)?.iter();
        let (answer, frame0) = later
            .by_ref()
            .take_while(|it| it.event.index < second.index)
            .filter(|it| it.task == Some(task) && before(first, it.event))
            .filter(|it| before(it.event, second))
            .find_map(|it| Some((it, *it.chain.ips.first()?)))?;
        (frame0 != b.rip).then(|| Separation {
            why: Why::Walk {
                from: frame0,
                to: b.rip,
            },
            events: vec![answer.event.index],
        })
    }

    /// The proof that two of `requests`, all of one task and in order, are of different entries.
    /// This is cheaper than testing every pair and finds as much: markers prove most for the
    /// outermost pair, injections for neighbours.
    pub fn separated_among(
        &self,
        requests: &[Request<'t>],
    ) -> Option<(Request<'t>, Request<'t>, Separation)> {
        let (first, last) = (*requests.first()?, *requests.last()?);
        if let Some(proof) = self.separated(first.event, last.event) {
            return Some((first, last, proof));
        }
        // Values of injections are compared with the previous one that has them: requests
        // without an injection in between must not hide a change.
        let mut known: Option<Request<'t>> = None;
        let mut in_user: Option<Request<'t>> = None;
        for &request in requests {
            let Some(injection) = self.injection(request.event) else {
                continue;
            };
            for earlier in [known, in_user].into_iter().flatten() {
                if let Some(proof) = self.separated(earlier.event, request.event) {
                    return Some((earlier, request, proof));
                }
            }
            if injection.iteration.is_some() {
                known = Some(request);
            }
            if injection.cpl == 3 {
                in_user = Some(request);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::testkit::{Kit, kernel, user};

    const C: u64 = 3 << 32 | 1;

    #[test]
    fn one_marker_between_proves_nothing() {
        let mut kit = Kit::new(1);
        let a = kit.nmi(0, 1001, C);
        // An NMI in the entry stub comes before the sys_enter of its own entry.
        kit.sys_enter(0, 1001);
        let b = kit.nmi(0, 1001, C);
        kit.sys_exit(0, 1001);
        kit.sys_enter(0, 1001);
        let c = kit.nmi(0, 1001, C);
        let trace = kit.trace();
        let facts = Facts::new(&trace);
        let separated = |x: usize, y: usize| {
            facts
                .separated(&trace.events[x], &trace.events[y])
                .is_some()
        };
        assert!(!separated(a, b));
        assert!(separated(b, c));
        assert!(separated(a, c));
        assert!(!separated(c, a));
    }

    #[test]
    fn injections_separate_by_iteration_and_by_user_ip() {
        let mut kit = Kit::new(1);
        let a = kit.inject(0, 1001, C, kernel(0xffff_ffff_8100_0000).iteration(1, 7));
        let b = kit.inject(0, 1001, C, kernel(0xffff_ffff_8100_0000).iteration(1, 8));
        let c = kit.inject(0, 1001, C, user(0x1000));
        let d = kit.inject(0, 1001, C, user(0x1000));
        let e = kit.inject(0, 1001, C, user(0x1004));
        let trace = kit.trace();
        let facts = Facts::new(&trace);
        let separated = |x: usize, y: usize| {
            facts
                .separated(&trace.events[x], &trace.events[y])
                .is_some()
        };
        assert!(separated(a, b));
        assert!(!separated(b, c));
        assert!(!separated(c, d));
        assert!(separated(d, e));
    }

    #[test]
    fn a_walk_and_another_user_instruction_separate() {
        const C: u64 = 3 << 32 | 1;
        for (walked, hit, is_proof) in [
            (0x1000, user(0x1004), true),
            (0x1000, user(0x1000), false),
            (0x1000, kernel(0x1004), false),
        ] {
            let mut kit = Kit::new(1);
            let first = kit.inject(0, 1001, C, kernel(0x9000));
            kit.deferred(0, 1001, C, &[walked, 0x2000]);
            let second = kit.inject(0, 1001, C, hit);
            let trace = kit.trace();
            let facts = Facts::new(&trace);
            let proof = facts.separated(&trace.events[first], &trace.events[second]);
            assert_eq!(proof.is_some(), is_proof, "{proof:?}");
        }
    }
}
