//! The registers of a local APIC (Intel SDM vol. 3, 12.4.1, 12.5.4).

use std::ops::Range;

use kvm_bindings::kvm_lapic_state;

/// Offset of the byte of the timer's entry in the local vector table that has its mode.
const TIMER_MODE: usize = 0x322;
/// The mode's bits there.
const MODE: u8 = 3 << 1;
/// By `IA32_TSC_DEADLINE`.
const BY_DEADLINE: u8 = 2 << 1;
/// Offsets of the current count of the timer, which counts by itself.
const CURRENT_COUNT: Range<usize> = 0x390..0x394;

/// Whether the timer has a deadline, and no count.
pub(super) fn counts_by_deadline(state: &kvm_lapic_state) -> bool {
    let mode = state.regs.get(TIMER_MODE).map(|it| it.cast_unsigned());
    mode.is_some_and(|it| it & MODE == BY_DEADLINE)
}

/// The bytes that differ, with their offsets, but for those that count by themselves.
pub(super) fn differing(
    one: &kvm_lapic_state,
    other: &kvm_lapic_state,
) -> impl Iterator<Item = (usize, i8, i8)> {
    let bytes = one.regs.iter().zip(&other.regs).enumerate();
    bytes
        .filter(|(at, (one, other))| one != other && !CURRENT_COUNT.contains(at))
        .map(|(at, (one, other))| (at, *one, *other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_of_the_timer_is_read() {
        let mut state = kvm_lapic_state::default();
        let mut with = |entry: u32| {
            for (byte, new) in state.regs.iter_mut().skip(0x320).zip(entry.to_le_bytes()) {
                *byte = new.cast_signed();
            }
            counts_by_deadline(&state)
        };
        assert!(with(0x4_00ec) && with(0x5_00ec));
        assert!(!with(0xec) && !with(0x2_00ec) && !with(0x6_00ec));
    }

    #[test]
    fn what_counts_by_itself_makes_no_difference() {
        let one = kvm_lapic_state::default();
        let mut other = one;
        other.regs[0x390] = 7;
        assert_eq!(differing(&one, &other).count(), 0);
        other.regs[0x80] = 1;
        assert_eq!(differing(&one, &other).collect::<Vec<_>>(), [(0x80, 0, 1)]);
    }
}
