//! Frame pointers on a workload thread's stack that lead nowhere, for one iteration.

use unwindlab_oracle::trace::recording::VcpuPlace;
use unwindlab_vmm::VcpuHandle;

use super::arrivals::ThreadIteration;
use super::error::TrialError;
use crate::driver::{Driver, word};
use crate::plan::Corruption;

/// In the last pages that user addresses reach, above every stack: the first that is not mapped is used. Of a process with a uprobe the
/// last one is (`xol_add_vma`, kernel/events/uprobes.c).
const WILD: [u64; 3] = [0x7fff_ffff_eff0, 0x7fff_ffff_dff0, 0x7fff_ffff_cff0];

/// A word that is not what the thread left there.
#[derive(Debug)]
struct CorruptedWord {
    thread: u32,
    address: u64,
    was: u64,
}

/// All corrupted words of a trial.
#[derive(Debug, Default)]
pub struct CorruptedWords(Vec<CorruptedWord>);

impl CorruptedWords {
    /// Replaces the frame pointer that is saved beside the return address of `frame`, or the
    /// register for frame 0, of the thread that is in user mode on a vCPU, in the function at the
    /// bottom of its chain.
    pub fn corrupt(
        &mut self,
        driver: &mut Driver,
        index: u8,
        thread: ThreadIteration,
        frame: u32,
        with: Corruption,
    ) -> Result<VcpuPlace, TrialError> {
        let place = driver.place(index)?;
        let (Some(thread), 3) = (thread.thread, place.cpl) else {
            return Err(TrialError::NotInUserMode(index));
        };
        let mut vcpu = driver.vcpu(index)?;
        if frame == 0 {
            set_frame_pointer(&mut vcpu, with)?;
            return Ok(place);
        }
        let mut address = vcpu.regs()?.rbp;
        for _ in 1..frame {
            address = word(&vcpu, address)?;
        }
        let was = word(&vcpu, address)?;
        let now = match with {
            Corruption::Loop => address,
            Corruption::Wild => wild(&vcpu)?,
            // Odd: `frame: 0` has one that is not.
            Corruption::Unaligned => was.wrapping_add(1),
        };
        vcpu.write_virt(address, &now.to_le_bytes())?;
        if word(&vcpu, address)? != now {
            return Err(TrialError::NotPoked { address });
        }
        self.0.push(CorruptedWord {
            thread,
            address,
            was,
        });
        Ok(place)
    }

    /// Puts the words of a thread right that is current on the vCPU, and is about to use its frame
    /// pointers again.
    pub fn restore(
        &mut self,
        driver: &mut Driver,
        index: u8,
        thread: u32,
    ) -> Result<(), TrialError> {
        let vcpu = driver.vcpu(index)?;
        // The last one first: it may have replaced what an earlier one wrote.
        while let Some(at) = self.0.iter().rposition(|it| it.thread == thread) {
            let CorruptedWord { address, was, .. } = self.0.remove(at);
            vcpu.write_virt(address, &was.to_le_bytes())?;
        }
        Ok(())
    }
}

/// An address at which nothing is mapped.
fn wild(vcpu: &VcpuHandle<'_>) -> Result<u64, TrialError> {
    for address in WILD {
        if vcpu.translate(address)?.is_none() {
            return Ok(address);
        }
    }
    let [address, ..] = WILD;
    Err(TrialError::NotPoked { address })
}

/// Corrupts the register. The leaf function does not need it any more: it takes its caller's from
/// the stack.
fn set_frame_pointer(vcpu: &mut VcpuHandle<'_>, with: Corruption) -> Result<(), TrialError> {
    let now = match with {
        Corruption::Wild => wild(vcpu)?,
        Corruption::Loop | Corruption::Unaligned => vcpu.regs()?.rbp.wrapping_add(4),
    };
    vcpu.set_frame_pointer(now)?;
    match vcpu.regs()?.rbp == now {
        true => Ok(()),
        false => Err(TrialError::NotPoked { address: now }),
    }
}
