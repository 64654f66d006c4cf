//! Notes each return of the guest's kernel to user mode, without stopping the vCPU.
//!
//! A kernel leaves to user mode by `sysret` and `iret`. The caller says where these instructions
//! are. Two bytes of each are replaced by `out imm8, al`, as of `RDPMC` ([`crate::pmu`]), which
//! leaves the guest on every KVM. The vCPU's thread then does what the instruction does
//! ([`execute`]), and the vCPU runs on behind it.
//!
//! Just before, it notes which task is current and reads some words of guest memory. So between a
//! note and the return that it is of, nothing happens on that vCPU: an NMI is taken before the
//! `out`, or in user mode. (At a breakpoint, or in front of an instruction of some before the
//! return, that would not be so.) An `iret` to the kernel is executed the same way, without a note.
//!
//! What is not executed here ends the notes instead of the guest: the vCPU stops with
//! [`Stop::StrangeReturn`](crate::Stop::StrangeReturn) before the instruction.

mod execute;
mod planted;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use kvm_bindings::{kvm_regs, kvm_sregs};
use kvm_ioctls::VcpuFd;
use vmm_sys_util::errno;

use crate::inject;
use crate::kvm::exit_regs::{self, NextRegs};
use crate::kvm::msr;
use crate::kvm::sregs::settable;
use crate::memory::{Memory, Translation, translate};
use execute::{IRET_FRAME, IretFrame, Landed, ReturnKind, StrangeReturn};

pub use planted::PlantError;
pub(crate) use planted::PlantedReturns;

/// The segments of `syscall` and `sysret`.
const MSR_STAR: u32 = 0xc000_0081;
/// The kernel's GS base while user mode runs, and right before.
const MSR_KERNEL_GS_BASE: u32 = 0xc000_0102;
/// User mode's control-flow enforcement; bit 0: it has a shadow stack.
const MSR_U_CET: u32 = 0x6a0;
const CR4_CET: u64 = 1 << 23;
/// The bit of CR3 by which Linux tells a process's page tables for user mode from those for the
/// kernel, where it keeps two (`PTI_USER_PGTABLE_BIT`).
const PTI_USER_TABLES: u64 = 1 << 12;
/// No field is noted.
const NO_FIELD: u64 = u64::MAX;

/// Which returns to note, and what of each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReturnWatch {
    /// The addresses of the kernel's `sysret` and `iret` instructions.
    pub sites: Vec<u64>,
    /// Offset of the pointer to the current task from the kernel's GS base.
    pub current: u64,
    /// Guest-physical addresses of words to read, which are 8-byte aligned.
    pub words: Vec<u64>,
    /// Lists of such words, of which the guest makes one after the other nonzero.
    pub filled: Vec<Vec<u64>>,
    /// Most returns to note. None is noted after so many.
    pub most: usize,
}

/// One return to user mode.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReturnNote {
    /// The vCPU.
    pub vcpu: u8,
    /// The pointer to the current task; 0 where it could not be read.
    pub current: u64,
    /// The field of the task that was asked for ([`Machine::note_field`](crate::Machine::note_field)).
    pub field: Option<u32>,
    /// An interrupt or NMI waits, which the vCPU takes before the first instruction in user mode.
    pub interrupted: bool,
    /// The instruction in user mode.
    pub rip: u64,
    /// The words; 0 for one that is not in RAM.
    pub words: Vec<u64>,
    /// Number and value of the last word of each list that is not 0; number 0 and value 0 where all are.
    pub filled: Vec<(usize, u64)>,
}

/// The notes so far.
#[derive(Debug, Default)]
struct Notebook {
    notes: Vec<ReturnNote>,
    /// The last word of each list that was not 0, so that a note reads few of them.
    last: Vec<usize>,
    /// A return was not noted.
    is_full: bool,
}

/// What the threads of all vCPUs share.
#[derive(Debug)]
pub(crate) struct Returns {
    watch: ReturnWatch,
    kinds: Vec<(u64, ReturnKind)>,
    field: AtomicU64,
    notebook: Mutex<Notebook>,
}

