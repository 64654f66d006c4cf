//! Whether what an agent announces is what its plan asks for. Each of these is checked: rings, events and threads by
//! number, CPU and size as they come, and that none is missing when the agent is ready.

use unwindlab_abi::behaviour::SEEN_CALLS;
use unwindlab_abi::message::{EventAnnounce, Program, RingAnnounce, ThreadAnnounce};
use unwindlab_abi::observation::SFRAME_PIECE;
use unwindlab_abi::plan::{EventSource, EventSpec, GuestPlan, WorkloadPlan};
use unwindlab_abi::tracefs::{ChurnKind, TracefsBuffer, sub_buffers};
use unwindlab_abi::user_stack::USER_STACK_PIECE;
use unwindlab_abi::{Observation, RingUse, shared};
use unwindlab_oracle::trace::model::MAX_DEFERRED_FRAMES;
use unwindlab_oracle::trace::recording::Recording;

/// Most return addresses of a thread's stack that differ from the next; an agent has four.
const MAX_CALLERS: usize = 16;

/// An announcement that does not fit the plan, in words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Mismatch(String);

/// What may be announced once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Once {
    pub lab: bool,
    pub user_mode: bool,
    pub shared: bool,
    pub symbols: bool,
    pub program: bool,
}

/// Notes one of [`Once`].
///
/// # Errors
/// [`Mismatch`] where it came before, or has no place in the plan.
pub(super) fn once(seen: &mut bool, planned: bool, what: &str) -> Result<(), Mismatch> {
    is(planned, || {
        format!("the agent announces {what}, which the plan has not")
    })?;
    is(!*seen, || format!("the agent announces {what} twice"))?;
    *seen = true;
    Ok(())
}

/// The CPUs that are online.
pub(super) fn cpus(online: u32, vcpus: u32) -> Result<(), Mismatch> {
    is(online == vcpus, || {
        format!("the guest has {online} CPUs online, the machine {vcpus}")
    })
}

/// A ring that comes behind these.
pub(super) fn ring(
    plan: &GuestPlan,
    so_far: &Recording,
    new: &RingAnnounce,
) -> Result<(), Mismatch> {
    let number = new.ring;
    let expected = so_far.rings.len();
    is(number as usize == expected, || {
        format!("the agent announces ring {number}, expected {expected}")
    })?;
    is_cpu(so_far.vcpus, new.cpu, "ring", number)?;
    let most = rings_of_a_cpu(plan);
    let before = so_far.rings.iter().filter(|ring| ring.cpu == new.cpu);
    is(before.count() < most, || {
        let cpu = new.cpu;
        format!("ring {number} is one more than the {most} of CPU {cpu} that the plan asks for")
    })?;
    let mut sizes =
        with_rings(plan).map(|it| it.details.ring_pages.unwrap_or(plan.tracing.ring_pages));
    let pages = new.data_pages.len();
    is(sizes.any(|size| size as usize == pages), || {
        format!("ring {number} has {pages} data pages, which no event of the plan asks for")
    })
}

/// The events with rings of their own that are read.
fn with_rings(plan: &GuestPlan) -> impl Iterator<Item = &EventSpec> {
    let events = plan.tracing.events.iter();
    events.filter(|it| it.output_to.is_none() && it.details.ring != RingUse::Unread)
}

/// Most rings of one CPU: of a field of tasks, one for each thread.
fn rings_of_a_cpu(plan: &GuestPlan) -> usize {
    let rings = with_rings(plan).map(|it| match it.source {
        EventSource::TaskField { .. } => plan.workload.threads as usize,
        _ => 1,
    });
    rings.sum()
}

