//! What the VMM itself has put over the guest's code, which is no part of a checkpoint and stays where it is in a restore.
//!
//! Copying the original page and writing the traps again would leave the same bytes. But QEMU's TCG translates a page of code
//! anew when it is written to, which took a fifth of a trial's time with the witness.

use std::collections::BTreeMap;

use super::ram::{PAGE, Page};
use crate::debug::Trap;
use crate::memory::as_usize;
use crate::x86;

/// The bytes of traps by page, with their offsets there.
#[derive(Debug, Default)]
pub(crate) struct Planted(BTreeMap<u64, Vec<(usize, u8)>>);

impl Planted {
    pub(crate) fn of<'t>(traps: impl Iterator<Item = &'t Trap>) -> Self {
        let mut planted = Self::default();
        for (address, byte) in traps.flat_map(Trap::planted) {
            let (page, offset) = (address & !(x86::PAGE - 1), address % x86::PAGE);
            let of_page = planted.0.entry(page).or_default();
            of_page.push((as_usize(offset), byte));
        }
        planted
    }

    /// The page at `address` as it is with the traps; none where there are none.
    pub(super) fn over(&self, address: u64, original: &[u8]) -> Option<Box<Page>> {
        let planted = self.0.get(&address)?;
        let mut page = Box::new([0; PAGE]);
        page.copy_from_slice(original.get(..PAGE)?);
        for (offset, byte) in planted {
            if let Some(at) = page.get_mut(*offset) {
                *at = *byte;
            }
        }
        Some(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trap_stays_in_its_pages_and_nowhere_else() {
        let planted = Planted([(0x3000, vec![(4095, 0xe6)]), (0x4000, vec![(0, 0xf5)])].into());
        let original = [7; PAGE];
        let first = planted.over(0x3000, &original).unwrap();
        assert_eq!((first[4094], first[4095]), (7, 0xe6));
        let second = planted.over(0x4000, &original).unwrap();
        assert_eq!((second[0], second[1]), (0xf5, 7));
        assert_eq!(planted.over(0x5000, &original), None);
        assert_eq!(planted.over(0x3000, &[7]), None, "no page");
    }
}
