//! The synthetic performance counters of an AMD K7 as a guest sees them, and what is checked before.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::tests_outside_test_module,
    reason = "all of it is a test"
)]

mod guest;

use std::ops::RangeInclusive;

use guest::{ADDRESS, guest, kvm, machine_with, next_stop};
use unwindlab_vmm::{
    BuildError, CounterModel, Kernel, Machine, MachineConfig, OverflowError, Pmu, PmuError, Run,
    Stop, rdpmc_sites,
};

/// Counter 2, for cycles, with interrupt, started at 2^47; then what it holds, by both ways.
const SELECTOR: u32 = 0x53_0076;

guest!(counts:
    "mov ecx, 0xc0010006"
    "xor eax, eax"
    "mov edx, 0x8000"
    "wrmsr"
    "mov ecx, 0xc0010002"
    "mov eax, 0x530076"
    "xor edx, edx"
    "wrmsr"
    "rdmsr"
    "out 0xe0, eax"
    "mov ecx, 0xc0010006"
    "rdmsr"
    "mov ebx, eax"
    "mov eax, edx"
    "out 0xe1, eax"
    "mov ecx, 2"
    "rdpmc"
    "sub eax, ebx"
    "out 0xe2, eax"
    "mov eax, edx"
    "out 0xe3, eax"
    // The local APIC makes NMIs of overflows.
    "mov esi, 0xfee00000"
    "mov dword ptr [rsi + 0xf0], 0x1ff"
    "mov dword ptr [rsi + 0x340], 0x400"
    "out 0xe4, eax"
    "mov ecx, 2"
    "rdpmc"
    "out 0xe5, eax"
    "mov ecx, 9"
    "rdpmc"
    "out 0xe6, eax"
);

guest!(without: "mov ecx, 0xc0010000" "rdmsr" "out 0xe0, eax" "99: jmp 99b");

/// Those of a K7, on a host CPU of any vendor: this guest knows no vendor.
const fn k7(rdpmc: &[u64]) -> Pmu<'_> {
    Pmu::Synthetic {
        rdpmc,
        model: Some(CounterModel::K7),
    }
}

fn synthetic() -> Machine {
    let code = counts();
    let kernel = Kernel::Flat {
        address: ADDRESS,
        code: code.into(),
    };
    let sites = rdpmc_sites(&kernel, &[(ADDRESS, true)]).unwrap();
    assert_eq!(sites.len(), 3);
    let mut machine = machine_with(k7(&sites), 1, code);
    machine.start().unwrap();
    machine
}

/// The value the guest tells at this port.
fn told(machine: &mut Machine, expected: u16) -> u32 {
    match next_stop(machine) {
        Stop::Port { port, value, .. } if port == expected => value,
        other => panic!("{other:x?} instead of port {expected:#x}"),
    }
}

fn go_on(machine: &mut Machine) {
    machine.vcpu(0).unwrap().resume(Run::Continue).unwrap();
}

/// A machine whose code is `RDPMC`.
fn build(pmu: Pmu<'_>, doorbell_ports: RangeInclusive<u16>) -> Result<Machine, BuildError> {
    let config = MachineConfig {
        vcpus: 1,
        memory_mib: 4,
        kernel: Kernel::Flat {
            address: ADDRESS,
            code: [0x0f, 0x33].as_slice().into(),
        },
        initrd: &[],
        cmdline: "",
        doorbell_ports,
        pmu,
    };
    Machine::build(&kvm(), &config)
}

