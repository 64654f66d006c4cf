//! Traps planted in the guest's kernel code: breakpoints where the CPU has no more of its own.
//!
//! A trap is `out imm8, al` to a port that nobody has, over the first two bytes of an instruction.
//! It leaves the guest on every KVM, as a breakpoint instruction does not (the SVM that QEMU's TCG
//! emulates checks no intercept for `int3` and `int1`); and the port decides nothing but that it
//! leaves: whose it is follows from its address. `out dx, al` would need a single byte, but some of
//! the ports that DX may hold are KVM's own (interrupt controllers, timer), which it would write to.
//! So an instruction of one byte cannot have a trap: over two instructions it would be in the way
//! of whoever comes to the second one.
//!
//! Text is only changed while all vCPUs stand still. A vCPU at a trap stands before the instruction:
//! KVM's completion of the `out` is undone. Resumed, it enters the guest at the trap once more, so that an
//! NMI or an interrupt that waits is taken there; then the trap stops it again, and it is told by
//! its stack pointer from one that comes there anew ([`Stop::Again`]). Resumed from that, it executes the
//! instruction, by a single step with the original bytes in place and all other vCPUs stopped.

mod over;
mod text;

use kvm_bindings::{KVM_VCPUEVENT_VALID_SHADOW, kvm_regs};
use vmm_sys_util::errno;

use crate::debug::{BreakpointError, DR7_ENABLED, MAX_BREAKPOINTS, RFLAGS_TRAP};
use crate::exit::Stop;
use crate::handle::Pause;
use crate::machine::Machine;
use crate::slot::{ResumeError, State};
use crate::thread::Run;
use crate::vcpu::Vcpu;

use text::{Kind, Trap};

/// The port of a trap: no device of a PC has it, and Linux uses none near it.
pub(crate) const TRAP_PORT: u16 = 0xf7;

/// All of a machine.
#[derive(Debug, Default)]
pub(crate) struct Traps {
    planted: Vec<Trap>,
    /// Those that stood at a trap and have been let go, until they have passed it.
    passing: Vec<Passing>,
    /// The addresses that have a breakpoint of the CPUs' own.
    hardware: Vec<u64>,
    /// The guest has had breakpoints of its own. Linux takes them out of the registers for the time
    /// of an NMI, so that what a register holds at some moment is not all.
    guests_own: bool,
}

/// Somebody at a trap who stopped there before.
#[derive(Debug, Clone, Copy)]
struct Passing {
    who: Who,
    /// It was being single-stepped, and went off into the handler of a fault: the trap flag is in
    /// the flags that it comes back with.
    stepped: bool,
}

/// Code at a trap, as far as it stays the same while it is interrupted there, on whichever vCPU it
/// goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Who {
    address: u64,
    stack: u64,
    /// The page tables, in the few instructions of an entry in which the stack is still the
    /// user's: two processes may have it at the same address.
    tables: Option<u64>,
}

impl Who {
    /// Where a vCPU stands.
    fn at(vcpu: &Vcpu) -> Option<Self> {
        Self::of(vcpu, &vcpu.fd.get_regs().ok()?)
    }

    fn of(vcpu: &Vcpu, regs: &kvm_regs) -> Option<Self> {
        /// A process-context identifier.
        const PCID: u64 = 0xfff;
        let of_user = regs.rsp >> 63 == 0;
        let tables = match of_user {
            true => Some(vcpu.sregs().ok()?.cr3 & !PCID),
            false => None,
        };
        Some(Self {
            address: regs.rip,
            stack: regs.rsp,
            tables,
        })
    }
}

impl Traps {
    pub(crate) fn are_none(&self) -> bool {
        self.planted.is_empty()
    }

    pub(crate) fn is_planted(&self, address: u64) -> bool {
        self.planted.iter().any(|trap| trap.address == address)
    }

    /// Puts into bytes that were read at `address` what the guest would have there without traps.
    pub(crate) fn hide(&self, address: u64, bytes: &mut [u8]) {
        for trap in &self.planted {
            trap.hide(address, bytes);
        }
    }

    /// Why a vCPU has stopped: at a trap where it stopped before it is only back.
    pub(crate) fn recognise(&mut self, vcpu: &Vcpu, stop: Stop) -> Stop {
        let Stop::Breakpoint { pc } = stop else {
            return stop;
        };
        match self.is_back(vcpu) {
            Ok(true) => Stop::Again { pc },
            Ok(false) => stop,
            Err(error) => Stop::Unhandled {
                exit: format!("a planted trap, and KVM refused its registers: {error}"),
            },
        }
    }

