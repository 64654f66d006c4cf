//! Mends what QEMU's TCG makes of `sysenter` in long mode.
//!
//! `helper_sysenter()` (target/i386/tcg/seg_helper.c, QEMU 10.0) loads CS with both L and D, which
//! no CPU does, and `vmrun` refuses such a CS. So the first exit from the guest before the next
//! load of CS would be its last. The caller says where the kernel is entered. Two bytes of the
//! first instruction there are replaced by `out imm8, al`, as of a return ([`crate::returns`]):
//! the exit is there before anything else can be, and leads to this process before the next
//! `vmrun`. D is cleared, and the instruction is executed here.
//!
//! Any other exit to this process that finds the vCPU there (a breakpoint, a single step over
//! `sysenter`, a request to stop) clears D as well. An interrupt of the host that comes between
//! `sysenter` and the `out` does not lead here: the vCPU ends in
//! [`Stop::FailEntry`](crate::Stop::FailEntry).

use kvm_bindings::{kvm_regs, kvm_sregs};
use kvm_ioctls::VcpuFd;
use vmm_sys_util::errno;

use crate::debug::{Trap, TrapError};
use crate::devices::ports::SYSENTER_PORT;
use crate::kvm::exit_regs::{self, NextRegs};
use crate::kvm::msr;
use crate::kvm::sregs::settable;
use crate::memory::Memory;
use crate::x86::RFLAGS_RESUME;

/// The other GS base.
const MSR_KERNEL_GS_BASE: u32 = 0xc000_0102;

/// The first instruction behind `sysenter`, of which there are two kinds: with and without indirect
/// branch tracking (`entry_SYSENTER_compat`, arch/x86/entry/entry_64_compat.S).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum First {
    Endbr64,
    Swapgs,
}

impl First {
    const fn of(code: &[u8]) -> Option<Self> {
        match code {
            [0xf3, 0x0f, 0x1e, 0xfa, ..] => Some(Self::Endbr64),
            [0x0f, 0x01, 0xf8, ..] => Some(Self::Swapgs),
            _ => None,
        }
    }

    const fn length(self) -> u64 {
        match self {
            Self::Endbr64 => 4,
            Self::Swapgs => 3,
        }
    }

    /// The registers behind the instruction.
    const fn behind(self, regs: &kvm_regs) -> kvm_regs {
        kvm_regs {
            rip: regs.rip.wrapping_add(self.length()),
            rflags: regs.rflags & !RFLAGS_RESUME,
            ..*regs
        }
    }
}

/// Where `sysenter` leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SysenterEntry {
    address: u64,
    first: First,
}

impl SysenterEntry {
    /// Whether a vCPU at `pc` may just have come by `sysenter`.
    pub(crate) const fn is_at(self, pc: u64) -> bool {
        self.address == pc
    }

    /// Clears D where both L and D are set.
    pub(crate) fn mend(fd: &VcpuFd) -> Result<(), errno::Error> {
        match mended(&fd.get_sregs()?) {
            Some(sregs) => fd.set_sregs(&settable(sregs)),
            None => Ok(()),
        }
    }

    /// Executes the instruction at which a vCPU has just made the `out`, but for its registers, which are
    /// to be set to what is returned, with CS mended; `None` if the `out` is the guest's own.
    pub(crate) fn execute(self, fd: &VcpuFd) -> Result<Option<NextRegs>, errno::Error> {
        let (regs, sregs) = exit_regs::at_exit(fd);
        if !self.is_at(regs.rip) {
            return Ok(None);
        }
        let mut next = mended(&sregs).unwrap_or(sregs);
        if self.first == First::Swapgs {
            let kernels = msr::get(fd, MSR_KERNEL_GS_BASE)?.unwrap_or(0);
            msr::set(fd, MSR_KERNEL_GS_BASE, next.gs.base)?;
            next.gs.base = kernels;
        }
        Ok(Some(NextRegs {
            regs: self.first.behind(&regs),
            sregs: Some(settable(next)),
        }))
    }
}

/// Whether CS is as no CPU has it.
pub(crate) const fn is_broken(sregs: &kvm_sregs) -> bool {
    sregs.cs.l != 0 && sregs.cs.db != 0
}

/// The system registers with D cleared, where CS is as no CPU has it.
fn mended(sregs: &kvm_sregs) -> Option<kvm_sregs> {
    is_broken(sregs).then(|| {
        let mut mended = *sregs;
        mended.cs.db = 0;
        mended
    })
}

/// Why the instruction cannot be replaced.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum SysenterError {
    /// There is another instruction.
    #[error("there is no endbr64 and no swapgs at {address:#x}, but {found:02x?}")]
    Unknown { address: u64, found: Vec<u8> },
    /// The code cannot be changed.
    #[error(transparent)]
    Trap(#[from] TrapError),
}

/// The replaced instruction of a machine.
#[derive(Debug, Default)]
pub(crate) struct PlantedSysenter(Option<Trap>);