#[test]
fn registers_and_rdpmc_are_answered_and_an_overflow_is_raised() {
    let mut machine = synthetic();
    assert_eq!(told(&mut machine, 0xe0), SELECTOR);
    go_on(&mut machine);
    assert_eq!(told(&mut machine, 0xe1), 0x8000, "the sign bit, and time");
    let refused = machine.vcpu(0).unwrap().pmu_overflow(None).unwrap_err();
    assert!(
        matches!(
            refused,
            OverflowError::NotDelivered {
                vcpu: 0,
                lvtpc: 0x1_0000
            }
        ),
        "{refused}"
    );
    go_on(&mut machine);
    assert!(
        told(&mut machine, 0xe2) > 0,
        "time passes between two reads"
    );
    go_on(&mut machine);
    assert_eq!(told(&mut machine, 0xe3), 0x8000);
    go_on(&mut machine);
    told(&mut machine, 0xe4);
    let mut vcpu = machine.vcpu(0).unwrap();
    let other = vcpu.pmu_overflow(Some(1)).unwrap_err();
    assert!(matches!(other, OverflowError::Disabled { .. }), "{other}");
    assert_eq!(vcpu.nmi_state().unwrap().pending, 0);
    let receipt = vcpu.pmu_overflow(None).unwrap();
    assert_eq!(receipt.counter, 2);
    assert_eq!(vcpu.nmi_state().unwrap(), receipt.nmi.after);
    let again = vcpu.pmu_overflow(None).unwrap_err();
    assert!(
        matches!(again, OverflowError::StillOverflowed { counter: 2, .. }),
        "{again}"
    );
    go_on(&mut machine);
    // The NMI finds no handler in this guest.
    assert_eq!(next_stop(&mut machine), Stop::Shutdown);
}

#[test]
fn a_counter_that_is_not_there_is_told_of() {
    let mut machine = synthetic();
    for port in 0xe0..=0xe5 {
        told(&mut machine, port);
        go_on(&mut machine);
    }
    let Stop::BadAccess { what } = next_stop(&mut machine) else {
        panic!("counter 9 was read");
    };
    assert_eq!(what, "RDPMC of counter 0x9");
}

#[test]
fn a_machine_without_counters_has_none() {
    let mut machine = machine_with(Pmu::None, 1, without());
    let refused = machine.vcpu(0).unwrap().pmu_overflow(None).unwrap_err();
    assert!(matches!(refused, OverflowError::NoPmu));
    machine.start().unwrap();
    assert_eq!(told(&mut machine, 0xe0), 0, "KVM's own answer");
}

#[test]
fn sites_and_ports_are_checked_before_anything_runs() {
    let wrong = build(k7(&[ADDRESS + 1]), 0xe0..=0xe0).unwrap_err();
    assert!(
        wrong.to_string().contains("no RDPMC at 0x100001"),
        "{wrong}"
    );
    let port = build(k7(&[ADDRESS]), 0xf0..=0xf6).unwrap_err();
    assert!(port.to_string().contains("0xf6"), "{port}");
    let traps = build(Pmu::None, 0xf0..=0xff).unwrap_err();
    assert!(traps.to_string().contains("0xf7"), "{traps}");
    build(k7(&[ADDRESS]), 0xe0..=0xe0).unwrap();
    match build(Pmu::Host, 0xe0..=0xe0) {
        Ok(_) => {}
        Err(error) => assert!(error.to_string().contains(&PmuError::NoHostPmu.to_string())),
    }
}

#[test]
fn the_hosts_vendor_decides_unless_told_otherwise() {
    let of_the_host = Pmu::Synthetic {
        rdpmc: &[],
        model: None,
    };
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let has = |vendor| cpuinfo.contains(vendor);
    let built = build(of_the_host, 0xe0..=0xe0);
    let msr = match built {
        Ok(machine) => [0xc001_0004, 0x38f].map(|msr| machine.has_counter_msr(msr)),
        Err(refused) => {
            assert!(
                refused.to_string().contains("AMD's and Intel's"),
                "{refused}"
            );
            [false; 2]
        }
    };
    let amd = has("AuthenticAMD") || has("HygonGenuine");
    assert_eq!(msr, [amd, has("GenuineIntel")]);
    let none = build(Pmu::None, 0xe0..=0xe0).unwrap();
    assert!(!none.has_counter_msr(0xc001_0004) && !none.has_counter_msr(0x38f));
}

#[test]
fn a_checkpoint_holds_the_counters() {
    let mut machine = synthetic();
    for port in 0xe0..=0xe3 {
        told(&mut machine, port);
        go_on(&mut machine);
    }
    told(&mut machine, 0xe4);
    let checkpoint = machine.checkpoint().unwrap();
    machine.vcpu(0).unwrap().pmu_overflow(None).unwrap();
    assert!(!machine.differences(&checkpoint).unwrap().is_empty());
    machine.restore(&checkpoint).unwrap();
    assert_eq!(machine.differences(&checkpoint).unwrap(), [""; 0]);
    machine.vcpu(0).unwrap().pmu_overflow(None).unwrap();
}
