//! Judging takes time in proportion to the trace: traces of one shape in two sizes, and how much longer the
//! larger one takes. A guest decides how large a trace is, so a square is hours.

use std::time::{Duration, Instant};

use unwindlab_abi::plan::EventSource;
use unwindlab_abi::user_mode::Asked;

use super::entry_text::{EntryText, Far, Via, outer};
use super::lab::{LabKit, client};
use super::{Kit, kernel, spec, user};
use crate::invariant::{EntryCode, Evidence, INVARIANTS, KernelText, limit};
use crate::trace::model::Sample;
use crate::trace::{EventKind, Trace};

const RIP: u64 = 0xffff_ffff_8100_1234;
/// The handler of nonces.
const HANDLER: u64 = 0x5000;
/// Frame 0 of the answers, and the frames of the announced stack.
const STACK: [u64; 4] = [0x1080, 0x2000, 0x2000, 0x3000];

/// A trace of so many requests.
type Shape = fn(usize) -> Trace;

const SHAPES: &[(&str, Shape)] = &[
    ("one task, an entry each", |n| tasks(n, 1)),
    ("100 tasks", |n| tasks(n, 100)),
    ("one entry without end", one_entry),
    ("a system call, asked and answered", |n| {
        asked_and_answered(n, Via::Syscall)
    }),
    ("one cookie for all entries", one_cookie),
    (
        "one cookie, answered before it is asked for",
        answered_before,
    ),
    ("walks of the stack", walks),
    ("an interrupt, asked and answered", |n| {
        asked_and_answered(n, Via::Tick)
    }),
    ("all ask, then all are answered", asked_then_answered),
    ("no answers", no_answers),
    ("answers only", answers_only),
    ("a loss before each", losses),
    ("injections and the witness", injected),
    ("injections, no answers", unanswered_injections),
    ("a process each", processes),
    ("an exec each", execs),
    ("chains without room", cut_chains),
    ("two clients of tracefs", tracefs),
    ("the lab client's log", lab),
    ("one stay of the log", lab_one_stay),
    ("a nonce for each of many threads", nonces),
];

fn cookie(n: usize) -> u64 {
    (2 * n as u64 + 3) << 32 | 1
}

fn tid(n: usize) -> u32 {
    1001 + u32::try_from(n).unwrap()
}

fn tasks(n: usize, tasks: usize) -> Trace {
    let mut kit = Kit::new(2);
    for task in 0..tasks {
        kit.thread(tid(task) - 1001, tid(task));
    }
    for at in 0..n {
        let (cpu, tid) = (u32::from(at % 2 == 1), tid(at % tasks));
        kit.sys_enter(cpu, tid);
        kit.nmi(cpu, tid, cookie(at));
        kit.sys_exit(cpu, tid);
        kit.deferred(cpu, tid, cookie(at), &STACK);
    }
    kit.trace()
}

fn one_entry(n: usize) -> Trace {
    let mut kit = Kit::new(2);
    kit.witness();
    kit.thread(0, 1001);
    kit.sys_enter(0, 1001);
    for at in 0..n {
        kit.nmi(u32::from(at % 2 == 1), 1001, cookie(0));
    }
    kit.sys_exit(0, 1001);
    kit.deferred(0, 1001, cookie(0), &STACK);
    kit.trace()
}

/// As on a kernel of which the task work asks again, and no entry ends.
fn asked_and_answered(n: usize, via: Via) -> Trace {
    let mut kit = Kit::new(2);
    kit.witness();
    kit.thread(0, 1001);
    for at in 0..n {
        let cpu = u32::from(at % 2 == 1);
        kit.nmi_in(cpu, 1001, cookie(0), kernel(RIP), &outer(via, Far::Work));
        kit.deferred(0, 1001, cookie(0), &STACK);
    }
    kit.trace()
}

fn one_cookie(n: usize) -> Trace {
    let mut kit = Kit::new(2);
    kit.witness();
    kit.thread(0, 1001);
    for at in 0..n {
        let hit = match at % 2 {
            0 => user(0x1004 + (at as u64 % 8)),
            _ => kernel(RIP).iteration(0, at as u64 / 4),
        };
        kit.inject(0, 1001, cookie(0), hit);
        kit.deferred(0, 1001, cookie(0), &STACK);
        kit.returns_to(0, 1001, 0x1080);
    }
    kit.trace()
}

