//! Guest page tables, walked as the processor does but for permissions.
//!
//! KVM can translate as well (`KVM_TRANSLATE`), but answers as a supervisor's access: under SMAP
//! it finds no user page. Here it matters where memory is, not who may touch it.

use kvm_bindings::kvm_sregs;

use crate::memory::Memory;

/// CR0: paging is on.
const CR0_PG: u64 = 1 << 31;
/// CR4: five levels instead of four.
const CR4_LA57: u64 = 1 << 12;
/// EFER: long mode is active.
const EFER_LMA: u64 = 1 << 10;
/// Bits of an entry, and of CR3, that are an address.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const PRESENT: u64 = 1;
/// In an entry of the second or third level: it maps a large page itself.
const LARGE: u64 = 1 << 7;

/// The page tables that a vCPU used when it was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressSpace {
    root: u64,
    levels: u32,
}

impl AddressSpace {
    /// That of a vCPU with these registers; `None` for one that is not in 64-bit paging.
    #[must_use]
    pub fn of(sregs: &kvm_sregs) -> Option<Self> {
        let long = sregs.cr0 & CR0_PG != 0 && sregs.efer & EFER_LMA != 0;
        long.then_some(Self {
            root: sregs.cr3 & ADDRESS,
            levels: if sregs.cr4 & CR4_LA57 != 0 { 5 } else { 4 },
        })
    }

    /// The guest-physical address behind a virtual one; `None` where nothing is mapped, or the
    /// tables lead out of the RAM.
    #[must_use]
    pub fn translate(&self, memory: &Memory, address: u64) -> Option<u64> {
        let mut table = self.root;
        for level in (1..=self.levels).rev() {
            let shift = 12 + 9 * (level - 1);
            let index = address >> shift & 0x1ff;
            let entry = memory.load_u64(table + 8 * index).ok()?;
            if entry & PRESENT == 0 {
                return None;
            }
            if level == 1 || (level <= 3 && entry & LARGE != 0) {
                let offset = (1 << shift) - 1;
                return Some(entry & ADDRESS & !offset | address & offset);
            }
            table = entry & ADDRESS;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn sregs(cr4: u64) -> kvm_sregs {
        kvm_sregs {
            cr0: CR0_PG,
            cr3: 0x1000 | 0x18,
            cr4,
            efer: EFER_LMA,
            ..Default::default()
        }
    }

    /// Tables at 0x1000 (root) to 0x4000, and a fifth level at 0x5000; the bits beside the
    /// addresses are what a kernel sets there.
    fn tables() -> Memory {
        let memory = Memory::new(64).unwrap();
        let entries = [
            (0x1000, 0x2067),
            (0x2000, 0x3067),
            // The second GiB is one page; the lowest bits of its address are not.
            (0x2008, (2 * GIB) | 0x1000 | LARGE | 0x8000_0000_0000_0063),
            (0x3000, 0x4067),
            (0x3008, 0x60_0000 | LARGE | 0x63),
            (0x4000 + 8 * 5, 0x8000_0000_0123_4067),
            (0x4000 + 8 * 6, 0x0123_4066),
            (0x3010, 0x00ff_ffff_f000 | 0x67),
        ];
        for (at, entry) in entries {
            memory.store_u64(at, entry).unwrap();
        }
        memory
    }

    #[test]
    fn pages_of_every_size_are_found() {
        let (memory, space) = (tables(), AddressSpace::of(&sregs(0)).unwrap());
        let found = |address| space.translate(&memory, address);
        assert_eq!(found(0x5678), Some(0x0123_4678));
        assert_eq!(found(0x20_0000 + 0x12_3456), Some(0x72_3456));
        assert_eq!(found(GIB + 0x3fff_ffff), Some(2 * GIB + 0x3fff_ffff));
    }

    #[test]
    fn what_is_not_there_is_not_found() {
        let (memory, space) = (tables(), AddressSpace::of(&sregs(0)).unwrap());
        let found = |address| space.translate(&memory, address);
        assert_eq!(found(0x6000), None, "entry without the present bit");
        assert_eq!(found(0x40_0000), None, "table outside the RAM");
        assert_eq!(found(2 * GIB), None, "no entry");
        assert_eq!(found(u64::MAX), None, "no entry in the root");
    }

    #[test]
    fn five_levels_take_one_more_step() {
        let memory = tables();
        memory.store_u64(0x5000, 0x1067).unwrap();
        let mut registers = sregs(CR4_LA57);
        registers.cr3 = 0x5000;
        let space = AddressSpace::of(&registers).unwrap();
        assert_eq!(space.translate(&memory, 0x5678), Some(0x0123_4678));
    }

    #[test]
    fn other_modes_have_no_such_tables() {
        let mut registers = sregs(0);
        registers.efer = 0;
        assert_eq!(AddressSpace::of(&registers), None);
    }
}
