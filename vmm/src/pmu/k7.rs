//! A model of the four counters of an AMD K7, which every later AMD CPU has too.
//!
//! AMD64 Architecture Programmer's Manual, volume 2, 13.2.1: `PerfEvtSel0` to `3` are MSRs
//! 0xc001_0000 to 3, `PerfCtr0` to `3` are 0xc001_0004 to 7, of 48 bits. A guest whose CPUID
//! lacks `PerfCtrExtCore` uses these.
//!
//! The model counts one event, 0x76 (cycles not in halt), by the guest's time stamp counter:
//! halted and stopped time counts too, and so does the privilege level that a counter excludes.
//! Counters of other events do not count.
//!
//! **No counter overflows by itself.** One that would interrupt at its overflow stops at the last
//! value before, until the guest writes it; the cycles after that are lost. So the only overflows
//! are those that the caller raises. A counter that does not interrupt wraps to 0, as the CPU's.

use std::fmt;

use super::NoOverflow;
use super::count::{
    COUNTER_MASK, Count, EDGE, ENABLE, INTERRUPT, INVERT, KERNEL, SIGN, UNIT_MASK, USER,
};

/// Number of counters.
const COUNT: usize = 4;
/// MSR of the first event selector. The other selectors follow, then the counters.
pub(super) const FIRST_MSR: u32 = 0xc001_0000;
/// Number of MSRs.
pub(super) const MSRS: u32 = 8;

/// The event of a selector: twelve bits.
const EVENT: u64 = 0xf_0000_00ff;
/// Event "cycles not in halt".
const CYCLES: u64 = 0x76;

/// A counter and its event selector.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counter {
    select: u64,
    count: Count,
}

impl Counter {
    fn has(&self, bits: u64) -> bool {
        self.select & bits == bits
    }

    /// Whether it counts.
    fn counts(&self) -> bool {
        let how = EVENT | UNIT_MASK | EDGE | INVERT | COUNTER_MASK;
        self.has(ENABLE) && self.select & how == CYCLES && self.select & (USER | KERNEL) != 0
    }

    fn read(&self, tsc: u64) -> u64 {
        match self.counts() {
            true => self.count.read(tsc, self.has(INTERRUPT)),
            false => self.count.value,
        }
    }

    /// Whether its overflow at this privilege level would interrupt the guest.
    fn interrupts_at(&self, cpl: u8) -> bool {
        let level = if cpl == 0 { KERNEL } else { USER };
        self.has(ENABLE | INTERRUPT | level)
    }
}

/// The counters of one vCPU.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct K7([Counter; COUNT]);

impl K7 {
    /// The guest reads this MSR. `None` if it is not a counter's.
    pub(super) fn read_msr(&self, index: u32, tsc: u64) -> Option<u64> {
        let (counter, is_value) = self.register(index)?;
        Some(match is_value {
            true => counter.read(tsc),
            false => counter.select,
        })
    }

    /// The guest writes this MSR. `None` if it is not a counter's.
    pub(super) fn write_msr(&mut self, index: u32, data: u64, tsc: u64) -> Option<()> {
        let (_, is_value) = self.register(index)?;
        let number = usize::try_from(index.wrapping_sub(FIRST_MSR)).ok()? % COUNT;
        let counter = self.0.get_mut(number)?;
        if is_value {
            counter.count = Count::new(data, tsc);
        } else {
            counter.count = Count::new(counter.read(tsc), tsc);
            counter.select = data;
        }
        Some(())
    }

    /// The guest executes `RDPMC` with this ECX. `None` if there is no such counter.
    pub(super) fn rdpmc(&self, ecx: u32, tsc: u64) -> Option<u64> {
        let counter = self.0.get(usize::try_from(ecx).ok()?)?;
        Some(counter.read(tsc))
    }

    /// The counter that can overflow: `wanted`, or the lowest that may interrupt a guest at
    /// privilege level `cpl`.
    pub(super) fn ready(&self, wanted: Option<u8>, cpl: u8, tsc: u64) -> Result<u8, NoOverflow> {
        let (number, counter) = (0..)
            .zip(&self.0)
            .find(|(number, counter)| {
                wanted.is_none_or(|it| it == *number) && counter.interrupts_at(cpl)
            })
            .ok_or(NoOverflow::Disabled)?;
        match counter.read(tsc) & SIGN {
            0 => Err(NoOverflow::StillOverflowed(number)),
            _ => Ok(number),
        }
    }

    /// Lets a counter overflow: it counts from 0.
    pub(super) fn overflow(&mut self, number: u8, tsc: u64) {
        if let Some(counter) = self.0.get_mut(usize::from(number)) {
            counter.count = Count::new(0, tsc);
        }
    }

    /// The counter of an MSR, and whether the MSR is its value rather than its selector.
    fn register(&self, index: u32) -> Option<(&Counter, bool)> {
        let number = index
            .checked_sub(FIRST_MSR)
            .filter(|number| *number < MSRS)?;
        let number = usize::try_from(number).ok()?;
        Some((self.0.get(number % COUNT)?, number >= COUNT))
    }
}

