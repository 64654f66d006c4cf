//! A KVM host in a process of its own, which carries out orders: QEMU with the outer machine, or the VMM here.

use std::fs::File;
use std::io::{self, Read as _};
use std::ops::ControlFlow::{Break, Continue};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use unwindlab_oracle::trace::Recording;

use super::channel::{self, ChannelError, FromHost, ToHost};
use super::console::{self, HostConsole};
use super::conversation::{Answer, HostError, out_of_turn, trial_answer, until_last};
use super::timekeeping::Timekeeping;
use super::waiting::{SweptTries, Waiting};
use crate::interrupt::Interrupt;
use crate::plan::measurement::{MeasuredFigures, Measurement, NotMeasured};
use crate::plan::self_test::SelfTestMessage;
use crate::plan::sweep::{Message, SweepPlan};
use crate::plan::{Executor, InfraError, Progress, TrialPlan};
use crate::text::printable;

/// After how long without a word a host is taken for dead.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// A running trial speaks twice a second.
    pub(super) trial: Duration,
    /// A sweep speaks after every trial, but first its guest has to boot.
    pub(super) sweep: Duration,
    /// A measurement has limits of its own, several in a row; it says nothing before its end.
    pub(super) measurement: Duration,
    /// A self-test speaks after every check.
    pub(super) check: Duration,
    /// What a check may take, in the host's own time.
    pub(super) check_there: Duration,
}

impl Limits {
    /// Those of a host that is about as fast as this machine.
    const USUAL: Self = Self {
        trial: Duration::from_secs(30),
        sweep: Duration::from_secs(90),
        measurement: Duration::from_secs(300),
        check: Duration::from_secs(90),
        check_there: Duration::from_secs(40),
    };
}

/// A host that is up, or coming up. It ends with this value.
#[derive(Debug)]
pub struct HostProcess {
    child: Child,
    stream: UnixStream,
    console: HostConsole,
    interrupt: Interrupt,
    limits: Limits,
    /// Why this host, for [`Executor::host`].
    pub(super) description: String,
    /// Hosts before it that died in their boot.
    pub(super) deaths: usize,
}

impl HostProcess {
    /// Of a child that has the other ends of these.
    pub(super) fn new(
        child: Child,
        stream: UnixStream,
        console: impl io::Read + Send + 'static,
        interrupt: &Interrupt,
    ) -> io::Result<Self> {
        Ok(Self {
            child,
            stream,
            console: HostConsole::collect(console)?,
            interrupt: interrupt.clone(),
            limits: Limits::USUAL,
            description: String::new(),
            deaths: 0,
        })
    }

    /// With other limits than those of a host that is about as fast as this machine.
    pub(super) fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Waits for its first message; `uname -r` of its kernel.
    pub(super) fn hello(&mut self, limit: Duration) -> Result<String, HostError> {
        match self.receive(limit) {
            Ok(FromHost::Hello { version, release }) if version == env!("CARGO_PKG_VERSION") => {
                Ok(release)
            }
            Ok(FromHost::Unfit { reason }) => Err(HostError::Unfit(reason)),
            Ok(_) => Err(HostError::OtherProgram),
            Err(ChannelError::Interrupted) => Err(HostError::Interrupted),
            Err(error) => Err(HostError::Boot(error)),
        }
    }

    /// Tells it what its orders need, before the first of them.
    pub(super) fn give<T: serde::Serialize>(&mut self, given: &T) -> Result<(), HostError> {
        channel::send(&mut self.stream, given).map_err(HostError::Send)
    }

