//! A whole machine, and the one thread that decides: start, stop, look, go on.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use kvm_bindings::CpuId;
use kvm_ioctls::{Kvm, VmFd};
use vmm_sys_util::errno;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::boot::{self, BootError, BootState, Kernel};
use crate::checkpoint::{self, Ram};
use crate::devices::ports::Ports;
use crate::devices::serial::{self, Console, IrqLine, Uart};
use crate::exit::Stop;
use crate::handle::{Pause, VcpuHandle};
use crate::memory::{Memory, MemoryError};
use crate::pmu::{self, Pmu, PmuError};
use crate::slot::{KICK_LIMIT, PauseError, ResumeError, Slot, State};
use crate::thread::{Notice, Run};
use crate::traps::Traps;
use crate::vcpu::Vcpu;
use crate::vm::{self, VmError};
use crate::{cpuid, kick, msr};

/// The most vCPUs a machine may have.
pub const MAX_VCPUS: u8 = 8;
/// What a machine is made of.
#[derive(Clone)]
pub struct MachineConfig<'a> {
    /// 1 to [`MAX_VCPUS`].
    pub vcpus: u8,
    /// Guest RAM in MiB.
    pub memory_mib: u32,
    /// What to boot.
    pub kernel: Kernel<'a>,
    /// The initial RAM disk; empty for none.
    pub initrd: &'a [u8],
    /// The kernel command line.
    pub cmdline: &'a str,
    /// An `out` of the guest to one of these ports stops the vCPU with [`Stop::Port`].
    pub doorbell_ports: RangeInclusive<u16>,
    /// The performance counters that the guest has.
    pub pmu: Pmu<'a>,
}

/// Without the contents of the initrd.
impl fmt::Debug for MachineConfig<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MachineConfig")
            .field("vcpus", &self.vcpus)
            .field("memory_mib", &self.memory_mib)
            .field("kernel", &self.kernel)
            .field("initrd", &self.initrd.len())
            .field("cmdline", &self.cmdline)
            .field("doorbell_ports", &self.doorbell_ports)
            .field("pmu", &self.pmu)
            .finish()
    }
}

