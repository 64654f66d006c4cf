//! [`SnapshotStyle::Events`](super::SnapshotStyle::Events): one line per record of interest.
//!
//! * `S t0 nmi@__x64_sys_getppid c0`: a sample of thread 0, taken by an NMI that interrupted this
//!   function, with its cookie. Without an NMI in the chain the event's name stands for `nmi`. In
//!   place of the cookie: `c?`, the marker is there and no cookie after it; `inline [...]`, a
//!   user chain instead of a promise; `-`, neither.
//! * `D t0 c0 [...]`: record 22, with `nr=` where that is not the number of entries it holds.
//! * `EXIT t0`, `LOST`, `LOST-SAMPLES`, `THROTTLE name`, `UNTHROTTLE name`.
//! * `CORRUPT ...`: what the decoder complained about.
//!
//! Where several events sample, or several receive record 22, the line ends with the event's name
//! in parentheses.
//!
//! Left out: context switches, mmap, comm, fork, and exits of tasks outside the workload, which
//! vary with the kernel's own housekeeping; how much was lost, which depends on the speed of the
//! reader. Threads that are told to stop do so in any order, so the exits after the last sample or
//! chain are sorted.

use super::names::{CookieNames, TaskName, TaskNames};
use super::place::interrupted;
use super::stack::{self, Leaf};
use super::{KernelResolver, place::SamplePlace};
use crate::trace::model::{CONTEXT_USER_DEFERRED, CallchainDeferred, Event, EventKind};
use crate::trace::model::{Sample, Trace};
use crate::trace::symbolize::UserSymbols;

pub(super) fn lines(trace: &Trace, kernel: KernelResolver<'_>) -> Vec<String> {
    let mut writer = Writer::new(trace, kernel);
    let mut lines = Vec::new();
    let mut settled = 0;
    for event in &trace.events {
        let Some(line) = writer.line(event) else {
            continue;
        };
        lines.push(line);
        if !matches!(event.kind, EventKind::Exit { .. }) {
            settled = lines.len();
        }
    }
    if let Some(exits) = lines.get_mut(settled..) {
        exits.sort();
    }
    lines.extend(trace.corrupt.iter().map(|why| format!("CORRUPT {why}")));
    lines
}

struct Writer<'a> {
    trace: &'a Trace,
    kernel: KernelResolver<'a>,
    tasks: TaskNames<'a>,
    symbols: UserSymbols<'a>,
    cookies: CookieNames,
    several_samplers: bool,
    several_receivers: bool,
}

impl<'a> Writer<'a> {
    fn new(trace: &'a Trace, kernel: KernelResolver<'a>) -> Self {
        let specs = trace.tracing.as_ref().map_or(&[][..], |t| &t.events);
        Self {
            trace,
            kernel,
            tasks: TaskNames::new(trace),
            symbols: UserSymbols::new(&trace.user_symbols),
            cookies: CookieNames::default(),
            several_samplers: specs.iter().filter(|s| s.sample_period > 0).count() > 1,
            several_receivers: specs.iter().filter(|s| s.defer_output).count() > 1,
        }
    }

    fn line(&mut self, event: &Event) -> Option<String> {
        let task = self.tasks.of(event);
        Some(match &event.kind {
            EventKind::Sample(sample) => self.sample(task, event, sample),
            EventKind::CallchainDeferred(deferred) => self.deferred(task, event, deferred),
            EventKind::Exit { pid, tid, .. } => {
                let who = self.tasks.by_id(*pid, *tid);
                return who.is_workload().then(|| format!("EXIT {who}"));
            }
            EventKind::Lost { .. } => "LOST".to_owned(),
            EventKind::LostSamples { .. } => "LOST-SAMPLES".to_owned(),
            EventKind::Throttle { on, .. } => {
                let what = if *on { "THROTTLE" } else { "UNTHROTTLE" };
                format!("{what} {}", self.event_name(event))
            }
            EventKind::Switch { .. }
            | EventKind::Mmap { .. }
            | EventKind::Comm { .. }
            | EventKind::Fork { .. }
            | EventKind::Other { .. } => return None,
        })
    }

    fn sample(&mut self, task: TaskName<'_>, event: &Event, sample: &Sample) -> String {
        let SamplePlace { nmi, at } = interrupted(sample, self.kernel);
        let by = if nmi { "nmi" } else { self.event_name(event) };
        let chain = sample.chain.as_deref().unwrap_or_default();
        let user = if let Some(cookie) = sample.cookie() {
            self.cookies.name(cookie)
        } else if chain.contains(&CONTEXT_USER_DEFERRED) {
            "c?".to_owned()
        } else if sample.user_chain().is_empty() {
            "-".to_owned()
        } else {
            let frames = sample.user_chain();
            format!("inline {}", stack::line(frames, &self.symbols, Leaf::Exact))
        };
        let suffix = self.suffix(self.several_samplers, event);
        format!("S {task} {by}@{at} {user}{suffix}")
    }

    fn deferred(
        &mut self,
        task: TaskName<'_>,
        event: &Event,
        deferred: &CallchainDeferred,
    ) -> String {
        let cookie = self.cookies.name(deferred.cookie);
        let stack = stack::line(&deferred.frames(), &self.symbols, Leaf::Exact);
        let nr = if deferred.nr == deferred.ips.len() as u64 {
            String::new()
        } else {
            format!(" nr={}", deferred.nr)
        };
        let suffix = self.suffix(self.several_receivers, event);
        format!("D {task} {cookie} {stack}{nr}{suffix}")
    }

    fn suffix(&self, wanted: bool, event: &Event) -> String {
        if wanted {
            format!(" ({})", self.event_name(event))
        } else {
            String::new()
        }
    }

    /// The spec's name of the event that wrote a record.
    fn event_name(&self, event: &Event) -> &'a str {
        event
            .event
            .and_then(|at| self.trace.session.get(at))
            .and_then(|announce| usize::try_from(announce.spec).ok())
            .and_then(|spec| self.trace.tracing.as_ref()?.events.get(spec))
            .map_or("unknown-event", |spec| &spec.name)
    }
}
