//! Runs a vCPU on the caller's thread, which only waits for it anyway: no other thread must be woken
//! and waited for. On an emulated KVM host that takes three times as long as the vCPU's own run to
//! the next instruction of interest.

use std::time::{Duration, Instant};

use super::slot::ResumeError;
use super::thread::Notice;
use super::ticks;
use super::{VcpuEvent, Vcpus};
use crate::devices::ports::Ports;
use crate::vcpu::{Run, run_until_stop};

impl Vcpus {
    /// Runs one vCPU on the calling thread until it stops or the time is over.
    pub(crate) fn run_here(
        &mut self,
        index: u8,
        run: Run,
        timeout: Duration,
        ports: &Ports,
    ) -> Result<Option<VcpuEvent>, ResumeError> {
        let refused = |source| ResumeError::Timer {
            vcpu: index,
            source,
        };
        let ticks = ticks::start(timeout).map_err(refused)?;
        let slot = self.get_mut(index);
        let slot = slot.ok_or(ResumeError::NotStopped { vcpu: index })?;
        let mut vcpu = slot.take_over()?;
        vcpu.until = Instant::now().checked_add(timeout);
        let stop = run_until_stop(&mut vcpu, run, ports);
        vcpu.until = None;
        drop(ticks);
        self.take(Notice::Stopped { vcpu, stop });
        Ok(self.next_event(Duration::ZERO))
    }
}