/// What became of a return.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one at a time, on the stack"
)]
pub(crate) enum Executed {
    /// All but its registers, which are to be set to these.
    To(NextRegs),
    /// Nothing: it is not one that is executed here.
    No(StrangeReturn),
    /// There is no return of ours at the `out`: it is the guest's own.
    NotOurs,
}

impl Returns {
    fn new(watch: ReturnWatch, kinds: Vec<(u64, ReturnKind)>) -> Self {
        Self {
            watch,
            kinds,
            field: AtomicU64::new(NO_FIELD),
            notebook: Mutex::default(),
        }
    }

    fn notebook(&self) -> std::sync::MutexGuard<'_, Notebook> {
        // Nothing panics with it locked; a list is never half changed.
        { self.notebook.lock() }.unwrap_or_else(PoisonError::into_inner)
    }

    /// Executes the return at which a vCPU has just made the `out`.
    pub(crate) fn execute(
        &self,
        fd: &VcpuFd,
        vcpu: u8,
        memory: &Memory,
    ) -> Result<Executed, errno::Error> {
        let (regs, sregs) = exit_regs::at_exit(fd);
        let Some(kind) = self.kind(regs.rip) else {
            return Ok(Executed::NotOurs);
        };
        // A vCPU in long mode has both.
        let [star, kernel_gs] =
            { msr::get_all(fd, [MSR_STAR, MSR_KERNEL_GS_BASE])? }.unwrap_or_default();
        let landed = match self.landing(fd, memory, kind, &regs, &sregs, star)? {
            Ok(landed) => landed,
            Err(strange) => return Ok(Executed::No(strange)),
        };
        if kind == ReturnKind::Iret {
            unmask_nmis(fd)?;
        }
        if landed.user {
            let interrupted = inject::is_due(fd, landed.regs.rflags)?;
            let gs = match sregs.gs.base >> 63 {
                1 => sregs.gs.base,
                _ => kernel_gs,
            };
            self.note(vcpu, memory, &sregs, gs, interrupted, landed.regs.rip);
        }
        Ok(Executed::To(NextRegs {
            regs: landed.regs,
            sregs: landed.sregs.map(settable),
        }))
    }

    fn kind(&self, pc: u64) -> Option<ReturnKind> {
        let site = self.kinds.iter().find(|(site, _)| *site == pc);
        site.map(|(_, kind)| *kind)
    }

    fn landing(
        &self,
        fd: &VcpuFd,
        memory: &Memory,
        kind: ReturnKind,
        regs: &kvm_regs,
        sregs: &kvm_sregs,
        star: u64,
    ) -> Result<Result<Landed, StrangeReturn>, errno::Error> {
        if sregs.cr4 & CR4_CET != 0 && msr::get(fd, MSR_U_CET)?.is_some_and(|it| it & 1 != 0) {
            return Ok(Err(StrangeReturn::ShadowStack));
        }
        Ok(match kind {
            ReturnKind::Sysret64 => execute::sysret(regs, sregs, star, true),
            ReturnKind::Sysret32 => execute::sysret(regs, sregs, star, false),
            ReturnKind::Iret => match frame(memory, sregs, regs.rsp) {
                Some(frame) => execute::iret(regs, sregs, star, frame),
                None => Err(StrangeReturn::NoFrame),
            },
        })
    }

    /// Notes a return to `rip`. `gs` is the kernel's GS base.
    fn note(
        &self,
        vcpu: u8,
        memory: &Memory,
        sregs: &kvm_sregs,
        gs: u64,
        interrupted: bool,
        rip: u64,
    ) {
        let word = |address| kernel_word(memory, sregs, address);
        let current = word(gs.wrapping_add(self.watch.current)).unwrap_or(0);
        let field = match self.field.load(Ordering::Acquire) {
            NO_FIELD => None,
            offset => kernel_u32(memory, sregs, current.wrapping_add(offset)),
        };
        let mut notebook = self.notebook();
        if notebook.is_full || notebook.notes.len() >= self.watch.most {
            notebook.is_full = true;
            return;
        }
        // With the lock held: a later note never has an older word.
        let words = self.watch.words.iter();
        let words = words.map(|at| memory.load_u64(*at).unwrap_or(0)).collect();
        let lists = &self.watch.filled;
        notebook.last.resize(lists.len(), 0);
        let last = lists.iter().zip(&mut notebook.last);
        let filled = last.map(|(list, last)| last_filled(memory, list, last));
        let filled = filled.collect();
        notebook.notes.push(ReturnNote {
            vcpu,
            current,
            field,
            interrupted,
            rip,
            words,
            filled,
        });
    }
}