    fn is_back(&mut self, vcpu: &Vcpu) -> Result<bool, errno::Error> {
        if self.passing.is_empty() {
            return Ok(false);
        }
        let mut regs = vcpu.fd.get_regs()?;
        let who = Who::of(vcpu, &regs);
        let Some(at) = self.passing.iter().position(|it| Some(it.who) == who) else {
            return Ok(false);
        };
        if self.passing.swap_remove(at).stepped {
            regs.rflags &= !RFLAGS_TRAP;
            vcpu.fd.set_regs(&regs)?;
        }
        Ok(true)
    }
}

/// The guest executed a trap, and KVM has yet to complete the `out`. `complete` lets it; then the
/// vCPU is put back to before the instruction. None where there is no trap of ours at that address.
pub(crate) fn stopped_at(
    vcpu: &mut Vcpu,
    complete: impl FnOnce(&mut Vcpu) -> Option<Stop>,
) -> Result<Option<Stop>, errno::Error> {
    let regs = vcpu.fd.get_regs()?;
    if !vcpu.traps.contains(&regs.rip) {
        return Ok(None);
    }
    let shadow = vcpu.fd.get_vcpu_events()?.interrupt.shadow;
    if let Some(stop) = complete(vcpu) {
        return Ok(Some(stop));
    }
    vcpu.fd.set_regs(&regs)?;
    // The instruction before was `sti`: KVM takes the completion for the end of its shadow.
    if shadow != 0 {
        let mut events = vcpu.fd.get_vcpu_events()?;
        events.flags |= KVM_VCPUEVENT_VALID_SHADOW;
        events.interrupt.shadow = shadow;
        vcpu.fd.set_vcpu_events(&events)?;
    }
    vcpu.at_breakpoint = true;
    Ok(Some(Stop::Breakpoint { pc: regs.rip }))
}

impl Machine {
    /// Replaces the breakpoints of all vCPUs: instructions of the kernel, and of user mode, by their
    /// virtual addresses. vCPUs that run stand still for the moment.
    ///
    /// The CPU's own breakpoints are used first; for more than [`MAX_BREAKPOINTS`], traps are planted
    /// in the kernel's code, where an instruction has two bytes or more. While the guest has
    /// breakpoints of its own, only traps are: ours would put the guest's out of effect. A place keeps
    /// what it has for as long as it is wanted.
    ///
    /// # Errors
    /// [`BreakpointError`]. The breakpoints are some of those asked for then.
    pub fn set_breakpoints(&mut self, kernel: &[u64], user: &[u64]) -> Result<(), BreakpointError> {
        let stopped = self.stop_all()?;
        let set = self.set_while_stopped(kernel, user);
        self.go_on(&stopped)?;
        set
    }

    /// Lets a vCPU go on; from a trap in the way that it takes.
    pub(crate) fn resume(&mut self, index: u8, run: Run) -> Result<(), ResumeError> {
        let over = match (self.at_trap(index), run) {
            (Some(Stop::Breakpoint { .. }), Run::Continue) => {
                let vcpu = self.slot(index).and_then(|slot| slot.stopped());
                let who = vcpu.and_then(Who::at);
                let stepped = false;
                self.traps
                    .passing
                    .extend(who.map(|who| Passing { who, stepped }));
                false
            }
            (Some(Stop::Breakpoint { .. } | Stop::Again { .. }), _) => true,
            // It has not met it yet.
            (Some(_) | None, _) => false,
        };
        match (over, self.slot_mut(index)) {
            (true, _) => self.step_over(index, run),
            (false, Some(slot)) => slot.resume(run),
            (false, None) => Err(ResumeError::NotStopped { vcpu: index }),
        }
    }

    /// For what a vCPU is stopped whose next instruction has a trap; none for others.
    fn at_trap(&self, index: u8) -> Option<Stop> {
        if self.traps.planted.is_empty() {
            return None;
        }
        let State::Stopped {
            vcpu,
            stop,
            seen: true,
            ..
        } = &self.slot(index)?.state
        else {
            return None;
        };
        let pc = vcpu.fd.get_regs().ok()?.rip;
        self.traps.is_planted(pc).then(|| stop.clone())
    }

    /// Stops all vCPUs; those that ran.
    fn stop_all(&mut self) -> Result<Vec<u8>, BreakpointError> {
        let found = self.pause_all()?;
        let ran = (0..).zip(found).filter(|(_, it)| *it == Pause::Paused);
        Ok(ran.map(|(index, _)| index).collect())
    }

    fn go_on(&mut self, stopped: &[u8]) -> Result<(), BreakpointError> {
        for &index in stopped {
            if let Some(slot) = self.slot_mut(index) {
                slot.resume(Run::Continue).map_err(Box::new)?;
            }
        }
        Ok(())
    }

