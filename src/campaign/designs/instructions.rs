//! One NMI in a system call with one design: every instruction that kernel and handler execute for it, until the thread is
//! back in the code that made the system call.

use super::{Bench, WAYS, Way, row, scenario};
use crate::campaign::costs::{self, PLACE, Unmeasured, compare, frame_zero, stepping};
use crate::campaign::error::CampaignError;
use crate::report::designs::{Bytes, InstructionRow, Instructions, SampleCost};
use unwindlab_abi::user_mode::RESULT_HEAD;
use unwindlab_engine::plan::sweep::Step;
use unwindlab_oracle::trace::recording::{Recording, TrialEnd};
use unwindlab_oracle::trace::{EventKind, Trace};
use unwindlab_scenario::Loaded;

/// What is injected.
pub(super) const INJECT: &str = "at: { kernel: __x64_sys_getppid }, repeat: 1";
/// Longest way, in instructions: a walk of some hundred frames by `.eh_frame` has more than a million.
const LONGEST: u32 = 6_000_000;

pub(super) fn instructions(
    bench: &mut Bench<'_>,
    depths: &[u32],
) -> Result<Vec<InstructionRow>, CampaignError> {
    let mut rows = Vec::new();
    for &frames in depths {
        for way in &WAYS {
            bench.say(&format!("{frames} frames, {}", way.name))?;
            let loaded = scenario(way, "deep", frames, INJECT, "")?;
            rows.push(InstructionRow {
                frames,
                way: way.name,
                found: row(cost(bench, way, &loaded))?,
            });
        }
    }
    Ok(rows)
}

fn cost(bench: &mut Bench<'_>, way: &Way, loaded: &Loaded) -> Result<SampleCost, Unmeasured> {
    let mut plan = bench.plan(loaded)?;
    if let Some(user_mode) = &mut plan.guest.user_mode {
        user_mode.instead = true;
    }
    let recording = bench.run(&plan)?;
    if let TrialEnd::Unsupported { reason } | TrialEnd::HostLacks { reason } = &recording.end {
        return Err(Unmeasured::Lack(reason.clone()));
    }
    let (bytes, right, of) = recorded(way, &recording)?;
    Ok(SampleCost {
        instructions: stepped(bench, way, loaded)?,
        bytes,
        right,
        of,
    })
}

/// What one sample wrote, how many frames of it are right from the innermost on, and how many there are.
fn recorded(way: &Way, recording: &Recording) -> Result<(Bytes, usize, u64), Unmeasured> {
    let trace = Trace::decode(recording);
    let reason = |text: &str| Unmeasured::Reason(text.to_owned());
    let thread = { trace.threads.first() }.ok_or_else(|| reason("the workload did not start"))?;
    let mine = || trace.events.iter().filter(|it| it.pid == Some(thread.pid));
    let sample = mine().find(|it| matches!(it.kind, EventKind::Sample(_)));
    let answer = mine().find_map(|it| Some((it, it.deferred_chain()?)));
    let perf = sample.map_or(0, |it| u64::from(it.size));
    let perf = perf + answer.map_or(0, |(it, _)| u64::from(it.size));
    let first = frame_zero(&trace, &thread.stack);
    let right = |frames: &[u64]| compare(frames, first, &thread.stack).0;
    let of = thread.stack.depth();
    if way.unwinder.is_none() {
        let right = answer.map_or(0, |(_, chain)| right(&chain.frames()));
        let bytes = Bytes {
            perf,
            ..Bytes::default()
        };
        return match sample {
            Some(_) => Ok((bytes, right, of)),
            None => Err(reason("the NMI made no sample")),
        };
    }
    let log = recording.user_mode.as_ref();
    let (log, user_mode) = { log.zip(trace.user_mode.as_ref()) }
        .ok_or_else(|| reason("nothing was set up to unwind in user mode"))?;
    let [request] = user_mode.requests.as_slice() else {
        return Err(reason("the NMI made no request, or more than one"));
    };
    let result = user_mode.results_of(request.nonce).next();
    let result = result.ok_or_else(|| reason("the nonce was not answered"))?;
    let bytes = Bytes {
        perf,
        request: log.ring.len() as u64,
        result: 8 * (RESULT_HEAD + result.frames.len()) as u64,
    };
    Ok((bytes, right(&result.frames), of))
}

/// Single-steps from the NMI's handler until the thread is back.
fn stepped(bench: &mut Bench<'_>, way: &Way, loaded: &Loaded) -> Result<Instructions, Unmeasured> {
    let mut plan = stepping(loaded, bench.kernel, LONGEST)?;
    if let Some(user_mode) = &mut plan.trial.guest.user_mode {
        user_mode.instead = true;
        // That of the handler, and that of the interrupted code.
        plan.arrivals = 2;
    }
    let context = bench.context;
    let steps = costs::stepped(&plan, bench.host()?, context)?;
    let place = bench.kernel.symbols().addresses(PLACE);
    let counted = count(&steps, &place);
    let counted = counted
        .ok_or_else(|| Unmeasured::Reason("the NMI did not return to its place".to_owned()))?;
    match (way.unwinder.is_some(), counted.user > 0) {
        (true, true) | (false, false) => Ok(counted),
        (true, false) => Err(Unmeasured::Reason("no handler ran".to_owned())),
        (false, true) => Err(Unmeasured::Reason("other user code ran".to_owned())),
    }
}

/// The instructions up to the interrupted one, those of the kernel behind it, and those in user mode, up to the
/// instruction at which the thread is back. It may come there before, with an interrupt that waits: no instruction is executed then.
fn count(steps: &[Step], place: &[u64]) -> Option<Instructions> {
    let nmi = steps.iter().position(|step| place.contains(&step.rip))?;
    let last = steps.iter().rposition(|step| !step.user)?;
    let back = steps.get(last + 1)?.rip;
    let rest = steps.get(nmi..=last)?;
    let kernel = rest.iter().filter(|step| !step.user).count();
    let user = rest.iter().filter(|step| step.user && step.rip != back);
    Some(Instructions {
        nmi,
        kernel,
        user: user.count(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use unwindlab_engine::plan::sweep::Reach;

    #[test]
    fn the_handler_is_counted_and_the_way_back() {
        let step = |(rip, user)| Step {
            rip,
            task: 1,
            user,
            reach: Reach::Stepped,
            local: false,
            clock: None,
        };
        // NMI, the place, the rest of the kernel, an interrupt that waits, its handler, the signal's, the kernel, back.
        let way = [
            (1, false),
            (2, false),
            (10, false),
            (11, false),
            (0x90, true),
            (20, false),
            (0x50, true),
            (0x51, true),
            (30, false),
            (0x90, true),
            (0x91, true),
        ];
        let steps = way.map(step);
        let found = count(&steps, &[10]);
        let expected = Instructions {
            nmi: 2,
            kernel: 4,
            user: 2,
        };
        assert_eq!(found, Some(expected));
        assert_eq!(count(&steps, &[12]), None);
        assert_eq!(count(&steps[..9], &[10]), None);
    }
}
