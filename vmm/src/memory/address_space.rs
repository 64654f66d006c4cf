//! Translates a virtual address of the guest to a guest-physical one, by the guest's page tables.
//!
//! `KVM_TRANSLATE` does not work for user addresses: it translates as the kernel would, and SMAP
//! denies the kernel every user page. The tables are the guest's, thus hostile: the walk has a
//! fixed number of levels, and reads each entry from checked guest memory.

use kvm_bindings::kvm_sregs;

use super::Memory;
use crate::x86::{CR0_PAGING, EFER_LONG_MODE_ACTIVE, ENTRY_LARGE, ENTRY_PRESENT};

const CR4_FIVE_LEVELS: u64 = 1 << 12;

/// The physical address in an entry (bits 12 to 51).
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// Bits of an address within the smallest page.
const PAGE_BITS: u32 = 12;
/// Bits that one level translates.
const LEVEL_BITS: u32 = 9;
/// The highest level whose entries may be pages: 1 is 4 KiB, 2 is 2 MiB, 3 is 1 GiB.
const HIGHEST_PAGE_LEVEL: u32 = 3;

/// The address space that a vCPU used when its registers were read. It stays valid while the vCPU
/// is stopped, and needs only the guest's memory.
#[derive(Debug, Clone, Copy)]
pub struct AddressSpace(kvm_sregs);

impl AddressSpace {
    /// The address space of a vCPU with these registers.
    #[must_use]
    pub fn of(sregs: &kvm_sregs) -> Self {
        Self(*sregs)
    }

    /// The guest-physical address behind a virtual one. `None` if nothing is mapped there, or the
    /// tables lead out of RAM or are those of a 32-bit kernel.
    #[must_use]
    pub fn translate(&self, memory: &Memory, address: u64) -> Option<u64> {
        match translate(memory, &self.0, address) {
            Translation::To(physical) => Some(physical),
            Translation::Nowhere | Translation::OtherPaging => None,
        }
    }
}

/// Result of a translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Translation {
    /// This guest-physical address.
    To(u64),
    /// Nothing is mapped there.
    Nowhere,
    /// The vCPU uses a kind of paging that this walk does not know (32-bit kernels).
    OtherPaging,
}

/// Translates `address` with the tables that `sregs` point to. Ignores permissions.
pub(crate) fn translate(memory: &Memory, sregs: &kvm_sregs, address: u64) -> Translation {
    if sregs.cr0 & CR0_PAGING == 0 {
        return Translation::To(address);
    }
    if sregs.efer & EFER_LONG_MODE_ACTIVE == 0 {
        return Translation::OtherPaging;
    }
    let levels = if sregs.cr4 & CR4_FIVE_LEVELS == 0 {
        4
    } else {
        5
    };
    if !is_canonical(address, levels) {
        return Translation::Nowhere;
    }
    walk(memory, sregs.cr3 & ADDRESS, address, levels).map_or(Translation::Nowhere, Translation::To)
}

/// Whether all bits above those that are translated equal the highest of them.
fn is_canonical(address: u64, levels: u32) -> bool {
    let unused = u64::BITS - (PAGE_BITS + LEVEL_BITS * levels);
    (address << unused).cast_signed() >> unused == address.cast_signed()
}

fn walk(memory: &Memory, root: u64, address: u64, levels: u32) -> Option<u64> {
    let mut table = root;
    for level in (1..=levels).rev() {
        let shift = PAGE_BITS + LEVEL_BITS * (level - 1);
        let index = address >> shift & ((1 << LEVEL_BITS) - 1);
        let entry = memory
            .load_u64(table + 8 * index)
            .ok()
            .filter(|entry| entry & ENTRY_PRESENT != 0)?;
        let is_page = level == 1 || (level <= HIGHEST_PAGE_LEVEL && entry & ENTRY_LARGE != 0);
        if is_page {
            let in_page = (1 << shift) - 1;
            return Some(entry & ADDRESS & !in_page | address & in_page);
        }
        table = entry & ADDRESS;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: u64 = 0x1000;

    /// Tables one after the other: each level's entry `index` leads to the next.
    fn tables(indices: &[u64], last: u64) -> (Memory, kvm_sregs) {
        let memory = Memory::new(4).unwrap();
        for (at, (level, index)) in (ROOT..).step_by(4096).zip(indices.iter().enumerate()) {
            let next = if level + 1 == indices.len() {
                last
            } else {
                at + 4096
            };
            memory
                .store_u64(at + 8 * index, next | ENTRY_PRESENT)
                .unwrap();
        }
        let sregs = kvm_sregs {
            cr0: CR0_PAGING,
            cr3: ROOT | 0xfff,
            efer: EFER_LONG_MODE_ACTIVE,
            ..Default::default()
        };
        (memory, sregs)
    }

    fn address(indices: &[u64]) -> u64 {
        indices
            .iter()
            .fold(0, |address, index| address << 9 | index)
            << 12
    }

    #[test]
    fn pages_of_every_size() {
        let indices = [1, 2, 3, 4];
        let (memory, sregs) = tables(&indices, 0x7000 | 1 << 63);
        let small = address(&indices) + 0x123;
        assert_eq!(translate(&memory, &sregs, small), Translation::To(0x7123));
        assert_eq!(
            translate(&memory, &sregs, small + 0x1000),
            Translation::Nowhere
        );
        let (memory, sregs) = tables(&indices[..3], 0x60_0000 | ENTRY_LARGE);
        assert_eq!(
            translate(&memory, &sregs, small),
            Translation::To(0x60_4123)
        );
        let (memory, sregs) = tables(&indices[..2], 0x8000_0000 | ENTRY_LARGE);
        assert_eq!(
            translate(&memory, &sregs, small),
            Translation::To(0x8060_4123)
        );
    }

    #[test]
    fn five_levels() {
        let indices = [1, 2, 3, 4, 5];
        let (memory, mut sregs) = tables(&indices, 0x7000);
        sregs.cr4 = CR4_FIVE_LEVELS;
        assert_eq!(
            translate(&memory, &sregs, address(&indices)),
            Translation::To(0x7000)
        );
        sregs.cr4 = 0;
        assert_eq!(
            translate(&memory, &sregs, address(&indices)),
            Translation::Nowhere
        );
    }

    #[test]
    fn hostile_tables_lead_nowhere() {
        let (memory, mut sregs) = tables(&[0, 0], !ENTRY_LARGE);
        assert_eq!(
            translate(&memory, &sregs, 0),
            Translation::Nowhere,
            "outside of memory"
        );
        sregs.cr3 = u64::MAX;
        assert_eq!(translate(&memory, &sregs, 0), Translation::Nowhere);
        let (memory, sregs) = tables(&[0], ROOT);
        assert_eq!(
            translate(&memory, &sregs, 8),
            Translation::To(ROOT + 8),
            "a circle ends"
        );
        assert_eq!(
            translate(&memory, &sregs, 1 << 47),
            Translation::Nowhere,
            "not canonical"
        );
        let (memory, sregs) = tables(&[511, 511, 511, 511], 0x3000);
        assert_eq!(
            translate(&memory, &sregs, u64::MAX),
            Translation::To(0x3fff)
        );
    }

    #[test]
    fn without_paging_addresses_are_physical() {
        let memory = Memory::new(4).unwrap();
        let mut sregs = kvm_sregs::default();
        assert_eq!(translate(&memory, &sregs, 0x1234), Translation::To(0x1234));
        sregs.cr0 = CR0_PAGING;
        assert_eq!(translate(&memory, &sregs, 0x1234), Translation::OtherPaging);
    }
}
