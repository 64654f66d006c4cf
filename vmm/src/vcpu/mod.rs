//! One vCPU: its registers and memory while it is stopped, and running it until it stops.
//!
//! A [`Vcpu`] has one owner at a time. It moves by message: to its thread to run, back to the
//! controller when it stops. So the controller cannot access a running one.

mod exit;
pub(crate) mod kick;
mod overflow;
mod run;
mod step;
mod stop;
mod timer;

use std::cell::OnceCell;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use kvm_bindings::{kvm_regs, kvm_sregs};
use kvm_ioctls::{VcpuFd, VmFd};
use vmm_sys_util::errno;

use crate::debug::{DebugState, Passed};
use crate::kvm::{exit_regs, msr};
use crate::memory::{Memory, Translation, as_usize, translate};
use crate::pmu::Counters;
use crate::returns::Returns;
use crate::sysenter::SysenterEntry;
use crate::x86::PAGE;
use kick::RunPage;

pub use overflow::{OverflowError, OverflowReceipt};
pub use run::Run;
pub(crate) use run::run_until_stop;
pub use stop::{Access, AccessKind, Stop, Watched};

/// Why the state of a vCPU could not be read or written.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum InspectError {
    /// Only the state of a stopped vCPU is accessible.
    #[error("vCPU {vcpu} is not stopped: pause it first")]
    NotStopped { vcpu: u8 },
    /// The local APIC can only be changed as a whole, and other vCPUs may send it interrupts, which
    /// would be lost.
    #[error(
        "the local APIC of vCPU {vcpu} is to be changed while other vCPUs run: pause them first"
    )]
    OthersRun { vcpu: u8 },
    /// KVM refused.
    #[error("failed to {what} of vCPU {vcpu}: {source}")]
    Kvm {
        vcpu: u8,
        what: &'static str,
        source: errno::Error,
    },
    /// The vCPU lacks this register.
    #[error("vCPU {vcpu} has no MSR {index:#x}")]
    NoSuchMsr { vcpu: u8, index: u32 },
    /// Nothing is mapped there, or no RAM.
    #[error("virtual address {address:#x} of vCPU {vcpu} does not lead to guest memory")]
    Unmapped { vcpu: u8, address: u64 },
}

/// A vCPU and its settings.
#[derive(Debug)]
pub(crate) struct Vcpu {
    pub(crate) index: u8,
    pub(crate) fd: VcpuFd,
    pub(crate) run_page: Arc<RunPage>,
    memory: Memory,
    pub(crate) debug: DebugState,
    /// How it runs, or what is left of that since it was paused.
    pub(crate) run: Run,
    /// Deadline of a run on the caller's thread.
    pub(crate) until: Option<Instant>,
    /// Its synthetic performance counters, if the machine has them.
    pub(crate) counters: Option<Counters>,
    /// The accesses that stop it.
    pub(crate) watched: Vec<Watched>,
    /// The addresses of planted traps.
    pub(crate) traps: Vec<u64>,
    /// A breakpoint stopped it at the instruction that it is about to execute.
    pub(crate) at_breakpoint: bool,
    /// The code that was let past a breakpoint.
    pub(crate) passed: Passed,
    /// Its returns to user mode are executed and noted here.
    pub(crate) returns: Option<Arc<Returns>>,
    /// Where CS is mended behind `sysenter`.
    pub(crate) sysenter: Option<SysenterEntry>,
    /// Its TSC's rate, once it was asked for: nothing changes it.
    tsc_khz: OnceCell<u32>,
}

impl Vcpu {
    pub(crate) fn new(vm: &VmFd, index: u8, memory: Memory) -> io::Result<Self> {
        let mut fd = vm
            .create_vcpu(u64::from(index))
            .map_err(|error| io::Error::from_raw_os_error(error.errno()))?;
        exit_regs::hand_over(&mut fd);
        let run_page = Arc::new(RunPage::new(&fd)?);
        Ok(Self {
            index,
            fd,
            run_page,
            memory,
            debug: DebugState::default(),
            run: Run::Continue,
            until: None,
            counters: None,
            watched: Vec::new(),
            traps: Vec::new(),
            at_breakpoint: false,
            passed: Passed::default(),
            returns: None,
            sysenter: None,
            tsc_khz: OnceCell::new(),
        })
    }

    /// Whether it has to leave the guest.
    fn must_stop(&self) -> bool {
        self.run_page.requested() || self.until.is_some_and(|until| Instant::now() >= until)
    }

    pub(crate) fn regs(&self) -> Result<kvm_regs, InspectError> {
        self.fd
            .get_regs()
            .map_err(|source| self.failed("get the registers", source))
    }

