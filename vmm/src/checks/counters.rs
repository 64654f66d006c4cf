//! MSRs that the VMM answers in KVM's place (`KVM_X86_SET_MSR_FILTER`), and `RDPMC`, by an `out` in its place. KVM forwards the MSRs of
//! both vendors' counters, whatever the CPU is.

use super::failure::{Outcome, same};
use super::lab::{ADDRESS, Lab, guest, machine_with, run};
use crate::{CounterModel, Kernel, Pmu, Run, Stop, rdpmc_sites};

super::checks! {
    Machines:
        msrs_of_amds_counters_and_rdpmc_are_answered_by_the_vmm
        msrs_of_intels_counters_and_rdpmc_are_answered_by_the_vmm;
}

/// The upper half of what the counter starts at.
const START: u32 = 0x8000;

// Counter 2, for cycles, with interrupt.
guest!(reads_a_counter_of_amds:
    "mov ecx, 0xc0010006"
    "xor eax, eax"
    "mov edx, 0x8000"
    "wrmsr"
    "mov ecx, 0xc0010002"
    "mov eax, 0x530076"
    "xor edx, edx"
    "wrmsr"
    "xor eax, eax"
    "rdmsr"
    "out 0xe0, eax"
    "mov ecx, 0xc0010006"
    "rdmsr"
    "mov eax, edx"
    "out 0xe1, eax"
    "mov ecx, 2"
    "rdpmc"
    "mov eax, edx"
    "out 0xe2, eax"
    "2: hlt"
    "jmp 2b"
);

// Fixed counter 1, of cycles, with interrupt.
guest!(reads_a_counter_of_intels:
    "mov ecx, 0x30a"
    "xor eax, eax"
    "mov edx, 0x8000"
    "wrmsr"
    "mov ecx, 0x38d"
    "mov eax, 0xb0"
    "xor edx, edx"
    "wrmsr"
    "xor eax, eax"
    "rdmsr"
    "out 0xe0, eax"
    "mov ecx, 0x30a"
    "rdmsr"
    "mov eax, edx"
    "out 0xe1, eax"
    "mov ecx, 0x40000001"
    "rdpmc"
    "mov eax, edx"
    "out 0xe2, eax"
    "2: hlt"
    "jmp 2b"
);

fn msrs_of_amds_counters_and_rdpmc_are_answered_by_the_vmm(_: &Lab) -> Outcome {
    are_answered(CounterModel::K7, reads_a_counter_of_amds(), 0x53_0076)
}

fn msrs_of_intels_counters_and_rdpmc_are_answered_by_the_vmm(_: &Lab) -> Outcome {
    are_answered(
        CounterModel::Architectural,
        reads_a_counter_of_intels(),
        0xb0,
    )
}

/// The guest tells what it reads back: the control register, and the counter by both ways.
fn are_answered(model: CounterModel, code: &'static [u8], control: u32) -> Outcome {
    let kernel = Kernel::Flat {
        address: ADDRESS,
        code: code.into(),
    };
    let sites = rdpmc_sites(&kernel, &[(ADDRESS, true)])?;
    same!(sites.len(), 1);
    let pmu = Pmu::Synthetic {
        rdpmc: &sites,
        model: Some(model),
    };
    let mut machine = machine_with(4, pmu, 1, code)?;
    for (port, value) in [(0xe0, control), (0xe1, START), (0xe2, START)] {
        let size = 4;
        let stop = run(&mut machine, Run::Continue)?;
        same!(stop, Stop::Port { port, size, value });
    }
    Ok(())
}
