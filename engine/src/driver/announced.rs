//! Whether what an agent announces is what its plan asks for. Each of these is checked: rings, events and threads by
//! number, CPU and size as they come, and that none is missing when the agent is ready.

use unwindlab_abi::message::{EventAnnounce, RingAnnounce, ThreadAnnounce};
use unwindlab_abi::plan::{EventSource, EventSpec, GuestPlan};
use unwindlab_abi::tracefs::{ChurnKind, TracefsBuffer, sub_buffers};
use unwindlab_abi::{RingUse, shared};
use unwindlab_oracle::trace::recording::Recording;

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
    let events = &plan.tracing.events;
    let sizes = events.iter().filter(|it| it.output_to.is_none());
    let mut sizes = sizes.map(|it| it.details.ring_pages.unwrap_or(plan.tracing.ring_pages));
    let pages = new.data_pages.len();
    is(sizes.any(|size| size as usize == pages), || {
        format!("ring {number} has {pages} data pages, which no event of the plan asks for")
    })
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
    })
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
pub(in crate::driver) mod tests {
    use unwindlab_abi::message::ExpectedStack;
    use unwindlab_abi::plan::Tracing;
    use unwindlab_abi::tracefs::{TracefsChurn, TracefsInstance, TracefsPlan};

    use super::*;

    /// Two events, the second of which writes to the ring of the first, and two threads.
    pub(in crate::driver) fn plan() -> GuestPlan {
        let event = |name| EventSpec::blank(name, EventSource::Dummy);
        let tracing = Tracing {
            ring_pages: 2,
            events: vec![
                event("a"),
                EventSpec {
                    output_to: Some(0),
                    ..event("b")
                },
            ],
        };
        GuestPlan::spinning(tracing, 2)
    }

    fn a_ring(ring: u32, cpu: u32) -> RingAnnounce {
        RingAnnounce {
            ring,
            cpu,
            control_page: 0x1000,
            data_pages: vec![0x2000, 0x3000],
            backward: false,
        }
    }

    fn an_event(spec: u32, cpu: u32, ring: u32) -> EventAnnounce {
        EventAnnounce {
            spec,
            cpu,
            id: 1,
            ring,
        }
    }

    fn a_thread(thread: u32) -> ThreadAnnounce {
        ThreadAnnounce {
            thread,
            pid: 1,
            tid: 1,
            stack: ExpectedStack {
                leaf_start: 0,
                leaf_end: 1,
                syscall_return: 0,
                callers: Vec::new(),
            },
        }
    }

    /// All that the plan asks for on a machine with two vCPUs.
    fn whole() -> (Recording, Once) {
        let recording = Recording {
            vcpus: 2,
            rings: vec![a_ring(0, 0), a_ring(1, 1)],
            events: [(0, 0), (1, 0), (0, 1), (1, 1)]
                .map(|(spec, cpu)| an_event(spec, cpu, cpu))
                .into(),
            threads: vec![a_thread(0), a_thread(1)],
            ..Recording::default()
        };
        let once = Once {
            shared: true,
            symbols: true,
            ..Once::default()
        };
        (recording, once)
    }

    fn wrong(found: Result<(), Mismatch>) -> String {
        found.unwrap_err().to_string()
    }

