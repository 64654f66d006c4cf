//! What the counters of both vendors have in common: 48 bits, and most of an event selector.

/// Bits of a counter.
pub(super) const WIDTH: u32 = 48;
/// All of them.
pub(super) const MASK: u64 = (1 << WIDTH) - 1;
/// A driver starts a counter at a negative value; this bit is clear after its overflow.
pub(super) const SIGN: u64 = 1 << (WIDTH - 1);

// Fields of an event selector (AMD APM vol. 2, 13.2.1; Intel SDM vol. 3, 20.2.1.1).
pub(super) const UNIT_MASK: u64 = 0xff << 8;
pub(super) const USER: u64 = 1 << 16;
pub(super) const KERNEL: u64 = 1 << 17;
pub(super) const EDGE: u64 = 1 << 18;
pub(super) const INTERRUPT: u64 = 1 << 20;
pub(super) const ENABLE: u64 = 1 << 22;
pub(super) const INVERT: u64 = 1 << 23;
pub(super) const COUNTER_MASK: u64 = 0xff << 24;

/// A counter's value, and since when it counts on from there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Count {
    /// Its value at `since`.
    pub(super) value: u64,
    /// Time stamp of the last write to it, or to what controls it.
    since: u64,
}

impl Count {
    /// Counts on from the lower bits of `value`.
    pub(super) const fn new(value: u64, tsc: u64) -> Self {
        Self {
            value: value & MASK,
            since: tsc,
        }
    }

    /// The value of one that has counted all the time. One that interrupts waits at the last value
    /// before its overflow.
    pub(super) fn read(self, tsc: u64, interrupts: bool) -> u64 {
        // The guest can write its time stamp counter: one that goes back counts nothing.
        let now = self.value.saturating_add(tsc.saturating_sub(self.since));
        match interrupts {
            true => now.min(MASK),
            false => now & MASK,
        }
    }
}
