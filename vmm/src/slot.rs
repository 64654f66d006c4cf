//! A vCPU as the controller sees it: running, stopped and here, or lost.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use vmm_sys_util::errno;
use vmm_sys_util::signal::Killable;

use crate::debug::BreakpointError;
use crate::devices::ports::Ports;
use crate::exit::Stop;
use crate::kick::{self, RunPage};
use crate::machine::BuildError;
use crate::thread::{self, Command, Notice, Run};
use crate::vcpu::Vcpu;

/// How long a vCPU may take to leave the guest when it is told to. KVM answers in
/// microseconds; a vCPU that does not within this is stuck in the kernel.
pub(crate) const KICK_LIMIT: Duration = Duration::from_secs(10);

/// After a stop of this length the guest is told that it was stopped, so that its watchdogs
/// do not take it for a lock-up of its own.
const LONG_STOP: Duration = Duration::from_secs(1);

/// Why a vCPU could not be paused.
#[derive(Debug, thiserror::Error)]
pub enum PauseError {
    /// Its thread is gone.
    #[error("the thread of vCPU {vcpu} is gone: {reason}")]
    Dead {
        /// Which.
        vcpu: u8,
        /// Why.
        reason: String,
    },
    /// It did not leave the guest in time.
    #[error("vCPU {vcpu} does not leave the guest: KVM did not react for {} s", KICK_LIMIT.as_secs())]
    Stuck {
        /// Which.
        vcpu: u8,
    },
    /// Its thread could not be sent a signal.
    #[error("failed to signal vCPU {vcpu}: {source}")]
    Signal {
        /// Which.
        vcpu: u8,
        /// The kernel's reason.
        source: errno::Error,
    },
}

/// Why a vCPU could not be resumed.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// It runs.
    #[error("vCPU {vcpu} is not stopped")]
    NotStopped {
        /// Which.
        vcpu: u8,
    },
    /// It stopped for a reason that the caller has not seen: resuming would lose it.
    #[error(
        "vCPU {vcpu} stopped for {stop:?}, which next_event has not delivered yet: take it first"
    )]
    NotSeen {
        /// Which.
        vcpu: u8,
        /// The reason.
        stop: Stop,
    },
    /// Its thread is gone.
    #[error("the thread of vCPU {vcpu} is gone: {reason}")]
    Dead {
        /// Which.
        vcpu: u8,
        /// Why.
        reason: String,
    },
    /// The thread that was to run it has no timer.
    #[error("failed to set a timer to run vCPU {vcpu} with: {source}")]
    Timer {
        /// Which.
        vcpu: u8,
        /// Why.
        source: std::io::Error,
    },
    /// It stands at a planted trap, and does not get past it.
    #[error("vCPU {vcpu} cannot be led past a trap: {source}")]
    Trap {
        /// Which.
        vcpu: u8,
        /// Why.
        source: Box<BreakpointError>,
    },
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

/// Where it is.
#[derive(Debug)]
pub(crate) enum State {
    Stopped {
        vcpu: Box<Vcpu>,
        stop: Stop,
        /// The caller knows the reason.
        seen: bool,
        since: Instant,
    },
    Running,
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
    pub(crate) fn spawn(
        vcpu: Vcpu,
        notices: &Sender<Notice>,
        ports: &Arc<Ports>,
    ) -> Result<Self, BuildError> {
        let index = vcpu.index;
        let run_page = Arc::clone(&vcpu.run_page);
        let (commands, inbox) = channel();
        let (notices, ports) = (notices.clone(), Arc::clone(ports));
        let thread = Builder::new()
            .name(format!("vcpu{index}"))
            .spawn(move || thread::main(index, inbox, notices, ports))
            .map_err(|source| BuildError::Vcpu {
                vcpu: index,
                step: "start the thread of",
                source,
            })?;
        Ok(Self {
            state: State::stopped(Box::new(vcpu), Stop::Paused, true),
            index,
            run_page,
            commands: Some(commands),
            thread: Some(thread),
        })
    }

    pub(crate) fn stopped(&self) -> Option<&Vcpu> {
        match &self.state {
            State::Stopped { vcpu, .. } => Some(vcpu),
            _ => None,
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.state, State::Running)
    }

    /// Makes a vCPU that runs leave the guest, or not enter it.
    pub(crate) fn kick(&self) -> Result<(), PauseError> {
        match &self.thread {
            Some(thread) if self.is_running() => {
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
            let reason = "it does not take commands any more".to_owned();
            self.state = State::Dead(reason.clone());
            return Err(ResumeError::Dead {
                vcpu: self.index,
                reason,
            });
        }
        Ok(())
    }

    /// Takes the vCPU, to have it run.
    pub(crate) fn take_over(&mut self) -> Result<Box<Vcpu>, ResumeError> {
        let vcpu = self.index;
        let dead = |reason: &str| ResumeError::Dead {
            vcpu,
            reason: reason.to_owned(),
        };
        match &self.state {
            State::Running => return Err(ResumeError::NotStopped { vcpu }),
            State::Dead(reason) => return Err(dead(reason)),
            State::Stopped {
                seen: false, stop, ..
            } => {
                return Err(ResumeError::NotSeen {
                    vcpu,
                    stop: stop.clone(),
                });
            }
            State::Stopped { .. } => {}
        }
        let State::Stopped {
            vcpu: owned, since, ..
        } = std::mem::replace(&mut self.state, State::Running)
        else {
            return Err(ResumeError::NotStopped { vcpu });
        };
        if since.elapsed() > LONG_STOP {
            // A guest without kvmclock has no way to be told.
            let _ = owned.fd.kvmclock_ctrl();
        }
        self.run_page.clear();
        Ok(owned)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Err(error) = self.kick() {
            tracing::error!("{error}");
        }
        // The thread ends when no command can come any more.
        self.commands = None;
        // A panic of the thread has been caught and reported by the thread itself.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
