//! What the log of the kernel's lab client proves: the in-kernel side of the invariants.
//!
//! Everything rests on two facts of the log (guest-kernel/client). Slots are in one order for the
//! whole machine. And each record of a watched task carries the number of times that the task had
//! returned to user mode, so counting tells entries apart, not cookies. Records with one number
//! belong to one stay in the kernel, together with the requests of NMIs in user mode just before
//! it, which that stay answers.
//!
//! One thing joins two stays: a request after the exit work of the first, of an NMI or of a hook,
//! where interrupts stay off to the end. It cannot be answered any more before user mode; its
//! self-interrupt makes the next entry before a user instruction retires, and that one answers it.
//! The log proves it: after the request the first stay has nothing but its return and requests of
//! this kind, and an interrupt made the second stay, which returns to the same instruction. (If the
//! client has already found nothing to log a return for, a stay whose first request comes then has
//! no return. Then it is enough that an interrupt made the second stay.) Such requests may also
//! have a new cookie, if the reset was over ("leaving"; C1's exception). A request of perf joins two
//! stays too: while it is pending, the kernel does not reset the bits of other clients
//! (`unwind_reset_info`). Its sample has the time of the same clock as the log.
//!
//! The count does not tell an NMI in user mode, or behind the count itself, from the entry that
//! follows, whatever the task did in between. So such a request is proved to be of that entry only
//! by the witness, or by the instruction (`Lab::in_time`).

use std::collections::{BTreeMap, BTreeSet};

use unwindlab_abi::lab::LabContext;

use super::facts::Facts;
use super::losses::Losses;
use super::returns::Returns;
use super::stacks::at_leaf;
use crate::invariant::limit::step;
use crate::trace::Trace;
use crate::trace::lab::{LabClient, LabEvent, LabKind, LabTrace};

/// One stay of a task in the kernel, or several that requests made while leaving join.
#[derive(Debug, Default)]
pub(crate) struct Stay<'t> {
    /// Number of the task among those watched.
    pub task: u32,
    /// Requests, also refused ones, by slot.
    pub requests: Vec<&'t LabEvent>,
    /// Callbacks, by slot.
    pub callbacks: Vec<&'t LabEvent>,
    /// Its last return to user mode.
    pub returned: Option<&'t LabEvent>,
    /// All of them: more than one where requests join several stays.
    pub returns: Vec<&'t LabEvent>,
    /// The task exits in it.
    pub exit: Option<&'t LabEvent>,
    /// Migrations of the task.
    pub migrations: Vec<&'t LabEvent>,
    /// Some request came after the exit work, so there may be two cookies.
    pub leaving: bool,
    /// Its last request came after the exit work, and the log has no later stay of the task.
    waits: bool,
    /// By entry: the slot of the first thing done in it for certain.
    begun: BTreeMap<u32, u64>,
    /// Slot and time of the last thing done with interrupts on, or by the task itself.
    last: (u64, u64),
}

/// When a registration of a client began and ended.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Life {
    /// Slot in which it was registered.
    pub registered: Option<u64>,
    /// Slot in which it was cancelled.
    pub cancel: Option<u64>,
    /// Slot in which that was done.
    pub cancelled: Option<u64>,
}

/// A log, and what follows from it.
#[derive(Debug)]
pub(crate) struct Lab<'t> {
    pub trace: &'t Trace,
    pub log: &'t LabTrace,
    /// By task, then in order.
    pub stays: Vec<Stay<'t>>,
    pub lives: BTreeMap<LabClient, Life>,
    /// The cookies that clients got.
    pub given: BTreeSet<u64>,
    /// When perf's rings lost records.
    pub losses: Losses,
    /// The tids whose samples may have lost a cookie to the limit of contexts; `None` where that is not known.
    cut: BTreeSet<Option<u32>>,
    /// From this slot on, clients are cancelled because the trial is over: every thread of the
    /// workload has ended by then.
    closing: u64,
    /// The client was switched off in order: nothing was cut.
    pub complete: bool,
    returns: Returns<'t>,
}

