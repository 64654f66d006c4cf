//! What can be done to one vCPU.

use kvm_bindings::{kvm_regs, kvm_sregs};

use crate::debug::BreakpointError;
use crate::exit::{Stop, Watched};
use crate::inject::{self, InjectError, NmiReceipt, NmiState};
use crate::machine::Machine;
use crate::pmu::{self, OverflowError, OverflowReceipt};
use crate::slot::{PauseError, ResumeError, State};
use crate::thread::Run;
use crate::vcpu::{InspectError, Vcpu};

/// What [`VcpuHandle::pause`] found. In each case the vCPU is stopped now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// It ran, and is stopped because of this call. No event tells of it.
    Paused,
    /// It stopped at the same moment for a reason of its own: [`Machine::next_event`] has it.
    StoppedItself,
    /// It was stopped before.
    WasStopped,
}

/// One vCPU of a machine. All but [`pause`](Self::pause) need it stopped.
#[derive(Debug)]
pub struct VcpuHandle<'m> {
    machine: &'m mut Machine,
    index: u8,
}

impl<'m> VcpuHandle<'m> {
    pub(crate) fn new(machine: &'m mut Machine, index: u8) -> Self {
        Self { machine, index }
    }

    /// Which vCPU this is.
    pub fn index(&self) -> u8 {
        self.index
    }

    /// Why it is stopped; `None` where it runs.
    pub fn stop(&self) -> Option<Stop> {
        match &self.machine.slot(self.index)?.state {
            State::Running => None,
            State::Stopped { stop, .. } => Some(stop.clone()),
            State::Dead(reason) => Some(Stop::ThreadDied {
                reason: reason.clone(),
            }),
        }
    }

    /// Stops it. Afterwards it is stopped, for this or another reason.
    pub fn pause(&mut self) -> Result<Pause, PauseError> {
        let Some(slot) = self.machine.slot(self.index) else {
            return Ok(Pause::WasStopped);
        };
        let ran = slot.is_running();
        slot.kick()?;
        self.machine.wait_stopped(self.index, ran)
    }

    /// Lets it go on.
    pub fn resume(&mut self, run: Run) -> Result<(), ResumeError> {
        self.machine.resume(self.index, run)
    }

    /// Replaces this vCPU's own breakpoints by `addresses`, at most
    /// [`MAX_BREAKPOINTS`](crate::MAX_BREAKPOINTS) virtual ones. They stay until replaced.
    /// [`Machine::set_breakpoints`] replaces those of all vCPUs, and knows no such limit. A
    /// vCPU that is stopped at an address has not executed it yet: resumed, it stops there
    /// once more unless it was the breakpoint there that stopped it.
    pub fn set_breakpoints(&mut self, addresses: &[u64]) -> Result<(), BreakpointError> {
        let not_stopped = BreakpointError::NotStopped { vcpu: self.index };
        match self
            .machine
            .slot_mut(self.index)
            .map(|slot| &mut slot.state)
        {
            Some(State::Stopped { vcpu, .. }) => vcpu.wanted.set_breakpoints(addresses),
            _ => Err(not_stopped),
        }
    }

    /// Replaces the accesses at which this vCPU stops, with [`Stop::Access`].
    pub fn watch(&mut self, accesses: &[Watched]) -> Result<(), InspectError> {
        let not_stopped = InspectError::NotStopped { vcpu: self.index };
        let slot = self.machine.slot_mut(self.index);
        match slot.map(|slot| &mut slot.state) {
            Some(State::Stopped { vcpu, .. }) => {
                vcpu.watched = accesses.to_vec();
                Ok(())
            }
            _ => Err(not_stopped),
        }
    }

    /// Injects one NMI, which is taken at the next instruction boundary after the vCPU is
    /// resumed with [`Run::Continue`] (see [`NmiReceipt`] for the exception).
    pub fn inject_nmi(&mut self) -> Result<NmiReceipt, InjectError> {
        match self.stopped() {
            Some(vcpu) => inject::nmi(&vcpu.fd),
            None => Err(InjectError::NotStopped { vcpu: self.index }),
        }
    }

    /// Has the vCPU's local APIC ask for interrupt `vector` (fixed, edge). The vCPU takes it, after
    /// it is resumed, when it has interrupts enabled and none of a higher priority in service.
    pub fn inject_irq(&mut self, vector: u8) -> Result<(), InjectError> {
        match self.stopped() {
            Some(vcpu) => inject::irq(self.machine.vm(), &vcpu.fd, self.index, vector),
            None => Err(InjectError::NotStopped { vcpu: self.index }),
        }
    }

