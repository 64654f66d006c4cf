//! Running a vCPU on the thread of the caller, which has nothing to do until it stops: no other thread has to be woken
//! and waited for. On an emulated KVM host that takes three times as long as the vCPU's own run to the next instruction
//! of interest.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::machine::{Machine, VcpuEvent};
use crate::slot::ResumeError;
use crate::thread::{self, Notice, Run};
use crate::ticks;

impl Machine {
    /// Lets one vCPU go on and waits until it stops of its own, or the time is over: it is stopped in either case. The
    /// same as [`resume`](crate::VcpuHandle::resume), [`next_event`](Self::next_event) and
    /// [`pause`](crate::VcpuHandle::pause), but on the calling thread. What another vCPU stopped for may come instead.
    ///
    /// KVM waits for a grace period of RCU where a vCPU runs on another thread than before: keep to one.
    ///
    /// # Errors
    /// [`ResumeError`]: it is not stopped, its last stop was not seen, or there is no timer for it.
    pub fn run_here(
        &mut self,
        index: u8,
        run: Run,
        timeout: Duration,
    ) -> Result<Option<VcpuEvent>, ResumeError> {
        if !self.traps.are_none() {
            return self.run_there(index, run, timeout);
        }
        let refused = |source| ResumeError::Timer {
            vcpu: index,
            source,
        };
        let ticks = ticks::start(timeout).map_err(refused)?;
        let ports = Arc::clone(&self.ports);
        let slot = self.slot_mut(index);
        let slot = slot.ok_or(ResumeError::NotStopped { vcpu: index })?;
        let mut vcpu = slot.take_over()?;
        vcpu.until = Instant::now().checked_add(timeout);
        let stop = thread::run_until_stop(&mut vcpu, run, &ports);
        vcpu.until = None;
        drop(ticks);
        self.take(Notice::Stopped { vcpu, stop });
        Ok(self.next_event(Duration::ZERO))
    }

    /// The same on the vCPU's own thread: leading it past a planted trap is done there.
    fn run_there(
        &mut self,
        index: u8,
        run: Run,
        timeout: Duration,
    ) -> Result<Option<VcpuEvent>, ResumeError> {
        self.resume(index, run)?;
        if let Some(event) = self.next_event(timeout) {
            return Ok(Some(event));
        }
        // What cannot be stopped is told of by whoever does something with it next.
        let _ = self.vcpu(index).map(|mut handle| handle.pause());
        Ok(self.next_event(Duration::ZERO))
    }
}