impl<'t> Lab<'t> {
    /// `None` for a trial without the lab client.
    pub fn of(facts: &Facts<'t>) -> Option<Self> {
        let trace = facts.trace;
        let log = trace.lab.as_ref()?;
        let mut lives: BTreeMap<LabClient, Life> = BTreeMap::new();
        let mut complete = false;
        for event in &log.events {
            match (&event.kind, event.client) {
                (LabKind::Registered { ret: 0 }, Some(client)) => {
                    lives.entry(client).or_default().registered = Some(event.slot);
                }
                (LabKind::Cancel, Some(client)) => {
                    lives.entry(client).or_default().cancel = Some(event.slot);
                }
                (LabKind::Cancelled, Some(client)) => {
                    lives.entry(client).or_default().cancelled = Some(event.slot);
                }
                (LabKind::Stop, _) => complete = true,
                _ => {}
            }
        }
        Some(Self {
            trace,
            log,
            stays: stays(log, &late_samples(facts)),
            lives,
            given: log.events.iter().filter_map(LabEvent::cookie).collect(),
            losses: Losses::new(trace),
            cut: facts.cut.tids(),
            closing: closing(log),
            complete: complete && log.lost == 0 && log.unfinished == 0,
            returns: Returns::new(trace),
        })
    }

    /// Whether clients were cancelled on several CPUs while the workload ran: who was registered in whose place is not
    /// known then.
    pub fn cancels_side_by_side(&self) -> bool {
        let events = self.log.events.iter();
        let cancels = events.filter(|it| it.kind == LabKind::Cancel && it.slot < self.closing);
        let mut cpus = cancels.map(|it| it.cpu);
        let first = cpus.next();
        cpus.any(|cpu| Some(cpu) != first)
    }

    /// Whether perf may have got a cookie of this task, and the limit of contexts cut it off.
    pub fn hides_births(&self, tid: u32) -> bool {
        [None, Some(tid)].iter().any(|it| self.cut.contains(it))
    }

    /// Slot in which the registration was cancelled; none: never.
    pub fn cancel(&self, client: LabClient) -> Option<u64> {
        self.lives.get(&client)?.cancel
    }

    /// Whether a client may have been cancelled before a request of it was due, so that it need not
    /// have been called: before the return of the request's own entry, or of the last one that was
    /// joined if only that can answer it. An exit is answered after its record, and nothing tells
    /// when, so its stay lasts until all clients are cancelled.
    pub fn cancelled_before(&self, client: LabClient, request: &LabEvent, stay: &Stay<'t>) -> bool {
        let own = stay.returns.iter().find(|it| it.entry == request.entry);
        let due = match is_late(request) {
            true => stay.returned,
            false => own.copied().or(stay.returned),
        };
        let end = due.map_or(self.closing, |event| event.slot);
        self.cancel(client).is_some_and(|slot| slot < end)
    }

    /// Whether no user instruction is known to have retired between two records of a stay, in order.
    pub fn together(&self, one: &LabEvent, other: &LabEvent, stay: &Stay<'t>) -> bool {
        step();
        let [i, j] = [one, other].map(|it| self.returns.before_slot(it));
        let counted = one.entry == other.entry && stay.contains(one);
        counted || i.is_some() && i == j
    }

    /// Whether a callback is known to have come before the next user instruction after the request
    /// that it answers. In the request's own entry it has. After an NMI in user mode, or in an entry
    /// that was joined to the request's, the task may have gone on and been interrupted at the same
    /// instruction, unless the code there comes back to none without a system call: so it is in the
    /// leaf of a workload thread that makes one.
    pub fn in_time(&self, request: &LabEvent, callback: &LabEvent, stay: &Stay<'t>) -> bool {
        if self.together(request, callback, stay) {
            return true;
        }
        let waited = match in_user_mode(request) {
            true => request.interrupted(),
            false => stay.returns_to(request.entry).map(|(ip, _)| ip),
        };
        let Some(waited) = waited else {
            return false;
        };
        let returned = stay.returns_to(callback.entry);
        if in_user_mode(request) && returned != Some((waited, true)) {
            return false;
        }
        let mut threads = self.trace.threads.iter();
        threads.any(|it| {
            let stack = &it.stack;
            it.tid == request.tid && stack.syscall_return != 0 && at_leaf(stack, waited)
        })
    }

