//! What a sample with the user's stack costs, by each way to get the stack: instructions that the
//! kernel executes, counted by single steps, bytes in the ring, and how many frames are right.
//!
//! Each sample is taken by one NMI in the same system call. Instructions of the NMI and of the rest of
//! the way to user mode are counted apart: NMIs come on top of whatever runs, the rest is the
//! task's own. Each repetition of a `rep` instruction counts as one: the
//! path has a step for it.

use std::io;
use std::path::PathBuf;

use super::Context;
use super::error::CampaignError;
use super::kernel::KernelChoice;
use super::sweep::{self, PathOrigin, PathPlace, PathRequest, PointChoice, SweepRequest};
use crate::host::choice::KvmHost;
use crate::host::provider::{HostRequest, ProviderError, TestKernel};
use crate::report::costs::{Cost, CostRow, Instructions, NoCost};
use unwindlab_abi::message::ExpectedStack;
use unwindlab_engine::plan::sweep::{Message, Step, SweepPlan};
use unwindlab_engine::plan::{Executor, TrialPlan};
use unwindlab_oracle::trace::model::Sample;
use unwindlab_oracle::trace::recording::TrialEnd;
use unwindlab_oracle::trace::{Event, EventKind, Trace};
use unwindlab_scenario::parse::parse;
use unwindlab_scenario::{Loaded, ResolveError, resolve};

/// The function in which the NMI comes.
pub(super) const PLACE: &str = "__x64_sys_getppid";

/// Longest way to user mode, in instructions: a walk of several hundred frames by SFrame has some hundred
/// thousand.
const LONGEST: u32 = 2_000_000;

/// How many user frames, on which kernel.
#[derive(Debug, Clone, Default)]
pub struct CostsRequest {
    /// Depths of the stack.
    pub frames: Vec<u32>,
    /// The kernel to measure.
    pub kernel: KernelChoice,
    /// Where KVM comes from.
    pub kvm_host: KvmHost,
}

/// What came of it.
#[derive(Debug)]
pub struct Measured {
    /// All ways, by depth.
    pub rows: Vec<CostRow>,
    /// `uname -r` of the kernel.
    pub release: String,
    /// What the KVM host says of itself.
    pub kvm_host: String,
}

/// A way to get the user's stack into the ring.
struct Way {
    name: &'static str,
    /// The workload, and what it needs besides its depth.
    workload: &'static str,
    /// What the sampler has besides its instruction pointer.
    sampler: &'static str,
}

/// All have the kernel's chain; the first has nothing else, and the others are compared with it. A copied
/// stack is asked for as by `perf record --call-graph dwarf` (tools/perf/util/evsel.c,
/// `__evsel__config_callchain()`).
const WAYS: [Way; 6] = [
    Way {
        name: "no stack",
        workload: "kind: deep",
        sampler: "sample: [ip, callchain], exclude-callchain-user: true",
    },
    Way {
        name: "frame pointers, in the NMI",
        workload: "kind: deep",
        sampler: "sample: [ip, callchain]",
    },
    Way {
        name: "frame pointers, deferred",
        workload: "kind: deep",
        sampler: "sample: [ip, callchain], defer-callchain: true",
    },
    Way {
        name: "SFrame, deferred",
        workload: "kind: frameless, sframe: v3",
        sampler: "sample: [ip, callchain], defer-callchain: true",
    },
    Way {
        name: "frame pointers, program without",
        workload: "kind: frameless, sframe: none",
        sampler: "sample: [ip, callchain], defer-callchain: true",
    },
    Way {
        name: "copied stack, 8 KiB",
        workload: "kind: frameless, sframe: none",
        sampler: "sample: [ip, callchain, regs-user, stack-user], stack-bytes: 8192, exclude-callchain-user: true",
    },
];

/// Measures all ways; each row is told as soon as it is known.
///
/// # Errors
/// [`CampaignError`].
pub fn costs(
    request: &CostsRequest,
    context: Context<'_>,
    tell: &mut dyn FnMut(&CostRow) -> io::Result<()>,
) -> Result<Measured, CampaignError> {
    let kernel = context.fetch(&request.kernel.request()?)?;
    let host_request = HostRequest {
        kvm_host: request.kvm_host,
        ..HostRequest::default()
    };
    let mut host = context.start(host_request, kernel.as_ref())?;
    let mut rows = Vec::new();
    for &frames in &request.frames {
        for way in &WAYS {
            context.check_interrupt()?;
            let total = request.frames.len().saturating_mul(WAYS.len());
            context.progress.overall(rows.len(), total);
            let loaded = scenario(way, frames)?;
            let cost = match measure(&loaded, host.as_mut(), kernel.as_ref(), context) {
                Ok(cost) => Ok(cost),
                Err(Unmeasured::Campaign(error)) => return Err(*error),
                Err(Unmeasured::Reason(reason)) => Err(NoCost::Failed(reason)),
                Err(Unmeasured::Lack(lack)) => Err(NoCost::Lack(lack)),
            };
            let row = CostRow {
                frames,
                way: way.name,
                cost,
            };
            tell(&row)?;
            rows.push(row);
        }
    }
    Ok(Measured {
        rows,
        release: kernel.release().to_owned(),
        kvm_host: host.host(),
    })
}