/// Number and value of the last word of a list that is not 0. The search begins at where it ended before, which may be too
/// far: memory is put back meanwhile.
fn last_filled(memory: &Memory, list: &[u64], last: &mut usize) -> (usize, u64) {
    let value = |at: usize| {
        let address = list.get(at);
        address.map_or(0, |address| memory.load_u64(*address).unwrap_or(0))
    };
    while *last > 0 && value(*last) == 0 {
        *last -= 1;
    }
    while value(*last + 1) != 0 {
        *last += 1;
    }
    (*last, value(*last))
}

/// After `iret` a vCPU takes NMIs.
fn unmask_nmis(fd: &VcpuFd) -> Result<(), errno::Error> {
    let mut events = fd.get_vcpu_events()?;
    if events.nmi.masked != 0 {
        events.nmi.masked = 0;
        inject::keep_nmis(&mut events);
        fd.set_vcpu_events(&events)?;
    }
    Ok(())
}

/// The frame of an `iret` on the stack.
fn frame(memory: &Memory, sregs: &kvm_sregs, rsp: u64) -> Option<IretFrame> {
    let mut words = [0; IRET_FRAME];
    for (at, word) in (rsp..).step_by(8).zip(&mut words) {
        *word = kernel_word(memory, sregs, at)?;
    }
    Some(IretFrame::of(words))
}

fn kernel_word(memory: &Memory, sregs: &kvm_sregs, address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    read(memory, sregs, address, &mut bytes)?;
    Some(u64::from_le_bytes(bytes))
}

fn kernel_u32(memory: &Memory, sregs: &kvm_sregs, address: u64) -> Option<u32> {
    let mut bytes = [0; 4];
    read(memory, sregs, address, &mut bytes)?;
    Some(u32::from_le_bytes(bytes))
}

/// Reads bytes that do not cross a page. Right before the return, a kernel with two sets of tables
/// uses those that lack its own data.
fn read(memory: &Memory, sregs: &kvm_sregs, address: u64, into: &mut [u8]) -> Option<()> {
    let kernels = kvm_sregs {
        cr3: sregs.cr3 & !PTI_USER_TABLES,
        ..*sregs
    };
    let found =
        [sregs, &kernels]
            .into_iter()
            .find_map(|sregs| match translate(memory, sregs, address) {
                Translation::To(physical) => Some(physical),
                Translation::Nowhere | Translation::OtherPaging => None,
            });
    memory.read(found?, into).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_that_is_not_0_is_found_again_where_memory_was_put_back() {
        let memory = Memory::new(4).unwrap();
        let list = [0x1000, 0x2000, 0x3000];
        let mut last = 0;
        let mut found = |changes: &[(u64, u64)]| {
            for &(at, value) in changes {
                memory.store_u64(at, value).unwrap();
            }
            last_filled(&memory, &list, &mut last)
        };
        assert_eq!(found(&[]), (0, 0));
        assert_eq!(found(&[(0x1000, 7)]), (0, 7));
        assert_eq!(found(&[(0x2000, 8), (0x3000, 9)]), (2, 9));
        assert_eq!(found(&[(0x3000, 10)]), (2, 10));
        assert_eq!(found(&[(0x3000, 0), (0x2000, 0)]), (0, 7));
        assert_eq!(found(&[(0x1000, 0)]), (0, 0));
        assert_eq!(last_filled(&memory, &[], &mut 3), (0, 0));
        assert_eq!(last_filled(&memory, &[u64::MAX], &mut 0), (0, 0));
    }
}
