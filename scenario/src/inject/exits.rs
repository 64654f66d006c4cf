//! Checks the exits that a scenario waits for: they must reach this VMM.

use unwindlab_abi::{MAILBOX_PORT, MARK_PORT};

use super::{Event, Exit};
use crate::error::Complaints;
use crate::located::At;
use crate::model::{Pmu, Scenario};
use unwindlab_engine::plan::ExitKind;
use unwindlab_vmm::synthetic_msrs;

/// Ports that KVM handles itself: interrupt controllers, timer, port B.
const KVM_PORTS: [std::ops::RangeInclusive<u64>; 5] = [
    0x20..=0x21,
    0x40..=0x43,
    0x61..=0x61,
    0xa0..=0xa1,
    0x4d0..=0x4d1,
];
/// Bytes of a MiB.
const MIB: u64 = 1 << 20;

/// Complains about an exit that never happens.
pub(super) fn check(event: &At<Event>, scenario: &Scenario, complaints: &mut Complaints<'_>) {
    let Event::Exit(exit) = **event else { return };
    if let Some(why) = never(exit, scenario) {
        complaints.add(event.location(), why);
    }
}

fn never(exit: Exit, scenario: &Scenario) -> Option<String> {
    let number = exit.number.map(|it| it.0);
    let synthetic = *scenario.machine.pmu == Pmu::Synthetic;
    let ram = u64::from(scenario.machine.memory.mib) * MIB;
    match (exit.kind, number) {
        (ExitKind::Halt, _) => Some(
            "found `halt`, which never leaves KVM: KVM waits for the interrupt itself".to_owned(),
        ),
        (ExitKind::In | ExitKind::Out, Some(port)) => reserved_port(port),
        (ExitKind::Rdmsr | ExitKind::Wrmsr | ExitKind::Rdpmc, _) if !synthetic => {
            let why = "found an access to counters, which KVM handles itself unless the machine has \
                       `pmu: synthetic`";
            Some(why.to_owned())
        }
        (ExitKind::Rdmsr | ExitKind::Wrmsr, Some(msr)) => handled_msr(msr),
        (ExitKind::MmioRead | ExitKind::MmioWrite, Some(address)) if address < ram => {
            Some(format!("found physical address {address:#x}, which is RAM"))
        }
        (ExitKind::MmioRead | ExitKind::MmioWrite, Some(address))
            if matches!(address >> 12, 0xfec00 | 0xfee00) =>
        {
            Some(format!(
                "found physical address {address:#x}, an interrupt controller, which KVM handles itself"
            ))
        }
        _ => None,
    }
}

/// An MSR that is no synthetic counter's, on a KVM host of either vendor.
fn handled_msr(msr: u64) -> Option<String> {
    let mut counters = Vec::new();
    for (first, count) in synthetic_msrs() {
        let (first, end) = (u64::from(first), u64::from(first) + u64::from(count));
        if (first..end).contains(&msr) {
            return None;
        }
        counters.push(match count {
            1 => format!("{first:#x}"),
            _ => format!("{first:#x} to {:#x}", end - 1),
        });
    }
    Some(format!(
        "found MSR {msr:#x}, which KVM handles itself; the counters are {}",
        counters.join(", ")
    ))
}

fn reserved_port(port: u64) -> Option<String> {
    let own = [MAILBOX_PORT, MARK_PORT].map(u64::from).contains(&port);
    match port {
        0x1_0000.. => Some(format!("found port {port:#x}, expected at most 0xffff")),
        _ if KVM_PORTS.iter().any(|ports| ports.contains(&port)) => {
            Some(format!("found port {port:#x}, which KVM handles itself"))
        }
        _ if own => Some(format!(
            "found port {port:#x}, which the harness uses itself: wait for it with `on: {{ mark: ... }}`"
        )),
        _ => None,
    }
}
