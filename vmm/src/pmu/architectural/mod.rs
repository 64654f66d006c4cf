//! A model of Intel's architectural counters, version 2: four for any event, three for one each.
//!
//! Intel SDM volume 3, 20.2.1 and 20.2.2 ("Architectural Performance Monitoring"). Linux' driver
//! takes them as CPUID leaf 10 describes them, whatever the CPU's model is (`intel_pmu_init()` in
//! arch/x86/events/intel/core.c, 7.3). What a model has beyond that, it looks for by MSRs that KVM
//! answers with #GP (`check_msr()`, ibid.: LBR, extra registers), or by bits that CPUID lacks (PEBS,
//! BTS).
//!
//! Version 2, because no later one is as simple. Three fixed counters, because the driver makes a
//! mask of nonsense of none. Full-width writes, which `IA32_PERF_CAPABILITIES` announces, because
//! without them the driver's longest period is 2^31 cycles, ten seconds and less.
//!
//! As for the K7, only cycles are counted: by fixed counter 1, which Linux prefers, and event 0x3c.
//! And **no counter overflows by itself**; see [`super::k7`]. A counter that does not interrupt
//! goes round without a bit in the status register.
//!
//! What version 2 reserves is refused with #GP, as the CPU does.

mod registers;

use std::fmt;

use super::NoOverflow;
use super::count::{
    COUNTER_MASK, Count, EDGE, ENABLE, INTERRUPT, INVERT, KERNEL, SIGN, UNIT_MASK, USER, WIDTH,
};
pub(super) use registers::MSRS;
use registers::{ALL, FIRST_FIXED, FIXED, FIXEDS, FULL_WIDTH, GENERAL, GENERALS, Register};

/// The fixed counter of cycles.
const FIXED_CYCLES: usize = 1;
/// RDPMC: a fixed counter.
const RDPMC_FIXED: u32 = 1 << 30;

/// EAX, EBX, ECX, EDX of CPUID leaf 10: version 2; the counters and their width; all seven
/// architectural events.
pub(crate) const LEAF: [u32; 4] = [
    2 | GENERALS << 8 | WIDTH << 16 | 7 << 24,
    0,
    0,
    FIXEDS | WIDTH << 5,
];

const EVENT: u64 = 0xff;
/// Event "unhalted core cycles".
const CYCLES: u64 = 0x3c;

// Fields of a fixed counter in its control register, of four bits.
const FIXED_KERNEL: u64 = 1;
const FIXED_USER: u64 = 2;
const FIXED_INTERRUPT: u64 = 8;

/// What a counter is set to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Setting {
    cycles: bool,
    interrupts: bool,
    kernel: bool,
    user: bool,
}

impl Setting {
    fn of_selector(select: u64) -> Self {
        let how = EVENT | UNIT_MASK | EDGE | INVERT | COUNTER_MASK;
        let enabled = select & ENABLE != 0;
        Self {
            cycles: select & how == CYCLES,
            interrupts: select & INTERRUPT != 0,
            kernel: enabled && select & KERNEL != 0,
            user: enabled && select & USER != 0,
        }
    }

    fn of_fixed(number: usize, control: u64) -> Self {
        let control = control >> (4 * number);
        Self {
            cycles: number == FIXED_CYCLES,
            interrupts: control & FIXED_INTERRUPT != 0,
            kernel: control & FIXED_KERNEL != 0,
            user: control & FIXED_USER != 0,
        }
    }
}

/// The counters of one vCPU.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Architectural {
    selectors: [u64; GENERAL],
    general: [Count; GENERAL],
    fixed: [Count; FIXED],
    fixed_control: u64,
    enabled: u64,
    /// The counters that have overflowed, until the guest clears them.
    status: u64,
}

/// As after reset: the general counters are enabled, each as its selector says.
impl Default for Architectural {
    fn default() -> Self {
        Self {
            selectors: Default::default(),
            general: Default::default(),
            fixed: Default::default(),
            fixed_control: 0,
            enabled: (1 << GENERAL) - 1,
            status: 0,
        }
    }
}

impl Architectural {
    /// The guest reads this MSR. `None` if it is not a counter's.
    pub(super) fn read_msr(&self, index: u32, tsc: u64) -> Option<u64> {
        Some(match Register::of(index)? {
            Register::Counter(number) | Register::WideCounter(number) => {
                self.read(general(number)?, tsc)?
            }
            Register::Selector(number) => *self.selectors.get(number)?,
            Register::FixedCounter(number) => self.read(fixed(number)?, tsc)?,
            Register::Capabilities => FULL_WIDTH,
            Register::FixedControl => self.fixed_control,
            Register::GlobalStatus => self.status,
            Register::GlobalControl => self.enabled,
            Register::GlobalClear => 0,
        })
    }

