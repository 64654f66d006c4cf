//! A kernel that has many mutants: which it is to be, and what it executed.

use unwindlab_vmm::{AddressSpace, Memory};

use super::look::PAGE;
use super::{Driver, DriverError};
use crate::plan::ChoicePlan;

/// The choice of a trial.
#[derive(Debug, Default)]
pub(super) struct Choice {
    plan: Option<ChoicePlan>,
    /// Where the kernel notes what it executes, page by page: guest-physical addresses and bytes.
    reached: Vec<(u64, usize)>,
    /// What it had executed before.
    before: Vec<u8>,
}

impl Choice {
    pub(super) fn new(plan: Option<ChoicePlan>) -> Self {
        Self {
            plan,
            ..Self::default()
        }
    }

    /// The places that were executed until now and before the choice, a byte each.
    pub(super) fn read(self, memory: &Memory) -> (Vec<u8>, Vec<u8>) {
        (bytes(&self.reached, memory), self.before)
    }
}

impl Driver {
    /// Chooses the mutant, on a machine whose agent calls for the first time and stands still.
    pub(super) fn choose(&mut self, caller: u8) -> Result<(), DriverError> {
        let Some(plan) = self.choice.plan else {
            return Ok(());
        };
        let vcpu = self.vcpu(caller)?;
        vcpu.write_virt(plan.variable, &plan.number.to_le_bytes())?;
        let mut number = [0; 4];
        vcpu.read_virt(plan.variable, &mut number)?;
        if u32::from_le_bytes(number) != plan.number {
            return Err(DriverError::NotChosen(plan.variable));
        }
        let space = AddressSpace::of(&vcpu.sregs()?);
        let memory = self.machine.memory();
        let end = plan.reached.saturating_add(u64::from(plan.places));
        let mut at = plan.reached;
        while at < end {
            let next = end.min((at / PAGE + 1) * PAGE);
            let physical = space.translate(memory, at);
            let physical = physical.ok_or(DriverError::NotChosen(at))?;
            let bytes = usize::try_from(next - at).unwrap_or_default();
            self.choice.reached.push((physical, bytes));
            at = next;
        }
        self.choice.before = bytes(&self.choice.reached, memory);
        for (at, len) in &self.choice.reached {
            memory.write(*at, &vec![0; *len])?;
        }
        Ok(())
    }
}

/// What stands in these parts of pages; nothing where one is no memory.
fn bytes(pages: &[(u64, usize)], memory: &Memory) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (at, len) in pages {
        let mut page = vec![0; *len];
        if memory.read(*at, &mut page).is_err() {
            return Vec::new();
        }
        bytes.extend(page);
    }
    bytes
}
