//! The returns of a machine: put into its kernel's code, and taken out again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use kvm_bindings::kvm_sregs;

use super::execute::ReturnKind;
use super::{ReturnNote, ReturnWatch, Returns};
use crate::debug::{Trap, TrapError};
use crate::devices::ports::RETURN_PORT;
use crate::memory::Memory;

/// CR4: events and returns are those of FRED.
const CR4_FRED: u64 = 1 << 32;

/// Why the instructions cannot be replaced.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum PlantError {
    /// There is another instruction.
    #[error("there is no sysret and no iretq at {address:#x}, but {found:02x?}")]
    NoReturn { address: u64, found: Vec<u8> },
    /// The kernel leaves by other instructions.
    #[error("the kernel returns to user mode by FRED")]
    Fred,
    /// No vCPU is stopped whose page tables lead to the code.
    #[error("no vCPU is stopped")]
    NoneStopped,
    /// The code cannot be changed.
    #[error(transparent)]
    Trap(#[from] TrapError),
}

/// The replaced instructions of a machine.
#[derive(Debug, Default)]
pub(crate) struct PlantedReturns {
    planted: Vec<Trap>,
    shared: Option<Arc<Returns>>,
}

impl PlantedReturns {
    /// Replaces the instructions. All vCPUs must be stopped; `sregs` are those of one of them.
    pub(crate) fn plant(
        &mut self,
        memory: &Memory,
        sregs: &kvm_sregs,
        watch: ReturnWatch,
    ) -> Result<Arc<Returns>, PlantError> {
        self.remove(memory)?;
        if sregs.cr4 & CR4_FRED != 0 {
            return Err(PlantError::Fred);
        }
        let mut kinds = Vec::new();
        let mut planted = Vec::new();
        for &address in &watch.sites {
            let (trap, code) = Trap::by_tables(address, sregs, RETURN_PORT, memory)?;
            let Some(kind) = ReturnKind::of(&code, address) else {
                let found = code.into();
                return Err(PlantError::NoReturn { address, found });
            };
            kinds.push((address, kind));
            planted.push(trap);
        }
        planted.iter().try_for_each(|trap| trap.put_in(memory))?;
        self.planted = planted;
        let shared = Arc::new(Returns::new(watch, kinds));
        self.shared = Some(Arc::clone(&shared));
        Ok(shared)
    }

    /// Puts the original instructions back, for good.
    pub(crate) fn remove(&mut self, memory: &Memory) -> Result<(), TrapError> {
        self.lift(memory)?;
        self.planted.clear();
        self.shared = None;
        Ok(())
    }

    /// Puts the original instructions back for a moment.
    pub(crate) fn lift(&self, memory: &Memory) -> Result<(), TrapError> {
        { self.planted.iter() }.try_for_each(|trap| trap.take_out(memory))
    }

    /// Replaces them again.
    pub(crate) fn put_back(&self, memory: &Memory) -> Result<(), TrapError> {
        { self.planted.iter() }.try_for_each(|trap| trap.put_in(memory))
    }

    /// Replaces the bytes of ours by the original ones in what was read at `address`.
    pub(crate) fn hide(&self, address: u64, bytes: &mut [u8]) {
        for trap in &self.planted {
            trap.hide(address, bytes);
        }
    }

    /// What replaces them.
    pub(crate) fn planted(&self) -> impl Iterator<Item = &Trap> {
        self.planted.iter()
    }

    /// The addresses of the replaced instructions.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = u64> {
        self.planted.iter().map(|trap| trap.address)
    }

    /// From now on notes the 32 bits at this offset of the current task, too.
    pub(crate) fn note_field(&self, offset: u64) {
        if let Some(shared) = &self.shared {
            shared.field.store(offset, Ordering::Release);
        }
    }

    /// Takes the notes so far, and whether one is missing behind them.
    pub(crate) fn take(&self) -> (Vec<ReturnNote>, bool) {
        let Some(shared) = &self.shared else {
            return (Vec::new(), false);
        };
        let mut notebook = shared.notebook();
        (std::mem::take(&mut notebook.notes), notebook.is_full)
    }

    /// Whether a return was not noted because there are too many.
    pub(crate) fn is_full(&self) -> bool {
        { self.shared.as_ref() }.is_some_and(|it| it.notebook().is_full)
    }
}
