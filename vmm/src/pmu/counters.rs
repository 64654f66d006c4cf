//! The counters of one vCPU, of either vendor.

use std::fmt;

use super::architectural::{self, Architectural};
use super::k7::{self, K7};

/// Which synthetic counters a guest has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CounterModel {
    /// AMD's oldest.
    K7,
    /// Intel's architectural ones.
    Architectural,
}

impl CounterModel {
    /// That of a vendor's CPUs. Zhaoxin's driver uses Intel's counters in its own way.
    pub(super) fn of(vendor: &str) -> Option<Self> {
        match vendor {
            "AuthenticAMD" | "HygonGenuine" => Some(Self::K7),
            "GenuineIntel" => Some(Self::Architectural),
            _ => None,
        }
    }

    /// First MSR and number of MSRs of each range that they have.
    pub(crate) const fn msrs(self) -> &'static [(u32, u32)] {
        match self {
            Self::K7 => &[(k7::FIRST_MSR, k7::MSRS)],
            Self::Architectural => &architectural::MSRS,
        }
    }

    /// Whether the local APIC masks overflows when it has told of one, until the guest allows them
    /// again. KVM does the same for a guest that says Intel (`kvm_apic_local_deliver()`,
    /// arch/x86/kvm/lapic.c, 7.3).
    pub(crate) const fn masks_itself(self) -> bool {
        matches!(self, Self::Architectural)
    }
}

/// Why no counter can overflow now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoOverflow {
    /// No counter is enabled to interrupt at this privilege level.
    Disabled,
    /// This counter has overflowed, and the guest has not written it since: a second overflow
    /// would be lost.
    StillOverflowed(u8),
}

/// What becomes of the write of an MSR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    /// The register has the value.
    Done,
    /// The register does not take it: #GP.
    Fault,
}

/// The counters of one vCPU.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Counters(Registers);

#[derive(Debug, Clone, PartialEq)]
enum Registers {
    K7(K7),
    Architectural(Architectural),
}

impl Counters {
    /// As after reset.
    pub(crate) fn new(model: CounterModel) -> Self {
        Self(match model {
            CounterModel::K7 => Registers::K7(K7::default()),
            CounterModel::Architectural => Registers::Architectural(Architectural::default()),
        })
    }

    pub(crate) const fn model(&self) -> CounterModel {
        match self.0 {
            Registers::K7(_) => CounterModel::K7,
            Registers::Architectural(_) => CounterModel::Architectural,
        }
    }

    /// The guest reads this MSR. `None` if it is not a counter's.
    pub(crate) fn read_msr(&self, index: u32, tsc: u64) -> Option<u64> {
        match &self.0 {
            Registers::K7(it) => it.read_msr(index, tsc),
            Registers::Architectural(it) => it.read_msr(index, tsc),
        }
    }

    /// The guest writes this MSR. `None` if it is not a counter's.
    pub(crate) fn write_msr(&mut self, index: u32, data: u64, tsc: u64) -> Option<Written> {
        let taken = match &mut self.0 {
            Registers::K7(it) => it.write_msr(index, data, tsc).map(|()| true),
            Registers::Architectural(it) => it.write_msr(index, data, tsc),
        };
        Some(match taken? {
            true => Written::Done,
            false => Written::Fault,
        })
    }

    /// The guest executes `RDPMC` with this ECX. `None` if there is no such counter.
    pub(crate) fn rdpmc(&self, ecx: u32, tsc: u64) -> Option<u64> {
        match &self.0 {
            Registers::K7(it) => it.rdpmc(ecx, tsc),
            Registers::Architectural(it) => it.rdpmc(ecx, tsc),
        }
    }

    /// The counter that can overflow: `wanted`, or the lowest that may interrupt a guest at
    /// privilege level `cpl`.
    pub(crate) fn ready(&self, wanted: Option<u8>, cpl: u8, tsc: u64) -> Result<u8, NoOverflow> {
        match &self.0 {
            Registers::K7(it) => it.ready(wanted, cpl, tsc),
            Registers::Architectural(it) => it.ready(wanted, cpl, tsc),
        }
    }

    /// Lets a counter overflow: it counts from 0.
    pub(crate) fn overflow(&mut self, number: u8, tsc: u64) {
        match &mut self.0 {
            Registers::K7(it) => it.overflow(number, tsc),
            Registers::Architectural(it) => it.overflow(number, tsc),
        }
    }
}

/// Shows what enables them.
impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Registers::K7(it) => it.fmt(f),
            Registers::Architectural(it) => it.fmt(f),
        }
    }
}
