//! A thread for each vCPU, and the vCPUs as the caller's thread controls them.

mod filter;
mod returns;
mod run_here;
mod slot;
mod thread;
mod ticks;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::devices::ports::Ports;
use crate::vcpu::{Run, Stop, Vcpu};
use slot::KICK_LIMIT;
use thread::Notice;

pub(crate) use returns::{ExpectedReturns, TrapContext};
pub use slot::{PauseError, ResumeError};
pub(crate) use slot::{Slot, State};

/// A vCPU stopped by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VcpuEvent {
    /// The vCPU.
    pub vcpu: u8,
    /// Why it stopped.
    pub stop: Stop,
}

/// What [`VcpuHandle::pause`](crate::VcpuHandle::pause) found. In each case the vCPU is stopped
/// now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// It ran, and this call stopped it. There is no event.
    Paused,
    /// It stopped by itself at the same moment:
    /// [`Machine::next_event`](crate::Machine::next_event) has the reason.
    StoppedItself,
    /// It was stopped before.
    WasStopped,
}

/// The vCPUs of a machine. Dropping them stops and joins their threads.
#[derive(Debug)]
pub(crate) struct Vcpus {
    slots: Vec<Slot>,
    notices: Receiver<Notice>,
    /// Stops that the caller has not seen yet.
    events: VecDeque<VcpuEvent>,
    pub(crate) returns: ExpectedReturns,
    /// A resumed vCPU runs on the caller's thread while that waits, with these ports.
    here: Option<Arc<Ports>>,
}

impl Vcpus {
    /// Starts a thread for each vCPU. Fails with the vCPU that has none.
    pub(crate) fn spawn(vcpus: Vec<Vcpu>, ports: &Arc<Ports>) -> Result<Self, (u8, io::Error)> {
        let (sender, notices) = channel();
        let slots = vcpus.into_iter().map(|vcpu| {
            let index = vcpu.index;
            Slot::spawn(vcpu, &sender, ports).map_err(|error| (index, error))
        });
        Ok(Self {
            slots: slots.collect::<Result<_, _>>()?,
            notices,
            events: VecDeque::new(),
            returns: ExpectedReturns::default(),
            here: None,
        })
    }