    /// Sends a kernel under test.
    pub(super) fn give_kernel(&mut self, hash: &str, image: &Path) -> Result<(), HostError> {
        let read = |source| HostError::ReadKernel {
            path: image.to_path_buf(),
            source,
        };
        let mut file = File::open(image).map_err(read)?;
        let bytes = file.metadata().map_err(read)?.len();
        let hash = hash.to_owned();
        let io = |error| HostError::Send(ChannelError::Io(error));
        self.stream
            .set_write_timeout(Some(self.limits.trial))
            .map_err(io)?;
        self.give(&ToHost::Kernel { hash, bytes })?;
        let sent = io::copy(&mut (&mut file).take(bytes), &mut self.stream).map_err(io)?;
        match sent == bytes {
            true => Ok(()),
            false => Err(read(io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// Has it say that it waits for orders; how many guests wait in it, and what it takes its clocks for.
    pub(super) fn idle(
        &mut self,
        order: &ToHost,
        limit: Duration,
    ) -> Result<(u32, Timekeeping), HostError> {
        self.give(order)?;
        match self.receive(limit) {
            Ok(FromHost::Idle {
                guests,
                timekeeping,
            }) => Ok((guests, timekeeping)),
            Ok(_) => Err(HostError::StartedOver),
            Err(ChannelError::Interrupted) => Err(HostError::Interrupted),
            Err(error) => Err(HostError::Lost(error)),
        }
    }

    /// The process's number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends an order and takes its answers until the last. A host that is silent for
    /// `silence` is taken for dead; without a last answer it is ended.
    fn order<T>(
        &mut self,
        order: &ToHost,
        silence: Duration,
        take: impl FnMut(FromHost) -> Answer<T>,
    ) -> Result<T, InfraError> {
        let sent = channel::send(&mut self.stream, order).map_err(HostError::Send);
        let receive = || {
            self.receive(silence).map_err(|error| match error {
                ChannelError::Interrupted => HostError::Interrupted,
                error => HostError::Lost(error),
            })
        };
        let answer = sent.and_then(|()| until_last(receive, take));
        answer.map_err(|error| self.failed(&error))
    }

    /// Waits for a message, looking up for an interrupt meanwhile.
    fn receive(&mut self, limit: Duration) -> Result<FromHost, ChannelError> {
        let started = Instant::now();
        loop {
            let mut ready = [PollFd::new(&self.stream, PollFlags::IN)];
            let look_up = Timespec {
                tv_sec: 0,
                tv_nsec: 50_000_000,
            };
            match poll(&mut ready, Some(&look_up)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => break,
                Err(error) => return Err(ChannelError::Io(error.into())),
            }
            if self.interrupt.is_set() {
                return Err(ChannelError::Interrupted);
            }
            if started.elapsed() > limit {
                return Err(ChannelError::Silent(limit.as_secs()));
            }
        }
        // A message that has begun arrives in one go unless the machine dies.
        self.stream
            .set_read_timeout(Some(limit))
            .map_err(ChannelError::Io)?;
        channel::receive(&mut self.stream)
    }

    /// Ends it and says why, with the line of its console that says why and everything it printed.
    pub(super) fn failed(&mut self, error: &HostError) -> InfraError {
        self.end();
        let console = self.console.text();
        let mut failed = error.with_console(String::new());
        if let Some(cause) = console::cause(&console) {
            failed.reason = format!("{}: {}", failed.reason, printable(&cause));
        }
        InfraError { console, ..failed }
    }

    fn end(&mut self) {
        // Both fail only when the process is already gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.console.join();
    }
}

impl Executor for HostProcess {
    fn host(&self) -> String {
        self.description.clone()
    }

    fn deaths(&self) -> usize {
        self.deaths
    }

    fn run(&mut self, plan: &TrialPlan, progress: &dyn Progress) -> Result<Recording, InfraError> {
        let order = ToHost::Run(Box::new(plan.clone()));
        let before = Waiting::of(self.id());
        let mut recording = self.order(&order, self.limits.trial, |message| {
            trial_answer(message, &plan.scenario, progress)
        })?;
        recording.end = Waiting::of(self.id()).judge(&before, recording.end);
        Ok(recording)
    }

    fn sweep(
        &mut self,
        plan: &SweepPlan,
        take: &mut dyn FnMut(Message) -> bool,
    ) -> Result<(), InfraError> {
        let order = ToHost::Sweep(Box::new(plan.clone()));
        let host = self.id();
        let mut tries = SweptTries::default();
        self.order(&order, self.limits.sweep, |message| match message {
            FromHost::Sweep(mut message) => {
                tries.weigh(&mut message, || Waiting::of(host));
                let last = matches!(*message, Message::Done(_) | Message::Failed { .. });
                match (take(*message), last) {
                    (false, _) => Break(Err(HostError::Interrupted)),
                    (true, true) => Break(Ok(())),
                    (true, false) => Continue(()),
                }
            }
            other => out_of_turn(other),
        })
    }

    fn bench(
        &mut self,
        measurement: &Measurement,
    ) -> Result<Result<MeasuredFigures, NotMeasured>, InfraError> {
        let order = ToHost::Bench(measurement.clone());
        self.order(&order, self.limits.measurement, |message| match message {
            FromHost::Bench(answer) => Break(Ok(answer)),
            other => out_of_turn(other),
        })
    }

    fn self_test(
        &mut self,
        take: &mut dyn FnMut(SelfTestMessage) -> bool,
    ) -> Result<(), InfraError> {
        let limit_ms = u64::try_from(self.limits.check_there.as_millis()).unwrap_or(u64::MAX);
        let order = ToHost::SelfTest { limit_ms };
        self.order(&order, self.limits.check, |message| match message {
            FromHost::SelfTest(message) => {
                let last = matches!(message, SelfTestMessage::Done | SelfTestMessage::Failed(_));
                match (take(message), last) {
                    (false, _) => Break(Err(HostError::Interrupted)),
                    (true, true) => Break(Ok(())),
                    (true, false) => Continue(()),
                }
            }
            other => out_of_turn(other),
        })
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        self.end();
    }
}