impl PlantedSysenter {
    /// Replaces the instruction. All vCPUs must be stopped; `sregs` are those of one of them.
    pub(crate) fn plant(
        &mut self,
        memory: &Memory,
        sregs: &kvm_sregs,
        address: u64,
    ) -> Result<SysenterEntry, SysenterError> {
        self.remove(memory)?;
        let (trap, code) = Trap::by_tables(address, sregs, SYSENTER_PORT, memory)?;
        let Some(first) = First::of(&code) else {
            let found = code.into();
            return Err(SysenterError::Unknown { address, found });
        };
        trap.put_in(memory)?;
        self.0 = Some(trap);
        Ok(SysenterEntry { address, first })
    }

    /// Puts the original instruction back, for good.
    pub(crate) fn remove(&mut self, memory: &Memory) -> Result<(), TrapError> {
        self.lift(memory)?;
        self.0 = None;
        Ok(())
    }

    /// Puts the original instruction back for a moment.
    pub(crate) fn lift(&self, memory: &Memory) -> Result<(), TrapError> {
        self.0.iter().try_for_each(|trap| trap.take_out(memory))
    }

    /// Replaces it again.
    pub(crate) fn put_back(&self, memory: &Memory) -> Result<(), TrapError> {
        self.0.iter().try_for_each(|trap| trap.put_in(memory))
    }

    /// Replaces the bytes of ours by the original ones in what was read at `address`.
    pub(crate) fn hide(&self, address: u64, bytes: &mut [u8]) {
        if let Some(trap) = &self.0 {
            trap.hide(address, bytes);
        }
    }

    /// What replaces it.
    pub(crate) fn planted(&self) -> impl Iterator<Item = &Trap> {
        self.0.iter()
    }

    /// The address of the instruction, if one is replaced.
    pub(crate) fn address(&self) -> Option<u64> {
        self.0.as_ref().map(|trap| trap.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_cs(l: u8, db: u8) -> kvm_sregs {
        let mut sregs = kvm_sregs::default();
        (sregs.cs.l, sregs.cs.db, sregs.cs.base, sregs.gs.base) = (l, db, 7, 9);
        sregs
    }

    #[test]
    fn only_a_state_that_no_cpu_has_is_mended() {
        assert_eq!(mended(&with_cs(1, 1)), Some(with_cs(1, 0)));
        for (l, db) in [(0, 0), (0, 1), (1, 0)] {
            assert_eq!(mended(&with_cs(l, db)), None, "L {l}, D {db}");
        }
    }

    #[test]
    fn the_first_instruction_is_executed_and_nothing_else_taken_for_it() {
        let regs = kvm_regs {
            rip: 0x1000,
            rsp: 5,
            rflags: 0x1_0002,
            ..kvm_regs::default()
        };
        let behind = |code: &[u8]| First::of(code).map(|first| first.behind(&regs));
        let expected = |rip| kvm_regs {
            rip,
            rflags: 2,
            ..regs
        };
        assert_eq!(
            behind(&[0xf3, 0x0f, 0x1e, 0xfa, 0x0f]),
            Some(expected(0x1004))
        );
        assert_eq!(behind(&[0x0f, 0x01, 0xf8]), Some(expected(0x1003)));
        for other in [&[0xf3, 0x0f, 0x1e, 0xfb][..], &[0x0f, 0x01], &[0x90], &[]] {
            assert_eq!(behind(other), None, "{other:x?}");
        }
    }

    #[test]
    fn two_bytes_are_replaced_hidden_and_put_back() {
        let memory = Memory::new(4).unwrap();
        let sregs = kvm_sregs::default();
        let endbr64 = [0xf3, 0x0f, 0x1e, 0xfa];
        memory.write(0x100, &endbr64).unwrap();
        let read = || {
            let mut bytes = [0; 4];
            memory.read(0x100, &mut bytes).unwrap();
            bytes
        };
        let mut planted = PlantedSysenter::default();
        assert!(matches!(
            planted.plant(&memory, &sregs, 0x101),
            Err(SysenterError::Unknown { address: 0x101, .. })
        ));
        assert_eq!((planted.address(), read()), (None, endbr64));
        let entry = planted.plant(&memory, &sregs, 0x100).unwrap();
        assert!(entry.is_at(0x100) && !entry.is_at(0x101));
        assert_eq!(planted.address(), Some(0x100));
        assert_eq!(read(), [0xe6, 0xf4, 0x1e, 0xfa]);
        let mut seen = read();
        planted.hide(0x100, &mut seen);
        assert_eq!(seen, endbr64);
        planted.lift(&memory).unwrap();
        assert_eq!(read(), endbr64);
        planted.put_back(&memory).unwrap();
        assert_eq!(read()[0], 0xe6);
        planted.remove(&memory).unwrap();
        assert_eq!((planted.address(), read()), (None, endbr64));
    }
}