/// Why there is no figure.
pub(super) enum Unmeasured {
    /// None can be had at all.
    Campaign(Box<CampaignError>),
    /// This one was not obtained.
    Reason(String),
    /// This one does not exist on this kernel.
    Lack(String),
}

impl<E: Into<CampaignError>> From<E> for Unmeasured {
    fn from(error: E) -> Self {
        Self::Campaign(Box::new(error.into()))
    }
}

fn scenario(way: &Way, frames: u32) -> Result<Loaded, CampaignError> {
    let Way {
        workload, sampler, ..
    } = way;
    let text = format!(
        "name: costs
description: One NMI in a system call.
workload: {{ {workload}, frames: {frames} }}
perf:
  events:
    - {{ name: tracking, event: dummy, defer-output: true, task: true }}
    - {{ name: nmi, event: 'nmi:nmi_handler', period: 1, output-to: tracking, {sampler} }}
inject:
  - nmi: {{ at: {{ kernel: {PLACE} }}, repeat: 1 }}
"
    );
    Ok(Loaded {
        file: "costs".to_owned(),
        scenario: parse("costs", &text)?,
        text,
        snapshot: None,
    })
}

fn measure(
    loaded: &Loaded,
    host: &mut dyn Executor,
    kernel: &dyn TestKernel,
    context: Context<'_>,
) -> Result<Cost, Unmeasured> {
    let plan = match resolve(
        &loaded.file,
        &loaded.scenario,
        kernel.symbols(),
        kernel.hash(),
    ) {
        Ok(plan) => plan,
        Err(ResolveError::Unsupported(lack)) => return Err(Unmeasured::Lack(lack.to_string())),
        Err(ResolveError::Scenario(errors)) => return Err(errors.into()),
    };
    let recorded = recorded(&plan, host, context)?;
    let instructions = instructions(loaded, host, kernel, context)?;
    Ok(Cost {
        instructions,
        bytes: recorded.bytes,
        right: recorded.right,
        of: recorded.of,
        wrong: recorded.wrong,
    })
}

/// What one sample and its answer have of the stack.
struct Recorded {
    bytes: u64,
    right: usize,
    of: u64,
    wrong: usize,
}

fn recorded(
    plan: &TrialPlan,
    host: &mut dyn Executor,
    context: Context<'_>,
) -> Result<Recorded, Unmeasured> {
    let recording = host
        .run(plan, context.progress)
        .map_err(ProviderError::from)?;
    let trace = Trace::decode(&recording);
    let reason = |text: &str| Unmeasured::Reason(text.to_owned());
    if let TrialEnd::Unsupported { reason } | TrialEnd::HostLacks { reason } = &recording.end {
        return Err(Unmeasured::Lack(reason.clone()));
    }
    let thread = trace
        .threads
        .first()
        .ok_or_else(|| reason("the workload did not start"))?;
    let mine = |event: &&Event| event.pid == Some(thread.pid);
    let events = || trace.events.iter().filter(mine);
    let (at, sample) = events()
        .find_map(|event| match &event.kind {
            EventKind::Sample(sample) => Some((event, sample)),
            _ => None,
        })
        .ok_or_else(|| reason("the NMI made no sample"))?;
    let answer = events().find_map(|event| Some((event, event.deferred_chain()?)));
    if sample.cookie().is_some() && answer.is_none() {
        return Err(reason("the request was not answered"));
    }
    let first = frame_zero(&trace, &thread.stack);
    let (right, wrong) = match (&answer, &sample.stack_user) {
        (Some((_, chain)), _) => compare(&chain.frames(), first, &thread.stack),
        (None, Some(stack)) => (on_stack(sample, stack, &thread.stack), 0),
        (None, None) => compare(sample.user_chain(), first, &thread.stack),
    };
    let answered = answer.map_or(0, |(event, _)| u64::from(event.size));
    Ok(Recorded {
        bytes: u64::from(at.size) + answered,
        right,
        of: thread.stack.depth(),
        wrong,
    })
}

/// The address behind the leaf's system call. The stack of code that no section describes is announced
/// without one: no kernel is expected to find its callers.
pub(super) fn frame_zero(trace: &Trace, stack: &ExpectedStack) -> u64 {
    let mut symbols = trace.user_symbols.iter();
    match stack.syscall_return {
        0 => symbols
            .find(|it| it.name == "bare_return")
            .map_or(0, |it| it.start),
        address => address,
    }
}

/// How many frames of a chain are right from the innermost on, and how many others it has.
pub(super) fn compare(chain: &[u64], first: u64, stack: &ExpectedStack) -> (usize, usize) {
    let wanted = std::iter::once(first).chain(stack.caller_addresses());
    let right = chain
        .iter()
        .zip(wanted)
        .take_while(|(a, b)| *a == b)
        .count();
    (right, chain.len().saturating_sub(right))
}

