//! Machines that ran a trial and wait for the next of their kind.

use crate::runner::boot::{Booted, MachineKind};

/// MiB that they may take: all kinds of the library, which are ten machines of the usual size, and five sixths of what an outer machine has.
const LIMIT_MIB: u32 = 5120;

/// In the order in which they were used, the latest at the end.
#[derive(Debug, Default)]
pub struct IdleMachines(Vec<(MachineKind, Booted)>);

impl IdleMachines {
    /// Takes out the machine of this kind.
    pub fn take(&mut self, kind: &MachineKind) -> Option<Booted> {
        let index = self.0.iter().position(|(idle, _)| idle == kind)?;
        Some(self.0.remove(index).1)
    }

    /// Adds a machine that ran a trial.
    pub fn add(&mut self, kind: MachineKind, machine: Booted) {
        self.0.push((kind, machine));
    }

    /// Drops machines, those first that have been idle longest, until one of this kind fits.
    pub fn make_room(&mut self, kind: &MachineKind) {
        let taken = |machines: &[(MachineKind, Booted)]| -> u32 {
            machines.iter().map(|(kind, _)| kind.weight_mib()).sum()
        };
        while !self.0.is_empty() && taken(&self.0) + kind.weight_mib() > LIMIT_MIB {
            self.0.remove(0);
        }
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    /// Drops them all.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
