//! ACPI tables: the CPUs, the I/O APIC and the serial port.
//!
//! They have the hardware-reduced profile: no ACPI timer, no events, no legacy devices. So a
//! kernel probes no keyboard controller, real-time clock or VGA, and takes its time from KVM.

use acpi_tables::fadt::{FADTBuilder, Flags, PmProfile};
use acpi_tables::madt::{
    EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic,
};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use acpi_tables::{Aml, aml};

use super::{ACPI, ACPI_END};
use crate::devices::serial;
use crate::memory::{AccessError, Memory};
use crate::x86::{IOAPIC_ADDRESS, LAPIC_ADDRESS};

const OEM: [u8; 6] = *b"UNWLAB";
const TABLE: [u8; 8] = *b"UNWLAB  ";
const REVISION: u32 = 1;

/// FADT, boot architecture flags (ACPI 6.5, 5.2.9.3): no VGA to probe.
const NO_VGA: u16 = 1 << 2;
/// The same: no CMOS real-time clock.
const NO_CMOS_RTC: u16 = 1 << 5;

/// Bytes of a DSDT's header.
const HEADER_LEN: u32 = 36;
/// The first revision with 64-bit integers.
const DSDT_REVISION: u8 = 2;

/// Writes the tables. Returns the root pointer's address.
pub(super) fn write(memory: &Memory, vcpus: u8) -> Result<u64, AccessError> {
    let mut tables = Tables {
        memory,
        next: ACPI + Rsdp::len() as u64,
    };
    let dsdt = tables.add(&dsdt())?;
    let fadt = tables.add(&fadt(dsdt))?;
    let madt = tables.add(&madt(vcpus))?;
    let mut xsdt = XSDT::new(OEM, TABLE, REVISION);
    xsdt.add_entry(fadt);
    xsdt.add_entry(madt);
    let xsdt = tables.add(&bytes(&xsdt))?;
    memory.write(ACPI, &bytes(&Rsdp::new(OEM, xsdt)))?;
    Ok(ACPI)
}

/// Appends tables one after the other.
struct Tables<'a> {
    memory: &'a Memory,
    next: u64,
}

impl Tables<'_> {
    fn add(&mut self, table: &[u8]) -> Result<u64, AccessError> {
        let address = self.next.next_multiple_of(16);
        let end = address + table.len() as u64;
        if end > ACPI_END {
            return Err(AccessError {
                address,
                len: table.len(),
            });
        }
        self.memory.write(address, table)?;
        self.next = end;
        Ok(address)
    }
}

fn bytes(table: &dyn Aml) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.to_aml_bytes(&mut bytes);
    bytes
}

/// The only device: COM1, so that the kernel finds its interrupt without legacy defaults.
fn dsdt() -> Vec<u8> {
    let mut dsdt = Sdt::new(*b"DSDT", HEADER_LEN, DSDT_REVISION, OEM, TABLE, REVISION);
    let code = bytes(&aml::Scope::new(
        "_SB_".into(),
        vec![&aml::Device::new(
            "COM1".into(),
            vec![
                &aml::Name::new("_HID".into(), &aml::EISAName::new("PNP0501")),
                &aml::Name::new("_UID".into(), &aml::ONE),
                &aml::Name::new(
                    "_CRS".into(),
                    &aml::ResourceTemplate::new(vec![
                        &aml::IO::new(serial::PORT, serial::PORT, 1, serial::PORTS),
                        // Consumer, edge-triggered, active high, not shared.
                        &aml::Interrupt::new(true, true, false, false, serial::IRQ),
                    ]),
                ),
            ],
        )],
    ));
    dsdt.append_slice(&code);
    dsdt.as_slice().to_vec()
}

fn fadt(dsdt: u64) -> Vec<u8> {
    let mut fadt = FADTBuilder::new(OEM, TABLE, REVISION)
        .dsdt_64(dsdt)
        .preferred_pm_profile(PmProfile::Unspecified)
        .flag(Flags::HwReducedAcpi)
        .flag(Flags::PwrButton)
        .flag(Flags::SlpButton);
    fadt.iapc_boot_arch = (NO_VGA | NO_CMOS_RTC).into();
    bytes(&fadt.finalize())
}

fn madt(vcpus: u8) -> Vec<u8> {
    let local = LocalInterruptController::Address(LAPIC_ADDRESS);
    let mut madt = MADT::new(OEM, TABLE, REVISION, local);
    for id in 0..vcpus {
        madt.add_structure(ProcessorLocalApic::new(id, id, EnabledStatus::Enabled));
    }
    madt.add_structure(IoApic::new(vcpus, IOAPIC_ADDRESS, 0));
    bytes(&madt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_has_a_right_checksum() {
        for table in [dsdt(), fadt(0xe0040), madt(8)] {
            let sum = table.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
            assert_eq!(sum, 0);
            let len = u32::from_le_bytes(table[4..8].try_into().unwrap());
            assert_eq!(len as usize, table.len());
        }
    }

    #[test]
    fn the_tables_can_be_followed_from_the_root() {
        let memory = Memory::new(4).unwrap();
        let rsdp = write(&memory, 2).unwrap();
        let u64_at = |address| {
            let mut bytes = [0; 8];
            memory.read(address, &mut bytes).unwrap();
            u64::from_le_bytes(bytes)
        };
        assert_eq!(&u64_at(rsdp).to_le_bytes(), b"RSD PTR ");
        let xsdt = u64_at(rsdp + 24);
        assert_eq!(&u64_at(xsdt).to_le_bytes()[..4], b"XSDT");
        let fadt = u64_at(xsdt + 36);
        assert_eq!(&u64_at(fadt).to_le_bytes()[..4], b"FACP");
        assert_eq!(&u64_at(u64_at(fadt + 140)).to_le_bytes()[..4], b"DSDT");
        assert_eq!(&u64_at(u64_at(xsdt + 44)).to_le_bytes()[..4], b"APIC");
    }
}
