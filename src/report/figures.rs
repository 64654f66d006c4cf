//! Figures that distinguish designs, from the traces of the whole library.

use std::collections::{BTreeMap, BTreeSet};

use super::answers::Answers;
use crate::judge::result::ScenarioResult;
use unwindlab_oracle::trace::Trace;
use unwindlab_oracle::trace::lab::{LabKind, LabTrace};

/// The scenario in which progress under a storm is measured: NMIs at a fixed rate in guest time,
/// each of which requests a stack of 300 frames.
pub const STORM: &str = "nmi-storm-300-frames";
/// The scenario that steps through the exit from a system call, one instruction further with each
/// iteration, and so counts the instructions.
pub const WAY_OUT: &str = "nmi-on-the-way-out";
/// The scenario that does so from the entry to the system call.
pub const WHOLE_CALL: &str = "nmi-all-through-a-call";

/// The figures of one kernel.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Figures {
    /// Requests of the lab's clients that were not refused.
    pub requests: u64,
    /// Callbacks of a client after its first for one stay in the kernel.
    pub duplicates: u64,
    /// What requests were told that were not the first of their client in an entry.
    pub answers: Answers,
    /// Stays in the kernel with a callback.
    pub entries: u64,
    /// Different cookies that these stays had, each of which is an unwind.
    pub unwinds: u64,
    /// Cookies that two tasks had in one boot.
    pub shared_cookies: u64,
    /// Different cookies.
    pub cookies: u64,
    /// Iterations of the workload during [`STORM`]; `None` if it did not run to its end.
    pub storm_progress: Option<u64>,
    /// Instructions from the system call's function to user mode, without an earlier request.
    pub way_out: Option<u64>,
    /// Instructions from the start of the entry's C code to the system call's function.
    pub way_in: Option<u64>,
}

impl Figures {
    /// Computes them from the results of one kernel.
    #[must_use]
    pub fn of(results: &[ScenarioResult]) -> Self {
        let mut figures = Self::default();
        for trace in results.iter().filter_map(|result| result.trace.as_ref()) {
            if let Some(lab) = &trace.lab {
                figures.add_lab(lab);
            }
            figures.add_cookies(trace);
        }
        let trace = |name: &str| {
            let result = results.iter().find(|result| result.name == name)?;
            result.trace.as_ref()
        };
        figures.storm_progress = trace(STORM).map(|trace| {
            let made = trace.progress.iter();
            made.map(|it| it.at_last_injection.saturating_sub(it.at_first_injection))
                .sum()
        });
        figures.way_out = trace(WAY_OUT).and_then(kernel_instructions);
        let whole = trace(WHOLE_CALL).and_then(kernel_instructions);
        figures.way_in = whole
            .zip(figures.way_out)
            .and_then(|(whole, out)| whole.checked_sub(out));
        figures
    }

    fn add_lab(&mut self, lab: &LabTrace) {
        self.answers.add(lab);
        let mut calls: BTreeMap<_, u64> = BTreeMap::new();
        let mut stacks: BTreeMap<_, BTreeSet<u64>> = BTreeMap::new();
        for event in &lab.events {
            match event.kind {
                LabKind::Request { ret, .. } if ret >= 0 => self.requests += 1,
                LabKind::Callback { cookie, .. } => {
                    let stay = (event.task, event.entry);
                    *calls.entry((stay, event.client)).or_default() += 1;
                    stacks.entry(stay).or_default().insert(cookie);
                }
                _ => {}
            }
        }
        self.duplicates += calls.values().map(|calls| calls - 1).sum::<u64>();
        self.entries += stacks.len() as u64;
        self.unwinds += stacks
            .values()
            .map(|cookies| cookies.len() as u64)
            .sum::<u64>();
    }