/// The walks of a task, each probed, and an answer behind each.
fn walks(n: usize) -> Trace {
    let mut kit = Kit::new(2);
    kit.thread(0, 1001);
    let source = EventSource::Kprobe {
        function: "unwind_user".into(),
        offset: 0,
        at_return: false,
        optimized: false,
    };
    let probe = kit.open(spec("walks", source));
    for at in 0..n {
        kit.nmi(0, 1001, cookie(at));
        kit.push(0, 1001, probe, EventKind::Sample(Sample::default()));
        kit.deferred(0, 1001, cookie(at), &STACK);
    }
    kit.trace()
}

fn answered_before(n: usize) -> Trace {
    let mut kit = Kit::new(2);
    kit.thread(0, 1001);
    for _ in 0..n {
        kit.deferred(0, 1001, cookie(0), &STACK);
    }
    for _ in 0..n {
        kit.nmi(0, 1001, cookie(0));
    }
    kit.trace()
}

fn asked_then_answered(n: usize) -> Trace {
    let mut kit = Kit::new(1);
    for at in 0..n {
        kit.nmi(0, tid(0), cookie(at));
    }
    for at in 0..n {
        kit.deferred(0, tid(0), cookie(at), &STACK);
    }
    kit.trace()
}

fn no_answers(n: usize) -> Trace {
    let mut kit = Kit::new(2);
    kit.thread(0, 1001);
    for at in 0..n {
        kit.nmi(u32::from(at % 2 == 1), tid(at % 3), cookie(at));
        kit.nmi(0, 1, 0);
    }
    kit.trace()
}

fn answers_only(n: usize) -> Trace {
    let mut kit = Kit::new(2);
    kit.thread(0, 1001);
    kit.nmi(0, 2001, cookie(n));
    for at in 0..n {
        kit.deferred(u32::from(at % 2 == 1), 1001, cookie(at % (n / 2)), &STACK);
    }
    kit.trace()
}

fn losses(n: usize) -> Trace {
    let mut kit = Kit::new(2);
    kit.thread(0, 1001);
    for at in 0..n {
        kit.lost(0, 1);
        kit.sys_enter(1, 1001);
        kit.nmi(1, 1001, cookie(at));
        kit.sys_exit(1, 1001);
        if at % 2 == 0 {
            kit.deferred(1, 1001, cookie(at), &STACK);
        }
    }
    kit.trace()
}

fn injected(n: usize) -> Trace {
    let mut kit = Kit::new(2);
    kit.witness();
    kit.thread(0, 1001);
    kit.progress(0, 0, 1, n as u64);
    for at in 0..n {
        let hit = match at % 2 {
            0 => user(0x1004 + (at as u64 % 8)),
            _ => kernel(RIP),
        };
        kit.inject(0, 1001, cookie(at), hit.iteration(0, at as u64));
        kit.deferred(0, 1001, cookie(at), &STACK);
        kit.returns_to(0, 1001, 0x1080);
    }
    kit.trace()
}

fn unanswered_injections(n: usize) -> Trace {
    let mut kit = Kit::new(2);
    kit.witness();
    kit.thread(0, 1001);
    for at in 0..n {
        kit.inject(0, 1001, cookie(0), user(0x1004));
        kit.deferred(1, 1002, cookie(at + 1), &STACK);
    }
    kit.trace()
}

fn processes(n: usize) -> Trace {
    let mut kit = Kit::new(2);
    kit.thread(0, 1001);
    for at in 0..n {
        let child = 2000 + u32::try_from(at * 10).unwrap();
        kit.fork(0, 1001, child);
        kit.nmi(0, child, cookie(at));
        kit.exit(0, child);
        kit.deferred(0, child, cookie(at), &STACK);
    }
    kit.trace()
}

fn execs(n: usize) -> Trace {
    let mut kit = Kit::new(2);
    kit.thread(0, 1001);
    for at in 0..n {
        kit.nmi(0, 1001, cookie(at));
        kit.nmi(0, 1000, cookie(at));
        kit.exec(0, 1000);
        kit.deferred(0, 1000, cookie(at), &STACK);
    }
    kit.trace()
}

fn cut_chains(n: usize) -> Trace {
    let mut kit = Kit::new(2);
    kit.thread(0, 1001);
    for at in 0..n {
        kit.kernel_only(0, 1002);
        kit.deferred(0, 1001, cookie(at), &STACK);
    }
    let mut trace = kit.trace();
    // Each chain has its one context.
    let limit = ("perf_event_max_contexts_per_stack".into(), "1".into());
    trace.sysctls.push(limit);
    trace
}

fn tracefs(n: usize) -> Trace {
    crate::invariant::testkit::tracefs::mirrored(tasks(n, 3))
}

