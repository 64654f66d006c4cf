//! The `perf-tool` part of a scenario: the distribution's own perf records.

use unwindlab_abi::plan::{PerfToolPlan, WorkloadKind};

use super::error::Complaints;
use super::events::FOREVER;
use super::inject::Injection;
use super::model::{PerfTool, Pmu, Scenario, ToolEvent};

/// Workloads whose threads live from start to end, with no other stack than the announced one.
const KINDS: [WorkloadKind; 3] = [
    WorkloadKind::Spin,
    WorkloadKind::Syscalls,
    WorkloadKind::Deep,
];

/// Checks what the types do not express.
pub(super) fn check(scenario: &Scenario, complaints: &mut Complaints<'_>) {
    let Some(tool) = &scenario.perf_tool else {
        return;
    };
    complaints.require(
        *scenario.machine.pmu == Pmu::Synthetic,
        tool.location(),
        || "`perf-tool` needs `machine: { pmu: synthetic }`".to_owned(),
    );
    let perf = &scenario.perf;
    complaints.require(
        scenario.lab.is_none() && !perf.markers && !perf.switches,
        tool.location(),
        || {
            "found `perf-tool` beside other tracers, expected it alone, or beside `perf: { events }`"
                .to_owned()
        },
    );
    let overflows = |it: &Injection| matches!(it, Injection::PmuOverflow(_));
    complaints.require(
        !scenario.inject.is_empty() && scenario.inject.iter().all(overflows),
        tool.location(),
        || "`perf-tool` is judged by `pmu-overflow` injections, expected only these".to_owned(),
    );
    let kind = &scenario.workload.kind;
    complaints.require(KINDS.contains(kind), kind.location(), || {
        let names: Vec<_> = KINDS.iter().map(|it| format!("`{}`", it.name())).collect();
        format!(
            "found workload `{}`, expected one of {} with `perf-tool`",
            kind.name(),
            names.join(", ")
        )
    });
}

pub(super) fn resolve(tool: &PerfTool) -> PerfToolPlan {
    let event = match *tool.event {
        ToolEvent::Cycles => "cycles",
        ToolEvent::Instructions => "instructions",
    };
    PerfToolPlan {
        event: event.to_owned(),
        period: FOREVER,
    }
}