/// How many frames an unwinder that knows the program can find in a copied stack: that of the
/// registers, and the return addresses that were copied.
fn on_stack(sample: &Sample, bytes: &[u8], stack: &ExpectedStack) -> usize {
    let first = sample.regs_user.as_ref().is_some_and(|it| !it.is_empty());
    let words = bytes.as_chunks::<8>().0.iter();
    let mut words = words.map(|word| u64::from_le_bytes(*word));
    let callers = stack.caller_addresses();
    let found = callers.take_while(|&wanted| words.any(|word| word == wanted));
    usize::from(first) + found.count()
}

/// The instructions from the NMI's handler to user mode.
fn instructions(
    loaded: &Loaded,
    host: &mut dyn Executor,
    kernel: &dyn TestKernel,
    context: Context<'_>,
) -> Result<Instructions, Unmeasured> {
    let plan = stepping(loaded, kernel, LONGEST)?;
    let steps = stepped(&plan, host, context)?;
    let place = kernel.symbols().addresses(PLACE);
    count(&steps, &place)
        .ok_or_else(|| Unmeasured::Reason("the NMI did not return to its place".to_owned()))
}

/// The plan to single-step from the NMI's handler to user mode, so many instructions at most.
pub(super) fn stepping(
    loaded: &Loaded,
    kernel: &dyn TestKernel,
    longest: u32,
) -> Result<SweepPlan, Unmeasured> {
    let path = PathRequest {
        scenario: PathBuf::from(&loaded.file),
        start: PathOrigin::From(PathPlace::Handler),
    };
    let mut request = SweepRequest::of(path);
    request.options.jobs = 1;
    request.points = PointChoice::Numbered(Vec::new());
    let mut plan = sweep::plan(&request, loaded, kernel)?;
    plan.longest = longest;
    plan.patience = patience(kernel);
    Ok(plan)
}

/// The steps of such a plan.
pub(super) fn stepped(
    plan: &SweepPlan,
    host: &mut dyn Executor,
    context: Context<'_>,
) -> Result<Vec<Step>, Unmeasured> {
    let mut steps: Option<Vec<Step>> = None;
    let mut failed = None;
    host.sweep(plan, &mut |message| {
        match message {
            Message::Path { path, .. } => steps = Some(path),
            Message::Failed { reason } => failed = Some(reason),
            _ => {}
        }
        !context.interrupt.is_set()
    })
    .map_err(ProviderError::from)?;
    context.check_interrupt()?;
    steps.ok_or_else(|| {
        let reason = failed.unwrap_or_else(|| "the way to user mode was not recorded".to_owned());
        Unmeasured::Reason(reason)
    })
}

/// How long the kernel lets an NMI's handler take.
fn patience(kernel: &dyn TestKernel) -> Option<u64> {
    match kernel.symbols().addresses("nmi_longest_ns").as_slice() {
        [address] => Some(*address),
        _ => None,
    }
}

/// The instructions up to the interrupted one, and those behind it up to user mode.
fn count(steps: &[Step], place: &[u64]) -> Option<Instructions> {
    let nmi = steps.iter().position(|step| place.contains(&step.rip))?;
    let kernel = steps.iter().take_while(|step| !step.user).count();
    Some(Instructions {
        nmi,
        later: kernel.checked_sub(nmi)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_is_a_scenario() {
        for way in &WAYS {
            let loaded = scenario(way, 10).unwrap();
            assert_eq!(loaded.scenario.name.as_str(), "costs", "{}", way.name);
        }
    }

    fn stack() -> ExpectedStack {
        ExpectedStack {
            leaf_start: 0x10,
            leaf_end: 0x20,
            syscall_return: 0x18,
            callers: vec![(0x40, 2), (0x50, 1)],
        }
    }

    #[test]
    fn frames_count_from_the_innermost_on_up_to_the_first_that_is_wrong() {
        let stack = stack();
        assert_eq!(compare(&[0x18, 0x40, 0x40, 0x50], 0x18, &stack), (4, 0));
        assert_eq!(compare(&[0x18, 0x40, 0x50], 0x18, &stack), (2, 1));
        assert_eq!(compare(&[0x40, 0x40], 0x18, &stack), (0, 2));
        assert_eq!(compare(&[], 0x18, &stack), (0, 0));
    }

    #[test]
    fn a_copied_stack_has_the_frames_whose_addresses_were_copied_in_order() {
        let sample = Sample {
            regs_user: Some(vec![1]),
            ..Sample::default()
        };
        let words = [0_u64, 0x40, 7, 0x40, 0x51, 0x50];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let found = |bytes: &[u8]| on_stack(&sample, bytes, &stack());
        assert_eq!(found(&bytes), 4);
        assert_eq!(found(bytes.get(..40).unwrap()), 3);
        assert_eq!(found(bytes.get(..12).unwrap()), 1);
    }
}