/// Why a machine could not be made.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// Number of vCPUs out of range.
    #[error("{0} vCPUs asked for: choose 1 to {MAX_VCPUS}")]
    Vcpus(u8),
    /// A doorbell port belongs to a device.
    #[error("doorbell port {0:#x} belongs to a device: choose others")]
    Doorbell(u16),
    /// Guest memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Kernel, initrd or command line.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// The VM.
    #[error(transparent)]
    Vm(#[from] VmError),
    /// The performance counters.
    #[error(transparent)]
    Pmu(#[from] PmuError),
    /// A vCPU.
    #[error("failed to {step} vCPU {vcpu}: {source}")]
    Vcpu {
        /// Which.
        vcpu: u8,
        /// The step.
        step: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
    /// Something else of the host's.
    #[error("failed to {step}: {source}")]
    Host {
        /// The step.
        step: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
}

/// A vCPU stopped of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VcpuEvent {
    /// Which.
    pub vcpu: u8,
    /// Why.
    pub stop: Stop,
}

/// A virtual machine.
///
/// Made with all vCPUs stopped before their first instruction. Dropping it stops and joins all
/// vCPU threads, closes every file and unmaps the guest's memory (unless a [`Memory`] clone
/// keeps that).
#[derive(Debug)]
pub struct Machine {
    pub(crate) vcpus: Vec<Slot>,
    notices: Receiver<Notice>,
    events: VecDeque<VcpuEvent>,
    console: Console,
    pub(crate) memory: Memory,
    pub(crate) ports: Arc<Ports>,
    pub(crate) ram: Ram,
    pub(crate) traps: Traps,
    /// The MSRs that are part of a checkpoint.
    pub(crate) msrs: Vec<u32>,
    // Last: the VM goes after its vCPUs.
    pub(crate) vm: VmFd,
}

impl Machine {
    /// Makes a machine.
    pub fn build(kvm: &Kvm, config: &MachineConfig<'_>) -> Result<Self, BuildError> {
        if !(1..=MAX_VCPUS).contains(&config.vcpus) {
            return Err(BuildError::Vcpus(config.vcpus));
        }
        let host = |step| move |source| BuildError::Host { step, source };
        kick::install_handler()
            .map_err(|source| host("handle the kick signal")(os_error(source)))?;
        let memory = Memory::new(config.memory_mib)?;
        let boot = boot::prepare(
            &memory,
            &config.kernel,
            config.initrd,
            config.cmdline,
            config.vcpus,
        )?;
        let synthetic = matches!(config.pmu, Pmu::Synthetic { .. });
        if let Pmu::Synthetic { rdpmc } = config.pmu {
            pmu::replace(&memory, &config.kernel, rdpmc).map_err(PmuError::from)?;
        }
        let vm = vm::create(kvm, &memory)?;
        let console = Console::default();
        let uart = uart(&vm, &console).map_err(host("make the serial port"))?;
        let ports =
            Ports::new(uart, config.doorbell_ports.clone()).map_err(BuildError::Doorbell)?;
        if synthetic && config.doorbell_ports.contains(&pmu::RDPMC_PORT) {
            return Err(BuildError::Doorbell(pmu::RDPMC_PORT));
        }
        let ports = Arc::new(ports);
        let cpuid_failed = |source| host("read what CPUID KVM supports")(os_error(source));
        let mut supported = cpuid::supported(kvm).map_err(cpuid_failed)?;
        pmu::prepare(kvm, &vm, &config.pmu, &supported)?;
        if config.pmu != Pmu::Host {
            cpuid::hide_counters(&mut supported);
        }
        let cpuid = cpuid::tables(kvm, &supported, config.vcpus).map_err(cpuid_failed)?;
        let msrs = checkpoint::msr_indices(kvm)
            .map_err(|source| host("read which MSRs KVM saves")(os_error(source)))?;
        let (sender, notices) = channel();
        let mut vcpus = Vec::new();
        for (index, cpuid) in (0..).zip(&cpuid) {
            let mut vcpu = make_vcpu(&vm, &memory, index, cpuid, &boot)?;
            vcpu.counters = synthetic.then(Default::default);
            vcpus.push(Slot::spawn(vcpu, &sender, &ports)?);
        }
        Ok(Self {
            vcpus,
            notices,
            events: VecDeque::new(),
            console,
            memory,
            ports,
            ram: Ram::default(),
            traps: Traps::default(),
            msrs,
            vm,
        })
    }

    /// Lets all stopped vCPUs run whose reasons to stop have been seen.
    pub fn start(&mut self) -> Result<(), ResumeError> {
        (0..self.vcpu_count()).try_for_each(|index| match self.slot(index).map(|it| &it.state) {
            Some(State::Stopped { seen: true, .. }) => self.resume(index, Run::Continue),
            _ => Ok(()),
        })
    }

    /// Number of vCPUs.
    pub fn vcpu_count(&self) -> u8 {
        u8::try_from(self.vcpus.len()).unwrap_or(MAX_VCPUS)
    }

    /// The guest's RAM.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The serial console's output.
    pub fn console(&self) -> &Console {
        &self.console
    }

    /// vCPU `index`; `None` where there are not that many.
    pub fn vcpu(&mut self, index: u8) -> Option<VcpuHandle<'_>> {
        let known = usize::from(index) < self.vcpus.len();
        known.then(|| VcpuHandle::new(self, index))
    }

    /// Waits up to `timeout` for a vCPU to stop of its own; each stop is delivered once. The
    /// vCPU stays stopped until it is resumed.
    pub fn next_event(&mut self, timeout: Duration) -> Option<VcpuEvent> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            if let Some(event) = self.events.pop_front() {
                self.mark_seen(event.vcpu);
                return Some(event);
            }
            let left =
                deadline.map_or(timeout, |end| end.saturating_duration_since(Instant::now()));
            match self.notices.recv_timeout(left) {
                Ok(notice) => self.take(notice),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    /// Stops all vCPUs. The result has what [`VcpuHandle::pause`] found for each.
    pub fn pause_all(&mut self) -> Result<Vec<Pause>, PauseError> {
        let ran: Vec<bool> = self.vcpus.iter().map(Slot::is_running).collect();
        // All are told before the first is waited for.
        self.vcpus.iter().try_for_each(Slot::kick)?;
        (0..)
            .zip(ran)
            .map(|(index, ran)| self.wait_stopped(index, ran))
            .collect()
    }

    pub(crate) fn vm(&self) -> &VmFd {
        &self.vm
    }

    pub(crate) fn slot(&self, index: u8) -> Option<&Slot> {
        self.vcpus.get(usize::from(index))
    }

    pub(crate) fn slot_mut(&mut self, index: u8) -> Option<&mut Slot> {
        self.vcpus.get_mut(usize::from(index))
    }

    /// Waits for a vCPU to stop of its own until `end`, and takes what the others have to say.
    pub(crate) fn wait_until_stopped(&mut self, index: u8, end: Instant) {
        while self.slot(index).is_some_and(Slot::is_running) {
            let left = end.saturating_duration_since(Instant::now());
            match self.notices.recv_timeout(left) {
                Ok(notice) => self.take(notice),
                Err(_) => return,
            }
        }
    }

    /// Takes back the stops of a vCPU that were not delivered yet.
    pub(crate) fn drop_events(&mut self, index: u8) {
        self.events.retain(|event| event.vcpu != index);
        self.mark_seen(index);
    }

    /// Forgets stops that were not delivered yet.
    pub(crate) fn forget_events(&mut self) {
        self.events.clear();
    }

    fn mark_seen(&mut self, index: u8) {
        if let Some(State::Stopped { seen, .. }) = self.slot_mut(index).map(|slot| &mut slot.state)
        {
            *seen = true;
        }
    }

    /// Takes a message of a vCPU's thread. Only a pause makes no event.
    pub(crate) fn take(&mut self, notice: Notice) {
        let (vcpu, state, stop) = match notice {
            Notice::Stopped { vcpu, stop } => {
                let index = vcpu.index;
                let stop = self.traps.recognise(&vcpu, stop);
                let seen = stop == Stop::Paused;
                (index, State::stopped(vcpu, stop.clone(), seen), stop)
            }
            Notice::Died { vcpu, reason } => (
                vcpu,
                State::Dead(reason.clone()),
                Stop::ThreadDied { reason },
            ),
        };
        if let Some(slot) = self.vcpus.get_mut(usize::from(vcpu)) {
            slot.state = state;
        }
        if stop != Stop::Paused {
            self.events.push_back(VcpuEvent { vcpu, stop });
        }
    }

    /// Waits for vCPU `index` to be stopped; `ran` says whether it was running, and thus
    /// kicked, before.
    pub(crate) fn wait_stopped(&mut self, index: u8, ran: bool) -> Result<Pause, PauseError> {
        let end = Instant::now() + KICK_LIMIT;
        loop {
            match self.slot(index).map(|slot| &slot.state) {
                Some(State::Running) => {}
                Some(State::Dead(reason)) => {
                    return Err(PauseError::Dead {
                        vcpu: index,
                        reason: reason.clone(),
                    });
                }
                Some(State::Stopped {
                    stop: Stop::Paused, ..
                }) if ran => return Ok(Pause::Paused),
                Some(State::Stopped { seen: false, .. }) => return Ok(Pause::StoppedItself),
                _ => return Ok(Pause::WasStopped),
            }
            let left = end.saturating_duration_since(Instant::now());
            match self.notices.recv_timeout(left) {
                Ok(notice) => self.take(notice),
                Err(_) => return Err(PauseError::Stuck { vcpu: index }),
            }
        }
    }
}

fn os_error(error: errno::Error) -> io::Error {
    io::Error::from_raw_os_error(error.errno())
}

/// The serial port, with its interrupt line.
fn uart(vm: &VmFd, console: &Console) -> io::Result<Uart> {
    let irq = EventFd::new(EFD_NONBLOCK)?;
    vm.register_irqfd(&irq, serial::IRQ).map_err(os_error)?;
    Uart::new(IrqLine(irq), console.clone())
}

/// A vCPU in its first state; all but the first wait for the first to start them.
fn make_vcpu(
    vm: &VmFd,
    memory: &Memory,
    index: u8,
    cpuid: &CpuId,
    boot: &BootState,
) -> Result<Vcpu, BuildError> {
    let failed = |step| {
        move |source| BuildError::Vcpu {
            vcpu: index,
            step,
            source,
        }
    };
    let vcpu = Vcpu::new(vm, index, memory.clone()).map_err(failed("create"))?;
    vcpu.fd
        .set_cpuid2(cpuid)
        .map_err(|error| failed("set the CPUID of")(os_error(error)))?;
    msr::set_boot(&vcpu.fd).map_err(failed("set the MSRs of"))?;
    if index == 0 {
        let set = || {
            vcpu.fd.set_sregs(&boot.sregs(vcpu.fd.get_sregs()?))?;
            vcpu.fd.set_regs(&boot.regs())
        };
        set().map_err(|error| failed("set the registers of")(os_error(error)))?;
    }
    Ok(vcpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_thread_is_told_once_and_everything_else_refused() {
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
        let mut machine = Machine::build(&vm::open_kvm().unwrap(), &config).unwrap();
        machine.take(Notice::Died {
            vcpu: 1,
            reason: "for a test".to_owned(),
        });
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
