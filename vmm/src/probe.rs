//! Finds out whether a KVM can run an unmodified kernel.
//!
//! A version number does not tell: some clouds offer a paravirtual /dev/kvm that runs an unmodified
//! kernel in an instruction emulator, which lacks instructions that kernels use. So a small guest
//! tries them. It announces each step before it takes it; the last announcement names the step that
//! does not work.

use std::arch::global_asm;
use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, Instant};

use kvm_ioctls::Kvm;

use crate::boot::Kernel;
use crate::machine::{BuildError, Machine, MachineConfig, VcpuHandle};
use crate::memory::MIN_MEMORY_MIB;
use crate::pmu::Pmu;
use crate::vcpu::{Run, Stop};

/// Time limit of the probe. It takes milliseconds, on an emulated host too; a KVM that needs longer
/// is useless.
const LIMIT: Duration = Duration::from_secs(10);
/// Address of the code.
const ADDRESS: u64 = 0x10_0000;
/// The guest writes the number of the next step to this port...
const STEP_PORT: u16 = 0xe9;
/// ... the address of its breakpoint to this one...
const BREAKPOINT_PORT: u16 = 0xea;
/// ... and the number of a step with a wrong result to this one.
const WRONG_PORT: u16 = 0xeb;

/// The steps of the guest, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// The first 64-bit instructions.
    Enter,
    /// `int3` through an interrupt descriptor table, and `iretq`.
    Int3,
    /// `cmpxchg16b`.
    Cmpxchg16b,
    /// `xsetbv`, `xsave64`, `xrstor64`.
    Xsave,
    /// `wrmsr` and `rdmsr` of the registers for system calls.
    Msr,
    /// A shift of BMI2, if CPUID offers it.
    Bmi2,
    /// An NMI that is injected while the vCPU is stopped, and taken exactly once.
    Nmi,
    /// A hardware breakpoint, and a single step from it.
    Breakpoint,
    /// All steps are done.
    End,
}

const STEPS: [Step; 9] = [
    Step::Enter,
    Step::Int3,
    Step::Cmpxchg16b,
    Step::Xsave,
    Step::Msr,
    Step::Bmi2,
    Step::Nmi,
    Step::Breakpoint,
    Step::End,
];

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Enter => "entering 64-bit mode",
            Self::Int3 => "int3",
            Self::Cmpxchg16b => "cmpxchg16b",
            Self::Xsave => "xsave and xrstor",
            Self::Msr => "wrmsr and rdmsr",
            Self::Bmi2 => "a BMI2 shift",
            Self::Nmi => "an injected NMI",
            Self::Breakpoint => "a hardware breakpoint",
            Self::End => "the end of the probe",
        })
    }
}

/// How a step failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The vCPU stopped.
    Stopped(Stop),
    /// The step had a wrong result.
    WrongResult,
    /// The guest did nothing until the time limit.
    Silent,
    /// The VMM's part of the step failed.
    Refused(String),
}

/// Result of the probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeReport {
    /// The step that failed, and how; `None` if none did.
    pub failed: Option<(Step, Failure)>,
}

impl ProbeReport {
    /// Whether this KVM can run an unmodified kernel.
    pub fn is_usable(&self) -> bool {
        self.failed.is_none()
    }
}

impl fmt::Display for ProbeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((step, failure)) = &self.failed else {
            return f.write_str("KVM can run an unmodified kernel");
        };
        write!(f, "KVM fails at {step}: ")?;
        match failure {
            Failure::Stopped(Stop::InternalError {
                suberror: 1,
                pc,
                code,
                ..
            }) => {
                write!(f, "its emulator does not know the instruction at {pc:#x}:")?;
                code.iter().try_for_each(|byte| write!(f, " {byte:02x}"))
            }
            Failure::Stopped(Stop::Shutdown) => f.write_str("triple fault"),
            Failure::Stopped(stop) => write!(f, "{stop:?}"),
            Failure::WrongResult => f.write_str("wrong result"),
            Failure::Silent => write!(f, "nothing happened for {} s", LIMIT.as_secs()),
            Failure::Refused(reason) => f.write_str(reason),
        }
    }
}

