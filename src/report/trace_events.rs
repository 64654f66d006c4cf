//! `run --trace-json FOLDER`: a trial as a file of Chrome's Trace Event Format, which chrome://tracing and the Perfetto UI open.
//!
//! There is a lane for each CPU and one for each task. A sample and a deferred chain are slices of a nanosecond in both; arrows
//! (flow events) lead from the samples of a cookie to its chain. The format is that of the document "Trace Event Format" of the
//! Chromium project: times are in microseconds, and an arrow belongs to the slice that it begins or ends in.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use unwindlab_engine::text::printable;
use unwindlab_oracle::trace::{Event, EventKind, Trace};

use super::names::Names;
use super::output_file::{OutputFile, WriteError};
use crate::judge::result::{Artifact, ScenarioResult};

/// The lanes of CPUs, as a process.
const CPUS: u32 = 1;
/// The lanes of tasks.
const TASKS: u32 = 2;
/// Added to a CPU's number: a thread has one number in the whole file, and no task has such a one.
const FIRST_CPU: u32 = 1 << 30;
/// Frames that are shown of a stack.
const MAX_FRAMES: usize = 64;
/// The length of a slice, in microseconds: an arrow needs one that has not ended.
const NANOSECOND: f64 = 0.001;

/// The folder.
#[derive(Debug, Clone)]
pub struct TraceFolder {
    root: PathBuf,
    /// Trials of each scenario.
    trials: BTreeMap<String, u32>,
}

impl TraceFolder {
    /// The folder, created and writable.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn open(root: &Path) -> Result<Self, WriteError> {
        std::fs::create_dir_all(root).map_err(WriteError::of(root))?;
        tempfile::tempfile_in(root).map_err(WriteError::of(root))?;
        Ok(Self {
            root: root.to_owned(),
            trials: BTreeMap::new(),
        })
    }

    /// Writes a trial's trace, and adds its path to the result. A trial without a trace leaves none.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn keep(
        &mut self,
        result: &mut ScenarioResult,
        names: Names<'_>,
    ) -> Result<(), WriteError> {
        let trial = self.trials.entry(result.name.clone()).or_default();
        *trial += 1;
        let path = self.root.join(match *trial {
            1 => format!("{}.json", result.name),
            more => format!("{}-{more}.json", result.name),
        });
        let Some(trace) = &result.trace else {
            return Ok(());
        };
        let text = events(trace, names).to_string();
        OutputFile::create(&path)?.finish(text)?;
        result.artifacts.push(Artifact {
            kind: "trace events".to_owned(),
            path,
        });
        Ok(())
    }
}

/// The file's contents.
#[must_use]
pub fn events(trace: &Trace, names: Names<'_>) -> Value {
    let mut file = File {
        names,
        events: Vec::new(),
        cookies: BTreeMap::new(),
        running: BTreeMap::new(),
        tasks: BTreeMap::new(),
    };
    file.name_lanes(trace);
    let mut without_time = 0;
    for event in &trace.events {
        match event.time {
            Some(time) => file.add(event, microseconds(time)),
            None => without_time += 1,
        }
    }
    file.add_arrows();
    let tasks = file.tasks.iter();
    let tasks = tasks.map(|(tid, name)| named("thread_name", TASKS, *tid, name));
    let tasks: Vec<Value> = tasks.collect();
    file.events.extend(tasks);
    json!({
        "traceEvents": file.events,
        "displayTimeUnit": "ns",
        "otherData": {
            "kernel": printable(&trace.release),
            "records without a time, which are left out": without_time,
        },
    })
}

#[expect(
    clippy::cast_precision_loss,
    reason = "nanoseconds since the boot of a guest are far below 2^53"
)]
fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1000.0
}

/// A lane or a process with a name.
fn named(what: &str, pid: u32, tid: u32, name: &str) -> Value {
    json!({ "ph": "M", "name": what, "pid": pid, "tid": tid, "args": { "name": printable(name) } })
}

