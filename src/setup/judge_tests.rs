//! The judge of set-ups against a kernel that is played here: right, or wrong in one thing.

use unwindlab_abi::attr::flag;
use unwindlab_abi::message::{EventAnnounce, ExpectedStack, ThreadAnnounce};
use unwindlab_oracle::trace::model::{CONTEXT_USER_DEFERRED, CallchainDeferred, Sample};
use unwindlab_oracle::trace::{Event, EventKind, Trace};

use super::judge::{Judged, judge};
use super::session::{ITERATIONS, events, name};
use super::{Factor, Setup};

const THREAD: u32 = 7;
const AGENT: u32 = 1;
const READ: u64 = 0;
const IOCTL: u64 = 16;
const FORK: u64 = 57;
const EXECVE: u64 = 59;
const EXIT: u64 = 60;
const GETPPID: u64 = 110;
const FUTEX: u64 = 202;

/// What the kernel does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// No record 22 for an event that writes backwards.
    NotBackward,
    /// No record 22 for a request that is pending at this system call.
    LostIn(u64),
    /// The stack of an earlier entry.
    KeepsStack,
    /// No sample in this stay of the workload's.
    NoSampleIn(usize),
}

/// perf, of an asker at `raw_syscalls:sys_enter`, or at `sys_exit`.
struct Kernel {
    setup: Setup,
    wrong: Wrong,
    trace: Trace,
    cookie: u64,
    stays: usize,
    asker_is_on: bool,
}

impl Kernel {
    fn new(levels: &[(Factor, &str)], wrong: Wrong) -> Self {
        let setup = Setup::with(levels);
        let mut trace = Trace::default();
        let tracing = unwindlab_abi::Tracing {
            ring_pages: 64,
            events: events(&setup),
        };
        for (spec, event) in (0..).zip(&tracing.events) {
            trace.session.push(EventAnnounce {
                spec,
                cpu: 0,
                id: u64::from(spec) + 1,
                ring: event.output_to.unwrap_or(spec),
            });
        }
        trace.tracing = Some(tracing);
        trace.threads.push(ThreadAnnounce {
            thread: 0,
            pid: AGENT,
            tid: THREAD,
            stack: ExpectedStack {
                leaf_start: 0,
                leaf_end: 0,
                syscall_return: 0x40,
                callers: vec![(0x80, 2)],
            },
        });
        Self {
            setup,
            wrong,
            trace,
            cookie: 1,
            stays: 0,
            asker_is_on: true,
        }
    }

    fn specs(&self) -> Vec<unwindlab_abi::EventSpec> {
        let tracing = self.trace.tracing.as_ref();
        tracing.map(|it| it.events.clone()).unwrap_or_default()
    }

    fn write(&mut self, by: usize, tid: u32, kind: EventKind) {
        let index = self.trace.events.len();
        self.trace.events.push(Event {
            index,
            ring: self.trace.session[by].ring,
            cpu: 0,
            ring_index: by,
            position: index,
            start: 0,
            time: Some(index as u64),
            event: Some(by),
            pid: Some(tid),
            tid: Some(tid),
            misc: 0,
            size: 8,
            kind,
        });
    }

    fn named(&self, name: &str) -> Option<usize> {
        self.specs().iter().position(|spec| spec.name == name)
    }

    fn marker(&mut self, name: &str, tid: u32, number: u64) {
        let mut raw = vec![0; 8];
        raw.extend(number.to_le_bytes());
        let sample = Sample {
            raw: Some(raw),
            ..Sample::default()
        };
        let by = self.named(name).expect("a marker");
        self.write(by, tid, EventKind::Sample(sample));
    }

    /// The asker's sample, if it is on: whether there was one.
    fn ask(&mut self, tid: u32) -> bool {
        if !self.asker_is_on || self.wrong == Wrong::NoSampleIn(self.stays) {
            return false;
        }
        let sample = Sample {
            chain: Some(vec![CONTEXT_USER_DEFERRED, self.cookie]),
            ..Sample::default()
        };
        let by = self.named(name::ASKER).expect("an asker");
        self.write(by, tid, EventKind::Sample(sample));
        true
    }

    /// A whole stay of a task.
    fn stay(&mut self, tid: u32, number: u64, inside: impl FnOnce(&mut Self)) {
        self.stays += 1;
        let at_exit = self.setup.is(Factor::Source, "sys-exit");
        self.marker(name::ENTER, tid, number);
        let mut asked = !at_exit && self.ask(tid);
        inside(self);
        if number == EXIT {
            self.cookie += 2;
            return;
        }
        self.marker(name::EXIT, tid, number);
        asked |= at_exit && self.ask(tid);
        let frame_0 = if self.wrong == Wrong::KeepsStack {
            0x41
        } else {
            0x40
        };
        if asked && self.wrong != Wrong::LostIn(number) {
            for (by, spec) in self.specs().iter().enumerate() {
                let backward = spec.details.set & flag::WRITE_BACKWARD != 0;
                if spec.defer_output && !(backward && self.wrong == Wrong::NotBackward) {
                    let chain = CallchainDeferred {
                        cookie: self.cookie,
                        nr: 3,
                        ips: vec![frame_0, 0x80, 0x80],
                    };
                    self.write(by, tid, EventKind::CallchainDeferred(chain));
                }
            }
        }
        self.cookie += 2;
    }

    fn iterations(&mut self, number: u64) {
        for _ in 0..ITERATIONS {
            self.stay(THREAD, number, |_| ());
        }
    }