    /// Whether the log shows all of a stay: the task returned to user mode, or it exited and the
    /// log was closed later. A return after which the next entry was to answer is not the end.
    pub fn is_over(&self, stay: &Stay<'t>) -> bool {
        let left = stay.returned.is_some() && !stay.waits;
        left || ((stay.exit.is_some() || stay.waits) && self.complete)
    }
}

/// The first slot of the log's last records, which are those of switching off.
fn closing(log: &LabTrace) -> u64 {
    let last = log.events.iter().rev().find(|event| {
        use LabKind::{Cancel, Cancelled, Free, Stop};
        !matches!(event.kind, Cancel | Cancelled | Free | Stop)
    });
    last.map_or(0, |event| event.slot + 1)
}

/// By tid, in order: when perf asked for a task where it may have been behind its exit work.
fn late_samples(facts: &Facts<'_>) -> BTreeMap<u32, Vec<u64>> {
    let mut times: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for request in &facts.requests {
        if let (Some(task), Some(time)) = (request.task, request.event.time)
            && facts.may_be_late(task, request.event)
        {
            times.entry(task.tid).or_default().push(time);
        }
    }
    times.values_mut().for_each(|list| list.sort_unstable());
    times
}

fn stays<'t>(log: &'t LabTrace, samples: &BTreeMap<u32, Vec<u64>>) -> Vec<Stay<'t>> {
    let mut entries: BTreeMap<(u32, u32), Stay<'_>> = BTreeMap::new();
    for event in log.events.iter().filter(|event| event.task != 0) {
        let stay = entries.entry((event.task, event.entry)).or_default();
        stay.task = event.task;
        if matches!(
            event.kind,
            LabKind::Request { .. } | LabKind::Callback { .. }
        ) {
            stay.last_of(event);
        }
        match event.kind {
            LabKind::Request { .. } => stay.requests.push(event),
            LabKind::Callback { .. } => stay.callbacks.push(event),
            LabKind::Return { .. } => {
                stay.returned = Some(event);
                stay.returns.push(event);
            }
            LabKind::Exit => stay.exit = Some(event),
            LabKind::Migrate { .. } => stay.migrations.push(event),
            _ => {}
        }
    }
    let mut stays: Vec<Stay<'_>> = Vec::new();
    let mut open: Option<(u32, u32)> = None;
    for ((task, entry), stay) in entries {
        let mut requests = stay.requests.iter();
        let late =
            requests.any(|r| is_late(r) && r.slot >= stay.last.0) || stay.has_one_of(samples);
        if let (Some(before), Some((of, _))) = (stays.last_mut(), open) {
            before.wait(of != task);
        }
        let joined = { stays.last_mut() }
            .filter(|before| open == Some((task, entry)) && before.goes_on_in(&stay));
        match joined {
            Some(before) => before.join(stay),
            None => stays.push(stay),
        }
        open = late.then(|| (task, entry.wrapping_add(1)));
    }
    if let Some(last) = stays.last_mut() {
        last.wait(open.is_some());
    }
    stays
}

/// Whether a request may have been made after the exit work. Its last instructions are before the
/// client's mark "leaving", with interrupts off: an NMI hits them, and a hook may be at one. A hard
/// interrupt hits nothing there.
pub(super) fn is_late(request: &LabEvent) -> bool {
    step();
    let may_be_there = matches!(request.context, LabContext::Nmi | LabContext::Task);
    request.flags.leaving || may_be_there && request.flags.irqs_off
}

/// Whether a request is of an NMI that hit user mode.
pub(crate) fn in_user_mode(request: &LabEvent) -> bool {
    request.context == LabContext::Nmi && request.flags.user
}

impl<'t> Stay<'t> {
    /// Notes a request or a callback.
    fn last_of(&mut self, event: &LabEvent) {
        if is_late(event) {
            return;
        }
        self.last = (event.slot, event.time);
        if !in_user_mode(event) {
            self.begun.entry(event.entry).or_insert(event.slot);
        }
    }

    /// Whether a record was made in the entry that its number says, and not just before it.
    fn contains(&self, event: &LabEvent) -> bool {
        let begun = self.begun.get(&event.entry);
        begun.is_some_and(|&slot| slot <= event.slot)
    }