struct File<'a> {
    names: Names<'a>,
    events: Vec<Value>,
    /// When and on which task's lane a cookie occurs, in order.
    cookies: BTreeMap<u64, Vec<(f64, u32)>>,
    /// Since when which task runs on a CPU.
    running: BTreeMap<u32, (f64, u32)>,
    /// Names of tasks.
    tasks: BTreeMap<u32, String>,
}

impl File<'_> {
    fn name_lanes(&mut self, trace: &Trace) {
        self.events
            .push(named("process_name", CPUS, FIRST_CPU, "CPUs"));
        self.events.push(named("process_name", TASKS, 0, "tasks"));
        let mut cpus: Vec<u32> = trace.events.iter().map(|it| it.cpu).collect();
        cpus.sort_unstable();
        cpus.dedup();
        for cpu in cpus {
            let name = format!("CPU {cpu}");
            self.events
                .push(named("thread_name", CPUS, lane(cpu), &name));
        }
        for thread in &trace.threads {
            let tid = if thread.tid == 0 {
                thread.pid
            } else {
                thread.tid
            };
            let name = format!("workload thread {}", thread.thread);
            self.tasks.insert(tid, name);
        }
    }

    fn add(&mut self, event: &Event, time: f64) {
        let tid = event.tid.unwrap_or_default();
        let (name, args) = match &event.kind {
            EventKind::Switch { out, .. } => return self.switch(event.cpu, tid, *out, time),
            EventKind::Sample(sample) => {
                let mut args = json!({ "kernel": self.frames(sample.kernel_chain()) });
                if let (Some(ip), Value::Object(args)) = (sample.ip, &mut args) {
                    args.insert("in".to_owned(), self.names.name(ip).into());
                }
                ("sample", args)
            }
            EventKind::CallchainDeferred(chain) => (
                "deferred chain",
                json!({ "user": self.frames(&chain.frames()) }),
            ),
            EventKind::Lost { lost, .. } | EventKind::LostSamples { lost } => {
                return self.instant(event, time, &format!("{lost} records lost"));
            }
            EventKind::Comm { comm, .. } => {
                self.tasks.insert(tid, comm.clone());
                return self.instant(event, time, &format!("comm {comm}"));
            }
            EventKind::Fork { tid, .. } => {
                return self.instant(event, time, &format!("fork of {tid}"));
            }
            EventKind::Exit { .. } => return self.instant(event, time, "exit"),
            EventKind::Throttle { .. } | EventKind::Mmap { .. } | EventKind::Other { .. } => return,
        };
        let mut args = args;
        if let Value::Object(args) = &mut args {
            args.insert("record".to_owned(), event.index.into());
            if let Some(cookie) = event.cookie() {
                args.insert("cookie".to_owned(), id(cookie).into());
            }
        }
        if let Some(cookie) = event.cookie() {
            let places = self.cookies.entry(cookie).or_default();
            // Receivers in several rings have the same record.
            if places.last() != Some(&(time, tid)) {
                places.push((time, tid));
            }
        }
        for (pid, lane) in self.lanes(event.cpu, tid) {
            self.events.push(json!({
                "ph": "X", "name": name, "cat": "perf", "pid": pid, "tid": lane,
                "ts": time, "dur": NANOSECOND, "args": args,
            }));
        }
    }

    /// The lanes of an event's CPU and task; the task has a name from now on.
    fn lanes(&mut self, cpu: u32, tid: u32) -> [(u32, u32); 2] {
        let name = || format!("task {tid}");
        self.tasks.entry(tid).or_insert_with(name);
        [(CPUS, lane(cpu)), (TASKS, tid)]
    }

    fn instant(&mut self, event: &Event, time: f64, name: &str) {
        for (pid, lane) in self.lanes(event.cpu, event.tid.unwrap_or_default()) {
            self.events.push(json!({
                "ph": "i", "s": "t", "name": printable(name), "cat": "perf",
                "pid": pid, "tid": lane, "ts": time,
            }));
        }
    }

    /// A task runs on a CPU from the record that it comes to that it goes.
    fn switch(&mut self, cpu: u32, tid: u32, out: bool, time: f64) {
        if !out {
            self.running.insert(cpu, (time, tid));
            return;
        }
        let Some((since, _)) = self.running.remove(&cpu).filter(|it| it.1 == tid) else {
            return;
        };
        self.lanes(cpu, tid);
        self.events.push(json!({
            "ph": "X", "name": format!("task {tid}"), "cat": "sched", "pid": CPUS, "tid": lane(cpu),
            "ts": since, "dur": time - since,
        }));
    }

    fn frames(&self, frames: &[u64]) -> Vec<String> {
        let shown = frames.iter().take(MAX_FRAMES);
        let mut shown: Vec<String> = shown.map(|ip| self.names.name(*ip)).collect();
        if let Some(more @ 1..) = frames.len().checked_sub(MAX_FRAMES) {
            shown.push(format!("... and {more} more"));
        }
        shown
    }

    /// An arrow through all records of a cookie.
    fn add_arrows(&mut self) {
        for (cookie, places) in &self.cookies {
            let last = places.len() - 1;
            if last == 0 {
                continue;
            }
            for (number, (time, tid)) in places.iter().enumerate() {
                let phase = match number {
                    0 => "s",
                    _ if number == last => "f",
                    _ => "t",
                };
                self.events.push(json!({
                    "ph": phase, "bp": "e", "name": "cookie", "cat": "cookie", "id": id(*cookie),
                    "pid": TASKS, "tid": tid, "ts": time,
                }));
            }
        }
    }
}