/// An event. Its ring was announced.
pub(super) fn event(
    plan: &GuestPlan,
    so_far: &Recording,
    new: &EventAnnounce,
) -> Result<(), Mismatch> {
    let number = new.spec;
    let spec = { plan.tracing.events.get(number as usize) };
    let spec = spec.ok_or_else(|| Mismatch(format!("the plan has no event {number}")))?;
    is_cpu(so_far.vcpus, new.cpu, "event", number)?;
    let ring = so_far.rings.get(new.ring as usize);
    let ring = ring.filter(|ring| ring.cpu == new.cpu);
    is(
        ring.is_some() && spec.details.ring != RingUse::Unread,
        || {
            format!(
                "event {number} of CPU {} writes to ring {}, which is not its own",
                new.cpu, new.ring
            )
        },
    )?;
    let mut before = so_far.events.iter();
    let twice = before.any(|it| it.spec == number && it.cpu == new.cpu);
    // One for each thread.
    let many = matches!(spec.source, EventSource::TaskField { .. });
    is(many || !twice, || {
        format!(
            "the agent announces event {number} of CPU {} twice",
            new.cpu
        )
    })
}

/// A thread that comes behind these.
pub(super) fn thread(
    plan: &GuestPlan,
    so_far: &Recording,
    new: &ThreadAnnounce,
) -> Result<(), Mismatch> {
    let (number, expected) = (new.thread, so_far.threads.len());
    let planned = plan.workload.threads;
    is(number as usize == expected && number < planned, || {
        format!("the agent announces thread {number} behind {expected} of {planned}")
    })?;
    let callers = new.stack.callers.len();
    is(callers <= MAX_CALLERS, || {
        format!("thread {number} has {callers} different callers, at most {MAX_CALLERS} are known")
    })?;
    let (depth, most) = (new.stack.depth(), frames(&plan.workload, number));
    is(depth <= most, || {
        format!("the stack of thread {number} has {depth} frames, the plan asks for {most}")
    })
}

/// The known stacks of a program: as deep as a thread's. What is not as deep as the plan says, such as a C program's, has
/// fewer frames than a kernel shows.
pub(super) fn program(plan: &GuestPlan, new: &Program) -> Result<(), Mismatch> {
    let last = plan.workload.threads.saturating_sub(1);
    let most = frames(&plan.workload, last).max(MAX_DEFERRED_FRAMES as u64);
    let mut stacks = new.stacks.iter();
    match stacks.find(|it| it.depth() > most) {
        Some(deep) => Err(Mismatch(format!(
            "the known stack at {:#x} has {} frames, at most {most} are known",
            deep.start,
            deep.depth()
        ))),
        None => Ok(()),
    }
}

/// Frames of a thread's stack.
fn frames(plan: &WorkloadPlan, thread: u32) -> u64 {
    u64::from(plan.frames) + u64::from(thread) * u64::from(plan.frames_step)
}

/// A buffer of an instance of tracefs, behind these.
pub(super) fn tracefs_buffer(
    plan: &GuestPlan,
    vcpus: u32,
    so_far: &[TracefsBuffer],
    new: &TracefsBuffer,
) -> Result<(), Mismatch> {
    let number = new.instance;
    let planned = plan.tracefs.iter().flat_map(|it| &it.instances);
    let instance = planned.zip(0..).find(|(_, it)| *it == number);
    let (instance, _) = instance
        .ok_or_else(|| Mismatch(format!("the plan has no instance {number} of tracefs")))?;
    is_cpu(vcpus, new.cpu, "a buffer of instance", number)?;
    let mut before = so_far.iter();
    let twice = before.any(|it| it.instance == number && it.cpu == new.cpu);
    is(!twice, || {
        format!(
            "the agent announces the buffer of instance {number} and CPU {} twice",
            new.cpu
        )
    })?;
    let (pages, most) = (new.pages.len(), sub_buffers(instance.buffer_kib) - 1);
    is((1..=most).contains(&pages), || {
        format!(
            "instance {number} has {pages} sub-buffers on CPU {}, expected {most}",
            new.cpu
        )
    })
}

