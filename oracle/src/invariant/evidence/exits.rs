//! What a task's exit record says of its other records.

use super::facts::Facts;
use super::order::before;
use super::role::is_marker;
use crate::trace::Event;

impl<'t> Facts<'t> {
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
        let alive =
            |later: &Event| later.deferred_sample().is_some() || is_marker(self.trace, later);
        before(event, exit) && !self.after(task, event).any(alive)
    }
}