const fn lane(cpu: u32) -> u32 {
    FIRST_CPU.saturating_add(cpu)
}

/// 64 bits do not fit into a number of JavaScript's.
fn id(cookie: u64) -> String {
    format!("{cookie:#x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::tests::{Kernel, Trial};

    fn of(trace: &Trace) -> Value {
        let user = &trace.user_symbols;
        let names = Names {
            kernel: &Kernel,
            user,
        };
        events(trace, names)
    }

    /// The phases of arrows, in order.
    fn arrows(file: &Value) -> String {
        let events = file["traceEvents"].as_array().unwrap().iter();
        let phases = events.filter_map(|it| it["ph"].as_str().filter(|ph| "stf".contains(ph)));
        phases.collect()
    }

    #[test]
    fn an_arrow_leads_from_each_request_to_its_answer() {
        let mut trace = Trial::good("").trace;
        assert_eq!(arrows(&of(&trace)), "sfsf");
        // One of them is not answered.
        let is_chain = |it: &Event| it.deferred_chain().is_some();
        let last = trace.events.iter().rposition(is_chain).unwrap();
        let chain = trace.events.remove(last);
        assert_eq!(arrows(&of(&trace)), "sf");
        // The other is answered twice.
        let first = trace.events.iter().position(is_chain).unwrap();
        let mut again = trace.events[first].clone();
        again.time = chain.time.map(|time| time + 1);
        trace.events.push(again);
        assert_eq!(arrows(&of(&trace)), "stf");
    }

    #[test]
    fn what_a_guest_says_is_taken_as_it_is() {
        let mut trace = Trial::good("").trace;
        for event in &mut trace.events {
            (event.cpu, event.tid) = (u32::MAX, Some(u32::MAX));
        }
        let mut named = trace.events[0].clone();
        named.kind = EventKind::Comm {
            comm: "\u{1b}[31m\u{202e}".to_owned(),
            exec: false,
        };
        trace.events.push(named);
        trace.events[1].time = None;
        trace.events[2].time = Some(u64::MAX);
        let file = of(&trace);
        let text = file.to_string();
        assert!(text.contains("comm \\\\u{1b}[31m\\\\u{202e}"), "{text}");
        let other = file["otherData"].as_object().unwrap();
        assert!(other.values().any(|it| *it == 1), "{other:?}");
    }
}
