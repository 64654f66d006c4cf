//! The state of one vCPU.

use std::arch::x86_64::_rdtsc;

use kvm_bindings::{
    KVM_VCPU_TSC_CTRL, KVM_VCPU_TSC_OFFSET, KVMIO, Msrs, kvm_debugregs, kvm_device_attr,
    kvm_lapic_state, kvm_mp_state, kvm_msr_entry, kvm_regs, kvm_sregs, kvm_vcpu_events, kvm_xcrs,
    kvm_xsave,
};
use kvm_ioctls::VcpuFd;
use vmm_sys_util::ioctl::ioctl_with_ref;
use vmm_sys_util::{errno, ioctl_iow_nr};

use super::{CheckpointError, failed, lapic};
use crate::debug::Passed;
use crate::kvm::msr;
use crate::kvm::sregs::settable;
use crate::pmu::Counters;
use crate::vcpu::Vcpu;

// Documentation/virt/kvm/api.rst, 4.80; kvm-ioctls has them for other architectures only.
ioctl_iow_nr!(KVM_SET_DEVICE_ATTR, KVMIO, 0xe1, kvm_device_attr);
ioctl_iow_nr!(KVM_GET_DEVICE_ATTR, KVMIO, 0xe2, kvm_device_attr);

/// MSRs that are clocks. The TSC is restored by its offset; the others are Hyper-V's, which our
/// guests do not have (`HV_X64_MSR_VP_RUNTIME`, `HV_X64_MSR_TIME_REF_COUNT`).
const CLOCKS: [u32; 3] = [msr::TSC, 0x4000_0010, 0x4000_0020];
/// `IA32_SYSENTER_ESP` and `_EIP`: on an AMD CPU, KVM stores only their lower halves
/// (`svm_set_msr`, arch/x86/kvm/svm/svm.c, 6.12). Such a CPU has no SYSENTER in long mode.
const SYSENTER: [u32; 2] = [0x175, 0x176];
/// CR4.PGE: pages may be global.
const CR4_GLOBAL_PAGES: u64 = 1 << 7;

/// The state of a vCPU in KVM, and of its counters.
#[derive(Debug, Clone)]
pub(crate) struct CpuState {
    mp_state: kvm_mp_state,
    regs: kvm_regs,
    sregs: kvm_sregs,
    xsave: Box<[u32; 1024]>,
    xcrs: kvm_xcrs,
    debug: kvm_debugregs,
    lapic: kvm_lapic_state,
    msrs: Vec<kvm_msr_entry>,
    events: kvm_vcpu_events,
    /// The guest's TSC minus the host's.
    tsc_offset: u64,
    /// A breakpoint stopped it at the instruction that it is about to execute.
    at_breakpoint: bool,
    passed: Passed,
    /// They count by the guest's TSC, which continues from its saved value.
    counters: Option<Counters>,
}

impl CpuState {
    /// Reads it.
    pub(crate) fn of(vcpu: &Vcpu, indices: &[u32]) -> Result<Self, CheckpointError> {
        let fd = &vcpu.fd;
        let xsave = fd.get_xsave().map_err(failed("get the FPU's state"))?;
        let sregs = fd.get_sregs().map_err(failed("get the system registers"))?;
        Ok(Self {
            mp_state: fd.get_mp_state().map_err(failed("get the MP state"))?,
            regs: fd.get_regs().map_err(failed("get the registers"))?,
            sregs: settable(sregs),
            xsave: Box::new(xsave.region),
            xcrs: fd.get_xcrs().map_err(failed("get the XCRs"))?,
            debug: fd
                .get_debug_regs()
                .map_err(failed("get the debug registers"))?,
            lapic: fd.get_lapic().map_err(failed("get the LAPIC"))?,
            msrs: msrs(fd, indices)?,
            events: fd
                .get_vcpu_events()
                .map_err(failed("get the pending events"))?,
            tsc_offset: vcpu.tsc_offset()?,
            at_breakpoint: vcpu.at_breakpoint,
            passed: vcpu.passed.clone(),
            counters: vcpu.counters.clone(),
        })
    }

