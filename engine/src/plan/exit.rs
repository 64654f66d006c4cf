//! Exits of a vCPU as triggers: accesses that KVM hands to the VMM.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unwindlab_vmm::{Access, AccessKind, Watched};

/// How a vCPU leaves KVM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ExitKind {
    /// A port is read.
    In,
    /// A port is written.
    Out,
    /// A physical address without memory is read.
    MmioRead,
    /// A physical address without memory is written.
    MmioWrite,
    /// The MSR of a synthetic counter is read.
    Rdmsr,
    /// The MSR of a synthetic counter is written.
    Wrmsr,
    /// A synthetic counter is read by RDPMC.
    Rdpmc,
    /// The CPU halts. KVM handles this itself, without an exit.
    Halt,
}

/// The exits to wait for, or an exit that was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitPlan {
    /// The kind of exit.
    pub kind: ExitKind,
    /// The port, physical address, MSR or counter; none: any.
    pub number: Option<u64>,
}

impl ExitPlan {
    /// Whether `seen` is one of these exits.
    #[must_use]
    pub fn covers(&self, seen: &Self) -> bool {
        self.kind == seen.kind && (self.number.is_none() || self.number == seen.number)
    }

    /// The exit of an access that was seen.
    #[must_use]
    pub const fn of(access: Access) -> Self {
        let kind = match access.kind {
            AccessKind::In => ExitKind::In,
            AccessKind::Out => ExitKind::Out,
            AccessKind::MmioRead => ExitKind::MmioRead,
            AccessKind::MmioWrite => ExitKind::MmioWrite,
            AccessKind::Rdmsr => ExitKind::Rdmsr,
            AccessKind::Wrmsr => ExitKind::Wrmsr,
            AccessKind::Rdpmc => ExitKind::Rdpmc,
        };
        Self {
            kind,
            number: Some(access.number),
        }
    }

    /// The access for the VMM to watch; none for an exit that never leaves KVM.
    #[must_use]
    pub fn watched(self) -> Option<Watched> {
        let kind = match self.kind {
            ExitKind::In => AccessKind::In,
            ExitKind::Out => AccessKind::Out,
            ExitKind::MmioRead => AccessKind::MmioRead,
            ExitKind::MmioWrite => AccessKind::MmioWrite,
            ExitKind::Rdmsr => AccessKind::Rdmsr,
            ExitKind::Wrmsr => AccessKind::Wrmsr,
            ExitKind::Rdpmc => AccessKind::Rdpmc,
            ExitKind::Halt => return None,
        };
        let number = self.number;
        Some(Watched { kind, number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_is_identified_by_kind_and_number() {
        let exit = |kind, number| ExitPlan { kind, number };
        let any = exit(ExitKind::Out, None);
        let one = exit(ExitKind::Out, Some(0x3f8));
        let seen = ExitPlan::of(Access {
            kind: AccessKind::Out,
            number: 0x3f9,
        });
        assert!(any.covers(&seen) && !one.covers(&seen));
        assert!(exit(ExitKind::Out, Some(0x3f9)).covers(&seen));
        assert!(!exit(ExitKind::In, None).covers(&seen));
    }
}