    fn judge(self) -> Judged {
        judge(&self.setup, &self.trace)
    }
}

/// The workload of a set-up, on such a kernel.
fn run(levels: &[(Factor, &str)], number: u64, wrong: Wrong) -> Judged {
    let mut kernel = Kernel::new(levels, wrong);
    if number == EXECVE {
        for child in (0..ITERATIONS).map(|it| 100 + u32::try_from(it).expect("few")) {
            let fork = EventKind::Fork {
                pid: child,
                ppid: AGENT,
                tid: child,
                ptid: THREAD,
            };
            kernel.stay(THREAD, FORK, |_| ());
            kernel.write(0, THREAD, fork);
            kernel.stay(child, EXECVE, |_| ());
            kernel.stay(child, EXIT, |_| ());
        }
        // The agent disables the events.
        kernel.marker(name::ENTER, AGENT, IOCTL);
    } else {
        kernel.iterations(number);
    }
    kernel.judge()
}

const ENTER: (Factor, &str) = (Factor::Source, "sys-enter");

#[test]
fn each_workload_is_judged_and_a_record_lost_in_it_is_told() {
    for (level, number) in [
        ("getppid", GETPPID),
        ("fork", FORK),
        ("exec", EXECVE),
        ("moved", READ),
    ] {
        let levels = [ENTER, (Factor::Workload, level)];
        let right = run(&levels, number, Wrong::Nothing);
        assert_eq!(
            (&right.failures[..], &right.undecided[..]),
            (&[][..], &[][..]),
            "{level}"
        );
        assert!(right.held >= 18, "{level}: {}", right.held);
        let wrong = run(&levels, number, Wrong::LostIn(number));
        assert!(!wrong.failures.is_empty(), "{level}");
    }
}

#[test]
fn a_ring_that_gets_nothing_is_told() {
    for ring in ["backward", "backward-overwritten"] {
        let levels = [ENTER, (Factor::Ring, ring)];
        let right = run(&levels, GETPPID, Wrong::Nothing);
        assert!(right.failures.is_empty() && right.undecided.is_empty());
        let wrong = run(&levels, GETPPID, Wrong::NotBackward);
        assert_eq!(wrong.failures.len(), 1);
        assert!(
            wrong.failures[0]
                .what
                .contains("the receiver does not get each record 22")
        );
    }
}

#[test]
fn a_sample_that_is_missing_is_told() {
    let wrong = run(&[ENTER], GETPPID, Wrong::NoSampleIn(4));
    assert!(!wrong.failures.is_empty());
}

/// Neither the cookies nor the numbers of records say so.
#[test]
fn the_stack_of_an_earlier_entry_is_told() {
    let wrong = run(&[ENTER], GETPPID, Wrong::KeepsStack);
    assert!(
        wrong
            .failures
            .iter()
            .all(|it| it.what.contains("another stack"))
    );
    assert_eq!(wrong.failures.len(), 6);
}

/// The agent enables the last event while, or before, the thread comes to the gate.
fn started(late: bool) -> Judged {
    let mut kernel = Kernel::new(&[ENTER], Wrong::Nothing);
    kernel.asker_is_on = false;
    kernel.marker(name::ENTER, AGENT, IOCTL);
    if late {
        kernel.marker(name::ENTER, THREAD, FUTEX);
    }
    kernel.asker_is_on = true;
    kernel.marker(name::EXIT, AGENT, IOCTL);
    if !late {
        kernel.marker(name::EXIT, THREAD, FUTEX);
    }
    kernel.iterations(GETPPID);
    // No event is enabled any more: these say nothing.
    kernel.marker(name::ENTER, AGENT, IOCTL);
    kernel.judge()
}

#[test]
fn what_was_on_is_unknown_of_a_thread_that_comes_late_to_the_gate() {
    let right = started(false);
    assert!(right.failures.is_empty() && right.undecided.is_empty());
    let late = started(true);
    assert!(late.failures.is_empty());
    assert!(late.undecided[0].contains("being enabled"));
}

/// A refresh by 1, and then the hits of the thread and of the agent in this order.
fn refreshed(agent_first: bool, agent_inside: bool, samples: u32) -> Judged {
    let levels = [ENTER, (Factor::Operation, "refresh-asker")];
    let mut kernel = Kernel::new(&levels, Wrong::Nothing);
    for _ in 0..2 {
        kernel.stay(THREAD, GETPPID, |_| ());
    }
    let mut left = samples;
    let mut hit = |kernel: &mut Kernel, tid: u32, number: u64| {
        kernel.asker_is_on = left > 0;
        left = left.saturating_sub(1);
        kernel.stay(tid, number, |_| ());
    };
    kernel.stay(THREAD, IOCTL, |kernel| {
        if agent_inside {
            kernel.marker(name::ENTER, AGENT, READ);
        }
    });
    if agent_first {
        hit(&mut kernel, AGENT, READ);
    }
    for _ in 2..ITERATIONS {
        hit(&mut kernel, THREAD, GETPPID);
    }
    kernel.judge()
}

#[test]
fn the_one_sample_after_a_refresh_may_be_another_tasks() {
    for agent_first in [false, true] {
        let right = refreshed(agent_first, false, 1);
        assert!(right.failures.is_empty() && right.undecided.is_empty());
        for samples in [0, 2] {
            let wrong = refreshed(agent_first, false, samples);
            // Without one, nobody knows whether the agent's own was.
            assert_eq!(wrong.failures.is_empty(), agent_first && samples == 0);
        }
    }
    assert!(!refreshed(false, true, 1).undecided.is_empty());
}