    fn set_while_stopped(&mut self, kernel: &[u64], user: &[u64]) -> Result<(), BreakpointError> {
        let own = self.guests_own()?;
        let hardware = self.choose(kernel, user, own)?;
        let wanted: Vec<u64> = { kernel.iter().copied() }
            .filter(|address| !hardware.contains(address))
            .collect();
        let lifted = self.lift_unwanted(&wanted, kernel.is_empty() && user.is_empty());
        let planted = wanted.iter().try_for_each(|&address| self.plant(address));
        self.traps.hardware.clone_from(&hardware);
        let traps: Vec<u64> = self.traps.planted.iter().map(|it| it.address).collect();
        for slot in &mut self.vcpus {
            if let State::Stopped { vcpu, .. } = &mut slot.state {
                vcpu.wanted.set_breakpoints(&hardware)?;
                vcpu.traps.clone_from(&traps);
            }
        }
        lifted.and(planted)
    }

    /// Whether the guest has breakpoints of its own on a vCPU. Where they had no effect, because of
    /// ours, that is an error: they have missed who knows what.
    fn guests_own(&mut self) -> Result<bool, BreakpointError> {
        for vcpu in self.vcpus.iter().filter_map(|slot| slot.stopped()) {
            let index = vcpu.index;
            let registers = vcpu.fd.get_debug_regs();
            let registers = registers.map_err(|source| BreakpointError::Kvm {
                vcpu: index,
                source,
            })?;
            if registers.dr7 & DR7_ENABLED == 0 {
                continue;
            }
            if vcpu.wanted.has_breakpoints() {
                return Err(BreakpointError::GuestsOwn { vcpu: index });
            }
            self.traps.guests_own = true;
        }
        Ok(self.traps.guests_own)
    }

    /// The addresses that get breakpoints of the CPUs' own.
    fn choose(&self, kernel: &[u64], user: &[u64], own: bool) -> Result<Vec<u64>, BreakpointError> {
        let most = if own { 0 } else { MAX_BREAKPOINTS };
        let mut chosen = user.to_vec();
        let few = kernel.len() + user.len() <= most;
        let mut others: Vec<(bool, Kind, u64)> = Vec::new();
        for &address in kernel {
            let has_one = self.traps.hardware.contains(&address);
            match self.traps.is_planted(address) {
                true => {}
                false if few => others.push((!has_one, Kind::Plain, address)),
                false => match self.kind(address)? {
                    Kind::OneByte => chosen.push(address),
                    kind => others.push((!has_one, kind, address)),
                },
            }
        }
        if chosen.len() > most {
            let asked = chosen.len();
            return Err(match own {
                true => BreakpointError::NoneLeft { asked },
                false => BreakpointError::TooMany { asked },
            });
        }
        others.sort_unstable();
        chosen.extend(others.iter().map(|(.., address)| *address));
        chosen.truncate(most);
        Ok(chosen)
    }

    /// Takes traps out that nobody waits at any more. One that somebody is about to come back to stays,
    /// so that this is not taken for a new arrival where it is wanted again meanwhile; none is `left`
    /// where there are to be no breakpoints at all.
    fn lift_unwanted(&mut self, wanted: &[u64], none_left: bool) -> Result<(), BreakpointError> {
        let standing: Vec<u64> = { self.vcpus.iter() }
            .filter_map(|slot| match &slot.state {
                State::Stopped {
                    stop: Stop::Breakpoint { pc } | Stop::Again { pc },
                    ..
                } => Some(*pc),
                _ => None,
            })
            .chain(self.traps.passing.iter().map(|it| it.who.address))
            .collect();
        let mut all = Ok(());
        for trap in std::mem::take(&mut self.traps.planted) {
            let stays =
                wanted.contains(&trap.address) || !none_left && standing.contains(&trap.address);
            if stays {
                self.traps.planted.push(trap);
                continue;
            }
            self.traps
                .passing
                .retain(|it| it.who.address != trap.address);
            all = all.and(trap.take_out(&self.memory));
        }
        all
    }

    fn plant(&mut self, address: u64) -> Result<(), BreakpointError> {
        if self.traps.is_planted(address) {
            return Ok(());
        }
        let trap = Trap::at(address, self)?;
        trap.put_in(&self.memory)?;
        self.traps.planted.push(trap);
        Ok(())
    }

    /// Takes all traps out of memory, which is about to be saved.
    pub(crate) fn lift_traps(&mut self) -> Result<(), BreakpointError> {
        { self.traps.planted.iter() }.try_for_each(|trap| trap.take_out(&self.memory))
    }

    /// Puts them back, where memory holds what they were planted over.
    pub(crate) fn put_traps_back(&mut self) -> Result<(), BreakpointError> {
        { self.traps.planted.iter() }.try_for_each(|trap| trap.put_in(&self.memory))
    }

    /// The vCPUs are others now: nobody comes back to a trap.
    pub(crate) fn forget_passing(&mut self) {
        self.traps.passing.clear();
        self.traps.guests_own = false;
    }
}