    #[test]
    fn what_comes_is_what_the_plan_asks_for() {
        let (plan, mut so_far) = (plan(), whole().0);
        so_far.rings.truncate(1);
        assert_eq!(ring(&plan, &so_far, &a_ring(1, 1)), Ok(()));
        for new in [a_ring(0, 1), a_ring(2, 1)] {
            assert!(wrong(ring(&plan, &so_far, &new)).contains("expected 1"));
        }
        assert!(wrong(ring(&plan, &so_far, &a_ring(1, 2))).contains("of CPU 2"));
        let mut large = a_ring(1, 1);
        large.data_pages.push(0x4000);
        assert!(wrong(ring(&plan, &so_far, &large)).contains("3 data pages"));

        so_far.events.truncate(1);
        assert_eq!(event(&plan, &so_far, &an_event(1, 0, 0)), Ok(()));
        assert!(wrong(event(&plan, &so_far, &an_event(0, 0, 0))).contains("twice"));
        assert!(wrong(event(&plan, &so_far, &an_event(2, 0, 0))).contains("no event 2"));
        assert!(wrong(event(&plan, &so_far, &an_event(1, 1, 0))).contains("not its own"));
        assert!(wrong(event(&plan, &so_far, &an_event(1, 1, 9))).contains("not its own"));

        so_far.threads.truncate(1);
        assert_eq!(thread(&plan, &so_far, &a_thread(1)), Ok(()));
        assert!(wrong(thread(&plan, &so_far, &a_thread(0))).contains("thread 0 behind 1"));
        so_far.threads.push(a_thread(1));
        assert!(wrong(thread(&plan, &so_far, &a_thread(2))).contains("behind 2 of 2"));
        assert!(cpus(2, 2).is_ok() && cpus(1, 2).is_err());
        assert!(iterations(&plan, 2).is_ok() && iterations(&plan, 3).is_err());
    }

    #[test]
    fn nothing_is_missing_when_the_agent_is_ready() {
        let plan = plan();
        let ready = |change: fn(&mut Recording, &mut Once)| {
            let (mut recording, mut once) = whole();
            change(&mut recording, &mut once);
            all(&plan, &recording, once)
        };
        assert_eq!(ready(|_, _| {}), Ok(()));
        assert!(wrong(ready(|it, _| it.threads.truncate(1))).contains("1 threads of 2"));
        assert!(wrong(ready(|it, _| it.events.truncate(3))).contains("event 1 of CPU 1"));
        assert!(wrong(ready(|it, _| it.rings.push(a_ring(2, 0)))).contains("ring 2"));
        assert!(wrong(ready(|_, once| once.shared = false)).contains("shared"));
        assert!(wrong(ready(|_, once| once.symbols = false)).contains("symbols"));
        assert!(wrong(ready(|_, once| once.lab = true)).contains("log"));
        let mut seen = false;
        assert!(wrong(once(&mut seen, false, "a lab log")).contains("has not"));
        assert_eq!(once(&mut seen, true, "a lab log"), Ok(()));
        assert!(wrong(once(&mut seen, true, "a lab log")).contains("twice"));
    }

    #[test]
    fn buffers_of_tracefs_are_those_of_the_plan() {
        let mut plan = plan();
        let instance = TracefsInstance {
            name: "a".to_owned(),
            events: Vec::new(),
            buffer_kib: 8,
        };
        plan.tracefs = Some(TracefsPlan {
            instances: vec![instance],
            churn: None,
        });
        let buffer = |instance, cpu, pages| TracefsBuffer {
            instance,
            cpu,
            pages: vec![0x1000; pages],
        };
        let one = [buffer(0, 0, 3)];
        let announce = |new| tracefs_buffer(&plan, 2, &one, &new);
        assert_eq!(announce(buffer(0, 1, 3)), Ok(()));
        assert!(wrong(announce(buffer(0, 0, 3))).contains("CPU 0 twice"));
        assert!(wrong(announce(buffer(1, 1, 3))).contains("no instance 1"));
        assert!(wrong(announce(buffer(0, 2, 3))).contains("of CPU 2"));
        for pages in [0, 4] {
            assert!(wrong(announce(buffer(0, 1, pages))).contains("expected 3"));
        }

        assert!(wrong(all_tracefs(&plan, 2, &one)).contains("1 buffers of tracefs, expected 2"));
        let both = [buffer(0, 0, 3), buffer(0, 1, 3)];
        assert_eq!(all_tracefs(&plan, 2, &both), Ok(()));
        let churn = plan.tracefs.as_mut().map(|it| &mut it.churn).unwrap();
        *churn = Some(TracefsChurn {
            cpu: 0,
            period_us: 1,
            what: ChurnKind::Remove,
        });
        assert_eq!(all_tracefs(&plan, 2, &[]), Ok(()));
        plan.tracefs = None;
        assert!(all_tracefs(&plan, 2, &both).is_err());
    }
}
