//! Breakpoints of a whole machine: the CPUs' own, and traps planted in the guest's kernel code.
//!
//! Text changes only while all vCPUs are stopped. The port of a trap only makes the vCPU leave the
//! guest; the address tells whether the trap is ours. A vCPU at a trap stops before the
//! instruction: KVM's completion of the `out` is undone. Resumed, it enters the guest at the trap
//! once more, so that it takes a pending NMI or interrupt there. Then the trap stops it again, as
//! an expected return ([`Stop::BackAtBreakpoint`]). Resumed from that, it executes the instruction
//! by a single step with the original bytes in place and all other vCPUs stopped.

mod step_over;

use vmm_sys_util::errno;

use crate::debug::{
    DR7_ENABLED, DataBreakpoint, MAX_BREAKPOINTS, Trap, TrapError, TrapFit, breakpoints,
};
use crate::devices::ports::TRAP_PORT;
use crate::memory::{Memory, as_usize};
use crate::threads::{PauseError, ResumeError, State, TrapContext, Vcpus};
use crate::vcpu::{Run, Stop};
use crate::x86::{LONGEST_INSTRUCTION, PAGE};

/// Why breakpoints could not be set.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum BreakpointError {
    /// More than the CPU has, at addresses that take no trap.
    #[error(
        "{asked} breakpoints are at addresses that take no trap (in user mode, of data, or of \
         instructions of one byte), and a CPU has {MAX_BREAKPOINTS} of its own"
    )]
    TooMany { asked: usize },
    /// The guest uses the CPU's own.
    #[error(
        "{asked} breakpoints are at addresses that take no trap (in user mode, of data, or of \
         instructions of one byte), and the guest uses the CPU's own, which would have no effect meanwhile"
    )]
    NoneLeft { asked: usize },
    /// The guest has set its own while ours were set.
    #[error(
        "the guest set breakpoints of its own on vCPU {vcpu} while ours were set: they had no effect"
    )]
    GuestsOwn { vcpu: u8 },
    /// A trap cannot be written or removed.
    #[error(transparent)]
    Trap(#[from] TrapError),
    /// A vCPU cannot be stopped.
    #[error(transparent)]
    Pause(#[from] PauseError),
    /// A vCPU cannot be resumed.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// KVM refused.
    #[error("failed to get the debug registers of vCPU {vcpu}: {source}")]
    Kvm { vcpu: u8, source: errno::Error },
    /// Only a stopped vCPU can be changed.
    #[error("vCPU {vcpu} is not stopped: pause it first")]
    NotStopped { vcpu: u8 },
}

/// Where vCPUs are to stop.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Places<'a> {
    /// Instructions of the kernel.
    pub(crate) kernel: &'a [u64],
    /// Instructions of user mode.
    pub(crate) user: &'a [u64],
    /// Accesses to data.
    pub(crate) data: &'a [DataBreakpoint],
}

/// The breakpoints of a machine.
#[derive(Debug)]
pub(crate) struct Traps {
    memory: Memory,
    planted: Vec<Trap>,
    /// The addresses that have a hardware breakpoint.
    hardware: Vec<u64>,
    /// The guest has had breakpoints of its own. Linux removes them from the registers during an
    /// NMI, so the registers at some moment do not tell.
    guests_own: bool,
    /// Instructions that are replaced by something else ([`crate::returns`],
    /// [`crate::sysenter`]): they take no trap.
    taken: Vec<u64>,
}

impl Traps {
    /// No breakpoints.
    pub(crate) fn new(memory: Memory) -> Self {
        Self {
            memory,
            planted: Vec::new(),
            hardware: Vec::new(),
            guests_own: false,
            taken: Vec::new(),
        }
    }

    /// From now on instructions at these addresses take no trap.
    pub(crate) fn set_taken(&mut self, addresses: Vec<u64>) {
        self.taken = addresses;
    }

    fn is_planted(&self, address: u64) -> bool {
        self.planted.iter().any(|trap| trap.address == address)
    }

    /// Replaces the traps by the original code in `bytes`, which were read at `address`.
    pub(crate) fn hide(&self, address: u64, bytes: &mut [u8]) {
        for trap in &self.planted {
            trap.hide(address, bytes);
        }
    }

    /// Replaces the breakpoints of all vCPUs.
    pub(crate) fn set_breakpoints(
        &mut self,
        vcpus: &mut Vcpus,
        places: &Places<'_>,
    ) -> Result<(), BreakpointError> {
        let stopped = vcpus.stop_running()?;
        let set = self.set_while_stopped(vcpus, places);
        vcpus.resume_all(&stopped)?;
        set
    }