    /// Lets a synthetic performance counter overflow: that of number `counter`, or the lowest that
    /// the guest has enabled to interrupt it at its present privilege level. The counter holds 0
    /// then, and the NMI waits that the guest has its local APIC make of an overflow.
    ///
    /// # Errors
    /// [`OverflowError`]; nothing has changed then.
    pub fn pmu_overflow(&mut self, counter: Option<u8>) -> Result<OverflowReceipt, OverflowError> {
        let not_stopped = OverflowError::NotStopped { vcpu: self.index };
        match self
            .machine
            .slot_mut(self.index)
            .map(|slot| &mut slot.state)
        {
            Some(State::Stopped { vcpu, .. }) => pmu::overflow(vcpu, counter),
            _ => Err(not_stopped),
        }
    }

    /// Has the function that the vCPU, stopped at its first instruction, is about to execute
    /// return `value` to its caller instead (System V ABI: the return address is on top of the
    /// stack, the value goes into `rax`).
    pub fn return_now(&mut self, value: i64) -> Result<(), InspectError> {
        let vcpu = self.inspect()?;
        let mut regs = vcpu.regs()?;
        let mut caller = [0; 8];
        vcpu.read_virt(regs.rsp, &mut caller)?;
        regs.rip = u64::from_le_bytes(caller);
        regs.rsp = regs.rsp.wrapping_add(8);
        regs.rax = value.cast_unsigned();
        vcpu.set_regs(&regs)
    }

    /// Sets the frame pointer.
    pub fn set_frame_pointer(&mut self, value: u64) -> Result<(), InspectError> {
        let vcpu = self.inspect()?;
        let mut regs = vcpu.regs()?;
        regs.rbp = value;
        vcpu.set_regs(&regs)
    }

    /// The NMIs that wait, and whether the guest handles one.
    pub fn nmi_state(&self) -> Result<NmiState, InjectError> {
        match self.stopped() {
            Some(vcpu) => NmiState::of(&vcpu.fd).map_err(|source| InjectError::Kvm {
                what: "read the event state",
                source,
            }),
            None => Err(InjectError::NotStopped { vcpu: self.index }),
        }
    }

    /// Whether an interrupt is on its way to the vCPU: in its LAPIC, or taken from there and not delivered yet.
    pub fn irq_pending(&self) -> Result<bool, InspectError> {
        let vcpu = self.inspect()?;
        let pending = inject::irq_pending(&vcpu.fd);
        pending.map_err(|source| vcpu.failed("read the pending interrupts", source))
    }

    /// The general registers.
    pub fn regs(&self) -> Result<kvm_regs, InspectError> {
        self.inspect()?.regs()
    }

    /// The system registers.
    pub fn sregs(&self) -> Result<kvm_sregs, InspectError> {
        self.inspect()?.sregs()
    }

    /// A model-specific register.
    pub fn msr(&self, index: u32) -> Result<u64, InspectError> {
        self.inspect()?.msr(index)
    }

    /// The guest-physical address behind a virtual one, by the page tables the vCPU uses now;
    /// `None` where nothing is mapped.
    pub fn translate(&self, address: u64) -> Result<Option<u64>, InspectError> {
        self.inspect()?.translate(address)
    }

    /// Reads guest memory by virtual address: code as it is without traps.
    pub fn read_virt(&self, address: u64, into: &mut [u8]) -> Result<(), InspectError> {
        self.inspect()?.read_virt(address, into)?;
        self.machine.traps.hide(address, into);
        Ok(())
    }

    /// Writes guest memory by virtual address, whether or not the guest itself might.
    pub fn write_virt(&self, address: u64, bytes: &[u8]) -> Result<(), InspectError> {
        let vcpu = self.inspect()?;
        vcpu.write_virt_with(&vcpu.sregs()?, address, bytes)
    }

    fn stopped(&self) -> Option<&Vcpu> {
        self.machine.slot(self.index)?.stopped()
    }

    fn inspect(&self) -> Result<&Vcpu, InspectError> {
        self.stopped()
            .ok_or(InspectError::NotStopped { vcpu: self.index })
    }
}
