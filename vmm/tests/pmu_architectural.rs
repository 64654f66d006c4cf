//! Intel's architectural counters as a guest sees them, on a host CPU of any vendor.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::tests_outside_test_module,
    reason = "all of it is a test"
)]

mod guest;

use guest::{ADDRESS, guest, machine_with, next_stop, write_interrupt_table};
use unwindlab_vmm::{CounterModel, Kernel, Machine, OverflowError, Pmu, Run, Stop, rdpmc_sites};

// Fixed counter 1, with interrupt, started at 2^47; what it holds, by both ways; what announces it.
// Then the steps of a driver's handler.
guest!(driver:
    "lidt [0x1ffff0]"
    "mov esi, 0xfee00000"
    "mov dword ptr [rsi + 0xf0], 0x1ff"
    "mov dword ptr [rsi + 0x340], 0x400"
    "mov ecx, 0x30a"
    "xor eax, eax"
    "mov edx, 0x8000"
    "wrmsr"
    "mov ecx, 0x38d"
    "mov eax, 0xb0"
    "xor edx, edx"
    "wrmsr"
    "mov ecx, 0x38f"
    "mov eax, 0xf"
    "mov edx, 2"
    "wrmsr"
    "mov ecx, 0x40000001"
    "rdpmc"
    "mov ebx, eax"
    "mov eax, edx"
    "out 0xe0, eax"
    "mov ecx, 0x30a"
    "rdmsr"
    "sub eax, ebx"
    "out 0xe1, eax"
    "mov ecx, 0x345"
    "rdmsr"
    "out 0xe2, eax"
    "mov eax, 10"
    "cpuid"
    "out 0xe3, eax"
    "99: jmp 99b"
    ".skip 0x100 - (. - 998b)"
    "mov ecx, 0x38e"
    "rdmsr"
    "mov eax, edx"
    "out 0xe4, eax"
    "mov eax, [rsi + 0x340]"
    "out 0xe5, eax"
    "mov ecx, 0x390"
    "xor eax, eax"
    "mov edx, 2"
    "wrmsr"
    "mov ecx, 0x38e"
    "rdmsr"
    "mov eax, edx"
    "out 0xe6, eax"
    "mov ecx, 0x30a"
    "xor eax, eax"
    "mov edx, 0x8000"
    "wrmsr"
    "out 0xe7, eax"
    "mov dword ptr [rsi + 0x340], 0x400"
    "out 0xe8, eax"
);

// The same local APIC in x2APIC mode.
guest!(x2apic:
    "lidt [0x1ffff0]"
    "mov ecx, 0x1b"
    "rdmsr"
    "or eax, 0x400"
    "wrmsr"
    "mov ecx, 0x80f"
    "mov eax, 0x1ff"
    "xor edx, edx"
    "wrmsr"
    "mov ecx, 0x834"
    "mov eax, 0x400"
    "wrmsr"
    "mov ecx, 0x4c1"
    "xor eax, eax"
    "mov edx, 0x8000"
    "wrmsr"
    "mov ecx, 0x186"
    "mov eax, 0x53003c"
    "xor edx, edx"
    "wrmsr"
    "out 0xe0, eax"
    "99: jmp 99b"
    ".skip 0x100 - (. - 998b)"
    "mov ecx, 0x834"
    "rdmsr"
    "out 0xe1, eax"
);

// A selector with a bit that is version 3's; the vector 13 answers.
guest!(reserved:
    "lidt [0x1ffff0]"
    "mov ecx, 0x186"
    "mov eax, 0x200000"
    "xor edx, edx"
    "wrmsr"
    "out 0xe0, eax"
    ".skip 0x100 - (. - 998b)"
    "out 0xe1, eax"
);

fn architectural(vcpus: u8, code: &[u8], vector: u64) -> Machine {
    let kernel = Kernel::Flat {
        address: ADDRESS,
        code: code.into(),
    };
    let sites = rdpmc_sites(&kernel, &[(ADDRESS, true)]).unwrap();
    let pmu = Pmu::Synthetic {
        rdpmc: &sites,
        model: Some(CounterModel::Architectural),
    };
    let mut machine = machine_with(pmu, vcpus, code);
    write_interrupt_table(&machine, &[vector]);
    machine.start().unwrap();
    machine
}

