//! The plans that a conversation is held by.

use unwindlab_abi::lab::{LabAsk, LabPlan, LabPoint};
use unwindlab_abi::plan::{EventSource, EventSpec, GuestPlan, Tracing};

/// vCPUs of the machine.
pub(crate) const VCPUS: u8 = 2;

/// Frames of a thread's stack: as many as in the recordings that the corpus was made of.
const FRAMES: u32 = 13;

/// One event and one thread; by the bits, another event, another thread, a lab client.
pub(crate) fn plan(bits: u8) -> GuestPlan {
    let event = |name: &str| EventSpec {
        sample_type: 1 << 16 | 1 << 1 | 1 << 2 | 1 << 5,
        defer_callchain: true,
        defer_output: true,
        task: true,
        ..EventSpec::blank(name, EventSource::Dummy)
    };
    let mut events = vec![event("nmi")];
    if bits & 1 != 0 {
        events.push(EventSpec {
            output_to: Some(0),
            ..event("side")
        });
    }
    let tracing = Tracing {
        ring_pages: 1,
        events,
    };
    let mut plan = GuestPlan {
        lab: (bits & 4 != 0).then(lab),
        ..GuestPlan::spinning(tracing, 1 + u32::from(bits >> 1 & 1))
    };
    plan.workload.frames = FRAMES;
    plan
}

fn lab() -> LabPlan {
    LabPlan {
        clients: 1,
        log_pages: 1,
        ask: [LabAsk::default(); LabPoint::COUNT],
        nested_in: 0,
        nested: 0,
        callback_delay_us: 0,
        cancelled: 0,
        places: Vec::new(),
        pokes: Vec::new(),
        churn: Vec::new(),
    }
}
