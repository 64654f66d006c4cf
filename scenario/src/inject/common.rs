//! The properties that all actions share.

use super::{Injection, When};
use crate::located::At;
use crate::names::NameList;

impl Injection {
    /// The keys that say when; none for [`Injection::Fail`], which has its own.
    pub(super) fn when(&self) -> Option<When<'_>> {
        match self {
            Self::Nmi(it) | Self::PmuOverflow(it) => Some(it.when()),
            Self::Fail(_) => None,
            Self::Irq(it) => Some(it.when()),
            Self::Freeze(it) => Some(it.when()),
            Self::Thaw(it) => Some(it.when()),
            Self::Poke(it) => Some(it.when()),
            Self::Corrupt(it) => Some(it.when()),
            Self::Migrate(it) => Some(it.when()),
            Self::Signal(it) => Some(it.when()),
            Self::BlockFault(it) => Some(it.when()),
            Self::ReleaseFault(it) => Some(it.when()),
            Self::Unmap(it) => Some(it.when()),
            Self::PageOut(it) => Some(it.when()),
            Self::Truncate(it) => Some(it.when()),
            Self::Kill(it) => Some(it.when()),
            Self::Exec(it) => Some(it.when()),
        }
    }

    /// The action's key in YAML.
    pub(super) const fn word(&self) -> &'static str {
        match self {
            Self::Nmi(_) => "nmi",
            Self::PmuOverflow(_) => "pmu-overflow",
            Self::Fail(_) => "fail",
            Self::Irq(_) => "irq",
            Self::Freeze(_) => "freeze",
            Self::Thaw(_) => "thaw",
            Self::Poke(_) => "poke",
            Self::Corrupt(_) => "corrupt",
            Self::Migrate(_) => "migrate",
            Self::Signal(_) => "signal",
            Self::BlockFault(_) => "block-fault",
            Self::ReleaseFault(_) => "release-fault",
            Self::Unmap(_) => "unmap",
            Self::PageOut(_) => "page-out",
            Self::Truncate(_) => "truncate",
            Self::Kill(_) => "kill",
            Self::Exec(_) => "exec",
        }
    }

    /// For actions of the agent's helper: the workload thread, if it is written.
    pub(super) fn helped(&self) -> Option<Option<&At<u32>>> {
        match self {
            Self::Migrate(it) => Some(it.of.as_ref()),
            Self::Signal(it) => Some(it.of.as_ref()),
            Self::BlockFault(it) => Some(it.of.as_ref()),
            Self::ReleaseFault(it) => Some(it.of.as_ref()),
            Self::Unmap(it) => Some(it.of.as_ref()),
            Self::PageOut(it) => Some(it.of.as_ref()),
            Self::Truncate(it) => Some(it.of.as_ref()),
            Self::Kill(it) => Some(it.of.as_ref()),
            Self::Exec(it) => Some(it.of.as_ref()),
            _ => None,
        }
    }

    /// Its name, and the names that it comes after.
    pub(super) fn names(&self) -> (Option<&At<String>>, Option<&At<NameList>>) {
        match (self.when(), self) {
            (Some(when), _) => (when.name, when.after),
            (None, Self::Fail(fail)) => (fail.name.as_ref(), fail.after.as_ref()),
            (None, _) => (None, None),
        }
    }
}
