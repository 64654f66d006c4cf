//! A trial to judge, whose parts a test changes one by one. Also used by the tests of
//! [`crate::report`].

mod sweep;
mod verdict;

use std::time::Duration;

use unwindlab_abi::message::{ExpectedStack, ThreadAnnounce, UserSymbol};

use super::result::ScenarioResult;
use super::{Case, Judge, JudgeLimit, MatchFinding};
use unwindlab_engine::interrupt::Interrupt;
use unwindlab_engine::plan::TrialPlan;
use unwindlab_oracle::invariant::{Evidence, Invariant, Violation};
use unwindlab_oracle::trace::model::{
    CONTEXT_KERNEL, CONTEXT_USER_DEFERRED, CallchainDeferred, Event, EventKind, Sample, Trace,
};
use unwindlab_oracle::trace::recording::{Injection, ThreadProgress, TrialEnd};
use unwindlab_scenario::check::check;
use unwindlab_scenario::parse::parse;
use unwindlab_scenario::{KernelSymbols, Loaded, resolve};

/// In the kernel function `work`.
const KERNEL_IP: u64 = 0xffff_ffff_8100_0010;
/// In the workload function `leaf`.
const USER_IP: u64 = 0x40_1004;
const PID: u32 = 100;

/// A scenario of two injections, with added lines.
fn scenario(lines: &str) -> Loaded {
    injecting("repeat: 2", lines)
}

fn injecting(how: &str, lines: &str) -> Loaded {
    let text = format!(
        "\
name: x
description: For tests.
workload: {{ kind: syscalls, frames: 3 }}
inject:
  - nmi: {{ at: {{ user: root }}, {how} }}
{lines}"
    );
    let written = parse("x.yaml", &text).unwrap();
    Loaded {
        text: String::new(),
        file: "x.yaml".to_owned(),
        scenario: check("x.yaml", "x", written, &["H1", "N1", "V1"]).unwrap(),
        snapshot: None,
    }
}

/// The trace that the scenario plans: two samples, each with its chain.
fn trace() -> Trace {
    let mut trace = Trace {
        threads: vec![ThreadAnnounce {
            thread: 0,
            pid: PID,
            tid: PID,
            stack: ExpectedStack {
                leaf_start: 0x40_1000,
                leaf_end: 0x40_1010,
                syscall_return: USER_IP,
                callers: vec![(0x40_2000, 1), (0x40_3000, 1)],
            },
        }],
        user_symbols: vec![UserSymbol {
            name: "leaf".to_owned(),
            start: 0x40_1000,
            end: 0x40_1010,
        }],
        progress: vec![ThreadProgress {
            thread: 0,
            at_first_injection: 10,
            at_last_injection: 25,
            at_end: 40,
        }],
        ..Trace::default()
    };
    for cookie in [0x3_0000_0001, 0x5_0000_0001] {
        push(&mut trace, PID, sample(cookie));
        push(&mut trace, PID, chain(cookie));
        trace.injections.push(Injection {
            spec: 0,
            vcpu: 0,
            rip: USER_IP,
            cpl: 3,
            thread: Some(0),
            iteration: Some(1),
            exact: false,
            interrupt_waits: false,
            stack_pointer: 0,
        });
    }
    trace
}

fn push(trace: &mut Trace, pid: u32, kind: EventKind) {
    let index = trace.events.len();
    trace.events.push(Event {
        index,
        ring: 0,
        cpu: 0,
        ring_index: 0,
        position: index,
        start: 0,
        time: Some(1_000_000_000 + index as u64),
        event: None,
        pid: Some(pid),
        tid: Some(pid),
        misc: 0,
        size: 0,
        kind,
    });
}

fn sample(cookie: u64) -> EventKind {
    EventKind::Sample(Sample {
        ip: Some(KERNEL_IP),
        chain: Some(vec![
            CONTEXT_KERNEL,
            KERNEL_IP,
            CONTEXT_USER_DEFERRED,
            cookie,
        ]),
        ..Sample::default()
    })
}

fn chain(cookie: u64) -> EventKind {
    EventKind::CallchainDeferred(CallchainDeferred {
        cookie,
        nr: 3,
        ips: vec![USER_IP, 0x40_2000, 0x40_3000],
    })
}

const HOLDS: Invariant = Invariant::new("H1", "for tests", "nothing", |_, tally| tally.holds_on(2));
const NOT_EXERCISED: Invariant = Invariant::new("N1", "for tests", "nothing to see", |_, _| {});
pub(crate) const VIOLATED: Invariant = Invariant::new("V1", "for tests", "nothing", |_, tally| {
    tally.violated("two cookies".to_owned(), [2], Some(KERNEL_IP));
});

/// Matches one violation, by its message.
struct Known(&'static str);

impl MatchFinding for Known {
    fn matching(
        &self,
        violation: &Violation,
        _: &Evidence<'_>,
        _: &dyn KernelSymbols,
    ) -> Option<String> {
        (violation.message == self.0).then(|| "F-1".to_owned())
    }
}

/// A kernel with one function.
pub(crate) struct Kernel;

impl KernelSymbols for Kernel {
    fn addresses(&self, _: &str) -> Vec<u64> {
        vec![0xffff_ffff_8100_0000]
    }

    fn size(&self, _: &str) -> Option<u64> {
        Some(0x100)
    }

    fn similar(&self, _: &str) -> Vec<String> {
        Vec::new()
    }

    fn current_task_offset(&self) -> Option<u64> {
        Some(0)
    }

    fn resolve(&self, address: u64) -> Option<(String, u64)> {
        let offset = address.checked_sub(0xffff_ffff_8100_0000)?;
        (offset < 0x100).then(|| ("work".to_owned(), offset))
    }
}

/// A trial to judge.
pub(crate) struct Trial {
    loaded: Loaded,
    pub(crate) invariants: Vec<Invariant>,
    pub(crate) finding: &'static str,
    pub(crate) end: TrialEnd,
    pub(crate) trace: Trace,
    /// When judging ends early.
    interrupt: Interrupt,
    judging: Duration,
}

impl Trial {
    /// One that passes, of a scenario with added lines.
    pub(crate) fn good(lines: &str) -> Self {
        Self {
            loaded: scenario(lines),
            invariants: vec![HOLDS],
            finding: "none",
            end: TrialEnd::Completed,
            trace: trace(),
            interrupt: Interrupt::default(),
            judging: Duration::MAX,
        }
    }

    /// One whose injections are a sweep.
    pub(crate) fn of_a_sweep() -> Self {
        Self {
            loaded: injecting("repeat: 2, sweep: true", ""),
            ..Self::good("")
        }
    }

    fn plan(&self) -> TrialPlan {
        resolve("x.yaml", &self.loaded.scenario, &Kernel, "hash").unwrap()
    }

    pub(crate) fn judged(&self) -> ScenarioResult {
        let judge = Judge {
            invariants: &self.invariants,
            findings: &Known(self.finding),
            symbols: &Kernel,
            compare_snapshots: true,
            limit: JudgeLimit {
                interrupt: &self.interrupt,
                time: self.judging,
            },
        };
        judge.judge(Case {
            loaded: &self.loaded,
            plan: &self.plan(),
            end: &self.end,
            trace: self.trace.clone(),
            duration: Duration::from_millis(1500),
        })
    }
}
