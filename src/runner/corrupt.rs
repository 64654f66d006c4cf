//! Frame pointers on a workload thread's stack that lead nowhere, for one iteration.

use unwindlab_vmm::VcpuHandle;

use super::actions::Found;
use super::arrivals::Who;
use super::error::TrialError;
use super::trial::Trial;
use crate::driver::vcpu::{VcpuError, vcpu, word};
use crate::driver::watch;
use crate::plan::Corruption;

/// The last page that user addresses reach: above every stack, and nothing is mapped there.
const WILD: u64 = 0x7fff_ffff_eff0;

/// A word that is not what the thread left there.
#[derive(Debug)]
pub(super) struct Corrupted {
    thread: u32,
    address: u64,
    was: u64,
}

impl Trial<'_> {
    /// Replaces the frame pointer that is saved beside the return address of `frame`, or the register
    /// for frame 0, of the thread that is in user mode on a vCPU, in the function at the bottom of
    /// its chain.
    pub(super) fn corrupt(
        &mut self,
        index: u8,
        who: Who,
        frame: u32,
        with: Corruption,
    ) -> Result<Found, TrialError> {
        let mut handle = vcpu(&mut self.machine, index)?;
        let (rip, cpl) = watch::place(&handle).map_err(VcpuError::from)?;
        let (Some(thread), 3) = (who.thread, cpl) else {
            return Err(TrialError::NotInUserMode(index));
        };
        if frame == 0 {
            set_frame_pointer(&mut handle, with)?;
            return Ok((index, rip, cpl));
        }
        let mut address = handle.regs().map_err(VcpuError::from)?.rbp;
        for _ in 1..frame {
            address = word(&handle, address)?;
        }
        let was = word(&handle, address)?;
        let now = match with {
            Corruption::Loop => address,
            Corruption::Wild => WILD,
            Corruption::Unaligned => was.wrapping_add(4),
        };
        if with == Corruption::Wild && handle.translate(WILD).map_err(VcpuError::from)?.is_some() {
            return Err(TrialError::NotPoked { address: WILD });
        }
        handle
            .write_virt(address, &now.to_le_bytes())
            .map_err(VcpuError::from)?;
        if word(&handle, address)? != now {
            return Err(TrialError::NotPoked { address });
        }
        self.corrupted.push(Corrupted {
            thread,
            address,
            was,
        });
        Ok((index, rip, cpl))
    }

    /// The thread, which is current on the vCPU, is about to use its frame pointers again.
    pub(super) fn restore(&mut self, index: u8, thread: u32) -> Result<(), TrialError> {
        let handle = vcpu(&mut self.machine, index)?;
        // The last one first: it may have replaced what an earlier one wrote.
        while let Some(at) = self.corrupted.iter().rposition(|it| it.thread == thread) {
            let Corrupted { address, was, .. } = self.corrupted.remove(at);
            handle
                .write_virt(address, &was.to_le_bytes())
                .map_err(VcpuError::from)?;
        }
        Ok(())
    }
}

/// The register. The leaf has no more use for it: it takes its caller's from the stack.
fn set_frame_pointer(handle: &mut VcpuHandle<'_>, with: Corruption) -> Result<(), TrialError> {
    let now = match with {
        Corruption::Wild => WILD,
        Corruption::Loop | Corruption::Unaligned => {
            let was = handle.regs().map_err(VcpuError::from)?.rbp;
            was.wrapping_add(4)
        }
    };
    handle.set_frame_pointer(now).map_err(VcpuError::from)?;
    match handle.regs().map_err(VcpuError::from)?.rbp == now {
        true => Ok(()),
        false => Err(TrialError::NotPoked { address: now }),
    }
}
