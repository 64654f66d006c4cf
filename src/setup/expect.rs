//! What must come of a set-up: which events are on, take a sample, ask, and receive, in each stay.

use super::entries::{Foreign, Place};
use super::factors::Factor;
use super::judge::Session;
use super::session::name;

/// One event of the set-up, by its role.
#[derive(Debug, Clone, Copy)]
pub(super) struct Role {
    pub name: &'static str,
    /// Where its samples are taken.
    pub source: Place,
    /// Only the one call of each iteration.
    pub probe: bool,
}

impl Session<'_> {
    pub(super) fn askers(&self) -> Vec<Role> {
        let (source, probe) = match self.setup.level(Factor::Source) {
            "sys-enter" => (Place::Enter, false),
            "sys-exit" => (Place::Exit, false),
            _ => (Place::Body, true),
        };
        let role = |name, source, probe| Role {
            name,
            source,
            probe,
        };
        let mut roles = vec![role(name::ASKER, source, probe)];
        if !self.setup.is(Factor::Sessions, "1") {
            roles.push(role(name::SECOND, Place::Enter, false));
        }
        if self.setup.is(Factor::Sessions, "3") {
            roles.push(role(name::THIRD, Place::Exit, false));
        }
        roles
    }

    pub(super) fn receivers(&self) -> Vec<&'static str> {
        let mut names = match self.setup.level(Factor::Receiver) {
            "itself" => vec![name::ASKER],
            "both" => vec![name::ASKER, name::RECEIVER],
            _ => vec![name::RECEIVER],
        };
        if !self.setup.is(Factor::Sessions, "1") {
            names.push(name::SECOND);
        }
        if self.setup.is(Factor::Sessions, "3") {
            names.push(name::THIRD);
        }
        names
    }

    /// Whether the task of an entry is among those whose event it is.
    pub(super) fn reaches(&self, name: &str, at: usize) -> bool {
        let of = match name {
            name::ASKER => self.setup.level(Factor::AskerOf),
            name::RECEIVER => self.setup.level(Factor::ReceiverOf),
            name::THIRD => "thread",
            _ => "all",
        };
        let task = self.entries.list.get(at).map(|entry| entry.tid);
        match of {
            "empty-cgroup" => false,
            // Processes that the thread starts are no threads of its process (`inherit_event`).
            "thread" | "inherit-thread" => task == Some(self.entries.thread),
            _ => true,
        }
    }

    /// Whether an event left the task of an entry when that called `execve`, in the system call or
    /// before it (`perf_event_remove_on_exec`: the events of the task, not those of a CPU).
    fn is_removed(&self, name: &str, at: usize, place: Place) -> bool {
        let of_task = ["thread", "inherit", "inherit-thread"];
        let removed = self.setup.is(Factor::RemoveOnExec, "yes")
            && name == name::ASKER
            && of_task.contains(&self.setup.level(Factor::AskerOf));
        let entry = self.entries.list.get(at);
        removed && entry.is_some_and(|it| it.after_exec || it.executes() && place > Place::Body)
    }

    /// Whether an event takes a sample in an entry.
    pub(super) fn fires(&self, role: &Role, at: usize) -> bool {
        let Some(entry) = self.entries.list.get(at) else {
            return false;
        };
        let there = match role.source {
            Place::Enter => entry.has_enter,
            Place::Exit => entry.has_exit,
            Place::Body | Place::Return => entry.has_enter,
        };
        // `perf_tp_event_match`: the tracepoints of the kernel are not user mode.
        let excluded = role.name == name::ASKER && self.setup.is(Factor::ExcludeKernel, "yes");
        there
            && (!role.probe || entry.is_workload)
            && !excluded
            && self.reaches(role.name, at)
            && self.is_on(role.name, at, role.source)
    }

    /// Whether an event requests an unwind in an entry (`perf_callchain`).
    pub(super) fn asks(&self, role: &Role, at: usize) -> bool {
        let no_user = self.setup.is(Factor::ExcludeCallchainUser, "yes");
        self.fires(role, at) && !(role.name == name::ASKER && no_user)
    }

    /// Whether an event is on at a place, in spite of the operation.
    pub(super) fn is_on(&self, name: &str, at: usize, place: Place) -> bool {
        if self.is_removed(name, at, place) {
            return false;
        }
        let Some(done_in) = self.entries.operation else {
            return true;
        };
        let level = self.setup.level(Factor::Operation);
        let Some((operation, on)) = level.split_once('-') else {
            return true;
        };
        if on != name || (at, place) < (done_in, Place::Body) {
            return true;
        }
        // `close` of an event whose ring is mapped: the mapping holds it (`perf_mmap`).
        let shared = self.setup.level(Factor::Ring).starts_with("shared");
        match operation {
            "disable" => false,
            "close" => !shared,
            // Samples, requests and records are not told apart: only its ring stands still.
            "pause" => place != Place::Return,
            "refresh" => self.is_on_refreshed(at, place),
            _ => true,
        }
    }

    /// After a refresh by 1 there is one more sample, in which the event is disabled
    /// (`__perf_event_overflow`).
    fn is_on_refreshed(&self, at: usize, place: Place) -> bool {
        let Some(done_in) = self.entries.operation else {
            return true;
        };
        let Some(role) = self.askers().into_iter().find(|it| it.name == name::ASKER) else {
            return true;
        };
        let excluded =
            self.setup.is(Factor::ExcludeKernel, "yes") || !self.reaches(role.name, done_in);
        let last = (done_in..self.entries.list.len()).find(|&at| {
            let entry = self.entries.list.get(at);
            let there = entry.is_some_and(|it| !role.probe || it.is_workload);
            there && (at, role.source) > (done_in, Place::Enter)
        });
        match (last, self.taken()) {
            _ if excluded => true,
            (Some(last), Some(taken)) if (taken.after, taken.place) < (last, role.source) => {
                (at, place) <= (taken.after, taken.place)
            }
            (Some(last), _) => (at, place) <= (last, role.source),
            (None, _) => true,
        }
    }

    /// The hit of another task that may take the one sample that a refresh allows: `event_limit`
    /// counts down at each overflow, whoever runs (`__perf_event_overflow`).
    fn taken(&self) -> Option<Foreign> {
        let done_in = self.entries.operation?;
        let refreshed = self.setup.is(Factor::Operation, "refresh-asker");
        let of_all = ["all", "cgroup"].contains(&self.setup.level(Factor::AskerOf));
        let role = self
            .askers()
            .into_iter()
            .find(|it| it.name == name::ASKER)?;
        let mut foreign = self.entries.foreign.iter().copied();
        let taken = foreign.find(|it| it.marks == role.source && it.after >= done_in);
        let excluded = self.setup.is(Factor::ExcludeKernel, "yes");
        taken.filter(|_| refreshed && of_all && !role.probe && !excluded)
    }

    /// Why it cannot be said which events were on, if it cannot.
    pub(super) fn unknown(&self) -> Option<&'static str> {
        if self.entries.too_early {
            return Some("the thread was in the kernel while events were being enabled");
        }
        let taken = self.taken()?;
        let during = Some(taken.after) == self.entries.operation && taken.place < Place::Body;
        during.then_some("another task was hit while the asker was being refreshed")
    }

    /// Whether `perf_event_max_contexts_per_stack` has no room for the marker: it is the second
    /// context, or the first of a chain without kernel part.
    pub(super) fn has_no_room(&self, role: &Role) -> bool {
        let own = role.name == name::ASKER;
        let no_kernel = own && self.setup.is(Factor::ExcludeCallchainKernel, "yes");
        self.setup.is(Factor::Sysctl, "max-contexts-1") && !no_kernel
    }

    /// Whether `is_sb_event` leaves the receiver out. Events of a task are found by the task.
    pub(super) fn lacks_side_band(&self, receiver: &str) -> bool {
        let target = match receiver {
            name::ASKER => Factor::AskerOf,
            name::RECEIVER => Factor::ReceiverOf,
            _ => return false,
        };
        let none = ["none", "namespaces", "cgroup", "build-id"];
        let of_cpu = ["all", "cgroup"].contains(&self.setup.level(target));
        of_cpu && none.contains(&self.setup.level(Factor::SideBand))
    }
}
