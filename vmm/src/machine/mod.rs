//! A whole machine, controlled by one thread: start, stop, inspect, resume.

mod build;
mod checkpoints;
mod handle;
mod returns;
mod sysenter;

use std::sync::Arc;
use std::time::Duration;

use kvm_ioctls::VmFd;

use crate::checkpoint::Ram;
use crate::debug::DataBreakpoint;
use crate::devices::ports::Ports;
use crate::devices::serial::Console;
use crate::memory::Memory;
use crate::pmu;
use crate::returns::PlantedReturns;
use crate::sysenter::PlantedSysenter;
use crate::threads::{Pause, PauseError, ResumeError, State, VcpuEvent, Vcpus};
use crate::traps::{BreakpointError, Places, Traps};
use crate::vcpu::{InspectError, Run};

pub use build::{BuildError, MachineConfig};
pub use handle::VcpuHandle;
pub use returns::ReturnWatchError;
pub use sysenter::MendError;

/// Maximum number of vCPUs of a machine.
const MAX_VCPUS: u8 = 8;

/// A virtual machine.
///
/// [`build`](Self::build) creates it with all vCPUs stopped before their first instruction.
/// Dropping it stops and joins all vCPU threads, closes every file and unmaps the guest's memory
/// (unless a clone of [`Memory`] keeps it).
#[derive(Debug)]
pub struct Machine {
    vcpus: Vcpus,
    console: Console,
    ports: Arc<Ports>,
    ram: Ram,
    traps: Traps,
    returns: PlantedReturns,
    sysenter: PlantedSysenter,
    /// The MSRs of a checkpoint ([`msr::is_saved`](crate::kvm::msr::is_saved)).
    msrs: Vec<u32>,
    /// The guest's synthetic counters.
    counters: Option<pmu::CounterModel>,
    // The fields are dropped in this order: the VM must outlive its vCPUs, and the guest's memory the VM,
    // which has its addresses ([`set_memory`](crate::kvm::vm::set_memory)).
    vm: VmFd,
    memory: Memory,
}

impl Machine {
    /// Starts the machine: resumes all stopped vCPUs except those with an undelivered event.
    pub fn start(&mut self) -> Result<(), ResumeError> {
        (0..self.vcpu_count()).try_for_each(|index| {
            match self.vcpus.get(index).map(|slot| &slot.state) {
                Some(State::Stopped { seen: true, .. }) => self.resume(index, Run::Continue),
                _ => Ok(()),
            }
        })
    }

    /// Number of vCPUs.
    pub fn vcpu_count(&self) -> u8 {
        u8::try_from(self.vcpus.count()).unwrap_or(MAX_VCPUS)
    }

    /// The guest's RAM.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The serial console's output.
    pub fn console(&self) -> &Console {
        &self.console
    }

    /// Whether the guest's accesses to this MSR can be watched: it is one of its synthetic counters.
    #[must_use]
    pub fn has_counter_msr(&self, index: u64) -> bool {
        let counters = self.counters.into_iter().flat_map(|it| it.msrs());
        { counters.map(|(first, count)| (u64::from(*first), u64::from(*count))) }
            .any(|(first, count)| (first..first + count).contains(&index))
    }

