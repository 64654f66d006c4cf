//! One record of the lab client's log, as a signature describes it.

use serde::Deserialize;
use unwindlab_abi::lab::LabContext;

use super::CookieName;
use crate::invariant::finding::Resolver;
use crate::invariant::finding::places::{Places, USER};
use crate::trace::{LabEvent, LabKind, Trace};

/// One record of the lab client's log.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LogPattern {
    pub(super) kind: LogKind,
    /// Name for the task.
    pub(super) task: Option<String>,
    /// Name for the registration of a client.
    pub(super) client: Option<String>,
    /// Name for the cookie, or 0.
    pub(super) cookie: Option<CookieName>,
    /// Whether the task was past its exit work.
    pub(super) leaving: Option<bool>,
    /// Functions; the interrupt of a request hit one of them.
    pub(super) interrupted: Option<Vec<String>>,
    /// Whether the request began before the record that stands before it in the list.
    pub(super) around: Option<bool>,
    /// Whether the request and the cancellation of its client overlap: neither was over when the other began.
    pub(super) meanwhile: Option<bool>,
    /// What the request returned.
    pub(super) returned: Option<i32>,
    /// The context of the request.
    pub(super) context: Option<LabContext>,
    /// Whether the task is a worker.
    pub(super) worker: Option<bool>,
    /// Whether the client was called for the cookie in the task's next entry.
    pub(super) called: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum LogKind {
    /// A request that was not refused.
    Request,
    /// A request that returned a negative number.
    Refused,
    Callback,
    Return,
    Exit,
    Registered,
    /// A cancellation begins.
    Cancel,
    Cancelled,
}

impl LogPattern {
    /// Whether a record is what the pattern says, names apart. `last` is the slot of the one before it in the list.
    pub(super) fn fits<K: Resolver + ?Sized>(
        &self,
        trace: &Trace,
        event: &LabEvent,
        last: Option<u64>,
        kernel: &Places<'_, K>,
    ) -> bool {
        let Some((kind, ip)) = kind_of(event) else {
            return false;
        };
        let place = match &self.interrupted {
            None => true,
            Some(functions) if event.flags.user => functions.iter().any(|name| name == USER),
            Some(functions) => kernel.within(ip, functions),
        };
        let returned = |it| matches!(event.kind, LabKind::Request { ret, .. } if ret == it);
        let around = || match event.kind {
            LabKind::Request { begin, .. } => last.is_some_and(|last| begin <= last),
            _ => false,
        };
        let called = |it: bool| it == is_called_next(trace, event);
        let meanwhile = |it: bool| it == is_cancelled_meanwhile(trace, event);
        kind == self.kind
            && place
            && self.leaving.is_none_or(|it| it == event.flags.leaving)
            && self.returned.is_none_or(returned)
            && self.context.is_none_or(|it| it == event.context)
            && self.worker.is_none_or(|it| it == event.flags.worker)
            && self.around.is_none_or(|it| it == around())
            && self.called.is_none_or(called)
            && self.meanwhile.is_none_or(meanwhile)
    }
}

/// The kind of a record, and the instruction that a request hit.
fn kind_of(event: &LabEvent) -> Option<(LogKind, u64)> {
    Some(match event.kind {
        LabKind::Request { ret: 0.., ip, .. } => (LogKind::Request, ip),
        LabKind::Request { ip, .. } => (LogKind::Refused, ip),
        LabKind::Callback { .. } => (LogKind::Callback, 0),
        LabKind::Return { .. } => (LogKind::Return, 0),
        LabKind::Exit => (LogKind::Exit, 0),
        LabKind::Registered { ret: 0 } => (LogKind::Registered, 0),
        LabKind::Cancel => (LogKind::Cancel, 0),
        LabKind::Cancelled => (LogKind::Cancelled, 0),
        _ => return None,
    })
}

/// Whether a request and the cancellation of its client overlap.
fn is_cancelled_meanwhile(trace: &Trace, request: &LabEvent) -> bool {
    let LabKind::Request { begin, .. } = request.kind else {
        return false;
    };
    let events = { trace.lab.iter() }.flat_map(|lab| &lab.events);
    let own = events.filter(|it| it.client.is_some() && it.client == request.client);
    let mut began = false;
    let mut ended = false;
    for event in own {
        began |= event.kind == LabKind::Cancel && event.slot < request.slot;
        ended |= event.kind == LabKind::Cancelled && begin <= event.slot;
    }
    began && ended
}

/// Whether the client of a request was called for its cookie in the task's next entry.
fn is_called_next(trace: &Trace, request: &LabEvent) -> bool {
    let events = trace.lab.iter().flat_map(|lab| &lab.events);
    let mut next = events.filter(|it| {
        it.slot > request.slot
            && it.task == request.task
            && it.entry == request.entry.wrapping_add(1)
    });
    next.any(|it| {
        let called = matches!(it.kind, LabKind::Callback { .. });
        called && it.client == request.client && it.cookie() == request.cookie()
    })
}
