//! What the checks work with: tiny guests, written in assembler, and the machines that run them.
//!
//! Guests are entered as a kernel is: 64-bit mode, 4 GiB mapped to themselves, interrupts off,
//! a stack. They talk by the doorbell ports 0xe0 to 0xef, which `out imm8, eax` reaches.

use std::borrow::Cow;
use std::sync::OnceLock;
use std::time::Duration;

use super::failure::{Failure, Outcome, some};
use crate::kvm::{OpenKvmError, open_kvm};
use crate::machine::{BuildError, Machine, MachineConfig, VcpuHandle};
use crate::pmu::Pmu;
use crate::probe::probe;
use crate::vcpu::{Run, Stop};
use crate::{Kernel, Memory};

/// The doorbell most guests use.
pub(super) const BELL: u16 = 0xe0;
/// Where the guests lie.
pub(super) const ADDRESS: u64 = 0x10_0000;
/// Longer than anything a healthy guest needs, on an emulated and busy host too.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// Where guests with an interrupt table expect it; its handlers are 256 bytes apart, the
/// first 256 bytes behind the start of the guest.
const INTERRUPT_TABLE: u64 = 0x20_0000;

super::checks! {
    Machines: this_kvm_runs_kernel_code;
}

/// How much is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// What a test does.
    Full,
    /// A tenth of the rounds of checks that repeat something, so that all checks end within a minute.
    Quick,
}

/// The KVM that is checked, and how much is done.
#[derive(Debug, Clone)]
pub struct Lab {
    effort: Effort,
    /// Why it runs no kernel code, if it does not.
    unfit: Option<String>,
}

/// Why nothing can be checked.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// There is no KVM.
    #[error(transparent)]
    Open(#[from] OpenKvmError),
    /// It runs no machine of ours.
    #[error("cannot build the probe's machine: {0}")]
    Build(#[from] BuildError),
}

impl Lab {
    /// Of /dev/kvm, which is probed.
    ///
    /// # Errors
    /// [`LabError`].
    pub fn open(effort: Effort) -> Result<Self, LabError> {
        let report = probe(&open_kvm()?)?;
        let unfit = (!report.is_usable()).then(|| report.to_string());
        Ok(Self { effort, unfit })
    }

    /// Of a KVM that runs no kernel code, for this reason.
    #[cfg(test)]
    pub(super) fn of_unfit(why: &str) -> Self {
        Self {
            effort: Effort::Quick,
            unfit: Some(why.to_owned()),
        }
    }

    /// Why this KVM runs no kernel code, if it does not.
    #[must_use]
    pub fn unfit(&self) -> Option<&str> {
        self.unfit.as_deref()
    }

    /// How often something is repeated.
    pub(super) fn rounds(&self, full: u32) -> u32 {
        match self.effort {
            Effort::Full => full,
            Effort::Quick => full.div_ceil(10),
        }
    }
}

fn this_kvm_runs_kernel_code(lab: &Lab) -> Outcome {
    match &lab.unfit {
        None => Ok(()),
        Some(why) => Err(Failure::unexpected(
            why,
            "an unmodified kernel could run, by the probe",
        )),
    }
}

/// Defines a function that gives the code assembled from the lines.
macro_rules! guest {
    ($name:ident: $($line:literal)+) => {
        // Labels 998 and 999: the code's start and end.
        std::arch::global_asm!(
            ".pushsection .rodata.guest, \"a\", @progbits",
            ".balign 8",
            concat!(".globl vmm_check_", stringify!($name), ", vmm_check_", stringify!($name), "_end"),
            concat!("vmm_check_", stringify!($name), ":"),
            // Switches the local APIC on, in x2APIC mode.
            ".macro x2apic",
            "mov ecx, 0x1b",
            "rdmsr",
            "or eax, 0xc00",
            "wrmsr",
            "xor edx, edx",
            "mov ecx, 0x80f",
            "mov eax, 0x1ff",
            "wrmsr",
            ".endm",
            // Goes on in the upper half, where memory is mapped once more.
            ".macro upper_half",
            "mov rax, cr3",
            "mov rbx, [rax]",
            "mov [rax + 0xff8], rbx",
            "lea rax, [rip + 997f]",
            "mov rbx, 0xffffff8000000000",
            "or rax, rbx",
            "jmp rax",
            "997:",
            ".endm",
            "998:",
            $($line,)+
            concat!("999: vmm_check_", stringify!($name), "_end:"),
            ".purgem x2apic",
            ".purgem upper_half",
            ".popsection",
        );
        fn $name() -> &'static [u8] {
            unsafe extern "C" {
                #[link_name = concat!("vmm_check_", stringify!($name))]
                static START: u8;
                #[link_name = concat!("vmm_check_", stringify!($name), "_end")]
                static END: u8;
            }
            let (start, end) = (&raw const START, &raw const END);
            // SAFETY: the assembler places both symbols in one section, the second behind the first,
            // with initialised read-only bytes between them.
            unsafe { std::slice::from_raw_parts(start, end.byte_offset_from_unsigned(start)) }
        }
    };
}
pub(super) use guest;

