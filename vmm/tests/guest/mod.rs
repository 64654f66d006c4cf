//! Tiny guests for tests: machine code without a kernel, written in assembler.
//!
//! They are entered as a kernel is: 64-bit mode, 4 GiB mapped to themselves, interrupts off,
//! a stack. They talk by the doorbell ports 0xe0 to 0xef, which `out imm8, eax` reaches.

#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::tests_outside_test_module,
    reason = "all of it is for tests, and each test program uses a part of it"
)]

use std::borrow::Cow;
use std::fmt::Display;
use std::io::Write;
use std::time::Duration;

use unwindlab_vmm::checks::{self, Effort, Lab, Verdict};
use unwindlab_vmm::{Kernel, Kvm, Machine, MachineConfig, Pmu, Stop, open_kvm};

/// The doorbell most guests use.
pub const BELL: u16 = 0xe0;
/// Where the guests lie.
pub const ADDRESS: u64 = 0x10_0000;
/// Longer than anything a healthy guest needs, on an emulated and busy host too.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Defines a function that gives the code assembled from the lines.
macro_rules! guest {
    ($name:ident: $($line:literal)+) => {
        // The code's length, and the code right behind it.
        std::arch::global_asm!(
            ".pushsection .rodata.guest, \"a\", @progbits",
            ".balign 8",
            concat!(".globl guest_", stringify!($name)),
            concat!("guest_", stringify!($name), ":"),
            ".quad 999f - 998f",
            "998:",
            $($line,)+
            "999:",
            ".popsection",
        );
        fn $name() -> &'static [u8] {
            unsafe extern "C" {
                #[link_name = concat!("guest_", stringify!($name))]
                static LENGTH: u64;
            }
            // SAFETY: the assembler puts the length there, and that many bytes behind it.
            unsafe {
                let code = (&raw const LENGTH).add(1).cast::<u8>();
                std::slice::from_raw_parts(code, usize::try_from(LENGTH).unwrap())
            }
        }
    };
}
pub(crate) use guest;

/// /dev/kvm, without which these tests can say nothing: they fail then, and say why.
pub fn kvm() -> Kvm {
    open_kvm().unwrap_or_else(|error| panic!("these tests need KVM: {error}"))
}

/// A machine with 4 MiB that has `code` to run.
pub fn machine(vcpus: u8, code: &[u8]) -> Machine {
    machine_with(Pmu::None, vcpus, code)
}

/// The same with performance counters.
pub fn machine_with(pmu: Pmu<'_>, vcpus: u8, code: &[u8]) -> Machine {
    let config = MachineConfig {
        vcpus,
        memory_mib: 4,
        kernel: Kernel::Flat {
            address: ADDRESS,
            code: Cow::Borrowed(code),
        },
        initrd: &[],
        cmdline: "",
        doorbell_ports: 0xe0..=0xef,
        pmu,
    };
    Machine::build(&kvm(), &config).unwrap()
}

/// A machine that runs `code` already.
pub fn started(vcpus: u8, code: &[u8]) -> Machine {
    let mut machine = machine(vcpus, code);
    machine.start().unwrap();
    machine
}

/// The next stop of vCPU 0, which must be the only one that stops.
pub fn next_stop(machine: &mut Machine) -> Stop {
    let event = machine.next_event(PATIENCE).expect("the guest is silent");
    assert_eq!(event.vcpu, 0);
    event.stop
}

/// Where guests with an interrupt table expect it; its handlers are 256 bytes apart, the
/// first 256 bytes behind the start of the guest.
const INTERRUPT_TABLE: u64 = 0x20_0000;

/// Writes an interrupt table: the n-th of `vectors` goes to the guest's n-th handler.
pub fn write_interrupt_table(machine: &Machine, vectors: &[u64]) {
    for (index, vector) in (1..).zip(vectors) {
        let handler = ADDRESS + 0x100 * index;
        // Code segment 0x10; present, interrupt gate.
        let gate = handler & 0xffff | 0x10 << 16 | 0x8e00 << 32 | (handler >> 16 & 0xffff) << 48;
        let at = INTERRUPT_TABLE + 16 * vector;
        machine.memory().store_u64(at, gate).unwrap();
        machine.memory().store_u64(at + 8, 0).unwrap();
    }
    let pointer = INTERRUPT_TABLE - 16;
    let mut bytes = vec![0xff, 0x0f];
    bytes.extend(INTERRUPT_TABLE.to_le_bytes());
    machine.memory().write(pointer, &bytes).unwrap();
}

/// Makes a test of each check of the VMM's that is named.
macro_rules! tests {
    ($($name:ident)+) => {
        $(
            #[test]
            fn $name() {
                $crate::guest::check(stringify!($name));
            }
        )+
    };
}
pub(crate) use tests;

/// Longer than a check takes, on an emulated and busy host too.
const LIMIT: Duration = Duration::from_secs(120);

/// Makes a check, in full; where it needs more than this KVM has, says so.
pub fn check(name: &str) {
    let lab =
        Lab::open(Effort::Full).unwrap_or_else(|error| panic!("these tests need KVM: {error}"));
    let check = checks::all().find(|it| it.name == name).unwrap();
    match check.run(&lab, LIMIT) {
        Verdict::Ok => {}
        Verdict::Failed(failure) => panic!("{failure}"),
        Verdict::NotAvailable(why) => match lab.unfit() {
            Some(unfit) => skipped(&format_args!("{why}; {unfit}")),
            None => skipped(&why),
        },
    }
}

/// Says why this test ends here, past the test harness, which swallows the output of tests that pass.
pub fn skipped(reason: &impl Display) {
    let mut terminal = std::io::stderr();
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("test");
    writeln!(terminal, "SKIPPED {test}: {reason}").unwrap();
}