    /// Resumes a vCPU, which may be at a trap.
    pub(crate) fn resume(
        &mut self,
        vcpus: &mut Vcpus,
        index: u8,
        run: Run,
    ) -> Result<(), ResumeError> {
        match (self.stop_at_trap(vcpus, index), run) {
            (Some(Stop::Breakpoint { .. }), Run::Continue) => {
                if let Some(context) = vcpus.stopped(index).and_then(TrapContext::at) {
                    vcpus.returns.expect(context, false);
                }
                vcpus.resume(index, run)
            }
            (Some(Stop::Breakpoint { .. } | Stop::BackAtBreakpoint { .. }), _) => {
                self.step_over(vcpus, index, run)
            }
            // It has not executed the trap yet.
            (Some(_) | None, _) => vcpus.resume(index, run),
        }
    }

    /// Why a vCPU is stopped whose next instruction has a trap; `None` for others.
    fn stop_at_trap(&self, vcpus: &Vcpus, index: u8) -> Option<Stop> {
        if self.planted.is_empty() {
            return None;
        }
        let State::Stopped {
            vcpu,
            stop,
            seen: true,
            ..
        } = &vcpus.get(index)?.state
        else {
            return None;
        };
        let pc = vcpu.fd.get_regs().ok()?.rip;
        self.is_planted(pc).then(|| stop.clone())
    }

    fn set_while_stopped(
        &mut self,
        vcpus: &mut Vcpus,
        places: &Places<'_>,
    ) -> Result<(), BreakpointError> {
        let Places { kernel, user, data } = *places;
        let guests_own = self.guests_own(vcpus)?;
        let hardware = self.choose_hardware(vcpus, places, guests_own)?;
        let wanted: Vec<u64> = { kernel.iter().copied() }
            .filter(|address| !hardware.contains(address))
            .collect();
        let none_left = kernel.is_empty() && user.is_empty();
        let lifted = self.lift_unwanted(vcpus, &wanted, none_left);
        let mut addresses = wanted.iter();
        let planted = addresses.try_for_each(|&address| self.plant(vcpus, address));
        let asked = hardware.len() + data.len();
        let registers = breakpoints(&hardware, data).ok_or(BreakpointError::TooMany { asked })?;
        self.hardware = hardware;
        let traps: Vec<u64> = self.planted.iter().map(|it| it.address).collect();
        for vcpu in vcpus.all_stopped_mut() {
            vcpu.debug.config.breakpoints = registers;
            vcpu.traps.clone_from(&traps);
        }
        lifted.and(planted).map_err(BreakpointError::from)
    }

    /// Whether the guest has breakpoints of its own on a vCPU. It is an error if ours were set too:
    /// the guest's had no effect, and nobody knows what they missed.
    fn guests_own(&mut self, vcpus: &Vcpus) -> Result<bool, BreakpointError> {
        for vcpu in vcpus.all_stopped() {
            let index = vcpu.index;
            let registers = vcpu.fd.get_debug_regs();
            let registers = registers.map_err(|source| BreakpointError::Kvm {
                vcpu: index,
                source,
            })?;
            if registers.dr7 & DR7_ENABLED == 0 {
                continue;
            }
            if vcpu.debug.config.breakpoints.iter().any(Option::is_some) {
                return Err(BreakpointError::GuestsOwn { vcpu: index });
            }
            self.guests_own = true;
        }
        Ok(self.guests_own)
    }

    /// The instructions that get hardware breakpoints. Data take no others.
    fn choose_hardware(
        &self,
        vcpus: &Vcpus,
        places: &Places<'_>,
        guests_own: bool,
    ) -> Result<Vec<u64>, BreakpointError> {
        let Places { kernel, user, data } = *places;
        let all = if guests_own { 0 } else { MAX_BREAKPOINTS };
        let most = all.saturating_sub(data.len());
        let mut chosen = user.to_vec();
        let all_fit = kernel.len() + user.len() <= most;
        let mut others: Vec<(bool, TrapFit, u64)> = Vec::new();
        for &address in kernel {
            let has_one = self.hardware.contains(&address);
            match self.is_planted(address) {
                true => {}
                false if all_fit => others.push((!has_one, TrapFit::Good, address)),
                false => match self.fit(vcpus, address)? {
                    TrapFit::OneByte => chosen.push(address),
                    fit => others.push((!has_one, fit, address)),
                },
            }
        }
        let asked = chosen.len() + data.len();
        if asked > all {
            return Err(match guests_own {
                true => BreakpointError::NoneLeft { asked },
                false => BreakpointError::TooMany { asked },
            });
        }
        others.sort_unstable();
        chosen.extend(others.iter().map(|(.., address)| *address));
        chosen.truncate(most);
        Ok(chosen)
    }

