//! What the hostile guest is started for.

use unwindlab_abi::plan::{EventSource, EventSpec, GuestPlan, Tracing};
use unwindlab_engine::plan::{KernelAddresses, Limits, PmuPlan, Settle, TrialPlan};

use super::guest;

/// The only kernel.
pub const HOSTILE: &str = "hostile";

/// A trial with one event on each CPU and one thread.
pub fn plan(vcpus: u8) -> TrialPlan {
    TrialPlan {
        scenario: HOSTILE.to_owned(),
        kernel: HOSTILE.to_owned(),
        vcpus,
        memory_mib: 32,
        cmdline: String::new(),
        pmu: PmuPlan::None,
        guest: GuestPlan::spinning(
            Tracing {
                ring_pages: guest::RING_PAGES,
                events: vec![EventSpec::blank("all", EventSource::Dummy)],
            },
            1,
        ),
        injections: Vec::new(),
        settle: Settle::Ms(0),
        limits: Limits {
            boot_ms: 300,
            run_ms: 300,
        },
        symbols: KernelAddresses {
            current_task: 0,
            printk: None,
            sysenter: None,
        },
        explore: None,
        witness: None,
        choice: None,
    }
}