fn nonces(n: usize) -> Trace {
    let mut kit = Kit::new(2);
    kit.thread(0, 1001);
    kit.user_mode(HANDLER);
    for at in 0..n {
        kit.nmi(0, tid(at), cookie(at));
        kit.nonce(tid(at), at as u64, Asked::Sent);
        kit.result(tid(at), at as u64, &STACK);
    }
    kit.trace()
}

fn lab(n: usize) -> Trace {
    let mut kit = LabKit::new();
    kit.perf.thread(0, 1001);
    kit.target(1);
    for at in 0..n {
        kit.ask(1, client(0), 0, cookie(at));
        kit.call(1, client(0), cookie(at), &STACK);
        kit.leave(1);
    }
    kit.trace()
}

fn lab_one_stay(n: usize) -> Trace {
    let mut kit = LabKit::new();
    kit.perf.thread(0, 1001);
    kit.target(1);
    for at in 0..n {
        kit.ask(1, client(u16::from(at % 2 == 1)), 0, cookie(at));
    }
    for at in 0..n {
        kit.call(1, client(u16::from(at % 2 == 1)), cookie(at), &STACK);
    }
    kit.leave(1);
    kit.trace()
}

/// What each thing costs that judging derives or checks.
fn costs<T>(trace: &Trace, cost: impl Fn(&dyn Fn()) -> T) -> Vec<(&'static str, T)> {
    let code = EntryCode::new(EntryText);
    let resolve = |address| EntryText.symbol(address);
    let evidence = Evidence::new(trace).named(&resolve).knowing(&code);
    let mut costs = Vec::new();
    let mut time = |name, what: &dyn Fn()| costs.push((name, cost(what)));
    time("facts", &|| _ = evidence.facts());
    time("one entry", &|| _ = evidence.one_entry());
    time("lab", &|| _ = evidence.lab());
    time("views", &|| _ = evidence.views());
    time("all clients", &|| _ = evidence.all_clients());
    for invariant in INVARIANTS {
        time(invariant.id, &|| _ = invariant.check(&evidence));
    }
    costs
}

/// How long each takes.
fn times(trace: &Trace) -> Vec<(&'static str, Duration)> {
    costs(trace, |what| {
        let begin = Instant::now();
        what();
        begin.elapsed()
    })
}

/// How many steps each takes.
fn steps(trace: &Trace) -> Vec<(&'static str, u64)> {
    costs(trace, |what| limit::steps(what))
}

/// A square takes 16 times as many steps for four times the records.
#[test]
fn judging_takes_steps_in_proportion_to_the_trace() {
    // What is less than this may be a budget for whatever trace.
    const FEW: u64 = 8_000_000;
    let mut found = Vec::new();
    for &(name, shape) in SHAPES {
        let (small, large) = (steps(&shape(2_000)), steps(&shape(8_000)));
        for ((id, small), (_, large)) in small.into_iter().zip(large) {
            if large > FEW.max(small * 6) {
                found.push(format!("{name}: {id}: {small}, then {large}"));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// The things that take far more than their share of the larger trace: 192 times as long for one that is
/// 32 times as large. A square takes 1,024 times as long; caches and other work take up to 5 times as long.
fn too_long(shape: Shape) -> Vec<String> {
    const SMALL: usize = 1000;
    const LARGE: usize = 32 * SMALL;
    let (trace, again) = (shape(SMALL), shape(SMALL));
    let small = times(&trace).into_iter().zip(times(&again));
    let small = small.map(|((name, a), (_, b))| (name, a.min(b)));
    let large = times(&shape(LARGE));
    let floor = Duration::from_micros(250);
    let found = small.zip(large);
    let found = found.filter(|((_, a), (_, b))| *b > floor.max(*a) * 192);
    let told = found.map(|((name, a), (_, b))| format!("{name}: {a:?}, then {b:?}"));
    told.collect()
}

/// Timings are not asserted where anything else may run: by hand, on an idle machine.
#[test]
#[ignore = "measures time"]
fn judging_takes_time_in_proportion_to_the_trace() {
    for &(name, shape) in SHAPES {
        // Again where something else had the processor.
        let mut found = (0..3).map(|_| too_long(shape));
        let all_fail = !found.any(|it| it.is_empty());
        assert!(!all_fail, "{name}: {:#?}", too_long(shape));
    }
}

/// Figures of all shapes.
#[test]
#[ignore = "prints figures"]
fn figures() {
    for &(name, shape) in SHAPES {
        for n in [10_000, 40_000, 160_000] {
            let mut times = times(&shape(n));
            let total: Duration = times.iter().map(|(_, time)| *time).sum();
            times.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
            println!("{name}, {n}: {total:.2?}; {:.2?}", &times[..5]);
        }
    }
}
