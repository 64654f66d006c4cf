//! Accesses of the guest at which a vCPU is to stop.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::tests_outside_test_module,
    reason = "all of it is a test"
)]

mod guest;

use guest::{ADDRESS, BELL, guest, machine, next_stop};
use unwindlab_vmm::{Access, AccessKind, Machine, Run, Stop, Watched};

guest!(accesses:
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

fn go_on(machine: &mut Machine) -> Stop {
    machine.vcpu(0).unwrap().resume(Run::Continue).unwrap();
    next_stop(machine)
}

fn access(kind: AccessKind, number: u64) -> Stop {
    Stop::Access(Access { kind, number })
}

#[test]
fn a_vcpu_stops_behind_what_is_watched_for_and_nowhere_else() {
    let mut machine = machine(1, accesses());
    let bell = Stop::Port {
        port: BELL,
        size: 4,
        value: u32::MAX,
    };
    assert_eq!(go_on(&mut machine), bell);
    let watched = |kind, number| Watched { kind, number };
    let all = [
        watched(AccessKind::Out, Some(0x3f8)),
        watched(AccessKind::In, Some(0x3f9)),
        watched(AccessKind::MmioRead, None),
    ];
    let mut vcpu = machine.vcpu(0).unwrap();
    vcpu.watch(&all).unwrap();
    let printed = machine.console().len();
    for turn in 1..=3 {
        assert_eq!(go_on(&mut machine), access(AccessKind::Out, 0x3f8));
        assert_eq!(machine.console().len(), printed + turn, "it is answered");
        let pc = machine.vcpu(0).unwrap().regs().unwrap().rip;
        assert_eq!(pc, ADDRESS + 7, "and complete");
        let read = access(AccessKind::MmioRead, 0xd000_0000);
        assert_eq!(go_on(&mut machine), read);
        let rax = machine.vcpu(0).unwrap().regs().unwrap().rax;
        assert_eq!(rax, u64::from(u32::MAX), "nobody is there");
        assert_eq!(go_on(&mut machine), bell);
    }
    machine.vcpu(0).unwrap().watch(&[]).unwrap();
    assert_eq!(go_on(&mut machine), bell);
    assert_eq!(machine.console().len(), printed + 4);
}
