//! What the log of the kernel's lab client proves: the in-kernel side of the invariants.
//!
//! Everything rests on two facts of the log (guest-kernel/client). Slots are in one order for the
//! whole machine. And each record of a watched task carries the number of times that the task had
//! returned to user mode, so counting tells entries apart, not cookies. Records with one number
//! belong to one stay in the kernel, together with the requests of NMIs in user mode just before
//! it, which that stay answers.
//!
//! One thing joins two stays: a request of an NMI after the exit work of the first, where
//! interrupts stay off to the end. It cannot be answered any more before user mode; its
//! self-interrupt makes the next entry before a user instruction retires, and that one answers it.
//! The log proves it: after the request the first stay has nothing but its return and requests of
//! this kind, and an interrupt made the second stay, which returns to the same instruction. (If the
//! client has already found nothing to log a return for, a stay whose first request comes then has
//! no return. Then it is enough that an interrupt made the second stay.) Such requests may also
//! have a new cookie, if the reset was over ("leaving"; C1's exception).

use std::collections::{BTreeMap, BTreeSet};

use unwindlab_abi::lab::LabContext;

use super::stacks::at_leaf;
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
    /// Slot of the last thing done with interrupts on, or by the task itself.
    last: u64,
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
    /// From this slot on, clients are cancelled because the trial is over: every thread of the
    /// workload has ended by then.
    closing: u64,
    /// The client was switched off in order: nothing was cut.
    pub complete: bool,
}

impl<'t> Lab<'t> {
    /// `None` for a trial without the lab client.
    pub fn of(trace: &'t Trace) -> Option<Self> {
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
            stays: stays(log),
            lives,
            given: log.events.iter().filter_map(LabEvent::cookie).collect(),
            closing: closing(log),
            complete: complete && log.lost == 0 && log.unfinished == 0,
        })
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

    /// Whether a callback is known to have come before the next user instruction after the request
    /// that it answers. In the request's own entry it has. In one that was joined to it, the task
    /// may have gone on and been interrupted at the instruction to which it had returned, unless
    /// the code there comes back to none without a system call: so it is in the leaf of a workload
    /// thread that makes one.
    pub fn in_time(&self, request: &LabEvent, callback: &LabEvent, stay: &Stay<'t>) -> bool {
        if request.entry == callback.entry {
            return true;
        }
        let mut returns = stay.returns.iter();
        let left = returns.find(|it| it.entry == request.entry);
        let Some(LabKind::Return { ip, .. }) = left.map(|it| &it.kind) else {
            return false;
        };
        let mut threads = self.trace.threads.iter();
        threads.any(|it| {
            let stack = &it.stack;
            it.tid == request.tid && stack.syscall_return != 0 && at_leaf(stack, *ip)
        })
    }

    /// Whether the log shows all of a stay: the task returned to user mode, or it exited and the
    /// log was closed later.
    pub fn is_over(&self, stay: &Stay<'t>) -> bool {
        stay.returned.is_some() || (stay.exit.is_some() && self.complete)
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

fn stays(log: &LabTrace) -> Vec<Stay<'_>> {
    let mut entries: BTreeMap<(u32, u32), Stay<'_>> = BTreeMap::new();
    for event in log.events.iter().filter(|event| event.task != 0) {
        let stay = entries.entry((event.task, event.entry)).or_default();
        stay.task = event.task;
        match event.kind {
            LabKind::Request { .. } => {
                if !is_late(event) {
                    stay.last = event.slot;
                }
                stay.requests.push(event);
            }
            LabKind::Callback { .. } => {
                stay.last = event.slot;
                stay.callbacks.push(event);
            }
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
        let late = stay
            .requests
            .iter()
            .any(|r| is_late(r) && r.slot >= stay.last);
        let joined = { stays.last_mut() }
            .filter(|before| open == Some((task, entry)) && before.goes_on_in(&stay));
        match joined {
            Some(before) => before.join(stay),
            None => stays.push(stay),
        }
        open = late.then(|| (task, entry.wrapping_add(1)));
    }
    stays
}

/// Whether a request may have been made after the exit work.
pub(super) fn is_late(request: &LabEvent) -> bool {
    request.context == LabContext::Nmi && (request.flags.irqs_off || request.flags.leaving)
}

impl<'t> Stay<'t> {
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

    fn join(&mut self, next: Self) {
        self.requests.extend(next.requests);
        self.callbacks.extend(next.callbacks);
        self.migrations.extend(next.migrations);
        // The return after the request that joins is not the end.
        self.returned = next.returned;
        self.returns.extend(next.returns);
        self.exit = self.exit.or(next.exit);
        self.leaving = true;
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
