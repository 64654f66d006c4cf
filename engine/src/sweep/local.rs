//! Which instructions of the kernel touch nothing that an NMI's handler touches.
//!
//! Such an instruction reads and writes general registers and arithmetic flags only. The handler gives those
//! back as they were, so it makes no difference whether an NMI comes before such an instruction or behind it:
//! what the handler reads and writes in memory is the same, and so is what the instruction does. (This is the
//! independence of partial order reduction: Godefroid, "Partial-Order Methods for the Verification of
//! Concurrent Systems", LNCS 1032, chapter 3.) One of the two boundaries is enough.
//!
//! What differs is the address that the handler came from, and the registers that it finds. A kernel that
//! decides by them would be missed: one whose handler does not give a register back that is dead behind the
//! instruction, or that tells the two addresses apart. Linux looks for addresses of whole stretches of its
//! entry code (`repeat_nmi` in arch/x86/entry/entry_64.S); jumps away count as not local, so that such
//! stretches, and functions, do not stand for one another.

use iced_x86::{
    CpuidFeature, FlowControl, Instruction, InstructionInfoFactory, OpAccess, Register, RflagsBits,
};
use unwindlab_vmm::VcpuHandle;

use super::user::decoded;

/// Flags that arithmetic sets.
const ARITHMETIC: u32 = RflagsBits::OF
    | RflagsBits::SF
    | RflagsBits::ZF
    | RflagsBits::AF
    | RflagsBits::CF
    | RflagsBits::PF;
/// What the instructions may need. Those that read clocks, counters or the CPU's identity, serialize, or wait
/// need others.
const PLAIN: [CpuidFeature; 9] = [
    CpuidFeature::INTEL8086,
    CpuidFeature::INTEL186,
    CpuidFeature::INTEL386,
    CpuidFeature::INTEL486,
    CpuidFeature::X64,
    CpuidFeature::CMOV,
    CpuidFeature::BMI1,
    CpuidFeature::BMI2,
    CpuidFeature::MULTIBYTENOP,
];

/// Whether the instruction of the kernel at this address is local.
pub(super) fn at(vcpu: &VcpuHandle<'_>, address: u64) -> bool {
    is_local(&decoded(vcpu, address, 64))
}

fn is_local(instruction: &Instruction) -> bool {
    let flow = matches!(
        instruction.flow_control(),
        FlowControl::Next | FlowControl::ConditionalBranch
    );
    let is_plain = |feature| PLAIN.contains(feature);
    flow && !instruction.is_invalid()
        && !instruction.is_privileged()
        && instruction.rflags_modified() & !ARITHMETIC == 0
        && instruction.cpuid_features().iter().all(is_plain)
        && stays_in_registers(instruction)
}

/// Whether it accesses general registers only, and leaves those of the stack alone.
fn stays_in_registers(instruction: &Instruction) -> bool {
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(instruction);
    let is_fine = |register: Register, access| {
        let written = !matches!(access, OpAccess::Read | OpAccess::CondRead);
        let whole = register.full_register();
        whole.is_gpr64() && !(written && matches!(whole, Register::RSP | Register::RBP))
    };
    info.used_memory().is_empty() && { info.used_registers().iter() }
        .all(|it| is_fine(it.register(), it.access()))
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions};

    use super::*;

    fn check(expected: bool, all: &[(&str, &[u8])]) {
        for (text, code) in all {
            let instruction = Decoder::new(64, code, DecoderOptions::NONE).decode();
            assert_eq!(is_local(&instruction), expected, "{text}");
        }
    }

    #[test]
    fn what_stays_in_general_registers_is_local() {
        check(
            true,
            &[
                ("mov %rdi,%rbx", &[0x48, 0x89, 0xfb]),
                ("xor %eax,%eax", &[0x31, 0xc0]),
                ("lea 0x8(%rsp),%rdi", &[0x48, 0x8d, 0x7c, 0x24, 0x08]),
                ("test %rax,%rax", &[0x48, 0x85, 0xc0]),
                ("je .+2", &[0x74, 0x00]),
                ("cmove %rax,%rdx", &[0x48, 0x0f, 0x44, 0xd0]),
                ("nopl 0x0(%rax,%rax,1)", &[0x0f, 0x1f, 0x44, 0x00, 0x00]),
                ("mov %rsp,%rdi", &[0x48, 0x89, 0xe7]),
                ("div %rcx", &[0x48, 0xf7, 0xf1]),
            ],
        );
    }

    #[test]
    fn what_reaches_memory_or_the_machine_is_not() {
        check(
            false,
            &[
                ("mov (%rdi),%rax", &[0x48, 0x8b, 0x07]),
                ("mov %rax,(%rdi)", &[0x48, 0x89, 0x07]),
                (
                    "mov %gs:0x10,%rax",
                    &[0x65, 0x48, 0x8b, 0x04, 0x25, 0x10, 0, 0, 0],
                ),
                ("push %rbx", &[0x53]),
                ("ret", &[0xc3]),
                ("call .+5", &[0xe8, 0, 0, 0, 0]),
                ("jmp .+2", &[0xeb, 0x00]),
                ("jmp *%rax", &[0xff, 0xe0]),
                ("cmpxchg %rcx,(%rdx)", &[0x48, 0x0f, 0xb1, 0x0a]),
                ("rep movsq", &[0xf3, 0x48, 0xa5]),
            ],
        );
        check(
            false,
            &[
                ("add $8,%rsp", &[0x48, 0x83, 0xc4, 0x08]),
                ("mov %rsp,%rbp", &[0x48, 0x89, 0xe5]),
                ("cli", &[0xfa]),
                ("sti", &[0xfb]),
                ("pushf", &[0x9c]),
                ("rdtsc", &[0x0f, 0x31]),
                ("rdmsr", &[0x0f, 0x32]),
                ("rdpmc", &[0x0f, 0x33]),
                ("cpuid", &[0x0f, 0xa2]),
                ("swapgs", &[0x0f, 0x01, 0xf8]),
                ("mov %cr3,%rax", &[0x0f, 0x20, 0xd8]),
                ("mov %eax,%ds", &[0x8e, 0xd8]),
                ("in $0x61,%al", &[0xe4, 0x61]),
                ("lfence", &[0x0f, 0xae, 0xe8]),
                ("stac", &[0x0f, 0x01, 0xcb]),
                ("clac", &[0x0f, 0x01, 0xca]),
                ("std", &[0xfd]),
                ("int3", &[0xcc]),
                ("ud2", &[0x0f, 0x0b]),
                ("hlt", &[0xf4]),
                ("rdgsbase %rax", &[0xf3, 0x48, 0x0f, 0xae, 0xc8]),
                ("invalid", &[0x0f, 0x0a]),
            ],
        );
    }
}
