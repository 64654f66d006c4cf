//! MSRs that the VMM answers in KVM's place (`KVM_X86_SET_MSR_FILTER`), and `RDPMC`, by an `out` in its place.

use super::failure::{Failure, Outcome, same};
use super::lab::{ADDRESS, Lab, guest, machine_with, run};
use crate::{Kernel, Pmu, Run, Stop, rdpmc_sites};

super::checks! {
    Machines:
        msrs_of_counters_and_rdpmc_are_answered_by_the_vmm;
}

/// Counter 2, for cycles, with interrupt.
const SELECTOR: u32 = 0x53_0076;
/// The upper half of what it starts at.
const START: u32 = 0x8000;

guest!(reads_a_counter:
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

/// Whether the CPU is one whose MSRs these are.
fn is_amd() -> bool {
    let leaf = std::arch::x86_64::__cpuid(0);
    let vendor = [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes);
    [&b"AuthenticAMD"[..], b"HygonGenuine"].contains(&vendor.as_flattened())
}

fn msrs_of_counters_and_rdpmc_are_answered_by_the_vmm(_: &Lab) -> Outcome {
    if !is_amd() {
        let why = "the synthetic counters of this check are AMD's";
        return Err(Failure::NotAvailable(why.to_owned()));
    }
    let code = reads_a_counter();
    let kernel = Kernel::Flat {
        address: ADDRESS,
        code: code.into(),
    };
    let sites = rdpmc_sites(&kernel, &[(ADDRESS, true)])?;
    same!(sites.len(), 1);
    let mut machine = machine_with(4, Pmu::Synthetic { rdpmc: &sites }, 1, code)?;
    for (port, value) in [(0xe0, SELECTOR), (0xe1, START), (0xe2, START)] {
        let size = 4;
        let stop = run(&mut machine, Run::Continue)?;
        same!(stop, Stop::Port { port, size, value });
    }
    Ok(())
}
