//! A vCPU as the controller sees it: stopped, running, or lost with its thread.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use vmm_sys_util::errno;
use vmm_sys_util::signal::Killable;

use super::thread::{self, Command, Notice};
use crate::debug::TrapError;
use crate::devices::ports::Ports;
use crate::vcpu::kick::{self, RunPage};
use crate::vcpu::{Run, Stop, Vcpu};

/// Time limit for a vCPU to leave the guest after a kick. KVM needs microseconds; a vCPU that
/// takes longer is stuck in the kernel.
pub(super) const KICK_LIMIT: Duration = Duration::from_secs(10);

/// After a stop of this length KVM tells the guest that it was stopped, so that its watchdogs do
/// not report a lockup.
const LONG_STOP: Duration = Duration::from_secs(1);

/// Why a vCPU could not be paused.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum PauseError {
    /// Its thread has ended.
    #[error("the thread of vCPU {vcpu} is gone: {reason}")]
    Dead { vcpu: u8, reason: String },
    /// It did not leave the guest in time.
    #[error("vCPU {vcpu} does not leave the guest: KVM did not react for {} s", KICK_LIMIT.as_secs())]
    Stuck { vcpu: u8 },
    /// Its thread cannot be signalled.
    #[error("failed to signal vCPU {vcpu}: {source}")]
    Signal { vcpu: u8, source: errno::Error },
}

/// Why a vCPU could not be resumed.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum ResumeError {
    /// It runs.
    #[error("vCPU {vcpu} is not stopped")]
    NotStopped { vcpu: u8 },
    /// It stopped for a reason that the caller has not seen: resuming would lose it.
    #[error(
        "vCPU {vcpu} stopped for {stop:?}, which next_event has not delivered yet: take it first"
    )]
    NotSeen { vcpu: u8, stop: Stop },
    /// Its thread has ended.
    #[error("the thread of vCPU {vcpu} is gone: {reason}")]
    Dead { vcpu: u8, reason: String },
    /// It is at a planted trap, which cannot be removed or written again.
    #[error("failed to step vCPU {vcpu} over a trap: {source}")]
    Trap { vcpu: u8, source: TrapError },
    /// Another vCPU cannot be stopped, as a step over a trap needs.
    #[error(transparent)]
    Pause(#[from] PauseError),
}

/// A vCPU as the controller sees it.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) state: State,
    index: u8,
    run_page: Arc<RunPage>,
    commands: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
}

/// Whether it runs.
#[derive(Debug)]
pub(crate) enum State {
    /// The controller owns it.
    Stopped {
        vcpu: Box<Vcpu>,
        stop: Stop,
        /// The caller knows the reason.
        seen: bool,
        since: Instant,
    },
    /// Its thread owns it, or it runs on the caller's.
    Running,
    /// It runs on the caller's thread as soon as that waits for it, in this way.
    Due {
        vcpu: Box<Vcpu>,
        run: Run,
        since: Instant,
    },
    /// Its thread has ended, for this reason.
    Dead(String),
}

impl State {
    pub(crate) fn stopped(vcpu: Box<Vcpu>, stop: Stop, seen: bool) -> Self {
        Self::Stopped {
            vcpu,
            stop,
            seen,
            since: Instant::now(),
        }
    }
}

impl Slot {
    /// Starts the vCPU's thread.
    pub(super) fn spawn(
        vcpu: Vcpu,
        notices: &Sender<Notice>,
        ports: &Arc<Ports>,
    ) -> io::Result<Self> {
        let index = vcpu.index;
        let run_page = Arc::clone(&vcpu.run_page);
        let (commands, inbox) = channel();
        let (notices, ports) = (notices.clone(), Arc::clone(ports));
        let thread = Builder::new()
            .name(format!("vcpu{index}"))
            .spawn(move || thread::main(index, inbox, notices, ports))?;
        Ok(Self {
            state: State::stopped(Box::new(vcpu), Stop::Paused, true),
            index,
            run_page,
            commands: Some(commands),
            thread: Some(thread),
        })
    }

