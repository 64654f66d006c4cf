//! The MP table: the CPUs, the I/O APIC and the ISA interrupts, for kernels without ACPI (Intel
//! MultiProcessor Specification 1.4, chapter 4). A kernel with ACPI uses the MADT instead.
//!
//! A kernel without ACPI takes a sixth less time to compile, and boots faster.

use super::MP_TABLE;
use crate::memory::{AccessError, Memory};
use crate::x86::{IOAPIC_ADDRESS, LAPIC_ADDRESS};

/// Version 1.4.
const REVISION: u8 = 4;
/// Bytes of the floating pointer structure, whose length field counts units of 16.
const POINTER_LEN: usize = 16;
/// Bytes of the configuration table's header.
const HEADER_LEN: usize = 44;
/// Version register of KVM's local APICs.
const LAPIC_VERSION: u8 = 0x14;
/// Version register of KVM's I/O APIC.
const IOAPIC_VERSION: u8 = 0x11;

/// Entry types, and the interrupt type of an ordinary line.
const PROCESSOR: u8 = 0;
const BUS: u8 = 1;
const IOAPIC: u8 = 2;
const IO_INTERRUPT: u8 = 3;
const VECTORED: u8 = 0;

const ENABLED: u8 = 1;
const BOOTSTRAP: u8 = 2;
const ISA: u8 = 0;
const ISA_LINES: u8 = 16;

/// Writes pointer and table at [`MP_TABLE`], one of the addresses that a kernel searches.
pub(super) fn write(memory: &Memory, vcpus: u8) -> Result<(), AccessError> {
    let table = MP_TABLE + POINTER_LEN as u64;
    memory.write(MP_TABLE, &pointer(table))?;
    memory.write(table, &configuration(vcpus))
}

fn pointer(table: u64) -> Vec<u8> {
    let mut bytes = b"_MP_".to_vec();
    // The table is below 1 MiB: the upper half is 0.
    bytes.extend(table.to_le_bytes().into_iter().take(4));
    bytes.extend([1, REVISION, 0]);
    bytes.resize(POINTER_LEN, 0);
    with_checksum(bytes, 10)
}

fn configuration(vcpus: u8) -> Vec<u8> {
    let entries = entries(vcpus);
    let count = u16::from(vcpus) + 2 + u16::from(ISA_LINES);
    let len = HEADER_LEN + entries.len();
    let mut bytes = b"PCMP".to_vec();
    // Fits: even with 255 processors it has less than 6 KiB.
    bytes.extend(len.to_le_bytes().into_iter().take(2));
    bytes.extend([REVISION, 0]);
    bytes.extend(b"UNWLAB  UNWINDLAB   ");
    // No OEM table.
    bytes.extend([0; 6]);
    bytes.extend(count.to_le_bytes());
    bytes.extend(LAPIC_ADDRESS.to_le_bytes());
    bytes.resize(HEADER_LEN, 0);
    bytes.extend(entries);
    with_checksum(bytes, 7)
}

fn entries(vcpus: u8) -> Vec<u8> {
    let ioapic_id = vcpus;
    let mut bytes = Vec::new();
    for id in 0..vcpus {
        let flags = if id == 0 {
            ENABLED | BOOTSTRAP
        } else {
            ENABLED
        };
        bytes.extend([PROCESSOR, id, LAPIC_VERSION, flags]);
        // Signature and features come from CPUID; 8 bytes are reserved.
        bytes.extend([0; 16]);
    }
    bytes.extend([BUS, ISA]);
    bytes.extend(b"ISA   ");
    bytes.extend([IOAPIC, ioapic_id, IOAPIC_VERSION, ENABLED]);
    bytes.extend(IOAPIC_ADDRESS.to_le_bytes());
    for line in 0..ISA_LINES {
        // Polarity and trigger are those of the bus.
        bytes.extend([IO_INTERRUPT, VECTORED, 0, 0, ISA, line, ioapic_id, line]);
    }
    bytes
}

/// Sets the byte at `at` so that the sum of all bytes is 0.
fn with_checksum(mut bytes: Vec<u8>, at: usize) -> Vec<u8> {
    let sum = bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
    if let Some(checksum) = bytes.get_mut(at) {
        *checksum = sum.wrapping_neg();
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(bytes: &[u8]) -> u8 {
        bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
    }

    #[test]
    fn the_table_can_be_followed_from_the_pointer() {
        let memory = Memory::new(4).unwrap();
        write(&memory, 3).unwrap();
        let mut pointer = [0; POINTER_LEN];
        memory.read(MP_TABLE, &mut pointer).unwrap();
        assert_eq!((&pointer[..4], sum(&pointer)), (&b"_MP_"[..], 0));
        let at = u32::from_le_bytes(pointer[4..8].try_into().unwrap());
        let mut header = [0; HEADER_LEN];
        memory.read(u64::from(at), &mut header).unwrap();
        assert_eq!(&header[..4], b"PCMP");
        let len = u16::from_le_bytes([header[4], header[5]]);
        let mut table = vec![0; usize::from(len)];
        memory.read(u64::from(at), &mut table).unwrap();
        assert_eq!(sum(&table), 0);
    }

    #[test]
    fn the_count_is_that_of_the_entries() {
        let table = configuration(8);
        let mut rest = &table[HEADER_LEN..];
        let mut count = 0_u16;
        while let Some(kind) = rest.first() {
            rest = &rest[if *kind == PROCESSOR { 20 } else { 8 }..];
            count += 1;
        }
        assert_eq!(u16::from_le_bytes([table[34], table[35]]), count);
    }
}
