//! A whole machine, and the one thread that decides: start, stop, look, go on.

use std::collections::VecDeque;
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use kvm_bindings::{CpuId, kvm_regs, kvm_sregs};
use kvm_ioctls::{Kvm, VmFd};
use vmm_sys_util::errno;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};
use vmm_sys_util::signal::Killable;

use crate::boot::{self, BootError, BootState, Kernel};
use crate::debug::BreakpointError;
use crate::devices::ports::Ports;
use crate::devices::serial::{self, Console, IrqLine, Uart};
use crate::exit::Stop;
use crate::inject::{self, InjectError, NmiReceipt, NmiState};
use crate::kick::{self, RunPage};
use crate::memory::{Memory, MemoryError};
use crate::thread::{self, Command, Notice, Run};
use crate::vcpu::{InspectError, Vcpu};
use crate::vm::{self, VmError};
use crate::{cpuid, msr};

/// The most vCPUs a machine may have.
pub const MAX_VCPUS: u8 = 8;
/// How long a vCPU may take to leave the guest when it is told to. KVM answers in
/// microseconds; a vCPU that does not within this is stuck in the kernel.
const KICK_LIMIT: Duration = Duration::from_secs(10);

/// What a machine is made of.
#[derive(Debug, Clone)]
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

/// Why a vCPU could not be paused.
#[derive(Debug, thiserror::Error)]
pub enum PauseError {
    /// Its thread is gone.
    #[error("the thread of vCPU {vcpu} is gone: {reason}")]
    Dead {
        /// Which.
        vcpu: u8,
        /// Why.
        reason: String,
    },
    /// It did not leave the guest in time.
    #[error("vCPU {vcpu} does not leave the guest: KVM did not react for {} s", KICK_LIMIT.as_secs())]
    Stuck {
        /// Which.
        vcpu: u8,
    },
    /// Its thread could not be sent a signal.
    #[error("failed to signal vCPU {vcpu}: {source}")]
    Signal {
        /// Which.
        vcpu: u8,
        /// The kernel's reason.
        source: errno::Error,
    },
}

