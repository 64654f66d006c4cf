//! Builds a machine from its configuration.

use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;

use kvm_bindings::CpuId;
use kvm_ioctls::{Kvm, VmFd};
use vmm_sys_util::errno;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::{MAX_VCPUS, Machine};
use crate::boot::{self, BootError, BootState, Kernel};
use crate::checkpoint::Ram;
use crate::devices::ports::{Ports, RDPMC_PORT};
use crate::devices::serial::{self, Console, IrqLine, Uart};
use crate::kvm::vm::{self, VmError};
use crate::kvm::{cpuid, msr};
use crate::memory::{Memory, MemoryError};
use crate::pmu::{self, Counters, Pmu, PmuError};
use crate::returns::PlantedReturns;
use crate::sysenter::PlantedSysenter;
use crate::threads::Vcpus;
use crate::traps::Traps;
use crate::vcpu::{Vcpu, kick};

/// The configuration of a machine.
#[derive(Clone)]
pub struct MachineConfig<'a> {
    /// Number of vCPUs, 1 to 8.
    pub vcpus: u8,
    /// Guest RAM in MiB.
    pub memory_mib: u32,
    /// The kernel to boot.
    pub kernel: Kernel<'a>,
    /// The initial RAM disk; empty for none.
    pub initrd: &'a [u8],
    /// The kernel command line.
    pub cmdline: &'a str,
    /// An `out` of the guest to one of these ports stops the vCPU with
    /// [`Stop::Port`](crate::Stop::Port).
    pub doorbell_ports: RangeInclusive<u16>,
    /// The guest's performance counters.
    pub pmu: Pmu<'a>,
}

/// Leaves out the contents of the initrd.
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

/// Why a machine could not be built.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum BuildError {
    /// The number of vCPUs is out of range.
    #[error("{0} vCPUs requested: choose 1 to {MAX_VCPUS}")]
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
        vcpu: u8,
        step: &'static str,
        source: io::Error,
    },
    /// Another failure of the host's.
    #[error("failed to {step}: {source}")]
    Host {
        step: &'static str,
        source: io::Error,
    },
}

impl Machine {
    /// Builds a machine.
    pub fn build(kvm: &Kvm, config: &MachineConfig<'_>) -> Result<Self, BuildError> {
        if !(1..=MAX_VCPUS).contains(&config.vcpus) {
            return Err(BuildError::Vcpus(config.vcpus));
        }
        let host = |step| move |source| BuildError::Host { step, source };
        kick::install_handler()
            .map_err(|source| host("install a handler for the kick signal")(os_error(source)))?;
        let memory = Memory::new(config.memory_mib)?;
        let boot = boot::prepare(
            &memory,
            &config.kernel,
            config.initrd,
            config.cmdline,
            config.vcpus,
        )?;
        let synthetic = matches!(config.pmu, Pmu::Synthetic { .. });
        if let Pmu::Synthetic { rdpmc, .. } = config.pmu {
            pmu::replace(&memory, &config.kernel, rdpmc).map_err(PmuError::from)?;
        }
        let vm = vm::create(kvm, &memory)?;
        let console = Console::default();
        let uart = uart(&vm, &console).map_err(host("create the serial port"))?;
        let ports =
            Ports::new(uart, config.doorbell_ports.clone()).map_err(BuildError::Doorbell)?;
        if synthetic && config.doorbell_ports.contains(&RDPMC_PORT) {
            return Err(BuildError::Doorbell(RDPMC_PORT));
        }
        let ports = Arc::new(ports);
        let cpuid_failed = |source| host("get the CPUID that KVM supports")(os_error(source));
        let mut supported = cpuid::supported(kvm).map_err(cpuid_failed)?;
        let counters = pmu::prepare(kvm, &vm, &config.pmu, &supported)?;
        if config.pmu != Pmu::Host {
            cpuid::hide_counters(&mut supported);
        }
        if counters == Some(pmu::CounterModel::Architectural) {
            let announced = cpuid::with_counters(&supported, pmu::ARCHITECTURAL_LEAF);
            supported = announced.map_err(cpuid_failed)?;
        }
        let cpuid = cpuid::tables(kvm, &supported, config.vcpus).map_err(cpuid_failed)?;
        let msrs = kvm
            .get_msr_index_list()
            .map_err(|source| host("get the list of MSRs that KVM saves")(os_error(source)))?;
        let vcpus = (0..).zip(&cpuid).map(|(index, cpuid)| {
            let mut vcpu = build_vcpu(&vm, &memory, index, cpuid, &boot)?;
            vcpu.counters = counters.map(Counters::new);
            Ok(vcpu)
        });
        let vcpus = vcpus.collect::<Result<_, BuildError>>()?;
        let vcpus = Vcpus::spawn(vcpus, &ports).map_err(|(vcpu, source)| BuildError::Vcpu {
            vcpu,
            step: "start the thread of",
            source,
        })?;
        Ok(Self {
            vcpus,
            console,
            traps: Traps::new(memory.clone()),
            returns: PlantedReturns::default(),
            sysenter: PlantedSysenter::default(),
            memory,
            ports,
            ram: Ram::default(),
            msrs: { msrs.as_slice().iter().copied() }
                .filter(|index| msr::is_saved(*index, cpuid::on_tcg()))
                .collect(),
            counters,
            vm,
        })
    }
}

fn os_error(error: errno::Error) -> io::Error {
    io::Error::from_raw_os_error(error.errno())
}

/// Creates the serial port with its interrupt line.
fn uart(vm: &VmFd, console: &Console) -> io::Result<Uart> {
    let irq = EventFd::new(EFD_NONBLOCK)?;
    vm.register_irqfd(&irq, serial::IRQ).map_err(os_error)?;
    Uart::new(IrqLine(irq), console.clone())
}

/// Creates a vCPU in its first state. All but the first wait for its start-up IPI.
fn build_vcpu(
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
