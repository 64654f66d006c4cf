//! The machine's vCPUs as the controller handles them: one error for all that can go wrong.

use unwindlab_vmm::{
    BreakpointError, InjectError, InspectError, Machine, NmiState, OverflowError, Pause,
    PauseError, ResumeError, Run, VcpuHandle,
};

/// A vCPU does not do what it should. The harness's or the KVM host's fault, never the guest's.
#[derive(Debug, thiserror::Error)]
pub enum VcpuError {
    /// There is no such vCPU.
    #[error("the machine has no vCPU {0}")]
    Missing(u8),
    /// It cannot be stopped.
    #[error(transparent)]
    Pause(#[from] PauseError),
    /// It cannot be let go.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// It cannot be looked at.
    #[error(transparent)]
    Inspect(#[from] InspectError),
    /// It takes no breakpoints.
    #[error(transparent)]
    Breakpoint(#[from] BreakpointError),
    /// It takes no NMI.
    #[error(transparent)]
    Inject(#[from] InjectError),
    /// Its performance counters do not overflow.
    #[error(transparent)]
    Overflow(#[from] OverflowError),
}

/// The vCPU of this number.
pub fn vcpu(machine: &mut Machine, index: u8) -> Result<VcpuHandle<'_>, VcpuError> {
    machine.vcpu(index).ok_or(VcpuError::Missing(index))
}

/// What a vCPU that stands still would make of an NMI.
pub fn nmi_state(machine: &mut Machine, index: u8) -> Result<NmiState, VcpuError> {
    Ok(vcpu(machine, index)?.nmi_state()?)
}

/// Does something to a vCPU while it stands still. One that runs is stopped for that, and goes on.
pub fn while_stopped<T>(
    machine: &mut Machine,
    index: u8,
    what: impl FnOnce(&mut VcpuHandle<'_>) -> Result<T, VcpuError>,
) -> Result<T, VcpuError> {
    let mut handle = vcpu(machine, index)?;
    let paused = handle.pause()?;
    let done = what(&mut handle);
    if paused == Pause::Paused {
        handle.resume(Run::Continue)?;
    }
    done
}

/// The 8 bytes at a virtual address of a vCPU that stands still, little-endian.
pub fn word(handle: &VcpuHandle<'_>, address: u64) -> Result<u64, VcpuError> {
    let mut word = [0; 8];
    handle.read_virt(address, &mut word)?;
    Ok(u64::from_le_bytes(word))
}

/// Sets the breakpoints of all vCPUs.
pub fn set_breakpoints(machine: &mut Machine, places: &[u64]) -> Result<(), VcpuError> {
    // The kernel's addresses are those of the upper half.
    let (kernel, user): (Vec<u64>, Vec<u64>) = places.iter().partition(|place| **place >> 63 == 1);
    Ok(machine.set_breakpoints(&kernel, &user)?)
}