    /// vCPU `index`; `None` if the machine has fewer.
    pub fn vcpu(&mut self, index: u8) -> Option<VcpuHandle<'_>> {
        let known = usize::from(index) < self.vcpus.count();
        known.then(|| VcpuHandle::new(self, index))
    }

    /// Waits up to `timeout` for a vCPU to stop by itself, and delivers each such stop once. The
    /// vCPU stays stopped until it is resumed.
    pub fn next_event(&mut self, timeout: Duration) -> Option<VcpuEvent> {
        self.vcpus.next_event(timeout)
    }

    /// Stops all vCPUs. Returns what [`VcpuHandle::pause`] found for each.
    pub fn pause_all(&mut self) -> Result<Vec<Pause>, PauseError> {
        self.vcpus.pause_all()
    }

    /// From now on the vCPU of a machine that has only one runs on the thread that waits for it
    /// ([`next_event`](Self::next_event)), and only meanwhile. That saves two switches of threads for
    /// each stop. To the caller it runs from when it is resumed until it stops, as on its own thread.
    ///
    /// KVM waits for an RCU grace period when a vCPU changes its thread: keep to one.
    pub fn run_here(&mut self) {
        self.vcpus.run_here(&self.ports);
    }

    /// Replaces the breakpoints of all vCPUs, at virtual addresses of instructions of the kernel
    /// and of user mode. Running vCPUs are stopped meanwhile.
    ///
    /// The CPU has four breakpoints of its own, which are used first. For more, traps are planted in
    /// the kernel's code, at instructions of two bytes or more. Once the guest has breakpoints of its
    /// own, only traps are used: ours would disable the guest's. An address keeps its kind of
    /// breakpoint as long as it is wanted.
    ///
    /// # Errors
    /// [`BreakpointError`]. Then only some of the breakpoints are set.
    pub fn set_breakpoints(&mut self, kernel: &[u64], user: &[u64]) -> Result<(), BreakpointError> {
        self.set_breakpoints_and_data(kernel, user, &[])
    }

    /// The same with breakpoints on data, which are the CPU's own: at most four, and none once the
    /// guest has breakpoints of its own.
    ///
    /// # Errors
    /// [`BreakpointError`]. Then only some of the breakpoints are set.
    pub fn set_breakpoints_and_data(
        &mut self,
        kernel: &[u64],
        user: &[u64],
        data: &[DataBreakpoint],
    ) -> Result<(), BreakpointError> {
        self.traps
            .set_breakpoints(&mut self.vcpus, &Places { kernel, user, data })
    }

    /// Postpones the timers of the LAPICs: none of them fires before `by` of the guest's time has
    /// passed, as on a host that is that late. (This applies to armed timers in TSC-deadline mode;
    /// an interrupt that is pending stays so.)
    ///
    /// # Errors
    /// [`InspectError`]: all vCPUs must be stopped.
    pub fn postpone_timers(&mut self, by: Duration) -> Result<(), InspectError> {
        (0..self.vcpu_count()).try_for_each(|vcpu| VcpuHandle::new(self, vcpu).postpone_timer(by))
    }

    fn resume(&mut self, index: u8, run: Run) -> Result<(), ResumeError> {
        self.traps.resume(&mut self.vcpus, index, run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boot::Kernel;
    use crate::kvm::open_kvm;
    use crate::pmu::Pmu;
    use crate::threads::PauseError;
    use crate::vcpu::Stop;

    #[test]
    fn a_lost_thread_is_reported_once_and_everything_else_refused() {
        let config = MachineConfig {
            vcpus: 2,
            memory_mib: 4,
            kernel: Kernel::Flat {
                address: 0x10_0000,
                code: [0xeb, 0xfe].as_slice().into(),
            },
            initrd: &[],
            cmdline: "",
            doorbell_ports: 0xe0..=0xe0,
            pmu: Pmu::None,
        };
        let mut machine = Machine::build(&open_kvm().unwrap(), &config).unwrap();
        machine.vcpus.lose(1, "for a test");
        let stop = Stop::ThreadDied {
            reason: "for a test".to_owned(),
        };
        let event = machine.next_event(Duration::ZERO);
        assert_eq!(event, Some(VcpuEvent { vcpu: 1, stop }));
        assert_eq!(machine.next_event(Duration::ZERO), None);
        let mut vcpu = machine.vcpu(1).unwrap();
        assert!(matches!(
            vcpu.pause(),
            Err(PauseError::Dead { vcpu: 1, .. })
        ));
        let resumed = vcpu.resume(Run::Continue);
        assert!(matches!(resumed, Err(ResumeError::Dead { vcpu: 1, .. })));
        assert!(vcpu.regs().is_err());
        machine.start().unwrap();
        assert_eq!(machine.vcpu(0).unwrap().pause().unwrap(), Pause::Paused);
    }
}
