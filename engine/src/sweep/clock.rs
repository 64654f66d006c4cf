//! The guest's clock on a path: whoever tries the path again has the guest read what it read when
//! the path was recorded.
//!
//! The kernel goes other ways when other time has passed (`__update_load_avg_cfs_rq`, for one), and a
//! path that is recorded step by step takes a thousand times as long as one that is not. All its
//! clocks start from the TSC (kvmclock is computed from it).

use unwindlab_vmm::{InspectError, VcpuHandle};

use super::error::SweepError;
use super::walk::Walk;
use crate::plan::sweep::Step;

/// `rdtsc` and `rdtscp`.
const RDTSC: [u8; 2] = [0x0f, 0x31];
const RDTSCP: [u8; 3] = [0x0f, 0x01, 0xf9];

/// The length of the instruction at an address if it reads the TSC.
pub(super) fn read_at(vcpu: &VcpuHandle<'_>, address: u64) -> Option<u64> {
    let mut code = [0; RDTSCP.len()];
    vcpu.read_virt(address, &mut code).ok()?;
    length(code)
}

fn length(code: [u8; 3]) -> Option<u64> {
    match code {
        code if code.starts_with(&RDTSC) => Some(RDTSC.len() as u64),
        RDTSCP => Some(RDTSCP.len() as u64),
        _ => None,
    }
}

/// What a vCPU has just read.
pub(super) fn stamp(vcpu: &VcpuHandle<'_>) -> Result<u64, InspectError> {
    let regs = vcpu.regs()?;
    Ok(regs.rdx << 32 | regs.rax & 0xffff_ffff)
}

impl Walk {
    /// Has the guest, which came to this step, have read what it read then; false where it came
    /// elsewhere.
    pub(super) fn read_as_recorded(&mut self, step: &Step) -> Result<bool, SweepError> {
        let Some(clock) = step.clock else {
            return Ok(true);
        };
        if self.rip()? != step.rip {
            return Ok(false);
        }
        self.driver.vcpu(self.start.vcpu)?.set_read_tsc(clock)?;
        Ok(true)
    }

    /// Has the guest's clocks go on from what it has read on this way, if they are behind.
    pub(super) fn catch_up(&mut self, way: &[Step]) -> Result<(), SweepError> {
        let Some(clock) = way.iter().rev().find_map(|step| step.clock) else {
            return Ok(());
        };
        Ok(self.driver.machine.advance_clocks(self.start.vcpu, clock)?)
    }
}

#[cfg(test)]
mod tests {
    use super::length;

    #[test]
    fn both_instructions_are_known() {
        assert_eq!(length([0x0f, 0x31, 0x90]), Some(2));
        assert_eq!(length([0x0f, 0x01, 0xf9]), Some(3));
        assert_eq!(length([0x0f, 0x01, 0xf8]), None, "swapgs");
    }
}
