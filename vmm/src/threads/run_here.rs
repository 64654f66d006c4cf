//! Runs a vCPU on the thread that waits for it, which has nothing else to do: no other thread must be
//! woken and waited for. On an emulated KVM host that takes three times as long as the vCPU's own run
//! to the next instruction of interest.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::thread::Notice;
use super::ticks;
use super::{Slot, Vcpus};
use crate::devices::ports::Ports;
use crate::vcpu::{Run, Stop, run_until_stop};

impl Vcpus {
    /// From now on the only vCPU runs where it is waited for. One of several keeps its thread.
    pub(crate) fn run_here(&mut self, ports: &Arc<Ports>) {
        if self.slots.len() == 1 {
            self.here = Some(Arc::clone(ports));
        }
    }

    /// Runs the vCPU that is due until it stops by itself, or the time is over; then it is due again.
    /// Whether it stopped; `None` where none is due.
    pub(super) fn run_due(&mut self, limit: Duration) -> Option<bool> {
        let ports = self.here.clone()?;
        let slot = self.slots.iter_mut().find(|it| it.is_due())?;
        if limit.is_zero() {
            return Some(false);
        }
        let (mut vcpu, run) = slot.take_due()?;
        let stop = match ticks::start(limit) {
            Ok(_ticks) => {
                vcpu.until = Instant::now().checked_add(limit);
                let stop = run_until_stop(&mut vcpu, run, &ports);
                vcpu.until = None;
                stop
            }
            Err(error) => Stop::Unhandled {
                exit: format!("failed to set a timer for its run: {error}"),
            },
        };
        if stop == Stop::Paused {
            slot.set_due(vcpu, Run::AsBefore);
            return Some(false);
        }
        self.take(Notice::Stopped { vcpu, stop });
        Some(true)
    }

    /// What is due stands still instead, as if paused.
    pub(super) fn hold_due(&mut self) {
        self.slots.iter_mut().for_each(Slot::hold_due);
    }
}
