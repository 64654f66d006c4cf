//! Breakpoints on data. Unlike one on an instruction, such a breakpoint is a trap: the vCPU stops
//! after the access.

/// The accesses at which a breakpoint on data stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DataAccess {
    /// Writes.
    Write,
    /// Reads and writes. (The CPU has no breakpoint on reads alone.)
    ReadWrite,
}

/// A breakpoint on data. It stops at each access to one of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DataBreakpoint {
    address: u64,
    bytes: u8,
    access: DataAccess,
}

impl DataBreakpoint {
    /// A breakpoint on 1, 2, 4 or 8 bytes at a virtual address that is a multiple of them; `None`
    /// for what the CPU cannot watch.
    #[must_use]
    pub const fn new(address: u64, bytes: u8, access: DataAccess) -> Option<Self> {
        if !matches!(bytes, 1 | 2 | 4 | 8) || !address.is_multiple_of(bytes as u64) {
            return None;
        }
        Some(Self {
            address,
            bytes,
            access,
        })
    }

    /// The virtual address.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// The type and length of a register in DR7: two bits each, the type first.
    pub(super) const fn dr7(self) -> u64 {
        let kind = match self.access {
            DataAccess::Write => 0b01,
            DataAccess::ReadWrite => 0b11,
        };
        let length = match self.bytes {
            2 => 0b01,
            4 => 0b11,
            8 => 0b10,
            _ => 0b00,
        };
        kind | length << 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_and_length_are_those_of_the_manual() {
        let dr7 = |bytes, access| DataBreakpoint::new(0x40, bytes, access).map(DataBreakpoint::dr7);
        // Intel SDM, volume 3, "Debug Control Register (DR7)".
        assert_eq!(dr7(1, DataAccess::Write), Some(0b0001));
        assert_eq!(dr7(2, DataAccess::Write), Some(0b0101));
        assert_eq!(dr7(4, DataAccess::ReadWrite), Some(0b1111));
        assert_eq!(dr7(8, DataAccess::ReadWrite), Some(0b1011));
    }

    #[test]
    fn what_the_cpu_cannot_watch_is_refused() {
        assert!(DataBreakpoint::new(0x44, 8, DataAccess::Write).is_none());
        assert!(DataBreakpoint::new(0x44, 4, DataAccess::Write).is_some());
        assert!(DataBreakpoint::new(0x40, 3, DataAccess::Write).is_none());
        assert!(DataBreakpoint::new(0x40, 0, DataAccess::Write).is_none());
    }
}
