//! The registers of the architectural counters, and what they reserve.

use super::super::count::MASK;

/// Counters for any event, as CPUID and MSRs number them...
pub(super) const GENERALS: u32 = 4;
/// ... and as an index.
pub(super) const GENERAL: usize = GENERALS as usize;
/// Counters for one event each: instructions, cycles, cycles at the reference rate.
pub(super) const FIXEDS: u32 = 3;
pub(super) const FIXED: usize = FIXEDS as usize;
/// Number of the first fixed counter in the global registers, and for Linux
/// (`INTEL_PMC_IDX_FIXED`).
pub(super) const FIRST_FIXED: u8 = 32;
/// The counters in the global registers.
pub(super) const ALL: u64 = ((1 << GENERAL) - 1) | ((1 << FIXED) - 1) << FIRST_FIXED;

const COUNTERS: u32 = 0xc1;
const SELECTORS: u32 = 0x186;
const FIXED_COUNTERS: u32 = 0x309;
const CAPABILITIES: u32 = 0x345;
const FIXED_CONTROL: u32 = 0x38d;
const GLOBAL_STATUS: u32 = 0x38e;
const GLOBAL_CONTROL: u32 = 0x38f;
const GLOBAL_CLEAR: u32 = 0x390;
const WIDE_COUNTERS: u32 = 0x4c1;

/// First MSR and number of MSRs of each range.
pub(crate) const MSRS: [(u32, u32); 6] = [
    (COUNTERS, GENERALS),
    (SELECTORS, GENERALS),
    (FIXED_COUNTERS, FIXEDS),
    (CAPABILITIES, 1),
    (FIXED_CONTROL, 4),
    (WIDE_COUNTERS, GENERALS),
];

/// `IA32_PERF_CAPABILITIES`: counters can be written in full width.
pub(super) const FULL_WIDTH: u64 = 1 << 13;

/// What a selector reserves: "any thread", which is version 3's, and the upper half.
const SELECTOR_RESERVED: u64 = !0xffff_ffff | 1 << 21;
/// The fields of the fixed counters; "any thread" is version 3's.
const FIXED_VALID: u64 = 0xbbb;

/// What can be cleared in the status besides: a full buffer, and a changed condition. They are never
/// set.
const OTHER_STATUS: u64 = 3 << 62;

/// An MSR of the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Register {
    /// A general counter, of which a write sets the lower half, sign-extended.
    Counter(usize),
    /// The same, in full width.
    WideCounter(usize),
    Selector(usize),
    FixedCounter(usize),
    Capabilities,
    FixedControl,
    GlobalStatus,
    GlobalControl,
    GlobalClear,
}

impl Register {
    pub(super) fn of(index: u32) -> Option<Self> {
        let within = |first: u32, count: usize| {
            let number = usize::try_from(index.checked_sub(first)?).ok()?;
            (number < count).then_some(number)
        };
        Some(match index {
            CAPABILITIES => Self::Capabilities,
            FIXED_CONTROL => Self::FixedControl,
            GLOBAL_STATUS => Self::GlobalStatus,
            GLOBAL_CONTROL => Self::GlobalControl,
            GLOBAL_CLEAR => Self::GlobalClear,
            _ => {
                let general = within(COUNTERS, GENERAL).map(Self::Counter);
                let wide = || within(WIDE_COUNTERS, GENERAL).map(Self::WideCounter);
                let selector = || within(SELECTORS, GENERAL).map(Self::Selector);
                let fixed = || within(FIXED_COUNTERS, FIXED).map(Self::FixedCounter);
                general.or_else(wide).or_else(selector).or_else(fixed)?
            }
        })
    }

    /// The bits that a write must not set.
    const fn reserved(self) -> u64 {
        match self {
            // The upper half is ignored.
            Self::Counter(_) => 0,
            Self::WideCounter(_) | Self::FixedCounter(_) => !MASK,
            Self::Selector(_) => SELECTOR_RESERVED,
            Self::FixedControl => !FIXED_VALID,
            Self::GlobalControl => !ALL,
            Self::GlobalClear => !(ALL | OTHER_STATUS),
            Self::Capabilities | Self::GlobalStatus => u64::MAX,
        }
    }

    /// Whether a write of `data` raises #GP.
    pub(super) const fn refuses(self, data: u64) -> bool {
        let read_only = matches!(self, Self::Capabilities | Self::GlobalStatus);
        read_only || data & self.reserved() != 0
    }
}
