//! What a task's exit record says of its other records.

use super::facts::Facts;
use super::order::before;
use super::role::is_marker;
use super::tasks::Task;
use crate::trace::Event;

impl<'t> Facts<'t> {
    /// What [`Self::may_have_lost_its_exit`] says, in words.
    pub const LOST_EXIT: &'static str =
        "the task may have been exiting, and its exit record be among what was lost";

    /// The exit record of the task of `event`, if it came before. Of its copies in several rings one
    /// that can be compared is enough: another clock, or no time, says nothing.
    pub fn behind_exit(&self, event: &Event) -> Option<&'t Event> {
        let copies = self.tasks.exits(self.tasks.of(event)?).iter();
        let mut copies = copies.filter_map(|at| self.trace.events.get(*at));
        copies.find(|exit| before(exit, event))
    }

    /// Whether the task of `event` had written its exit record, or was so close to it that it may
    /// have been exiting already.
    pub fn exiting(&self, event: &'t Event) -> bool {
        let Some(task) = self.tasks.of(event) else {
            return false;
        };
        let Some(exit) = self.exit(task) else {
            return false;
        };
        if self.behind_exit(event).is_some() {
            return true;
        }
        before(event, exit) && !self.lives_on(task, event)
    }

    /// Whether the task of `event` may have been exiting, and its exit record be among what was lost.
    pub fn may_have_lost_its_exit(&self, event: &'t Event) -> bool {
        let known = |task| self.exit(task).is_some() || self.lives_on(task, event);
        self.losses.between(event.time, None).is_some() && !self.tasks.of(event).is_some_and(known)
    }

    /// Whether a later record is one that no task writes once it exits, or the task returned to user mode before its exit record.
    pub(super) fn lives_on(&self, task: Task, event: &'t Event) -> bool {
        let returned = || {
            let exit = self.returns.before(self.exit(task)?)?;
            Some(self.returns.before(event)? < exit)
        };
        returned() == Some(true) || self.after(task, event).any(|it| self.shows_life(it))
    }

    /// Whether a record is one that no task writes once it exits: a request that was not refused, or a system call's marker.
    fn shows_life(&self, event: &Event) -> bool {
        event.deferred_sample().is_some() || is_marker(self.trace, event)
    }
}