    fn add_cookies(&mut self, trace: &Trace) {
        let mut owners: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
        for event in &trace.events {
            if let (Some((_, cookie)), Some(tid)) = (event.deferred_sample(), event.tid) {
                owners.entry(cookie).or_default().insert(tid);
            }
        }
        for event in trace.lab.iter().flat_map(|lab| &lab.events) {
            if let Some(cookie) = event.cookie() {
                owners.entry(cookie).or_default().insert(event.tid);
            }
        }
        self.cookies += owners.len() as u64;
        self.shared_cookies += owners.values().filter(|tids| tids.len() > 1).count() as u64;
    }

    /// Duplicate callbacks for each request.
    #[must_use]
    pub fn duplicates_per_request(&self) -> Option<f64> {
        ratio(self.duplicates, self.requests)
    }

    /// Unwinds for each stay in the kernel with a callback.
    #[must_use]
    pub fn unwinds_per_entry(&self) -> Option<f64> {
        ratio(self.unwinds, self.entries)
    }
}

/// How many instructions of the kernel the scenario stepped through; `None` if there was none.
fn kernel_instructions(trace: &Trace) -> Option<u64> {
    let kernel = trace.injections.iter().filter(|it| it.cpl == 0).count();
    (kernel > 0).then_some(kernel as u64)
}

#[expect(clippy::cast_precision_loss, reason = "shown with two digits")]
fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::Outcome;
    use unwindlab_abi::lab::LabContext;
    use unwindlab_oracle::trace::lab::{LabClient, LabEvent, LabFlags};

    fn event(slot: u64, task: u32, entry: u32, kind: LabKind) -> LabEvent {
        LabEvent {
            slot,
            time: slot,
            cpu: 0,
            tid: 100 + task,
            task,
            entry,
            context: LabContext::Task,
            flags: LabFlags::default(),
            client: Some(LabClient {
                number: 0,
                generation: 1,
            }),
            kind,
        }
    }

    #[test]
    fn counts_what_came_twice() {
        let ask = |cookie| LabKind::Request {
            ret: 0,
            cookie,
            begin: 0,
            ip: 0,
        };
        let call = |cookie| LabKind::Callback {
            cookie,
            nr: 1,
            stack: None,
        };
        let mut result = ScenarioResult::not_run("lab", Outcome::Fail, String::new());
        result.trace = Some(Trace {
            lab: Some(LabTrace {
                events: vec![
                    event(0, 1, 1, ask(7)),
                    event(1, 1, 1, call(7)),
                    event(2, 1, 1, ask(9)),
                    event(3, 1, 1, call(9)),
                    event(4, 2, 1, ask(9)),
                    event(5, 2, 1, call(9)),
                ],
                ..LabTrace::default()
            }),
            ..Trace::default()
        });
        let figures = Figures::of(&[result]);
        assert_eq!(figures.answers.cell(), "-");
        assert_eq!((figures.requests, figures.duplicates), (3, 1));
        assert_eq!((figures.entries, figures.unwinds), (2, 3));
        assert_eq!((figures.cookies, figures.shared_cookies), (2, 1));
        assert_eq!(figures.unwinds_per_entry(), Some(1.5));
        assert_eq!(figures.way_in, None);
    }

    #[test]
    fn tells_answers_before_the_callback_from_those_after_it() {
        let ask = |ret, begin| LabKind::Request {
            ret,
            cookie: 7,
            begin,
            ip: 0,
        };
        let call = LabKind::Callback {
            cookie: 7,
            nr: 1,
            stack: None,
        };
        let kinds = [ask(0, 0), ask(1, 1), call, ask(1, 3), ask(2, 4), ask(2, 2)];
        let events = kinds.into_iter().zip(0..);
        let mut result = ScenarioResult::not_run("lab", Outcome::Fail, String::new());
        result.trace = Some(Trace {
            lab: Some(LabTrace {
                events: events.map(|(kind, slot)| event(slot, 1, 1, kind)).collect(),
                ..LabTrace::default()
            }),
            ..Trace::default()
        });
        assert_eq!(
            Figures::of(&[result]).answers.cell(),
            "1: 1 to come, 1 there; 2: 0 to come, 1 there"
        );
    }
}
