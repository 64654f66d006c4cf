//! Ticks that are late.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::tests_outside_test_module,
    reason = "all of it is a test"
)]

mod guest;

use std::time::Duration;

use guest::{guest, next_stop, started};
use unwindlab_vmm::{Machine, Run, Stop};

const MSR_TSC_DEADLINE: u32 = 0x6e0;

// Arms the LAPIC's timer in deadline mode, far away, and rings; then for now, rings after a while, and stays. Interrupts
// are off all the time.
guest!(clockmaker:
    "mov ecx, 0x1b"
    "rdmsr"
    "or eax, 0xc00"
    "wrmsr"
    "xor edx, edx"
    "mov ecx, 0x80f"
    "mov eax, 0x1ff"
    "wrmsr"
    "mov ecx, 0x832"
    "mov eax, 0x40030"
    "wrmsr"
    "out 0xe0, eax"
    "rdtsc"
    "add edx, 2"
    "mov ecx, 0x6e0"
    "wrmsr"
    "out 0xe0, eax"
    "rdtsc"
    "wrmsr"
    "mov ecx, 20000"
    "3: pause"
    "loop 3b"
    "2: out 0xe0, eax"
    "jmp 2b"
);

fn ring(machine: &mut Machine) {
    assert!(matches!(next_stop(machine), Stop::Port { .. }));
}

fn go_on(machine: &mut Machine) {
    machine.vcpu(0).unwrap().resume(Run::Continue).unwrap();
    ring(machine);
}

fn deadline(machine: &mut Machine) -> u64 {
    machine.vcpu(0).unwrap().msr(MSR_TSC_DEADLINE).unwrap()
}

#[test]
fn a_timer_that_is_armed_is_postponed_and_an_interrupt_under_way_is_seen() {
    let mut machine = started(1, clockmaker());
    ring(&mut machine);
    assert_eq!(deadline(&mut machine), 0, "not armed");
    machine.postpone_timers(Duration::from_secs(1000)).unwrap();
    assert_eq!(deadline(&mut machine), 0, "not armed");

    go_on(&mut machine);
    let armed = deadline(&mut machine);
    machine.postpone_timers(Duration::from_millis(1)).unwrap();
    assert_eq!(deadline(&mut machine), armed, "it is later than that");
    machine.postpone_timers(Duration::from_secs(1000)).unwrap();
    assert!(deadline(&mut machine) > armed);
    assert!(!machine.vcpu(0).unwrap().irq_pending().unwrap());

    go_on(&mut machine);
    assert!(machine.vcpu(0).unwrap().irq_pending().unwrap());
    machine.postpone_timers(Duration::from_secs(1000)).unwrap();
    assert!(machine.vcpu(0).unwrap().irq_pending().unwrap(), "it waits");
    let before = machine.vcpu(0).unwrap().msr(MSR_TSC_DEADLINE).unwrap();
    assert_eq!(before, 0, "it has fired");
    let late = Duration::from_secs(1000);
    machine.vcpu(0).unwrap().take_back_timer(late).unwrap();
    assert!(!machine.vcpu(0).unwrap().irq_pending().unwrap());
    assert!(deadline(&mut machine) > armed, "it comes later");
}

#[test]
fn clocks_that_go_on_take_the_timer_with_them() {
    const FURTHER: u64 = 1 << 40;
    const MSR_TSC: u32 = 0x10;
    let mut machine = started(1, clockmaker());
    ring(&mut machine);
    go_on(&mut machine);
    let armed = deadline(&mut machine);
    let before = machine.vcpu(0).unwrap().msr(MSR_TSC).unwrap();
    machine.advance_clocks(0, before + FURTHER).unwrap();
    // (The TSC itself stays on a paravirtual KVM, which takes the offset and ignores it.)
    let moved = deadline(&mut machine);
    assert!((armed + 1..=armed + FURTHER).contains(&moved), "{moved}");
    machine.advance_clocks(0, before).unwrap();
    assert_eq!(deadline(&mut machine), moved, "it is not put back");
}