    /// How well the instruction at an address takes a trap.
    fn fit(&self, vcpus: &Vcpus, address: u64) -> Result<TrapFit, TrapError> {
        if self.taken.contains(&address) {
            return Ok(TrapFit::OneByte);
        }
        let mut code = [0; LONGEST_INSTRUCTION];
        let in_page = as_usize(PAGE - address % PAGE).min(LONGEST_INSTRUCTION);
        let (first, rest) = code.split_at_mut(in_page);
        let unmapped = |_| TrapError::Unmapped { address };
        let read = |address, bytes: &mut [u8]| {
            let physical = physical(vcpus, address)?;
            self.memory.read(physical, bytes).map_err(unmapped)
        };
        read(address, first)?;
        // The instruction may end before an unmapped page.
        let next = address.wrapping_add(in_page as u64);
        let known = match rest.is_empty() || read(next, rest).is_err() {
            true if in_page < LONGEST_INSTRUCTION => in_page,
            _ => LONGEST_INSTRUCTION,
        };
        let known = code.get_mut(..known).unwrap_or_default();
        self.hide(address, known);
        Ok(TrapFit::of(known, address))
    }

    /// Removes traps that are not wanted any more, all of them if `none_left`. Otherwise those stay
    /// to which code is about to come back: if the trap were wanted again meanwhile, the return
    /// would count as a new arrival.
    fn lift_unwanted(
        &mut self,
        vcpus: &mut Vcpus,
        wanted: &[u64],
        none_left: bool,
    ) -> Result<(), TrapError> {
        let awaited: Vec<u64> = { vcpus.slots().iter() }
            .filter_map(|slot| match &slot.state {
                State::Stopped {
                    stop: Stop::Breakpoint { pc } | Stop::BackAtBreakpoint { pc },
                    ..
                } => Some(*pc),
                _ => None,
            })
            .chain(vcpus.returns.addresses())
            .collect();
        let mut all = Ok(());
        for trap in std::mem::take(&mut self.planted) {
            let stays =
                wanted.contains(&trap.address) || !none_left && awaited.contains(&trap.address);
            if stays {
                self.planted.push(trap);
                continue;
            }
            vcpus.returns.forget(trap.address);
            all = all.and(trap.take_out(&self.memory));
        }
        all
    }

    fn plant(&mut self, vcpus: &Vcpus, address: u64) -> Result<(), TrapError> {
        if self.is_planted(address) {
            return Ok(());
        }
        let bytes = [
            physical(vcpus, address)?,
            physical(vcpus, address.wrapping_add(1))?,
        ];
        let trap = Trap::new(address, bytes, TRAP_PORT, &self.memory)?;
        trap.put_in(&self.memory)?;
        self.planted.push(trap);
        Ok(())
    }

    /// The traps that are in memory.
    pub(crate) fn planted(&self) -> impl Iterator<Item = &Trap> {
        self.planted.iter()
    }

    /// Removes all traps from memory for the time of a checkpoint.
    pub(crate) fn lift(&self) -> Result<(), TrapError> {
        { self.planted.iter() }.try_for_each(|trap| trap.take_out(&self.memory))
    }

    /// Writes all traps to memory again.
    pub(crate) fn put_back(&self) -> Result<(), TrapError> {
        { self.planted.iter() }.try_for_each(|trap| trap.put_in(&self.memory))
    }

    /// The machine was restored: writes all traps to its memory, and forgets the code that was
    /// about to come back to one.
    pub(crate) fn after_restore(&mut self, vcpus: &mut Vcpus) -> Result<(), TrapError> {
        vcpus.returns.clear();
        self.guests_own = false;
        self.put_back()
    }
}

/// The guest-physical address behind a virtual one, by the tables of any vCPU; all are stopped.
fn physical(vcpus: &Vcpus, address: u64) -> Result<u64, TrapError> {
    let mut found = { vcpus.all_stopped() }.filter_map(|vcpu| vcpu.translate(address).ok()?);
    found.next().ok_or(TrapError::Unmapped { address })
}
