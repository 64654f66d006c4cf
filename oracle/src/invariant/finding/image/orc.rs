//! What the kernel's unwinder is told about an instruction: the ORC tables of the image.
//!
//! `.orc_unwind_ip` has the addresses, in order, each as a distance from its own place;
//! `.orc_unwind` has one entry for each, which holds up to the next address
//! (arch/x86/kernel/unwind_orc.c, arch/x86/include/asm/orc_types.h, 7.3).

use serde::Deserialize;

use super::Resolver;

/// Bytes of an address.
const ADDRESS: u64 = 4;
/// Bytes of an entry: two offsets, and the bits.
const ENTRY: u64 = 6;
/// Where in it the byte with the type is, and where in that.
const TYPE_BYTE: usize = 5;
const TYPE_BITS: u8 = 7;
/// More entries no kernel has.
const MAX_ENTRIES: u64 = 1 << 24;

/// What there is where an instruction's stack pointer points to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Hint {
    /// Registers that were saved, all of them (`ORC_TYPE_REGS`).
    Registers,
}

impl Hint {
    fn of(bits: u8) -> Option<Self> {
        (bits & TYPE_BITS == 3).then_some(Self::Registers)
    }
}

/// The tables of a kernel.
pub(super) struct Orc<'a, K: ?Sized> {
    kernel: &'a K,
    addresses: u64,
    entries: u64,
    count: u64,
}

impl<'a, K: Resolver + ?Sized> Orc<'a, K> {
    /// `None` for a kernel with another unwinder, or of unknown form.
    pub fn find(kernel: &'a K) -> Option<Self> {
        let between = |start: &str, stop: &str| {
            let start = kernel.address(start)?;
            Some((start, kernel.address(stop)?.checked_sub(start)?))
        };
        let (addresses, length) = between("__start_orc_unwind_ip", "__stop_orc_unwind_ip")?;
        let (entries, space) = between("__start_orc_unwind", "__stop_orc_unwind")?;
        let count = length / ADDRESS;
        (count <= MAX_ENTRIES && count.checked_mul(ENTRY) == Some(space)).then_some(Self {
            kernel,
            addresses,
            entries,
            count,
        })
    }

    /// Whether the unwinder is told this about an instruction from `start` on, before `end`.
    pub fn tells(&self, hint: Hint, start: u64, end: u64) -> bool {
        let Some(first) = self.last_at(start) else {
            return false;
        };
        let within = |&at: &u64| at == first || self.address(at).is_some_and(|it| it < end);
        let mut all = (first..self.count).take_while(within);
        all.any(|at| self.hint(at) == Some(hint))
    }

    /// The last entry that begins at `ip` or before.
    fn last_at(&self, ip: u64) -> Option<u64> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.address(middle)? <= ip {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low.checked_sub(1)
    }

    fn address(&self, at: u64) -> Option<u64> {
        let place = self.addresses.checked_add(at.checked_mul(ADDRESS)?)?;
        let bytes = self.kernel.text(place, 4)?;
        let distance = i32::from_le_bytes(bytes.try_into().ok()?);
        place.checked_add_signed(distance.into())
    }

    fn hint(&self, at: u64) -> Option<Hint> {
        let place = self.entries.checked_add(at.checked_mul(ENTRY)?)?;
        let bytes = self.kernel.text(place, 6)?;
        Hint::of(*bytes.get(TYPE_BYTE)?)
    }
}