    /// Where an entry returned to, and whether an interrupt had made it.
    pub fn returns_to(&self, entry: u32) -> Option<(u64, bool)> {
        let left = self.returns.iter().find(|it| it.entry == entry)?;
        match left.kind {
            LabKind::Return { ip, interrupt, .. } => Some((ip, interrupt)),
            _ => None,
        }
    }

    /// Whether a sample of perf lies between the last thing done in the stay and its return.
    fn has_one_of(&self, samples: &BTreeMap<u32, Vec<u64>>) -> bool {
        let Some(left) = self.returned else {
            return false;
        };
        let times = samples.get(&left.tid).map_or(&[][..], Vec::as_slice);
        let next = times.partition_point(|&time| time <= self.last.1);
        times.get(next).is_some_and(|&time| time <= left.time)
    }

    /// Whether an interrupt at the very return of this stay made `next`. Where the log does not
    /// show the end of a stay, that may be so.
    fn goes_on_in(&self, next: &Self) -> bool {
        let returns = [self, next].map(|stay| stay.returned.map(|event| &event.kind));
        match returns {
            [
                Some(LabKind::Return { ip: left, .. }),
                Some(LabKind::Return { ip, interrupt, .. }),
            ] => *interrupt && left == ip,
            [Some(_), None] => next.exit.is_none(),
            // Nothing had been logged in it when the client looked whether to log the return.
            [None, Some(LabKind::Return { interrupt, .. })] => {
                *interrupt && self.exit.is_none() && self.requests.iter().all(|r| r.flags.leaving)
            }
            _ => false,
        }
    }

    /// Whether the stay that would answer its last request is not in the log.
    fn wait(&mut self, waits: bool) {
        self.waits = waits;
        self.leaving |= waits;
    }

    fn join(&mut self, next: Self) {
        self.requests.extend(next.requests);
        self.callbacks.extend(next.callbacks);
        self.migrations.extend(next.migrations);
        // The return after the request that joins is not the end.
        self.returned = next.returned;
        self.returns.extend(next.returns);
        self.begun.extend(next.begun);
        self.exit = self.exit.or(next.exit);
        self.leaving = true;
        self.waits = false;
        self.last = next.last;
    }

    /// Requests that were not refused.
    pub fn accepted(&self) -> impl Iterator<Item = (&'t LabEvent, LabClient, u64)> {
        self.requests.iter().filter_map(|event| match event.kind {
            LabKind::Request { ret, cookie, .. } if ret >= 0 => {
                Some((*event, event.client?, cookie))
            }
            _ => None,
        })
    }

    /// Callbacks, with client and cookie.
    pub fn called(&self) -> impl Iterator<Item = (&'t LabEvent, LabClient, u64)> {
        self.callbacks
            .iter()
            .filter_map(|event| Some((*event, event.client?, event.cookie()?)))
    }
}

/// The task of an event in words.
pub(crate) fn task(event: &LabEvent) -> String {
    format!("task {} (number {})", event.tid, event.task)
}

#[cfg(test)]
mod tests {
    use crate::invariant::testkit::lab::{LabKit, client, holds, not_exercised};

    #[test]
    fn all_hold_on_a_good_log() {
        let mut kit = LabKit::good();
        kit.cancel(client(0));
        kit.stop();
        let checks: [(&str, usize); 15] = [
            ("C1", 4),
            ("C2", 1),
            ("C3", 3),
            ("C4", 12),
            ("C5", 3),
            ("C6", 1),
            ("C7", 5),
            ("M1", 5),
            ("M2", 5),
            ("D2", 5),
            ("P1", 2),
            ("P2", 3),
            ("R1", 5),
            ("R5", 1),
            ("S1", 4),
        ];
        for (invariant, evidence) in checks {
            assert_eq!(holds(invariant, &kit).0, evidence, "{}", invariant);
        }
        assert_eq!(holds("S3", &kit).0, 2);
        not_exercised("R4", &kit);
        not_exercised("X1", &kit);
        not_exercised("X2", &kit);
        not_exercised("R2", &kit);
        not_exercised("R3", &kit);
    }
}
