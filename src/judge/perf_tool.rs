//! Checks what the distribution's perf showed: one sample for each injected overflow, at its
//! instruction, with the user stack as built merged behind the kernel frames.

use unwindlab_abi::message::{ExpectedStack, ThreadAnnounce};

use unwindlab_engine::plan::TrialPlan;
use unwindlab_oracle::trace::Trace;
use unwindlab_oracle::trace::recording::Injection;
use unwindlab_oracle::trace::script::{self, ScriptSample};

/// Complaints about single samples that are shown; the others are counted.
const SHOWN: usize = 5;

/// What is wrong, in a line each.
pub(super) fn unmet(plan: &TrialPlan, trace: &Trace) -> Vec<String> {
    let Some(tool) = &plan.guest.perf_tool else {
        return Vec::new();
    };
    let Some(text) = &trace.perf_script else {
        return vec!["perf script printed nothing".to_owned()];
    };
    let samples = match script::parse(text) {
        Ok(samples) => samples,
        Err(error) => return vec![error.to_string()],
    };
    let mut reasons = Vec::new();
    for cpu in 0..trace.vcpus {
        let samples: Vec<_> = samples.iter().filter(|it| it.cpu == cpu).collect();
        let injections = trace.injections.iter().filter(|it| it.vcpu == cpu);
        let injections: Vec<_> = injections.collect();
        if samples.len() != injections.len() {
            reasons.push(format!(
                "perf shows {} samples on CPU {cpu} for {} overflows",
                samples.len(),
                injections.len()
            ));
            continue;
        }
        // On one CPU both are in the order of time.
        let pairs = samples.iter().zip(injections).zip(1..);
        let wrong = pairs.filter_map(|((sample, injection), number)| {
            let why = mismatch(sample, injection, &tool.event, &trace.threads)?;
            Some(format!("perf's sample {number} on CPU {cpu} {why}"))
        });
        let wrong: Vec<String> = wrong.collect();
        let more = wrong.len().saturating_sub(SHOWN);
        reasons.extend(wrong.into_iter().take(SHOWN));
        if more > 0 {
            reasons.push(format!("and {more} more of perf's samples on CPU {cpu}"));
        }
    }
    if let Some(stray) = samples.iter().find(|it| it.cpu >= trace.vcpus) {
        reasons.push(format!("perf shows a sample on CPU {}", stray.cpu));
    }
    reasons
}

/// Why a sample is not that of an injection.
fn mismatch(
    sample: &ScriptSample,
    injection: &Injection,
    event: &str,
    threads: &[ThreadAnnounce],
) -> Option<String> {
    if sample.event != event {
        return Some(format!("is of event {}, expected {event}", sample.event));
    }
    let (kernel, user) = sample.parts();
    let found = kernel.first().copied();
    if injection.cpl == 0 && found != Some(injection.rip) {
        let found = found.map_or("none".to_owned(), |ip| format!("{ip:#x}"));
        let at = injection.rip;
        return Some(format!(
            "has the first kernel frame {found}, the overflow was at {at:#x}"
        ));
    }
    if injection.cpl == 3 && !kernel.is_empty() {
        return Some("has kernel frames, the overflow was in user mode".to_owned());
    }
    // An injection at a rate may hit any task, and a workload thread outside its leaf.
    let thread = injection.thread?;
    let Some(thread) = threads.iter().find(|it| it.thread == thread) else {
        return Some(format!("is of thread {thread}, which was not announced"));
    };
    if sample.tid != thread.tid {
        return Some(format!(
            "is of task {}, the overflow was in thread {} (task {})",
            sample.tid, thread.thread, thread.tid
        ));
    }
    stack(user, &thread.stack)
}

/// What is wrong with user frames.
fn stack(user: &[u64], expected: &ExpectedStack) -> Option<String> {
    let depth = expected.depth();
    let Some((leaf, callers)) = user.split_first() else {
        return Some(format!(
            "has no user frames, expected the {depth} of the deferred chain"
        ));
    };
    if user.len() as u64 != depth {
        return Some(format!("has {} user frames, expected {depth}", user.len()));
    }
    if !(expected.leaf_start..expected.leaf_end).contains(leaf) {
        return Some(format!("has the user frame {leaf:#x} first, not the leaf"));
    }
    let mut frames = callers.iter().zip(expected.caller_addresses()).zip(2..);
    let ((found, expected), number) = frames.find(|((found, expected), _)| *found != expected)?;
    Some(format!(
        "has {found:#x} for user frame {number}, expected {expected:#x}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RIP: u64 = 0xffff_ffff_8123_4567;
    const GOOD: [u64; 6] = [RIP, RIP + 64, 0x1008, 0x2000, 0x2000, 0x3000];

    fn thread() -> ThreadAnnounce {
        ThreadAnnounce {
            thread: 0,
            pid: 1,
            tid: 77,
            stack: ExpectedStack {
                leaf_start: 0x1000,
                leaf_end: 0x1010,
                syscall_return: 0x1008,
                callers: vec![(0x2000, 2), (0x3000, 1)],
            },
        }
    }

    fn injection(cpl: u8) -> Injection {
        Injection {
            spec: 0,
            vcpu: 0,
            rip: if cpl == 0 { RIP } else { 0x1004 },
            cpl,
            thread: Some(0),
            iteration: Some(1),
            exact: cpl == 0,
            interrupt_waits: false,
            stack_pointer: 0,
        }
    }

    fn sample(chain: &[u64]) -> ScriptSample {
        ScriptSample {
            pid: 1,
            tid: 77,
            cpu: 0,
            event: "cycles".to_owned(),
            chain: chain.to_vec(),
        }
    }

    fn judged(sample: &ScriptSample, cpl: u8) -> Option<String> {
        mismatch(sample, &injection(cpl), "cycles", &[thread()])
    }

    #[test]
    fn a_merged_chain_is_the_kernel_frames_and_the_stack_as_built() {
        assert_eq!(judged(&sample(&GOOD), 0), None);
        assert_eq!(judged(&sample(&GOOD[2..]), 3), None);
    }

    #[test]
    fn anything_else_is_reported() {
        let says = |sample: &ScriptSample, cpl, what: &str| {
            let why = judged(sample, cpl).unwrap_or_default();
            assert!(why.contains(what), "{why:?}, not {what:?}");
        };
        says(&sample(&GOOD[..2]), 0, "no user frames, expected the 4");
        says(&sample(&GOOD[1..]), 0, "first kernel frame 0x");
        says(&sample(&GOOD[2..]), 0, "first kernel frame none");
        says(&sample(&GOOD), 3, "in user mode");
        says(&sample(&GOOD[..5]), 0, "has 3 user frames, expected 4");
        let [rip, leaf] = [RIP, 0x1008];
        says(&sample(&[rip, leaf, 0x2000, 0x2004, 0x3000]), 0, "frame 3");
        says(&sample(&[rip, 0x1010, 0x2000, 0x2000, 0x3000]), 0, "leaf");
        let mut other = sample(&GOOD);
        other.tid = 78;
        says(&other, 0, "is of task 78");
        let mut other = sample(&GOOD);
        other.event = "instructions".to_owned();
        says(&other, 0, "is of event instructions");
        let unannounced = mismatch(&sample(&GOOD), &injection(0), "cycles", &[]);
        assert!(unannounced.is_some());
    }

    #[test]
    fn at_a_rate_any_task_may_be_hit() {
        let mut anybody = injection(0);
        anybody.thread = None;
        let mut idle = sample(&GOOD[..1]);
        idle.tid = 0;
        assert_eq!(mismatch(&idle, &anybody, "cycles", &[thread()]), None);
    }
}