    /// The vCPU, if it is stopped.
    pub(crate) fn stopped(&self) -> Option<&Vcpu> {
        match &self.state {
            State::Stopped { vcpu, .. } => Some(vcpu),
            _ => None,
        }
    }

    /// The vCPU, if it is stopped.
    pub(crate) fn stopped_mut(&mut self) -> Option<&mut Vcpu> {
        match &mut self.state {
            State::Stopped { vcpu, .. } => Some(vcpu),
            _ => None,
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.state, State::Running | State::Due { .. })
    }

    pub(super) fn is_due(&self) -> bool {
        matches!(self.state, State::Due { .. })
    }

    /// Makes a running vCPU leave the guest, or not enter it.
    pub(crate) fn kick(&self) -> Result<(), PauseError> {
        match &self.thread {
            Some(thread) if matches!(self.state, State::Running) => {
                self.run_page.request();
                thread
                    .kill(kick::kick_signal())
                    .map_err(|source| PauseError::Signal {
                        vcpu: self.index,
                        source,
                    })
            }
            _ => Ok(()),
        }
    }

    /// Hands the vCPU to its thread.
    pub(crate) fn resume(&mut self, run: Run) -> Result<(), ResumeError> {
        let vcpu = self.take_over()?;
        let command = Command { vcpu, run };
        let sent = self.commands.as_ref().map(|it| it.send(command).is_ok());
        if sent != Some(true) {
            let reason = "it no longer takes commands".to_owned();
            self.state = State::Dead(reason.clone());
            return Err(ResumeError::Dead {
                vcpu: self.index,
                reason,
            });
        }
        Ok(())
    }

    /// Has the vCPU run on the caller's thread when that waits for it.
    pub(super) fn resume_here(&mut self, run: Run) -> Result<(), ResumeError> {
        let vcpu = self.take_over()?;
        self.set_due(vcpu, run);
        Ok(())
    }

    pub(super) fn set_due(&mut self, vcpu: Box<Vcpu>, run: Run) {
        let since = Instant::now();
        self.state = State::Due { vcpu, run, since };
    }

    /// Takes the vCPU that is due, to run it.
    pub(super) fn take_due(&mut self) -> Option<(Box<Vcpu>, Run)> {
        match std::mem::replace(&mut self.state, State::Running) {
            State::Due { vcpu, run, since } => {
                tell_of_stop(&vcpu, since);
                Some((vcpu, run))
            }
            other => {
                self.state = other;
                None
            }
        }
    }

    /// A vCPU that is due is paused instead: resumed as before, it is due in the same way.
    pub(super) fn hold_due(&mut self) {
        if let Some((mut vcpu, run)) = self.take_due() {
            if run != Run::AsBefore {
                vcpu.run = run;
            }
            self.state = State::stopped(vcpu, Stop::Paused, true);
        }
    }

    /// Takes the vCPU, to run it.
    fn take_over(&mut self) -> Result<Box<Vcpu>, ResumeError> {
        let vcpu = self.index;
        let refused = match std::mem::replace(&mut self.state, State::Running) {
            State::Stopped {
                vcpu: owned,
                seen: true,
                since,
                ..
            } => {
                tell_of_stop(&owned, since);
                self.run_page.clear();
                return Ok(owned);
            }
            refused => refused,
        };
        let error = match &refused {
            State::Running | State::Due { .. } => ResumeError::NotStopped { vcpu },
            State::Stopped { stop, .. } => ResumeError::NotSeen {
                vcpu,
                stop: stop.clone(),
            },
            State::Dead(reason) => ResumeError::Dead {
                vcpu,
                reason: reason.clone(),
            },
        };
        self.state = refused;
        Err(error)
    }
}

/// Tells a guest that its vCPU was stopped for long.
fn tell_of_stop(vcpu: &Vcpu, since: Instant) {
    if since.elapsed() > LONG_STOP {
        // Fails for a guest without kvmclock, which cannot be told.
        let _ = vcpu.fd.kvmclock_ctrl();
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Err(error) = self.kick() {
            tracing::error!("{error}");
        }
        // The thread ends when the channel closes.
        self.commands = None;
        // The thread has caught and reported its own panic.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
