//! The proof that a task left the kernel between two of its records: what the first asked for was
//! due before, and the second begins anew.

use super::Origin;
use crate::invariant::evidence::facts::{Answer, Facts, Request};
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
    /// The first record was past the `sys_enter` of its entry, and one follows.
    Entered,
    /// The second record comes before the `sys_exit` of its entry, and one precedes it.
    Left,
    /// The first record came before a `sys_exit`; the second is of no system call.
    Elsewhere,
    /// The second record is in a system call, and the witness noted a return before it.
    Called,
    /// Returns to user mode that the witness noted.
    Returned {
        times: usize,
    },
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
            Self::Entered => out.write_str("the task began another system call in between"),
            Self::Left => out.write_str("the task ended another system call in between"),
            Self::Elsewhere => out.write_str("the task ended its system call in between"),
            Self::Called => {
                out.write_str("the task returned to user mode and made a system call in between")
            }
            Self::Returned { times: 1 } => {
                out.write_str("the task returned to user mode in between")
            }
            Self::Returned { times } => {
                write!(
                    out,
                    "the task returned to user mode {times} times in between"
                )
            }
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
    /// The proof that the whole exit work of an entry of their task lies between two records, which
    /// must be in this order.
    pub fn separated(&self, first: &Event, second: &Event) -> Option<Separation> {
        self.user_code_between(first, second).or_else(|| {
            let task = self.one_task(first, second)?;
            self.ended(task, first, second)
                .or_else(|| self.returned(task, first, second))
        })
    }

    /// The proof that a user instruction of their task retired between two records, which must be in
    /// this order.
    ///
    /// Two entries from different user instructions count: between them the task executed
    /// at least the first of the two, or the first entry (or that of an NMI's self-IPI) has ended and changed
    /// the instruction pointer. An injection in user mode shows the instruction, and so do
    /// some samples ([`Self::came_from`]). So does a walk between them that began at another user instruction
    /// than the second came from. And so does a return to user mode, if the second is in a system call: that takes an
    /// instruction.
    pub fn user_code_between(&self, first: &Event, second: &Event) -> Option<Separation> {
        let task = self.one_task(first, second)?;
        if let Some(proof) = self.passed_markers(task, first, second) {
            return Some(proof);
        }
        if let Some(proof) = self.left_with_answer(task, first, second) {
            return Some(proof);
        }
        if self.called(first, second) {
            let (why, events) = (Why::Called, Vec::new());
            return Some(Separation { why, events });
        }
        let why = { self.iterations(first, second) }.or_else(|| {
            let (from, to) = (self.came_from(first)?, self.came_from(second)?);
            (from != to).then_some(Why::UserMode { from, to })
        })?;
        let events = Vec::new();
        Some(Separation { why, events })
    }

    /// The iterations of one thread in which two injections were made, if they are not the same.
    fn iterations(&self, first: &Event, second: &Event) -> Option<Why> {
        let [a, b] = [first, second].map(|it| self.injection(it));
        let (a, b) = (a?, b?);
        let (first, second) = (a.iteration?, b.iteration?);
        let thread = a
            .thread
            .filter(|&it| Some(it) == b.thread && first != second)?;
        Some(Why::Iterations {
            first,
            second,
            thread,
        })
    }

    /// The task of both, if it is one and the first record is the earlier one.
    fn one_task(&self, first: &Event, second: &Event) -> Option<Task> {
        let task = self.tasks.of(first)?;
        let ordered =
            before(first, second) || self.returns.before(first)? < self.returns.before(second)?;
        (self.tasks.of(second) == Some(task) && ordered).then_some(task)
    }

    /// The proof by the markers between the two, and by what is known of the entries of the two.
    fn passed_markers(&self, task: Task, first: &Event, second: &Event) -> Option<Separation> {
        let passed = self.syscalls.between(self.trace, task, first, second);
        let proof = |why, events: &[usize]| {
            let events = events.to_vec();
            Some(Separation { why, events })
        };
        if let Some(events) = passed.apart {
            return proof(Why::Syscall, &events);
        }
        if let Some(enter) = passed.enter
            && self.is_past_sys_enter(first)
        {
            return proof(Why::Entered, &[enter]);
        }
        let exit = passed.exit?;
        let precedes = self.origin(second).is_before_sys_exit();
        precedes.then(|| proof(Why::Left, &[exit]))?
    }

    /// The proof by a `sys_exit` before a record that is of no system call. It is none where another
    /// client asked behind the exit work in between, and kept the kernel from the reset.
    fn ended(&self, task: Task, first: &Event, second: &Event) -> Option<Separation> {
        let times = self
            .kept_back_at
            .get(&task.tid)
            .map_or(&[][..], Vec::as_slice);
        let (from, to) = first.time.zip(second.time)?;
        let next = times.partition_point(|&time| time < from);
        if times.get(next).is_some_and(|&time| time <= to) {
            return None;
        }
        let outside = self.is_of_no_system_call(second);
        let passed = outside.then(|| self.syscalls.between(self.trace, task, first, second));
        Some(Separation {
            why: Why::Elsewhere,
            events: vec![passed?.exit?],
        })
    }

    /// The proof by the witness: a return for which the kernel must have done its exit work, begun
    /// after the first record.
    fn returned(&self, task: Task, first: &Event, second: &Event) -> Option<Separation> {
        let [i, j] = [first, second].map(|it| self.returns.before(it));
        let times = j?.checked_sub(i?)?;
        (times > self.free_returns(task, first, second)?).then(|| Separation {
            why: Why::Returned { times },
            events: Vec::new(),
        })
    }

    /// How many returns to user mode there are between two records for which the kernel need not
    /// have answered the first. Where that one was made behind the exit work, or by an NMI in user
    /// mode, its own return is one, and the self-interrupt's entry answers it. Each other NMI that
    /// hits user mode before that entry makes another. Another client that asks behind the exit
    /// work keeps the kernel from the reset. `None` where NMIs leave no samples.
    pub fn free_returns(&self, task: Task, first: &Event, second: &Event) -> Option<usize> {
        let [i, j] = [first, second].map(|it| self.returns.before(it));
        let (i, j) = (i?, j?);
        let kept_back = self.kept_back.get(&task);
        let kept_back = kept_back.is_some_and(|list| list.contains(&i));
        let own = i < j && (kept_back || self.may_be_late(task, first));
        Some(usize::from(own) + self.nmi_returns(task, i, j)?)
    }

    /// How many of the returns behind number `i` and before number `j` NMIs that hit user mode made. `None` where NMIs
    /// leave no samples.
    fn nmi_returns(&self, task: Task, i: usize, j: usize) -> Option<usize> {
        let list = self.free.get(&task).map_or(&[][..], Vec::as_slice);
        let [from, to] = [i.saturating_add(1), j].map(|end| list.partition_point(|&it| it < end));
        self.nmis_are_sampled.then(|| to.saturating_sub(from))
    }

    /// Whether the second record may be of the entry that follows that of the first: no second system call of the task begins
    /// between them, and no second return to user mode was noted but those of NMIs that hit it.
    pub fn may_be_of_next_entry(&self, first: &Event, second: &Event) -> bool {
        let Some(task) = self.one_task(first, second) else {
            return false;
        };
        let [i, j] = [first, second].map(|it| self.returns.before(it));
        let returned = i.zip(j).and_then(|(i, j)| {
            let others = self.nmi_returns(task, i, j)?;
            Some(j.saturating_sub(i).saturating_sub(others))
        });
        self.syscalls.begun_between(task, first, second) <= 1 && returned.is_none_or(|it| it <= 1)
    }

    /// Whether a record may have been made where its own entry does not answer it any more.
    pub fn may_be_late(&self, task: Task, event: &Event) -> bool {
        event.deferred_chain().is_none()
            && self.origin(event).may_be_late()
            && self.syscalls.around(self.trace, task, event).is_none()
    }

    /// Whether a return lies between the two, and the second in a system call.
    fn called(&self, first: &Event, second: &Event) -> bool {
        let [i, j] = [first, second].map(|it| self.returns.before(it));
        let returned = i.zip(j).is_some_and(|(i, j)| i < j);
        returned && matches!(self.origin(second), Origin::SystemCall(_))
    }

    /// The proof by an answer between the two, written on the way to the user instruction that is
    /// its frame 0, if the second came from another one.
    fn left_with_answer(&self, task: Task, first: &Event, second: &Event) -> Option<Separation> {
        let to = self.came_from(second)?;
        let answers = self.answers_of(task);
        let from = answers.partition_point(|it| it.event.index <= first.index);
        let mut later = answers.get(from..)?.iter();
        let (answer, frame0) = later
            .by_ref()
            .take_while(|it| it.event.index < second.index)
            .filter(|it| before(first, it.event))
            .filter(|it| before(it.event, second))
            .find_map(|it| Some((it, *it.chain.ips.first()?)))?;
        (frame0 != to).then(|| Separation {
            why: Why::Walk { from: frame0, to },
            events: vec![answer.event.index],
        })
    }

    /// Whether the walk of an answer began at another user instruction than a later record of its task came from.
    pub fn walked_from_elsewhere(&self, answer: &Answer<'_>, second: &Event) -> bool {
        let from = answer.chain.ips.first().copied();
        let ends = from.zip(self.came_from(second));
        before(answer.event, second) && ends.is_some_and(|(from, to)| from != to)
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
mod tests;