/// The value the guest tells at this port. The guest stands still there.
fn told(machine: &mut Machine, expected: u16) -> u32 {
    match next_stop(machine) {
        Stop::Port { port, value, .. } if port == expected => value,
        other => panic!("{other:x?} instead of port {expected:#x}"),
    }
}

fn go_on(machine: &mut Machine) {
    machine.vcpu(0).unwrap().resume(Run::Continue).unwrap();
}

fn refused(machine: &mut Machine) -> OverflowError {
    machine.vcpu(0).unwrap().pmu_overflow(None).unwrap_err()
}

#[test]
fn a_driver_can_handle_an_overflow_and_must_do_all_of_it() {
    let mut machine = architectural(1, driver(), 2);
    assert_eq!(told(&mut machine, 0xe0), 0x8000, "by RDPMC");
    go_on(&mut machine);
    assert!(told(&mut machine, 0xe1) > 0, "time passes");
    go_on(&mut machine);
    assert_eq!(told(&mut machine, 0xe2), 1 << 13);
    go_on(&mut machine);
    assert_eq!(told(&mut machine, 0xe3), 0x0730_0402);
    let receipt = machine.vcpu(0).unwrap().pmu_overflow(None).unwrap();
    assert_eq!(receipt.counter, 33);
    go_on(&mut machine);
    assert_eq!(told(&mut machine, 0xe4), 2, "the status");
    go_on(&mut machine);
    assert_eq!(told(&mut machine, 0xe5), 0x1_0400, "masked");
    go_on(&mut machine);
    assert_eq!(told(&mut machine, 0xe6), 0, "cleared");
    let error = refused(&mut machine);
    let still = matches!(error, OverflowError::StillOverflowed { counter: 33, .. });
    assert!(still && error.is_passing(), "{error}");
    go_on(&mut machine);
    told(&mut machine, 0xe7);
    let error = refused(&mut machine);
    let masked = matches!(error, OverflowError::Masked { vcpu: 0 });
    assert!(masked && error.is_passing(), "{error}");
    go_on(&mut machine);
    told(&mut machine, 0xe8);
    machine.vcpu(0).unwrap().pmu_overflow(None).unwrap();
}

#[test]
fn a_local_apic_that_others_reach_is_not_replaced() {
    let mut machine = architectural(2, driver(), 2);
    for port in 0xe0..=0xe3 {
        told(&mut machine, port);
        if port < 0xe3 {
            go_on(&mut machine);
        }
    }
    let error = refused(&mut machine);
    assert!(
        matches!(error, OverflowError::OthersRun { vcpu: 0 }),
        "{error}"
    );
    machine.pause_all().unwrap();
    machine.vcpu(0).unwrap().pmu_overflow(None).unwrap();
}

#[test]
fn an_overflow_is_masked_in_x2apic_mode_while_others_run() {
    let mut machine = architectural(2, x2apic(), 2);
    told(&mut machine, 0xe0);
    let receipt = machine.vcpu(0).unwrap().pmu_overflow(None).unwrap();
    assert_eq!(receipt.counter, 0);
    go_on(&mut machine);
    assert_eq!(told(&mut machine, 0xe1), 0x1_0400);
}

#[test]
fn what_is_reserved_raises_an_exception() {
    let mut machine = architectural(1, reserved(), 13);
    told(&mut machine, 0xe1);
}

#[test]
fn a_checkpoint_holds_the_counters_and_the_mask() {
    let mut machine = architectural(1, driver(), 2);
    for port in 0xe0..=0xe3 {
        told(&mut machine, port);
        if port < 0xe3 {
            go_on(&mut machine);
        }
    }
    let checkpoint = machine.checkpoint().unwrap();
    machine.vcpu(0).unwrap().pmu_overflow(None).unwrap();
    assert!(!machine.differences(&checkpoint).unwrap().is_empty());
    machine.restore(&checkpoint).unwrap();
    assert_eq!(machine.differences(&checkpoint).unwrap(), [""; 0]);
    machine.vcpu(0).unwrap().pmu_overflow(None).unwrap();
}
