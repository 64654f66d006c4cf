//! Control of one vCPU.

use std::time::Duration;

use kvm_bindings::{kvm_regs, kvm_sregs};

use super::Machine;
use crate::debug::breakpoints;
use crate::inject::{self, InjectError, NmiReceipt, NmiState};
use crate::threads::{Pause, PauseError, ResumeError, State};
use crate::traps::BreakpointError;
use crate::vcpu::{InspectError, OverflowError, OverflowReceipt, Run, Stop, Vcpu, Watched};
use crate::x86::RFLAGS_RESUME;

/// One vCPU of a machine. All methods but [`pause`](Self::pause) need it stopped.
#[derive(Debug)]
pub struct VcpuHandle<'m> {
    machine: &'m mut Machine,
    index: u8,
}

impl<'m> VcpuHandle<'m> {
    pub(super) fn new(machine: &'m mut Machine, index: u8) -> Self {
        Self { machine, index }
    }

    /// Number of this vCPU.
    pub fn index(&self) -> u8 {
        self.index
    }

    /// Why it is stopped; `None` if it runs.
    pub fn stop(&self) -> Option<Stop> {
        match &self.machine.vcpus.get(self.index)?.state {
            State::Running | State::Due { .. } => None,
            State::Stopped { stop, .. } => Some(stop.clone()),
            State::Dead(reason) => Some(Stop::ThreadDied {
                reason: reason.clone(),
            }),
        }
    }

    /// Stops it. Afterwards it is stopped, for this or another reason.
    pub fn pause(&mut self) -> Result<Pause, PauseError> {
        self.machine.vcpus.pause(self.index)
    }

    /// Resumes it.
    pub fn resume(&mut self, run: Run) -> Result<(), ResumeError> {
        self.machine.resume(self.index, run)
    }

    /// Replaces this vCPU's own breakpoints by at most four virtual addresses. They stay until
    /// replaced. [`Machine::set_breakpoints`] replaces those of all vCPUs, and has no such limit.
    /// A vCPU that is stopped at an address has not executed it yet: resumed, it stops there once
    /// more, unless the breakpoint there stopped it.
    pub fn set_breakpoints(&mut self, addresses: &[u64]) -> Result<(), BreakpointError> {
        let not_stopped = BreakpointError::NotStopped { vcpu: self.index };
        let vcpu = self.machine.vcpus.stopped_mut(self.index);
        let vcpu = vcpu.ok_or(not_stopped)?;
        let asked = addresses.len();
        let registers = breakpoints(addresses, &[]).ok_or(BreakpointError::TooMany { asked })?;
        vcpu.debug.config.breakpoints = registers;
        Ok(())
    }

    /// Replaces the accesses that stop this vCPU with [`Stop::Access`].
    pub fn watch(&mut self, accesses: &[Watched]) -> Result<(), InspectError> {
        let not_stopped = InspectError::NotStopped { vcpu: self.index };
        let vcpu = self.machine.vcpus.stopped_mut(self.index);
        vcpu.ok_or(not_stopped)?.watched = accesses.to_vec();
        Ok(())
    }

    /// As [`Machine::postpone_timers`], of this vCPU only.
    pub fn postpone_timer(&self, by: Duration) -> Result<(), InspectError> {
        let stopped = self.machine.vcpus.stopped(self.index);
        let stopped = stopped.ok_or(InspectError::NotStopped { vcpu: self.index })?;
        stopped.postpone_timer(by)
    }

    /// As [`VcpuHandle::postpone_timer`]; but an interrupt of the timer that is pending does not stay so: it
    /// comes as late. What the guest would do with it, it does then. All vCPUs must be stopped.
    pub fn take_back_timer(&self, by: Duration) -> Result<(), InspectError> {
        let vcpu = self.inspect()?;
        match self.is_alone() {
            true => vcpu.take_back_timer(by),
            false => Err(InspectError::OthersRun { vcpu: self.index }),
        }
    }

    /// Injects one NMI. The guest takes it at the next instruction boundary after the vCPU is
    /// resumed with [`Run::Continue`] (see [`NmiReceipt`] for the exception).
    pub fn inject_nmi(&mut self) -> Result<NmiReceipt, InjectError> {
        inject::nmi(&self.for_injection()?.fd)
    }

    /// Makes interrupt `vector` pending in the vCPU's local APIC (fixed, edge). The resumed vCPU
    /// takes it when it has interrupts enabled and none of a higher priority in service.
    pub fn inject_irq(&mut self, vector: u8) -> Result<(), InjectError> {
        let vcpu = self.for_injection()?;
        inject::irq(&self.machine.vm, &vcpu.fd, self.index, vector)
    }

    /// Lets a synthetic performance counter overflow: `counter`, or the lowest that may interrupt
    /// the guest at its present privilege level. The counter is 0 then, and the NMI is pending into
    /// which the guest's local APIC turns an overflow.
    ///
    /// # Errors
    /// [`OverflowError`]; nothing has changed then, unless KVM fails to mask the local APIC's entry.
    pub fn pmu_overflow(&mut self, counter: Option<u8>) -> Result<OverflowReceipt, OverflowError> {
        let not_stopped = OverflowError::NotStopped { vcpu: self.index };
        let alone = self.is_alone();
        let vcpu = self.machine.vcpus.stopped_mut(self.index);
        vcpu.ok_or(not_stopped)?.overflow(counter, alone)
    }

