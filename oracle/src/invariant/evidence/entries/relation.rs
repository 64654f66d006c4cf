//! Whether two records of a task are of one entry, as far as the trace proves it.

use super::Origin;
use super::separated::Separation;
use crate::invariant::evidence::facts::Facts;
use crate::invariant::evidence::order::before;
use crate::invariant::evidence::stacks::at_leaf;
use crate::invariant::evidence::tasks::Task;
use crate::trace::Event;

/// What is known of the entries of two records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Relation {
    /// No user instruction of the task retired between the two.
    Same(Together),
    /// The task left the kernel between the two, its exit work included.
    Different(Separation),
    /// A request and its answer, and no user instruction of the task retired between the two. But an
    /// interrupt was pending when the request was made where only one can bring the task to the
    /// answer: a kernel that sends itself none shows the same.
    Helped,
    /// Neither is proved.
    Unknown,
}

/// What proves that no user instruction retired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Together {
    /// Both are in one system call, before its exit work.
    SystemCall,
    /// The task did not come to an instruction of user mode. It may have returned and been
    /// interrupted at once, and so have left one entry for another, its reset included.
    NoUserCode,
}

impl Relation {
    /// What would decide it, for a pair of records that is not decided.
    pub const UNDECIDED: &'static str = "neither markers nor returns to user mode show whether the \
                                         task left the kernel in between";

    /// The same, where an interrupt helped.
    pub const HELPED: &'static str = "an interrupt that was pending at the NMI may have brought the \
                                      task to the answer";
}

impl<'t> Facts<'t> {
    /// Compares two records, in whatever order.
    ///
    /// `Same` is proved by the witness, which noted no return of the task between the two; by one
    /// pair of markers around both; or by [`Facts::same_instruction`].
    pub fn relation(&self, one: &Event, other: &Event) -> Relation {
        let (Some(task), true) = (
            self.tasks.of(one),
            self.tasks.of(one) == self.tasks.of(other),
        ) else {
            return Relation::Unknown;
        };
        let returns = [one, other].map(|it| self.returns.before(it));
        if let [Some(i), Some(j)] = returns
            && i == j
        {
            return match self.one_system_call(task, one, other) {
                true => Relation::Same(Together::SystemCall),
                false => self.no_user_code(one, other),
            };
        }
        let returned = returns[0].zip(returns[1]).is_some_and(|(i, j)| i > j);
        let (first, second) = match before(other, one) || returned {
            true => (other, one),
            false => (one, other),
        };
        if let Some(proof) = self.separated(first, second) {
            return Relation::Different(proof);
        }
        if self.one_system_call(task, first, second) {
            return Relation::Same(Together::SystemCall);
        }
        match self.same_instruction(task, first, second) {
            true => self.no_user_code(first, second),
            false => Relation::Unknown,
        }
    }

    /// Two records between which no user instruction retired. A request that its own entry does not
    /// answer any more is answered by the interrupt that the kernel sends itself.
    fn no_user_code(&self, one: &Event, other: &Event) -> Relation {
        let helped = |request: &Event, answer: &Event| {
            let injection = self.injection(request);
            answer.deferred_chain().is_some()
                && injection.is_some_and(|it| it.interrupt_waits)
                && self.origin(request).may_be_late()
        };
        match helped(one, other) || helped(other, one) {
            true => Relation::Helped,
            false => Relation::Same(Together::NoUserCode),
        }
    }

    fn one_system_call(&self, task: Task, one: &Event, other: &Event) -> bool {
        let bracket = |it| self.syscalls.around(self.trace, task, it);
        bracket(one).is_some_and(|a| bracket(other).is_some_and(|b| a.enter == b.enter))
    }

    /// Whether an answer was given before the next user instruction after a request that its own
    /// entry could not answer any more.
    ///
    /// The witness noted no return but those that go without exit work, so no system call ended in
    /// between. The walk began at the user instruction that the request's NMI had hit, which is not
    /// the one behind the system call of the thread's leaf: so the walk was not made in that call
    /// either. And the code there comes back to no instruction without the call: that is so in the
    /// leaf of a thread that makes one. This trusts frame 0, which S1 and S2 judge.
    fn same_instruction(&self, task: Task, request: &Event, answer: &Event) -> bool {
        let frame0 = answer.deferred_chain().and_then(|it| it.ips.first());
        let Some(&frame0) = frame0 else { return false };
        let [i, j] = [request, answer].map(|it| self.returns.before(it));
        let (Some(i), Some(j)) = (i, j) else {
            return false;
        };
        let free = self.free_returns(task, request, answer);
        if free.is_none_or(|free| j.saturating_sub(i) > free) {
            return false;
        }
        let [thread] = self.threads(answer)[..] else {
            return false;
        };
        let stack = &thread.stack;
        self.origin(request) == Origin::UserNmi
            && ![0, frame0].contains(&stack.syscall_return)
            && at_leaf(stack, frame0)
            && self.user_ip(request) == Some(frame0)
    }
}