    pub(crate) fn set_regs(&self, regs: &kvm_regs) -> Result<(), InspectError> {
        self.fd
            .set_regs(regs)
            .map_err(|source| self.failed("set the registers", source))
    }

    pub(crate) fn sregs(&self) -> Result<kvm_sregs, InspectError> {
        self.fd
            .get_sregs()
            .map_err(|source| self.failed("get the system registers", source))
    }

    pub(crate) fn msr(&self, index: u32) -> Result<u64, InspectError> {
        let vcpu = self.index;
        msr::get(&self.fd, index)
            .map_err(|source| self.failed("get an MSR", source))?
            .ok_or(InspectError::NoSuchMsr { vcpu, index })
    }

    /// The TSC at which KVM last wrote the guest's clock, if the guest has kvmclock and its page can be read.
    pub(crate) fn kvmclock_stamp(&self) -> Result<Option<u64>, InspectError> {
        let address = match self.msr(msr::KVM_SYSTEM_TIME_NEW) {
            Ok(value) if value & msr::KVMCLOCK_ENABLED != 0 => value & !msr::KVMCLOCK_ENABLED,
            Ok(_) | Err(InspectError::NoSuchMsr { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        // `tsc_timestamp` of struct pvclock_vcpu_time_info (arch/x86/include/asm/pvclock-abi.h)
        let mut stamp = [0; 8];
        let read = self.memory.read(address.saturating_add(8), &mut stamp);
        Ok(read.is_ok().then(|| u64::from_le_bytes(stamp)))
    }

    pub(crate) fn set_msr(&self, index: u32, data: u64) -> Result<(), InspectError> {
        let vcpu = self.index;
        match msr::set(&self.fd, index, data) {
            Ok(true) => Ok(()),
            Ok(false) => Err(InspectError::NoSuchMsr { vcpu, index }),
            Err(source) => Err(self.failed("set an MSR", source)),
        }
    }

    /// The guest-physical address behind `address`, by the vCPU's current page tables.
    pub(crate) fn translate(&self, address: u64) -> Result<Option<u64>, InspectError> {
        self.translate_with(&self.sregs()?, address)
    }

    fn translate_with(&self, sregs: &kvm_sregs, address: u64) -> Result<Option<u64>, InspectError> {
        match translate(&self.memory, sregs, address) {
            Translation::To(physical) => Ok(Some(physical)),
            Translation::Nowhere => Ok(None),
            Translation::OtherPaging => {
                let translation = self
                    .fd
                    .translate_gva(address)
                    .map_err(|source| self.failed("translate an address", source))?;
                Ok((translation.valid != 0).then_some(translation.physical_address))
            }
        }
    }

    pub(crate) fn read_virt(&self, address: u64, into: &mut [u8]) -> Result<(), InspectError> {
        self.read_virt_with(&self.sregs()?, address, into)
    }

    /// Reads page by page: adjacent virtual pages need not be adjacent in physical memory.
    pub(crate) fn read_virt_with(
        &self,
        sregs: &kvm_sregs,
        address: u64,
        into: &mut [u8],
    ) -> Result<(), InspectError> {
        let mut address = address;
        let mut rest = into;
        while !rest.is_empty() {
            let len = in_page(address, rest.len());
            let (now, later) = rest.split_at_mut(len);
            let physical = self.translate_with(sregs, address)?;
            if physical.is_none_or(|physical| self.memory.read(physical, now).is_err()) {
                return Err(self.unmapped(address));
            }
            address = address.wrapping_add(len as u64);
            rest = later;
        }
        Ok(())
    }

    /// Writes page by page, even if the guest itself may not write there.
    pub(crate) fn write_virt_with(
        &self,
        sregs: &kvm_sregs,
        address: u64,
        bytes: &[u8],
    ) -> Result<(), InspectError> {
        let mut address = address;
        let mut rest = bytes;
        while !rest.is_empty() {
            let len = in_page(address, rest.len());
            let (now, later) = rest.split_at(len);
            let physical = self.translate_with(sregs, address)?;
            if physical.is_none_or(|physical| self.memory.write(physical, now).is_err()) {
                return Err(self.unmapped(address));
            }
            address = address.wrapping_add(len as u64);
            rest = later;
        }
        Ok(())
    }

    fn unmapped(&self, address: u64) -> InspectError {
        InspectError::Unmapped {
            vcpu: self.index,
            address,
        }
    }

    pub(crate) fn failed(&self, what: &'static str, source: errno::Error) -> InspectError {
        InspectError::Kvm {
            vcpu: self.index,
            what,
            source,
        }
    }
}

/// How many of `len` bytes at `address` are in its page.
fn in_page(address: u64, len: usize) -> usize {
    len.min(as_usize(PAGE - address % PAGE))
}
