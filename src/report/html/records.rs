//! What a timeline shows: perf's records, and those of the lab client's log.

use serde::Serialize;

use crate::report::failure::{event_line, log_line};
use crate::report::names::Names;
use unwindlab_oracle::trace::{Event, EventKind, LabEvent, LabKind, Trace};

/// One record.
#[derive(Debug, Clone, Copy)]
pub(super) enum Record<'a> {
    Perf(&'a Event),
    Log(&'a LabEvent),
}

/// What a record is in an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Role {
    /// It gave a cookie.
    Request,
    /// It has a stack for a cookie.
    Answer,
    /// A sample without a cookie, or a request that was refused.
    Sample,
    In,
    Out,
    Other,
}

impl<'a> Record<'a> {
    /// Those of a trace among which a violation is shown: perf's, the log's where only the log shows it, or both by
    /// their time.
    pub fn all(trace: &'a Trace, perf: bool, log: bool) -> Vec<Self> {
        let of_perf = trace.events.iter().map(Record::Perf);
        let of_log = trace
            .lab
            .iter()
            .flat_map(|lab| &lab.events)
            .map(Record::Log);
        match (perf, log) {
            (true, false) => of_perf.collect(),
            (false, true) => of_log.collect(),
            _ => {
                let mut all: Vec<Self> = of_perf.chain(of_log).collect();
                all.sort_by_key(|record| record.time().unwrap_or(u64::MAX));
                all
            }
        }
    }

    pub fn id(&self) -> String {
        match self {
            Self::Perf(event) => format!("#{}", event.index),
            Self::Log(event) => format!("log {}", event.slot),
        }
    }

    pub fn line(&self, names: Names<'_>) -> String {
        match self {
            Self::Perf(event) => event_line(event, names),
            Self::Log(event) => log_line(event, names),
        }
    }

    /// Nanoseconds.
    pub fn time(&self) -> Option<u64> {
        match self {
            Self::Perf(event) => event.time,
            Self::Log(event) => Some(event.time),
        }
    }

    pub fn cpu(&self) -> u32 {
        match self {
            Self::Perf(event) => event.cpu,
            Self::Log(event) => u32::from(event.cpu),
        }
    }

    /// The task that it is about.
    pub fn task(&self) -> String {
        let tid = match self {
            Self::Perf(event) => event.tid,
            Self::Log(event) => Some(event.tid),
        };
        match tid {
            Some(0) => "idle".to_owned(),
            Some(tid) => format!("task {tid}"),
            None => "no task".to_owned(),
        }
    }

    pub fn cookie(&self) -> Option<u64> {
        match self {
            Self::Perf(event) => event.cookie(),
            Self::Log(event) => event.cookie(),
        }
    }

    pub fn role(&self) -> Role {
        match self {
            Self::Perf(event) => match &event.kind {
                EventKind::Sample(sample) if sample.cookie().is_some() => Role::Request,
                EventKind::Sample(_) => Role::Sample,
                EventKind::CallchainDeferred(_) => Role::Answer,
                EventKind::Switch { out: true, .. } => Role::Out,
                EventKind::Switch { .. } => Role::In,
                _ => Role::Other,
            },
            Self::Log(event) => match event.kind {
                LabKind::Request { ret, .. } if ret >= 0 => Role::Request,
                LabKind::Request { .. } => Role::Sample,
                LabKind::Callback { .. } => Role::Answer,
                _ => Role::Other,
            },
        }
    }
}