    /// The guest writes this MSR. False if that raises #GP, `None` if it is not a counter's.
    pub(super) fn write_msr(&mut self, index: u32, data: u64, tsc: u64) -> Option<bool> {
        let register = Register::of(index)?;
        if register.refuses(data) {
            return Some(false);
        }
        // What was counted so far was by the settings until now.
        self.settle(tsc);
        match register {
            Register::Counter(number) => {
                let [a, b, c, d, ..] = data.to_le_bytes();
                let extended = i64::from(i32::from_le_bytes([a, b, c, d]));
                *self.general.get_mut(number)? = Count::new(extended.cast_unsigned(), tsc);
            }
            Register::WideCounter(number) => {
                *self.general.get_mut(number)? = Count::new(data, tsc);
            }
            Register::Selector(number) => *self.selectors.get_mut(number)? = data,
            Register::FixedCounter(number) => {
                *self.fixed.get_mut(number)? = Count::new(data, tsc);
            }
            Register::FixedControl => self.fixed_control = data,
            Register::GlobalControl => self.enabled = data,
            Register::GlobalClear => self.status &= !data,
            Register::Capabilities | Register::GlobalStatus => return Some(false),
        }
        Some(true)
    }

    /// The guest executes `RDPMC` with this ECX. `None` if there is no such counter.
    pub(super) fn rdpmc(&self, ecx: u32, tsc: u64) -> Option<u64> {
        let number = usize::try_from(ecx & !RDPMC_FIXED).ok()?;
        let number = match ecx & RDPMC_FIXED {
            0 if number < GENERAL => general(number)?,
            RDPMC_FIXED if number < FIXED => fixed(number)?,
            _ => return None,
        };
        self.read(number, tsc)
    }

    /// The counter that can overflow: `wanted`, or the lowest that may interrupt a guest at
    /// privilege level `cpl`.
    pub(super) fn ready(&self, wanted: Option<u8>, cpl: u8, tsc: u64) -> Result<u8, NoOverflow> {
        let may_interrupt = |number: &u8| {
            let setting = self.setting(*number);
            let level = if cpl == 0 {
                setting.kernel
            } else {
                setting.user
            };
            setting.interrupts && level
        };
        let number = numbers()
            .filter(|number| wanted.is_none_or(|it| it == *number))
            .find(may_interrupt)
            .ok_or(NoOverflow::Disabled)?;
        let negative = self.read(number, tsc).unwrap_or(0) & SIGN != 0;
        match negative && self.status & bit(number) == 0 {
            true => Ok(number),
            false => Err(NoOverflow::StillOverflowed(number)),
        }
    }

    /// Lets a counter overflow: it counts from 0, and the status says so.
    pub(super) fn overflow(&mut self, number: u8, tsc: u64) {
        if let Some(count) = self.count_mut(number) {
            *count = Count::new(0, tsc);
            self.status |= bit(number);
        }
    }

    /// What a counter does now: nothing, where the global register has it off.
    fn setting(&self, number: u8) -> Setting {
        if self.enabled & bit(number) == 0 {
            return Setting::default();
        }
        let setting = match number.checked_sub(FIRST_FIXED) {
            Some(fixed) => Some(Setting::of_fixed(fixed.into(), self.fixed_control)),
            None => { self.selectors.get(usize::from(number)) }
                .map(|select| Setting::of_selector(*select)),
        };
        setting.unwrap_or_default()
    }

    fn read(&self, number: u8, tsc: u64) -> Option<u64> {
        let count = match number.checked_sub(FIRST_FIXED) {
            Some(fixed) => self.fixed.get(usize::from(fixed))?,
            None => self.general.get(usize::from(number))?,
        };
        let setting = self.setting(number);
        let counts = setting.cycles && (setting.kernel || setting.user);
        Some(match counts {
            true => count.read(tsc, setting.interrupts),
            false => count.value,
        })
    }

    fn count_mut(&mut self, number: u8) -> Option<&mut Count> {
        match number.checked_sub(FIRST_FIXED) {
            Some(fixed) => self.fixed.get_mut(usize::from(fixed)),
            None => self.general.get_mut(usize::from(number)),
        }
    }

    /// Has every counter count on from its present value.
    fn settle(&mut self, tsc: u64) {
        for number in numbers() {
            let now = self.read(number, tsc);
            if let (Some(now), Some(count)) = (now, self.count_mut(number)) {
                *count = Count::new(now, tsc);
            }
        }
    }
}

/// The counters, by their bits in the global registers.
fn numbers() -> impl Iterator<Item = u8> {
    (0..u8::try_from(u64::BITS).unwrap_or(u8::MAX)).filter(|number| ALL & bit(*number) != 0)
}

const fn bit(number: u8) -> u64 {
    1 << (number % 64)
}

fn general(number: usize) -> Option<u8> {
    u8::try_from(number).ok()
}

fn fixed(number: usize) -> Option<u8> {
    u8::try_from(number).ok()?.checked_add(FIRST_FIXED)
}

/// Shows what enables them.
impl fmt::Display for Architectural {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let selectors: Vec<String> = { self.selectors.iter() }
            .map(|it| format!("{it:#x}"))
            .collect();
        write!(
            f,
            "selectors {}, fixed {:#x}, enabled {:#x}, overflowed {:#x}",
            selectors.join(", "),
            self.fixed_control,
            self.enabled,
            self.status
        )
    }
}

#[cfg(test)]
mod tests;