    pub(crate) fn count(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn get(&self, index: u8) -> Option<&Slot> {
        self.slots.get(usize::from(index))
    }

    pub(crate) fn get_mut(&mut self, index: u8) -> Option<&mut Slot> {
        self.slots.get_mut(usize::from(index))
    }

    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// vCPU `index`, if it is stopped.
    pub(crate) fn stopped(&self, index: u8) -> Option<&Vcpu> {
        self.get(index)?.stopped()
    }

    /// vCPU `index`, if it is stopped.
    pub(crate) fn stopped_mut(&mut self, index: u8) -> Option<&mut Vcpu> {
        self.get_mut(index)?.stopped_mut()
    }

    /// All that are stopped.
    pub(crate) fn all_stopped(&self) -> impl Iterator<Item = &Vcpu> {
        self.slots.iter().filter_map(Slot::stopped)
    }

    /// All that are stopped.
    pub(crate) fn all_stopped_mut(&mut self) -> impl Iterator<Item = &mut Vcpu> {
        self.slots.iter_mut().filter_map(Slot::stopped_mut)
    }

    /// Resumes a vCPU on its thread, or where it is waited for.
    pub(crate) fn resume(&mut self, index: u8, run: Run) -> Result<(), ResumeError> {
        let here = self.here.is_some();
        match self.get_mut(index) {
            Some(slot) if here => slot.resume_here(run),
            Some(slot) => slot.resume(run),
            None => Err(ResumeError::NotStopped { vcpu: index }),
        }
    }

    /// Stops a vCPU.
    pub(crate) fn pause(&mut self, index: u8) -> Result<Pause, PauseError> {
        let Some(slot) = self.get(index) else {
            return Ok(Pause::WasStopped);
        };
        let ran = slot.is_running();
        slot.kick()?;
        self.hold_due();
        self.wait_stopped(index, ran)
    }

    /// Stops all vCPUs.
    pub(crate) fn pause_all(&mut self) -> Result<Vec<Pause>, PauseError> {
        let ran: Vec<bool> = self.slots.iter().map(Slot::is_running).collect();
        // Kicks all before it waits for the first.
        self.slots.iter().try_for_each(Slot::kick)?;
        self.hold_due();
        (0..)
            .zip(ran)
            .map(|(index, ran)| self.wait_stopped(index, ran))
            .collect()
    }

    /// Stops all vCPUs. Returns those that ran, for [`resume_all`](Self::resume_all).
    pub(crate) fn stop_running(&mut self) -> Result<Vec<u8>, PauseError> {
        let found = self.pause_all()?;
        let ran = (0..).zip(found).filter(|(_, it)| *it == Pause::Paused);
        Ok(ran.map(|(index, _)| index).collect())
    }

    /// Resumes these vCPUs, as they ran.
    pub(crate) fn resume_all(&mut self, stopped: &[u8]) -> Result<(), ResumeError> {
        stopped
            .iter()
            .try_for_each(|&index| self.resume(index, Run::AsBefore))
    }

    /// Waits for a vCPU to stop by itself; each stop is delivered once.
    pub(crate) fn next_event(&mut self, timeout: Duration) -> Option<VcpuEvent> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            if let Some(event) = self.events.pop_front() {
                self.mark_seen(event.vcpu);
                return Some(event);
            }
            let left =
                deadline.map_or(timeout, |end| end.saturating_duration_since(Instant::now()));
            if !self.take_within(left) {
                return None;
            }
        }
    }

    /// Waits until `end` for a vCPU to stop by itself, and takes the notices of the others.
    pub(crate) fn wait_until_stopped(&mut self, index: u8, end: Instant) {
        let left = || end.saturating_duration_since(Instant::now());
        while self.get(index).is_some_and(Slot::is_running) && self.take_within(left()) {}
    }

    /// Withdraws the undelivered stops of a vCPU.
    pub(crate) fn drop_events(&mut self, index: u8) {
        self.events.retain(|event| event.vcpu != index);
        self.mark_seen(index);
    }

    /// Forgets all undelivered stops.
    pub(crate) fn forget_events(&mut self) {
        self.events.clear();
    }

    fn mark_seen(&mut self, index: u8) {
        if let Some(State::Stopped { seen, .. }) = self.get_mut(index).map(|slot| &mut slot.state) {
            *seen = true;
        }
    }

    /// Waits for the message of a thread and takes it, or runs the vCPU that is due. False if none
    /// stopped in time, or all threads have ended.
    fn take_within(&mut self, left: Duration) -> bool {
        if let Some(stopped) = self.run_due(left) {
            return stopped;
        }
        let notice = self.notices.recv_timeout(left);
        notice.map(|notice| self.take(notice)).is_ok()
    }

    /// Takes a message of a vCPU's thread. Every stop but a pause makes an event.
    fn take(&mut self, notice: Notice) {
        let (vcpu, state, stop) = match notice {
            Notice::Stopped { vcpu, stop } => {
                let index = vcpu.index;
                let stop = self.returns.recognise(&vcpu, stop);
                let seen = stop == Stop::Paused;
                (index, State::stopped(vcpu, stop.clone(), seen), stop)
            }
            Notice::Died { vcpu, reason } => (
                vcpu,
                State::Dead(reason.clone()),
                Stop::ThreadDied { reason },
            ),
        };
        if let Some(slot) = self.get_mut(vcpu) {
            slot.state = state;
        }
        if stop != Stop::Paused {
            self.events.push_back(VcpuEvent { vcpu, stop });
        }
    }

    /// Waits for vCPU `index` to be stopped; `ran` says whether it was running, and thus kicked,
    /// before.
    fn wait_stopped(&mut self, index: u8, ran: bool) -> Result<Pause, PauseError> {
        let end = Instant::now() + KICK_LIMIT;
        loop {
            match self.get(index).map(|slot| &slot.state) {
                Some(State::Running | State::Due { .. }) => {}
                Some(State::Dead(reason)) => {
                    return Err(PauseError::Dead {
                        vcpu: index,
                        reason: reason.clone(),
                    });
                }
                Some(State::Stopped {
                    stop: Stop::Paused, ..
                }) if ran => return Ok(Pause::Paused),
                Some(State::Stopped { seen: false, .. }) => return Ok(Pause::StoppedItself),
                _ => return Ok(Pause::WasStopped),
            }
            if !self.take_within(end.saturating_duration_since(Instant::now())) {
                return Err(PauseError::Stuck { vcpu: index });
            }
        }
    }
}

#[cfg(test)]
impl Vcpus {
    /// Pretends that the thread of a vCPU has ended.
    pub(crate) fn lose(&mut self, vcpu: u8, reason: &str) {
        self.take(Notice::Died {
            vcpu,
            reason: reason.to_owned(),
        });
    }
}