    /// Writes it. `elapsed`: by how much the host's TSC has gone on since the guest's stood still. It is the
    /// same for all vCPUs, so that their offsets stay as far apart as they were. Where offsets were the same and are not any more, KVM
    /// gives up its master clock, and writes a vCPU's clock anew whenever the vCPU comes to another CPU of the
    /// host (`kvm_track_tsc_matching()` and `kvm_arch_vcpu_load()`, arch/x86/kvm/x86.c, 6.12). With single steps that may happen between
    /// any two instructions. A kernel starts to read its clock again where it was written meanwhile, and never finishes.
    ///
    /// The order matters: the MP state first (a vCPU that waits for its start-up IPI takes no
    /// registers), the APIC base in the system registers before the LAPIC, the TSC before the
    /// deadline of the LAPIC's timer, which is an MSR, and events last.
    pub(crate) fn restore(&self, vcpu: &mut Vcpu, elapsed: u64) -> Result<(), CheckpointError> {
        let fd = &vcpu.fd;
        fd.set_mp_state(self.mp_state)
            .map_err(failed("set the MP state"))?;
        forget_translations(fd, &self.sregs)?;
        fd.set_sregs(&self.sregs)
            .map_err(failed("set the system registers"))?;
        fd.set_regs(&self.regs)
            .map_err(failed("set the registers"))?;
        let xsave = kvm_xsave {
            region: *self.xsave,
            ..Default::default()
        };
        // SAFETY: no feature is enabled whose state is larger than this structure: those need
        // arch_prctl(2), which this process never calls.
        unsafe { fd.set_xsave(&xsave) }.map_err(failed("set the FPU's state"))?;
        fd.set_xcrs(&self.xcrs).map_err(failed("set the XCRs"))?;
        fd.set_debug_regs(&self.debug)
            .map_err(failed("set the debug registers"))?;
        set_tsc_offset(fd, self.tsc_offset.wrapping_sub(elapsed))
            .map_err(failed("set the TSC offset"))?;
        self.restore_lapic(fd)?;
        set_msrs(fd, &self.msrs)?;
        fd.set_vcpu_events(&self.events)
            .map_err(failed("set the pending events"))?;
        vcpu.at_breakpoint = self.at_breakpoint;
        vcpu.passed.clone_from(&self.passed);
        vcpu.counters.clone_from(&self.counters);
        Ok(())
    }

    /// Sets the LAPIC and stops its timer. Where it is as it was, stopping the timer is all: each `KVM_SET_LAPIC` makes KVM's map of
    /// APICs anew, and the old one is freed behind a grace period of RCU (`kvm_recalculate_apic_map()`, arch/x86/kvm/lapic.c, 6.12), which
    /// wakes all CPUs of a host.
    fn restore_lapic(&self, fd: &VcpuFd) -> Result<(), CheckpointError> {
        let now = fd.get_lapic().map_err(failed("get the LAPIC"))?;
        // Any deadline makes KVM forget a timer that has fired, and whose interrupt it has not made yet: no register tells of
        // that (`kvm_set_lapic_tscdeadline_msr()`). The saved one is set with the other MSRs.
        let is_same = lapic::counts_by_deadline(&self.lapic)
            && lapic::differing(&now, &self.lapic).next().is_none()
            && msr::set(fd, msr::TSC_DEADLINE, 0).map_err(failed("stop the LAPIC's timer"))?;
        match is_same {
            true => Ok(()),
            false => fd.set_lapic(&self.lapic).map_err(failed("set the LAPIC")),
        }
    }

    /// Describes what differs from another state.
    pub(crate) fn differences(&self, other: &Self) -> Vec<String> {
        let parts = [
            ("MP state", self.mp_state == other.mp_state),
            ("registers", self.regs == other.regs),
            ("system registers", self.sregs == other.sregs),
            ("FPU", self.xsave == other.xsave),
            ("XCRs", self.xcrs == other.xcrs),
            ("debug registers", self.debug == other.debug),
            ("pending events", self.events == other.events),
            ("counters", self.counters == other.counters),
        ];
        let parts = parts.into_iter().filter(|(_, same)| !same);
        let parts = parts.map(|(what, _)| what.to_owned());
        let lapic = lapic::differing(&self.lapic, &other.lapic)
            .map(|(at, now, was)| format!("LAPIC byte {at:#x} is {now:#x} and was {was:#x}"));
        let msrs = self.msrs.iter().zip(&other.msrs);
        let msrs = msrs
            .filter(|(one, _)| !SYSENTER.contains(&one.index))
            .filter(|(one, other)| (one.index, one.data) != (other.index, other.data))
            .map(|(now, was)| {
                let index = now.index;
                format!("MSR {index:#x} is {:#x} and was {:#x}", now.data, was.data)
            });
        parts.chain(lapic).chain(msrs).collect()
    }
}

/// Has the CPU forget what it remembers of page tables, once `wanted` is set behind this: those in memory change with a restore.
/// `KVM_SET_SREGS` does that only where CR0, CR3, CR4 or EFER change (`__set_sregs()`, arch/x86/kvm/x86.c, 6.12), and CR3 is mostly
/// the same. So CR4.PGE changes, whose change is a flush of everything (Intel SDM vol. 3,
/// "Operations that Invalidate TLBs and Paging-Structure Caches"; AMD APM vol. 2, "TLB Management").
fn forget_translations(fd: &VcpuFd, wanted: &kvm_sregs) -> Result<(), CheckpointError> {
    let other = kvm_sregs {
        cr4: wanted.cr4 ^ CR4_GLOBAL_PAGES,
        ..*wanted
    };
    let set = fd.set_sregs(&other);
    set.map_err(failed("have the CPU forget translations"))
}