/// Runs the probe guest. Takes at most a few seconds, whatever KVM does.
pub fn probe(kvm: &Kvm) -> Result<ProbeReport, BuildError> {
    let mut machine = Machine::build(
        kvm,
        &MachineConfig {
            vcpus: 1,
            memory_mib: MIN_MEMORY_MIB,
            kernel: Kernel::Flat {
                address: ADDRESS,
                code: Cow::Borrowed(code()),
            },
            initrd: &[],
            cmdline: "",
            doorbell_ports: STEP_PORT..=WRONG_PORT,
            pmu: Pmu::None,
        },
    )?;
    let mut current = Step::Enter;
    let failed = follow(&mut machine, &mut current)
        .err()
        .map(|failure| (current, failure));
    // KVM waits for readers of its lists there (`kvm_destroy_vm()`, virt/kvm/kvm_main.c): 20 ms, in which nobody needs to wait.
    // Without a thread the machine is dropped here.
    let _ = std::thread::Builder::new().spawn(move || drop(machine));
    Ok(ProbeReport { failed })
}

/// Follows the guest from step to step; `current` is the last one announced.
fn follow(machine: &mut Machine, current: &mut Step) -> Result<(), Failure> {
    let deadline = Instant::now() + LIMIT;
    machine.start().map_err(refused)?;
    loop {
        let stop = next_stop(machine, deadline)?;
        let Stop::Port { port, value, .. } = stop else {
            return Err(Failure::Stopped(stop));
        };
        let mut vcpu = machine
            .vcpu(0)
            .ok_or_else(|| Failure::Refused("no vCPU".to_owned()))?;
        match port {
            STEP_PORT => {
                let step = usize::try_from(value)
                    .ok()
                    .and_then(|value| STEPS.get(value));
                *current = *step.ok_or(Failure::WrongResult)?;
            }
            BREAKPOINT_PORT => {
                through_breakpoint(machine, u64::from(value), deadline)?;
                continue;
            }
            _ => return Err(Failure::WrongResult),
        }
        match current {
            Step::End => return Ok(()),
            Step::Nmi => drop(vcpu.inject_nmi().map_err(refused)?),
            _ => {}
        }
        go_on(&mut vcpu, Run::Continue)?;
    }
}

/// Expects a stop at the `nop` at `address`, and another after one step.
fn through_breakpoint(
    machine: &mut Machine,
    address: u64,
    deadline: Instant,
) -> Result<(), Failure> {
    let expected = [
        (Run::Continue, Stop::Breakpoint { pc: address }),
        (Run::Step, Stop::Stepped { pc: address + 1 }),
    ];
    for (run, expected) in expected {
        with_breakpoint(machine, &[address], run)?;
        let stop = next_stop(machine, deadline)?;
        if stop != expected {
            return Err(Failure::Stopped(stop));
        }
    }
    with_breakpoint(machine, &[], Run::Continue)
}

fn with_breakpoint(machine: &mut Machine, addresses: &[u64], run: Run) -> Result<(), Failure> {
    let mut vcpu = machine
        .vcpu(0)
        .ok_or_else(|| Failure::Refused("no vCPU".to_owned()))?;
    vcpu.set_breakpoints(addresses).map_err(refused)?;
    go_on(&mut vcpu, run)
}

fn go_on(vcpu: &mut VcpuHandle<'_>, run: Run) -> Result<(), Failure> {
    vcpu.resume(run).map_err(refused)
}

fn next_stop(machine: &mut Machine, deadline: Instant) -> Result<Stop, Failure> {
    let left = deadline.saturating_duration_since(Instant::now());
    machine
        .next_event(left)
        .map(|event| event.stop)
        .ok_or(Failure::Silent)
}

fn refused(error: impl fmt::Display) -> Failure {
    Failure::Refused(error.to_string())
}

unsafe extern "C" {
    static vmm_probe_start: u8;
    static vmm_probe_end: u8;
}

/// The guest's code. It is position-independent: all its addresses are relative.
fn code() -> &'static [u8] {
    let (start, end) = (&raw const vmm_probe_start, &raw const vmm_probe_end);
    // SAFETY: the assembler places both symbols in one section, the second behind the first,
    // with initialised read-only bytes between them.
    unsafe { std::slice::from_raw_parts(start, end.byte_offset_from_unsigned(start)) }
}

