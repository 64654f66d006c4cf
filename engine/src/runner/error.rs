//! Why a trial cannot go on.

use unwindlab_oracle::trace::recording::VcpuPlace;
use unwindlab_vmm::InjectError;

use crate::driver::DriverError;

/// A trial cannot go on. Messages number injections from 1.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// The guest cannot be driven.
    #[error(transparent)]
    Driver(DriverError),
    /// What is to be injected waits in the vCPU already, the guest counts nothing, or KVM refuses it.
    #[error("injection {}: {source}", .spec + 1)]
    NotInjected { spec: u32, source: DriverError },
    /// Two injections of a kind that goes from instruction to instruction, on one vCPU.
    #[error("two bursts, sweeps or points of a schedule lead vCPU {0} on at the same time")]
    TwoLead(u8),
    /// A thaw without a freeze.
    #[error("vCPU {target} is to be thawed (by what vCPU {by} met) but is not frozen")]
    NotFrozen { target: u8, by: u8 },
    /// A variable does not hold what was written into it.
    #[error("the variable at {address:#x} does not hold what was written into it")]
    NotPoked { address: u64 },
    /// There is no frame pointer to corrupt.
    #[error(
        "no workload thread is in user mode on vCPU {0}, whose frame pointer could be corrupted"
    )]
    NotInUserMode(u8),
    /// The KVM host does not deliver an NMI, though no handler of another one holds it back.
    #[error(
        "the KVM host has kept an NMI from vCPU {vcpu} for {millis} ms, which is in user mode at \
         {rip:#x}"
    )]
    NmiKept { vcpu: u8, millis: u128, rip: u64 },
    /// A command does not say for which thread it is.
    #[error("injection {} is for a thread that is not known: give `of`", .0 + 1)]
    NoThread(u32),
    /// The command words are not in guest memory.
    #[error("injection {}: the guest's command words cannot be used", .0 + 1)]
    NoCommand(u32),
    /// The helper could not do it; the source is what the guest's kernel said.
    #[error("injection {}: the guest's helper could not carry it out: {source}", .spec + 1)]
    Command { spec: u32, source: std::io::Error },
    /// The helper did not do it while a vCPU stood still.
    #[error(
        "{injection} was not made while vCPU {frozen} stood still: the helper's CPU waits for it, \
         most likely ({})", listed(.places)
    )]
    HelperWaits {
        injection: String,
        frozen: u8,
        places: Vec<VcpuPlace>,
    },
    /// A field that a breakpoint on data cannot cover.
    #[error(
        "a breakpoint cannot be on {bytes} bytes at offset {offset:#x} of a task, expected 1, 2, 4 \
         or 8 at a multiple of them"
    )]
    NoSuchField { offset: u64, bytes: u8 },
    /// An injection waits for an access that this KVM host's guests never make.
    #[error(
        "injection {} waits for MSR {msr:#x}, which is none of the counters of this KVM host's CPU", .spec + 1
    )]
    NoSuchCounter { spec: usize, msr: u64 },
    /// A symbol that the agent did not announce.
    #[error("the workload has no symbol {0:?}")]
    NoUserSymbol(String),
}

/// Why an injection may be made a little later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The vCPU has yet to take an NMI, or this interrupt.
    OneWaits,
    /// So it has, or the guest counts nothing just now.
    Passing,
}

impl TrialError {
    /// The same, where an injection came to it.
    pub(super) fn of_injection(self, spec: u32) -> Self {
        match self {
            Self::Driver(source @ (DriverError::Inject(_) | DriverError::Overflow(_))) => {
                Self::NotInjected { spec, source }
            }
            other => other,
        }
    }

    /// Why this injection, and none that follows it, could not be made just now.
    pub(super) const fn refusal_of(&self, of: u32) -> Option<Refusal> {
        match self {
            Self::NotInjected { spec, source } if *spec == of => match source {
                DriverError::Inject(
                    InjectError::AlreadyPending { .. } | InjectError::AlreadyRequested { .. },
                ) => Some(Refusal::OneWaits),
                DriverError::Overflow(error) if error.is_passing() => Some(Refusal::Passing),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether the guest caused it: see [`DriverError::is_the_guests`]. Commands and symbols are what its agent announced.
    pub fn is_the_guests(&self) -> bool {
        match self {
            Self::Driver(error) | Self::NotInjected { source: error, .. } => error.is_the_guests(),
            Self::NoCommand(_) | Self::NoUserSymbol(_) => true,
            _ => false,
        }
    }
}

impl<E: Into<DriverError>> From<E> for TrialError {
    fn from(error: E) -> Self {
        Self::Driver(error.into())
    }
}

fn listed(places: &[VcpuPlace]) -> String {
    let places = places.iter();
    let places = places.map(|it| format!("vCPU {} at {:#x}", it.vcpu, it.rip));
    places.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use unwindlab_vmm::OverflowError;

    use super::*;

    #[test]
    fn an_injection_that_is_refused_is_named() {
        let refused = InjectError::AlreadyRequested { vector: 0xfd };
        let named = TrialError::from(refused).of_injection(2);
        let told = named.to_string();
        assert!(told.starts_with("injection 3: interrupt 0xfd "), "{told}");
        assert_eq!(named.refusal_of(2), Some(Refusal::OneWaits));
        assert_eq!(named.refusal_of(1), None, "one that follows was refused");
        let off = OverflowError::Masked { vcpu: 0 };
        let passing = TrialError::from(off).of_injection(0);
        assert_eq!(passing.refusal_of(0), Some(Refusal::Passing));
        let other = TrialError::TwoLead(1).of_injection(2);
        assert!(matches!(other, TrialError::TwoLead(1)));
        assert_eq!(other.refusal_of(2), None);
    }
}