/// Shows the selectors.
impl fmt::Display for K7 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let selectors: Vec<String> = self
            .0
            .iter()
            .map(|it| format!("{:#x}", it.select))
            .collect();
        write!(f, "selectors {}", selectors.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::super::count::MASK;
    use super::*;

    const SELECT: u32 = FIRST_MSR + 1;
    const VALUE: u32 = FIRST_MSR + 5;
    /// Cycles, in user and kernel mode, with an interrupt: what Linux writes.
    const SAMPLING: u64 = ENABLE | INTERRUPT | USER | KERNEL | CYCLES;

    fn counting(select: u64, value: u64) -> K7 {
        let mut counters = K7::default();
        counters.write_msr(VALUE, value, 100).unwrap();
        counters.write_msr(SELECT, select, 100).unwrap();
        counters
    }

    #[test]
    fn cycles_are_counted_while_enabled_and_nothing_else() {
        let mut counters = counting(SAMPLING, 7);
        assert_eq!(counters.read_msr(SELECT, 400), Some(SAMPLING));
        assert_eq!(counters.read_msr(VALUE, 400), Some(307));
        assert_eq!(counters.rdpmc(1, 400), Some(307));
        counters.write_msr(SELECT, SAMPLING & !ENABLE, 500).unwrap();
        assert_eq!(counters.read_msr(VALUE, 900), Some(407), "stopped");
        counters.write_msr(SELECT, SAMPLING, 900).unwrap();
        assert_eq!(counters.read_msr(VALUE, 910), Some(417), "goes on");
        assert_eq!(counters.read_msr(VALUE, 0), Some(407), "time goes back");
        for other in [0x77, 1 << 32 | 0x76, 0x176] {
            let counters = counting(SAMPLING & !0xff | other, 7);
            assert_eq!(counters.read_msr(VALUE, 400), Some(7), "{other:#x}");
        }
        for other in [EDGE, INVERT, 1 << 24] {
            assert_eq!(counting(SAMPLING | other, 7).rdpmc(1, 400), Some(7));
        }
        let nowhere = SAMPLING & !(USER | KERNEL);
        assert_eq!(counting(nowhere, 7).rdpmc(1, 400), Some(7));
    }

    #[test]
    fn there_are_eight_registers_and_four_counters() {
        let mut counters = counting(SAMPLING, 0);
        for index in [0, FIRST_MSR - 1, FIRST_MSR + 8, u32::MAX] {
            assert_eq!(counters.read_msr(index, 0), None);
            assert_eq!(counters.write_msr(index, 1, 0), None);
        }
        assert_eq!(counters.rdpmc(3, 0), Some(0));
        assert_eq!(counters.rdpmc(4, 0), None);
        assert_eq!(counters.rdpmc(0x8000_0001, 0), None);
        counters.write_msr(FIRST_MSR + 4, u64::MAX, 0).unwrap();
        assert_eq!(counters.rdpmc(0, 0), Some(MASK), "48 bits");
    }

    #[test]
    fn no_counter_that_interrupts_overflows_of_its_own() {
        let start = MASK - 10;
        let counters = counting(SAMPLING, start);
        assert_eq!(counters.rdpmc(1, 110), Some(MASK));
        assert_eq!(counters.rdpmc(1, 1 << 50), Some(MASK), "waits there");
        assert_eq!(counters.rdpmc(1, u64::MAX), Some(MASK));
        let silent = counting(SAMPLING & !INTERRUPT, start);
        assert_eq!(silent.rdpmc(1, 111), Some(0), "goes round");
    }

    #[test]
    fn an_overflow_takes_a_counter_that_may_interrupt() {
        let mut counters = counting(SAMPLING, SIGN);
        assert_eq!(counters.ready(None, 0, 100), Ok(1));
        assert_eq!(counters.ready(Some(1), 3, 100), Ok(1));
        assert_eq!(counters.ready(Some(0), 0, 100), Err(NoOverflow::Disabled));
        counters.overflow(1, 200);
        assert_eq!(counters.rdpmc(1, 230), Some(30));
        assert_eq!(
            counters.ready(None, 0, 230),
            Err(NoOverflow::StillOverflowed(1))
        );
        counters.write_msr(VALUE, SIGN, 240).unwrap();
        assert_eq!(counters.ready(None, 0, 240), Ok(1));
        for (without, cpl) in [(ENABLE, 0), (INTERRUPT, 0), (KERNEL, 0), (USER, 3)] {
            let counters = counting(SAMPLING & !without, SIGN);
            assert_eq!(counters.ready(None, cpl, 100), Err(NoOverflow::Disabled));
        }
        assert_eq!(counting(SAMPLING & !USER, SIGN).ready(None, 0, 100), Ok(1));
    }
}