global_asm!(
    ".pushsection .rodata.vmm_probe, \"a\", @progbits",
    ".balign 16",
    ".globl vmm_probe_start, vmm_probe_end",
    // Announces step \number.
    ".macro vmm_probe_step number",
    "    mov r15d, \\number",
    "    mov eax, r15d",
    "    out {step}, eax",
    ".endm",
    // Makes \handler the interrupt handler of \vector.
    ".macro vmm_probe_gate vector, handler",
    "    lea rax, [rip + \\handler]",
    "    lea rbx, [rip + vmm_probe_idt + 16 * \\vector]",
    "    mov [rbx], ax",
    "    mov word ptr [rbx + 2], cs",
    "    mov word ptr [rbx + 4], 0x8e00",
    "    shr rax, 16",
    "    mov [rbx + 6], ax",
    "    shr rax, 16",
    "    mov [rbx + 8], eax",
    ".endm",
    "vmm_probe_start:",
    "    vmm_probe_step 0",
    "    lea rax, [rip + vmm_probe_idt]",
    "    mov [rip + vmm_probe_idt_base], rax",
    "    vmm_probe_gate 2, vmm_probe_handler",
    "    vmm_probe_gate 3, vmm_probe_handler",
    "    lidt [rip + vmm_probe_idt_limit]",
    "    vmm_probe_step 1",
    "    xor ebp, ebp",
    "    int3",
    "    cmp ebp, 1",
    "    jne vmm_probe_wrong",
    "    vmm_probe_step 2",
    "    mov rsi, {scratch}",
    "    xor eax, eax",
    "    xor edx, edx",
    "    mov ebx, 0x1234",
    "    mov ecx, 0x5678",
    "    lock cmpxchg16b [rsi]",
    "    jne vmm_probe_wrong",
    "    cmp qword ptr [rsi + 8], 0x5678",
    "    jne vmm_probe_wrong",
    "    vmm_probe_step 3",
    // XSAVE is leaf 1, ECX bit 26; CR4 bits 9 and 18 switch it on.
    "    mov eax, 1",
    "    cpuid",
    "    bt ecx, 26",
    "    jnc 2f",
    "    mov rax, cr4",
    "    or eax, 0x40200",
    "    mov cr4, rax",
    "    mov eax, 3",
    "    xor edx, edx",
    "    xor ecx, ecx",
    "    xsetbv",
    "    add rsi, 64",
    "    xsave64 [rsi]",
    "    xrstor64 [rsi]",
    "2:  vmm_probe_step 4",
    // STAR and LSTAR.
    "    mov ecx, 0xc0000081",
    "    mov eax, 0",
    "    mov edx, 0x00230010",
    "    wrmsr",
    "    mov ecx, 0xc0000082",
    "    mov eax, 0x81001000",
    "    mov edx, 0xffffffff",
    "    wrmsr",
    "    rdmsr",
    "    cmp eax, 0x81001000",
    "    jne vmm_probe_wrong",
    "    vmm_probe_step 5",
    // BMI2 is leaf 7, EBX bit 8; CPUID's highest leaf is at least 7 if it is offered.
    "    xor eax, eax",
    "    cpuid",
    "    cmp eax, 7",
    "    jb 2f",
    "    mov eax, 7",
    "    xor ecx, ecx",
    "    cpuid",
    "    bt ebx, 8",
    "    jnc 2f",
    "    mov eax, 3",
    "    mov ecx, 4",
    "    shlx rax, rax, rcx",
    "    cmp rax, 48",
    "    jne vmm_probe_wrong",
    "2:  xor ebp, ebp",
    "    vmm_probe_step 6",
    // The VMM injects the NMI while the vCPU is stopped for the announcement.
    "    cmp ebp, 1",
    "    jne vmm_probe_wrong",
    "    vmm_probe_step 7",
    "    lea eax, [rip + 2f]",
    "    out {breakpoint}, eax",
    "2:  nop",
    "    vmm_probe_step 8",
    "    hlt",
    "vmm_probe_wrong:",
    "    mov eax, r15d",
    "    out {wrong}, eax",
    "    hlt",
    "vmm_probe_handler:",
    "    inc ebp",
    "    iretq",
    ".balign 16",
    "vmm_probe_idt: .skip 16 * 4",
    ".skip 6",
    "vmm_probe_idt_limit: .word 16 * 4 - 1",
    "vmm_probe_idt_base: .quad 0",
    "vmm_probe_end:",
    ".purgem vmm_probe_step",
    ".purgem vmm_probe_gate",
    ".popsection",
    step = const STEP_PORT,
    breakpoint = const BREAKPOINT_PORT,
    wrong = const WRONG_PORT,
    scratch = const ADDRESS + 0x1_0000,
);
