//! The workload `program`: a C program that looks at the kernel by itself. Nothing else is traced or done.

use unwindlab_abi::plan::WorkloadKind;
use unwindlab_guest_kernel::reproducer;

use super::error::Complaints;
use super::model::Scenario;

/// Checks what the types do not express.
pub(super) fn check(scenario: &Scenario, complaints: &mut Complaints<'_>) {
    let kind = &scenario.workload.kind;
    let is_program = **kind == WorkloadKind::Program;
    let Some(name) = &scenario.workload.program else {
        complaints.require(!is_program, kind.location(), || {
            "workload `program` needs `program: NAME`".to_owned()
        });
        return;
    };
    complaints.require(is_program, name.location(), || {
        format!("found `program` with workload `{}`", kind.name())
    });
    let known = reproducer::names();
    complaints.require(known.contains(&name.as_str()), name.location(), || {
        format!(
            "found program `{}`, expected one of {}",
            name.escape_debug(),
            known.join(", ")
        )
    });
    let perf = &scenario.perf;
    let alone = scenario.lab.is_none()
        && scenario.user_mode.is_none()
        && scenario.bpf.is_none()
        && scenario.tracefs.is_none()
        && scenario.perf_tool.is_none()
        && scenario.inject.is_empty()
        && scenario.schedule.is_none()
        && scenario.explore.is_none()
        && perf.events.is_none()
        && !perf.markers
        && !perf.switches;
    complaints.require(alone, name.location(), || {
        "found `program` beside tracers or injections, expected it alone".to_owned()
    });
    let threads = &scenario.workload.threads;
    complaints.require(**threads == 1, threads.location(), || {
        format!("found {} threads, expected 1 with `program`", **threads)
    });
}