/// Why a vCPU could not be resumed.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// It runs.
    #[error("vCPU {vcpu} is not stopped")]
    NotStopped {
        /// Which.
        vcpu: u8,
    },
    /// It stopped for a reason that the caller has not seen: resuming would lose it.
    #[error(
        "vCPU {vcpu} stopped for {stop:?}, which next_event has not delivered yet: take it first"
    )]
    NotSeen {
        /// Which.
        vcpu: u8,
        /// The reason.
        stop: Stop,
    },
    /// Its thread is gone.
    #[error("the thread of vCPU {vcpu} is gone: {reason}")]
    Dead {
        /// Which.
        vcpu: u8,
        /// Why.
        reason: String,
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

/// A virtual machine.
///
/// Made with all vCPUs stopped before their first instruction. Dropping it stops and joins all
/// vCPU threads, closes every file and unmaps the guest's memory (unless a [`Memory`] clone
/// keeps that).
#[derive(Debug)]
pub struct Machine {
    vcpus: Vec<Slot>,
    notices: Receiver<Notice>,
    events: VecDeque<VcpuEvent>,
    console: Console,
    memory: Memory,
    // Last: the VM goes after its vCPUs.
    _vm: VmFd,
}

/// A vCPU as the controller sees it.
#[derive(Debug)]
struct Slot {
    state: State,
    run_page: Arc<RunPage>,
    commands: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
enum State {
    Stopped {
        vcpu: Box<Vcpu>,
        stop: Stop,
        /// The caller knows the reason.
        seen: bool,
    },
    Running,
    Dead(String),
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
        let vm = vm::create(kvm, &memory)?;
        let console = Console::default();
        let uart = uart(&vm, &console).map_err(host("make the serial port"))?;
        let ports =
            Ports::new(uart, config.doorbell_ports.clone()).map_err(BuildError::Doorbell)?;
        let ports = Arc::new(ports);
        let cpuid = cpuid::tables(kvm, config.vcpus)
            .map_err(|source| host("read what CPUID KVM supports")(os_error(source)))?;
        let (sender, notices) = channel();
        let mut vcpus = Vec::new();
        for (index, cpuid) in (0..).zip(&cpuid) {
            let vcpu = make_vcpu(&vm, &memory, index, cpuid, &boot)?;
            vcpus.push(Slot::spawn(vcpu, &sender, &ports)?);
        }
        Ok(Self {
            vcpus,
            notices,
            events: VecDeque::new(),
            console,
            memory,
            _vm: vm,
        })
    }

    /// Lets all stopped vCPUs run whose reasons to stop have been seen.
    pub fn start(&mut self) -> Result<(), ResumeError> {
        (0..)
            .zip(&mut self.vcpus)
            .try_for_each(|(index, slot)| match &slot.state {
                State::Stopped { seen: true, .. } => slot.resume(index, Run::Continue),
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
        known.then_some(VcpuHandle {
            machine: self,
            index,
        })
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
        for (index, slot) in (0..).zip(&self.vcpus) {
            slot.kick(index)?;
        }
        (0..)
            .zip(ran)
            .map(|(index, ran)| self.wait_stopped(index, ran))
            .collect()
    }

    fn slot(&self, index: u8) -> Option<&Slot> {
        self.vcpus.get(usize::from(index))
    }

    fn mark_seen(&mut self, index: u8) {
        if let Some(Slot {
            state: State::Stopped { seen, .. },
            ..
        }) = self.vcpus.get_mut(usize::from(index))
        {
            *seen = true;
        }
    }

    /// Takes a message of a vCPU's thread. Only a pause makes no event.
    fn take(&mut self, notice: Notice) {
        let (vcpu, state, stop) = match notice {
            Notice::Stopped { vcpu, stop } => {
                let index = vcpu.index;
                let seen = stop == Stop::Paused;
                (
                    index,
                    State::Stopped {
                        vcpu,
                        stop: stop.clone(),
                        seen,
                    },
                    stop,
                )
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
    fn wait_stopped(&mut self, index: u8, ran: bool) -> Result<Pause, PauseError> {
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

impl Drop for Machine {
    fn drop(&mut self) {
        for (index, slot) in (0..).zip(&mut self.vcpus) {
            if let Err(error) = slot.kick(index) {
                tracing::error!("{error}");
            }
            // A thread ends when no command can come any more.
            slot.commands = None;
        }
        for thread in self.vcpus.iter_mut().filter_map(|slot| slot.thread.take()) {
            // Panics of the thread have been caught and reported by itself.
            let _ = thread.join();
        }
    }
}

impl Slot {
    fn spawn(vcpu: Vcpu, notices: &Sender<Notice>, ports: &Arc<Ports>) -> Result<Self, BuildError> {
        let index = vcpu.index;
        let run_page = Arc::clone(&vcpu.run_page);
        let (commands, inbox) = channel();
        let (notices, ports) = (notices.clone(), Arc::clone(ports));
        let thread = Builder::new()
            .name(format!("vcpu{index}"))
            .spawn(move || thread::main(index, inbox, notices, ports))
            .map_err(|source| BuildError::Vcpu {
                vcpu: index,
                step: "start the thread of",
                source,
            })?;
        Ok(Self {
            state: State::Stopped {
                vcpu: Box::new(vcpu),
                stop: Stop::Paused,
                seen: true,
            },
            run_page,
            commands: Some(commands),
            thread: Some(thread),
        })
    }

    fn stopped(&self) -> Option<&Vcpu> {
        match &self.state {
            State::Stopped { vcpu, .. } => Some(vcpu),
            _ => None,
        }
    }

    fn is_running(&self) -> bool {
        matches!(self.state, State::Running)
    }

    /// Makes a vCPU that runs leave the guest, or not enter it.
    fn kick(&self, vcpu: u8) -> Result<(), PauseError> {
        match &self.thread {
            Some(thread) if self.is_running() => {
                self.run_page.request();
                thread
                    .kill(kick::kick_signal())
                    .map_err(|source| PauseError::Signal { vcpu, source })
            }
            _ => Ok(()),
        }
    }

    fn resume(&mut self, vcpu: u8, run: Run) -> Result<(), ResumeError> {
        let dead = |reason: &str| ResumeError::Dead {
            vcpu,
            reason: reason.to_owned(),
        };
        match &self.state {
            State::Running => return Err(ResumeError::NotStopped { vcpu }),
            State::Dead(reason) => return Err(dead(reason)),
            State::Stopped {
                seen: false, stop, ..
            } => {
                return Err(ResumeError::NotSeen {
                    vcpu,
                    stop: stop.clone(),
                });
            }
            State::Stopped { .. } => {}
        }
        let (Some(commands), State::Stopped { vcpu: owned, .. }) = (
            &self.commands,
            std::mem::replace(&mut self.state, State::Running),
        ) else {
            return Err(dead("the machine is being dropped"));
        };
        self.run_page.clear();
        if commands.send(Command { vcpu: owned, run }).is_err() {
            let reason = "it does not take commands any more";
            self.state = State::Dead(reason.to_owned());
            return Err(dead(reason));
        }
        Ok(())
    }
}

/// One vCPU of a machine. All but [`pause`](Self::pause) need it stopped.
#[derive(Debug)]
pub struct VcpuHandle<'m> {
    machine: &'m mut Machine,
    index: u8,
}

impl VcpuHandle<'_> {
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
        slot.kick(self.index)?;
        self.machine.wait_stopped(self.index, ran)
    }

    /// Lets it go on.
    pub fn resume(&mut self, run: Run) -> Result<(), ResumeError> {
        let index = self.index;
        match self.machine.vcpus.get_mut(usize::from(index)) {
            Some(slot) => slot.resume(index, run),
            None => Err(ResumeError::NotStopped { vcpu: index }),
        }
    }

    /// Replaces all breakpoints by `addresses`, at most
    /// [`MAX_BREAKPOINTS`](crate::MAX_BREAKPOINTS) virtual ones. They stay until replaced. A
    /// vCPU that is stopped at an address has not executed it yet: resumed, it stops there
    /// once more unless it was the breakpoint there that stopped it.
    pub fn set_breakpoints(&mut self, addresses: &[u64]) -> Result<(), BreakpointError> {
        let not_stopped = BreakpointError::NotStopped { vcpu: self.index };
        match self
            .machine
            .vcpus
            .get_mut(usize::from(self.index))
            .map(|slot| &mut slot.state)
        {
            Some(State::Stopped { vcpu, .. }) => vcpu.wanted.set_breakpoints(addresses),
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

    /// Reads guest memory by virtual address.
    pub fn read_virt(&self, address: u64, into: &mut [u8]) -> Result<(), InspectError> {
        self.inspect()?.read_virt(address, into)
    }

    fn stopped(&self) -> Option<&Vcpu> {
        self.machine.slot(self.index)?.stopped()
    }

    fn inspect(&self) -> Result<&Vcpu, InspectError> {
        self.stopped()
            .ok_or(InspectError::NotStopped { vcpu: self.index })
    }
}

fn os_error(error: errno::Error) -> io::Error {
    io::Error::from_raw_os_error(error.errno())
}

/// The serial port, with its interrupt line.
fn uart(vm: &VmFd, console: &Console) -> io::Result<Uart> {
    let irq = EventFd::new(EFD_NONBLOCK)?;
    vm.register_irqfd(&irq, serial::IRQ).map_err(os_error)?;
    Ok(Uart::new(IrqLine(irq), console.clone()))
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