/// All buffers of tracefs, once the agent says that it is ready: instances that are removed meanwhile are not mapped.
pub(super) fn all_tracefs(
    plan: &GuestPlan,
    vcpus: u32,
    so_far: &[TracefsBuffer],
) -> Result<(), Mismatch> {
    let planned = plan.tracefs.as_ref();
    let removes = |what| what == ChurnKind::Remove;
    let mapped = planned.filter(|it| !it.churn.is_some_and(|churn| removes(churn.what)));
    let expected = mapped.map_or(0, |it| it.instances.len()) * vcpus as usize;
    is(so_far.len() == expected, || {
        let found = so_far.len();
        format!("the agent is ready with {found} buffers of tracefs, expected {expected}")
    })
}

/// Everything, once the agent says that it is ready.
pub(super) fn all(plan: &GuestPlan, so_far: &Recording, once: Once) -> Result<(), Mismatch> {
    let threads = (so_far.threads.len(), plan.workload.threads as usize);
    is(threads.0 == threads.1, || {
        format!(
            "the agent is ready with {} threads of {}",
            threads.0, threads.1
        )
    })?;
    for (is_there, what) in [
        (once.lab == plan.lab.is_some(), "the lab client's log"),
        (
            once.user_mode == (plan.user_mode.is_some() || plan.bpf.is_some()),
            "the results of unwinding in user mode",
        ),
        (once.shared, "the shared pages"),
        (once.symbols, "the workload's symbols"),
    ] {
        is(is_there, || format!("the agent is ready without {what}"))?;
    }
    for (spec, number) in plan.tracing.events.iter().zip(0..) {
        for cpu in 0..so_far.vcpus {
            let mut announced = so_far.events.iter();
            let found = announced.any(|it| it.spec == number && it.cpu == cpu);
            is(found || may_be_missing(spec), || {
                format!("the agent is ready without event {number} of CPU {cpu}")
            })?;
        }
    }
    let used = |ring: &RingAnnounce| so_far.events.iter().any(|it| it.ring == ring.ring);
    match so_far.rings.iter().find(|ring| !used(ring)) {
        Some(ring) => Err(Mismatch(format!("ring {} has no event", ring.ring))),
        None => Ok(()),
    }
}

/// The shared pages.
pub(super) fn shared_pages(pages: usize) -> Result<(), Mismatch> {
    is(pages == shared::PAGES, || {
        format!("the agent shares {pages} pages, expected {}", shared::PAGES)
    })
}

/// The counts of iterations, behind the workload.
pub(super) fn iterations(plan: &GuestPlan, counts: usize) -> Result<(), Mismatch> {
    let threads = plan.workload.threads;
    is(counts == threads as usize, || {
        format!("the agent counts the iterations of {counts} threads of {threads}")
    })
}

/// An observation: the agent sends long ones in pieces.
pub(super) fn observation(seen: &Observation) -> Result<(), Mismatch> {
    let (count, most, what) = match seen {
        Observation::SframeAsks(it) => (it.len(), SFRAME_PIECE, "requests behind sections"),
        Observation::SframeReads(it) => (it.len(), SFRAME_PIECE, "reads of sections"),
        Observation::UserStacks(it) => (it.len(), USER_STACK_PIECE, "stacks of its own"),
        Observation::Behaviour(it) => (it.calls.len(), SEEN_CALLS, "system calls"),
        _ => return Ok(()),
    };
    is(count <= most, || {
        format!("the agent tells of {count} {what} at once, expected at most {most}")
    })
}

/// An event that the kernel may refuse, or whose ring is not read, is not announced.
fn may_be_missing(spec: &EventSpec) -> bool {
    spec.details.may_be_refused || spec.details.ring == RingUse::Unread
}

fn is_cpu(vcpus: u32, cpu: u32, what: &str, number: u32) -> Result<(), Mismatch> {
    is(cpu < vcpus, || {
        format!("{what} {number} is of CPU {cpu}, the machine has {vcpus}")
    })
}

fn is(right: bool, wrong: impl FnOnce() -> String) -> Result<(), Mismatch> {
    match right {
        true => Ok(()),
        false => Err(Mismatch(wrong())),
    }
}

#[cfg(test)]
pub(in crate::driver) mod tests;
