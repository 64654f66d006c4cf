//! Accesses of the guest at which a vCPU is to stop.

use super::failure::{Failure, Outcome, same};
use super::lab::{ADDRESS, BELL, Lab, guest, machine, run, vcpu};
use crate::{Access, AccessKind, Machine, Run, Stop, Watched};

super::checks! {
    Machines:
        a_vcpu_stops_behind_what_is_watched_for_and_nowhere_else;
}

guest!(accesses_of_each_kind:
    "mov dx, 0x3f8"
    "mov al, 65"
    "out dx, al"
    "in al, dx"
    "mov ebx, 0xd0000000"
    "mov eax, [rbx]"
    "mov [rbx + 8], eax"
    "out 0xe0, eax"
    "jmp 998b"
);

fn go_on(machine: &mut Machine) -> Result<Stop, Failure> {
    run(machine, Run::Continue)
}

fn access(kind: AccessKind, number: u64) -> Stop {
    Stop::Access(Access { kind, number })
}

fn a_vcpu_stops_behind_what_is_watched_for_and_nowhere_else(_: &Lab) -> Outcome {
    let mut machine = machine(1, accesses_of_each_kind())?;
    let bell = Stop::Port {
        port: BELL,
        size: 4,
        value: u32::MAX,
    };
    same!(go_on(&mut machine)?, bell);
    let watched = |kind, number| Watched { kind, number };
    let all = [
        watched(AccessKind::Out, Some(0x3f8)),
        watched(AccessKind::In, Some(0x3f9)),
        watched(AccessKind::MmioRead, None),
    ];
    let mut cpu = vcpu(&mut machine)?;
    cpu.watch(&all)?;
    let printed = machine.console().len();
    for turn in 1..=3 {
        same!(go_on(&mut machine)?, access(AccessKind::Out, 0x3f8));
        same!(machine.console().len(), printed + turn, "it is answered");
        let pc = vcpu(&mut machine)?.regs()?.rip;
        same!(pc, ADDRESS + 7, "and complete");
        let read = access(AccessKind::MmioRead, 0xd000_0000);
        same!(go_on(&mut machine)?, read);
        let rax = vcpu(&mut machine)?.regs()?.rax;
        same!(rax, u64::from(u32::MAX), "nobody is there");
        same!(go_on(&mut machine)?, bell);
    }
    vcpu(&mut machine)?.watch(&[])?;
    same!(go_on(&mut machine)?, bell);
    same!(machine.console().len(), printed + 4);
    Ok(())
}