/// A machine with 4 MiB that has `code` to run.
pub(super) fn machine(vcpus: u8, code: &[u8]) -> Result<Machine, Failure> {
    machine_with(4, Pmu::None, vcpus, code)
}

/// The same with so many MiB, and with performance counters.
pub(super) fn machine_with(
    memory_mib: u32,
    pmu: Pmu<'_>,
    vcpus: u8,
    code: &[u8],
) -> Result<Machine, Failure> {
    // One for all: a process has a limited number of descriptors, and an overdue check keeps its own.
    static KVM: OnceLock<crate::Kvm> = OnceLock::new();
    let kvm = match KVM.get() {
        Some(kvm) => kvm,
        None => {
            let opened = open_kvm()?;
            KVM.get_or_init(|| opened)
        }
    };
    let config = MachineConfig {
        vcpus,
        memory_mib,
        kernel: Kernel::Flat {
            address: ADDRESS,
            code: Cow::Borrowed(code),
        },
        initrd: &[],
        cmdline: "",
        doorbell_ports: 0xe0..=0xef,
        pmu,
    };
    Ok(Machine::build(kvm, &config)?)
}

/// A machine that runs `code` already.
pub(super) fn started(vcpus: u8, code: &[u8]) -> Result<Machine, Failure> {
    let mut machine = machine(vcpus, code)?;
    machine.start()?;
    Ok(machine)
}

/// vCPU 0.
#[track_caller]
pub(super) fn vcpu(machine: &mut Machine) -> Result<VcpuHandle<'_>, Failure> {
    some(machine.vcpu(0), "vCPU 0")
}

/// The next stop of vCPU 0, which must be the only one that stops.
#[track_caller]
pub(super) fn next_stop(machine: &mut Machine) -> Result<Stop, Failure> {
    match machine.next_event(PATIENCE) {
        None => Err(Failure::unexpected("a silent guest", "a stop of vCPU 0")),
        Some(event) if event.vcpu == 0 => Ok(event.stop),
        Some(event) => Err(Failure::unexpected(format!("{event:x?}"), "vCPU 0's stop")),
    }
}

/// Has vCPU 0 go on.
#[track_caller]
pub(super) fn resume(machine: &mut Machine, run: Run) -> Result<(), Failure> {
    match vcpu(machine)?.resume(run) {
        Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Has vCPU 0 go on to its next stop.
#[track_caller]
pub(super) fn run(machine: &mut Machine, run: Run) -> Result<Stop, Failure> {
    match resume(machine, run) {
        Ok(()) => next_stop(machine),
        Err(failure) => Err(failure),
    }
}

/// Takes a step; where it ended.
pub(super) fn step(machine: &mut Machine) -> Result<u64, Failure> {
    match run(machine, Run::Step)? {
        Stop::Stepped { pc } => Ok(pc),
        stop => Err(Failure::unexpected(format!("{stop:x?}"), "a step")),
    }
}

/// At the first instruction of a handler: the one that was interrupted.
pub(super) fn interrupted(machine: &mut Machine) -> Result<u64, Failure> {
    let vcpu = vcpu(machine)?;
    let mut frame = [0; 8];
    vcpu.read_virt(vcpu.regs()?.rsp, &mut frame)?;
    Ok(u64::from_le_bytes(frame))
}

/// The machine's memory at an address.
pub(super) fn bytes<const N: usize>(memory: &Memory, address: u64) -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    memory.read(address, &mut bytes)?;
    Ok(bytes)
}

/// Writes an interrupt table: the n-th of `vectors` goes to the guest's n-th handler.
pub(super) fn write_interrupt_table(machine: &Machine, vectors: &[u64]) -> Outcome {
    for (index, vector) in (1..).zip(vectors) {
        let handler = ADDRESS + 0x100 * index;
        // Code segment 0x10; present, interrupt gate.
        let gate = handler & 0xffff | 0x10 << 16 | 0x8e00 << 32 | (handler >> 16 & 0xffff) << 48;
        let at = INTERRUPT_TABLE + 16 * vector;
        machine.memory().store_u64(at, gate)?;
        machine.memory().store_u64(at + 8, 0)?;
    }
    let pointer = INTERRUPT_TABLE - 16;
    let mut bytes = vec![0xff, 0x0f];
    bytes.extend(INTERRUPT_TABLE.to_le_bytes());
    machine.memory().write(pointer, &bytes)?;
    Ok(())
}