    /// Makes the function at whose first instruction the vCPU is stopped return `value` to its
    /// caller at once (System V ABI: the return address is on top of the stack, the value in
    /// `rax`).
    pub fn return_now(&mut self, value: i64) -> Result<(), InspectError> {
        let vcpu = self.inspect()?;
        let mut regs = vcpu.regs()?;
        let mut caller = [0; 8];
        vcpu.read_virt(regs.rsp, &mut caller)?;
        regs.rip = u64::from_le_bytes(caller);
        regs.rsp = regs.rsp.wrapping_add(8);
        regs.rax = value.cast_unsigned();
        // As `ret` does: it would let the vCPU past a breakpoint of the CPU's own at the caller.
        regs.rflags &= !RFLAGS_RESUME;
        vcpu.set_regs(&regs)?;
        self.leave_breakpoint();
        Ok(())
    }

    /// The vCPU was moved away from where it had stopped: a breakpoint where it is now has not
    /// stopped it yet.
    fn leave_breakpoint(&mut self) {
        let slot = self.machine.vcpus.get_mut(self.index);
        if let Some(State::Stopped { vcpu, stop, .. }) = slot.map(|slot| &mut slot.state) {
            vcpu.at_breakpoint = false;
            *stop = Stop::Paused;
        }
    }

    /// Has the `rdtsc` or `rdtscp` that the vCPU has just executed have read this; or the time stamp of
    /// the guest's kvmclock, if that is later. What the clock has gone on by is the difference of the
    /// two, without a sign (`__pvclock_read_cycles()`, arch/x86/include/asm/pvclock.h): an earlier value is a
    /// clock that has gone on by centuries.
    pub fn set_read_tsc(&mut self, value: u64) -> Result<(), InspectError> {
        let vcpu = self.inspect()?;
        let value = vcpu.kvmclock_stamp()?.map_or(value, |it| value.max(it));
        let mut regs = vcpu.regs()?;
        (regs.rax, regs.rdx) = (value & 0xffff_ffff, value >> 32);
        vcpu.set_regs(&regs)
    }

    /// Sets the frame pointer.
    pub fn set_frame_pointer(&mut self, value: u64) -> Result<(), InspectError> {
        let vcpu = self.inspect()?;
        let mut regs = vcpu.regs()?;
        regs.rbp = value;
        vcpu.set_regs(&regs)
    }

    /// The pending NMIs, and whether the guest handles one.
    pub fn nmi_state(&self) -> Result<NmiState, InjectError> {
        inject::nmi_state(&self.for_injection()?.fd)
    }

    /// Whether an interrupt is pending in the vCPU's LAPIC, or taken from there and not delivered
    /// yet.
    pub fn irq_pending(&self) -> Result<bool, InspectError> {
        let vcpu = self.inspect()?;
        let pending = inject::irq_pending(&vcpu.fd);
        pending.map_err(|source| vcpu.failed("read the pending interrupts", source))
    }

    /// The vector of the interrupt that the vCPU takes next if it has interrupts enabled.
    pub fn next_vector(&self) -> Result<Option<u8>, InspectError> {
        let vcpu = self.inspect()?;
        let vector = inject::next_vector(&vcpu.fd);
        vector.map_err(|source| vcpu.failed("read the pending interrupts", source))
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

    /// The guest-physical address behind a virtual one, by the vCPU's current page tables; `None`
    /// if nothing is mapped.
    pub fn translate(&self, address: u64) -> Result<Option<u64>, InspectError> {
        self.inspect()?.translate(address)
    }

    /// Reads guest memory by virtual address. Code reads as if no traps were planted.
    pub fn read_virt(&self, address: u64, into: &mut [u8]) -> Result<(), InspectError> {
        self.read_virt_with(&self.sregs()?, address, into)
    }

    /// The same of a vCPU that has these system registers.
    pub fn read_virt_with(
        &self,
        sregs: &kvm_sregs,
        address: u64,
        into: &mut [u8],
    ) -> Result<(), InspectError> {
        self.inspect()?.read_virt_with(sregs, address, into)?;
        self.machine.traps.hide(address, into);
        self.machine.returns.hide(address, into);
        self.machine.sysenter.hide(address, into);
        Ok(())
    }

    /// Writes guest memory by virtual address, even if the guest itself may not write there.
    pub fn write_virt(&self, address: u64, bytes: &[u8]) -> Result<(), InspectError> {
        let vcpu = self.inspect()?;
        vcpu.write_virt_with(&vcpu.sregs()?, address, bytes)
    }

    /// Whether all vCPUs are stopped, so that none sends this one anything.
    fn is_alone(&self) -> bool {
        let vcpus = &self.machine.vcpus;
        vcpus.all_stopped().count() == vcpus.count()
    }

    fn for_injection(&self) -> Result<&Vcpu, InjectError> {
        let vcpu = self.machine.vcpus.stopped(self.index);
        vcpu.ok_or(InjectError::NotStopped { vcpu: self.index })
    }

    fn inspect(&self) -> Result<&Vcpu, InspectError> {
        let vcpu = self.machine.vcpus.stopped(self.index);
        vcpu.ok_or(InspectError::NotStopped { vcpu: self.index })
    }
}