/// The host's time-stamp counter.
#[must_use]
pub fn host_tsc() -> u64 {
    // SAFETY: every x86-64 CPU has the instruction, and Linux allows it by default.
    unsafe { _rdtsc() }
}

/// Those of the MSRs that KVM returns. KVM lists some that the guest's CPUID lacks, and each call
/// ends at the first of these.
fn msrs(fd: &VcpuFd, indices: &[u32]) -> Result<Vec<kvm_msr_entry>, CheckpointError> {
    let mut rest: Vec<kvm_msr_entry> = indices
        .iter()
        .filter(|index| !CLOCKS.contains(index))
        .map(|&index| kvm_msr_entry {
            index,
            ..Default::default()
        })
        .collect();
    let mut found = Vec::with_capacity(rest.len());
    while let Some(first) = rest.first().map(|entry| entry.index) {
        let mut some = Msrs::from_entries(&rest).map_err(|_| CheckpointError::Msr(first))?;
        let got = fd.get_msrs(&mut some).map_err(failed("get the MSRs"))?;
        found.extend(some.as_slice().iter().take(got).copied());
        rest.drain(..(got + 1).min(rest.len()));
    }
    Ok(found)
}

/// Sets the MSRs that differ: for some, KVM does much more than store a value.
fn set_msrs(fd: &VcpuFd, wanted: &[kvm_msr_entry]) -> Result<(), CheckpointError> {
    let indices: Vec<u32> = wanted.iter().map(|msr| msr.index).collect();
    let now = msrs(fd, &indices)?;
    // In the same order.
    let differing: Vec<kvm_msr_entry> = (0..)
        .zip(wanted)
        .filter(|(at, msr)| now.get(*at) != Some(*msr))
        .map(|(_, msr)| *msr)
        .collect();
    let mut rest = differing.as_slice();
    while let Some(first) = rest.first() {
        let some = Msrs::from_entries(rest).map_err(|_| CheckpointError::Msr(first.index))?;
        let set = fd.set_msrs(&some).map_err(failed("set the MSRs"))?;
        let Some(refused) = rest.get(set) else {
            break;
        };
        // KVM refuses read-only MSRs, whose values have not changed.
        if value(fd, refused.index)? != refused.data {
            return Err(CheckpointError::Msr(refused.index));
        }
        rest = rest.get(set + 1..).unwrap_or_default();
    }
    Ok(())
}

fn value(fd: &VcpuFd, index: u32) -> Result<u64, CheckpointError> {
    msr::get(fd, index)
        .map_err(failed("get the MSRs"))?
        .ok_or(CheckpointError::Msr(index))
}

fn attribute(value: &u64) -> kvm_device_attr {
    kvm_device_attr {
        flags: 0,
        group: KVM_VCPU_TSC_CTRL,
        attr: u64::from(KVM_VCPU_TSC_OFFSET),
        addr: std::ptr::from_ref(value).expose_provenance() as u64,
    }
}

impl Vcpu {
    /// The guest's TSC minus the host's.
    pub(crate) fn tsc_offset(&self) -> Result<u64, CheckpointError> {
        tsc_offset(&self.fd).map_err(failed("get the TSC offset"))
    }

    /// Has the TSC go on so much further. The LAPIC's timer stays as far away as it is.
    pub(crate) fn advance_tsc(&self, by: u64) -> Result<(), CheckpointError> {
        let offset = self.tsc_offset()?;
        set_tsc_offset(&self.fd, offset.wrapping_add(by)).map_err(failed("set the TSC offset"))?;
        Ok(self.advance_timer(by)?)
    }
}

/// The guest's TSC minus the host's (Documentation/virt/kvm/devices/vcpu.rst, 4.1).
fn tsc_offset(fd: &VcpuFd) -> Result<u64, errno::Error> {
    let mut offset = 0_u64;
    let attribute = kvm_device_attr {
        addr: std::ptr::from_mut(&mut offset).expose_provenance() as u64,
        ..attribute(&0)
    };
    // SAFETY: KVM writes only the 8 bytes at `addr`, which are `offset`'s.
    match unsafe { ioctl_with_ref(fd, KVM_GET_DEVICE_ATTR(), &attribute) } {
        0 => Ok(offset),
        _ => Err(errno::Error::last()),
    }
}

fn set_tsc_offset(fd: &VcpuFd, offset: u64) -> Result<(), errno::Error> {
    // SAFETY: KVM reads the 8 bytes at `addr`, which are `offset`'s.
    match unsafe { ioctl_with_ref(fd, KVM_SET_DEVICE_ATTR(), &attribute(&offset)) } {
        0 => Ok(()),
        _ => Err(errno::Error::last()),
    }
}
