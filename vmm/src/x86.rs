//! Constants of the x86-64 architecture that several rooms use.

/// Bytes of the smallest page.
pub(crate) const PAGE: u64 = 4096;
/// Bytes of the longest instruction.
pub(crate) const LONGEST_INSTRUCTION: usize = 15;

/// CR0.PG: paging is on.
pub(crate) const CR0_PAGING: u64 = 1 << 31;
/// EFER.LMA: 64-bit mode.
pub(crate) const EFER_LONG_MODE_ACTIVE: u64 = 1 << 10;
/// RFLAGS.TF: a debug exception after each instruction.
pub(crate) const RFLAGS_TRAP: u64 = 1 << 8;
/// RFLAGS.RF: no instruction breakpoints for one instruction, which clears it.
pub(crate) const RFLAGS_RESUME: u64 = 1 << 16;

/// Page table entry: it leads somewhere.
pub(crate) const ENTRY_PRESENT: u64 = 1;
/// Page table entry above the lowest level: it is a large page, not a table.
pub(crate) const ENTRY_LARGE: u64 = 1 << 7;

/// Address of the I/O APIC; KVM's cannot be moved.
pub(crate) const IOAPIC_ADDRESS: u32 = 0xfec0_0000;
/// Address of the local APICs after reset, and of interrupt messages to them.
pub(crate) const LAPIC_ADDRESS: u32 = 0xfee0_0000;
