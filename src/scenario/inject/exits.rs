//! Exits that a scenario waits for: only those that this VMM gets.

use unwindlab_abi::{MAILBOX_PORT, MARK_PORT};

use super::{Event, Exit};
use crate::plan::ExitKind;
use crate::scenario::error::Complaints;
use crate::scenario::located::At;
use crate::scenario::model::{Pmu, Scenario};

/// Ports that KVM answers itself: interrupt controllers, timer, port B.
const KVMS: [std::ops::RangeInclusive<u64>; 5] = [
    0x20..=0x21,
    0x40..=0x43,
    0x61..=0x61,
    0xa0..=0xa1,
    0x4d0..=0x4d1,
];
/// The MSRs of the synthetic counters.
const COUNTERS: std::ops::RangeInclusive<u64> = 0xc001_0000..=0xc001_0007;
/// Bytes of a MiB.
const MIB: u64 = 1 << 20;

/// Complains of an exit that never comes.
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
            "found `halt`, which never leaves KVM: with its interrupt controllers it waits for \
             interrupts itself"
                .to_owned(),
        ),
        (ExitKind::In | ExitKind::Out, Some(port)) => port_of_others(port),
        (ExitKind::Rdmsr | ExitKind::Wrmsr | ExitKind::Rdpmc, _) if !synthetic => {
            let why = "found an access to counters, which KVM answers itself unless the machine has \
                       `pmu: synthetic`";
            Some(why.to_owned())
        }
        (ExitKind::Rdmsr | ExitKind::Wrmsr, Some(msr)) if !COUNTERS.contains(&msr) => {
            Some(format!(
                "found MSR {msr:#x}, which KVM answers itself; {:#x} to {:#x} are the counters'",
                COUNTERS.start(),
                COUNTERS.end()
            ))
        }
        (ExitKind::MmioRead | ExitKind::MmioWrite, Some(address)) if address < ram => {
            Some(format!("found physical address {address:#x}, which is RAM"))
        }
        (ExitKind::MmioRead | ExitKind::MmioWrite, Some(address))
            if matches!(address >> 12, 0xfec00 | 0xfee00) =>
        {
            Some(format!(
                "found physical address {address:#x}, an interrupt controller, which is KVM's own"
            ))
        }
        _ => None,
    }
}

fn port_of_others(port: u64) -> Option<String> {
    let own = [MAILBOX_PORT, MARK_PORT].map(u64::from).contains(&port);
    match port {
        0x1_0000.. => Some(format!("found port {port:#x}, expected at most 0xffff")),
        _ if KVMS.iter().any(|ports| ports.contains(&port)) => {
            Some(format!("found port {port:#x}, which KVM answers itself"))
        }
        _ if own => Some(format!(
            "found port {port:#x}, the harness's own: `on: {{ mark: ... }}` tells of what comes by it"
        )),
        _ => None,
    }
}
