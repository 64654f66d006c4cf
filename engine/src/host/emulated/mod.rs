//! The emulated KVM host: QEMU's TCG emulates an AMD CPU with SVM, the outer Linux's `kvm_amd`
//! gives /dev/kvm on it, and this same binary is its init.
//!
//! The command's side: `qemu` is the command line, `initramfs` what the machine boots into,
//! `conversation` an order and its answers, `console` what the machine prints. The machine's
//! side: `init`, with `outbox` and `first_cpu`. Both speak the language of `channel`.
//!
//! Nothing is left on disk: the initramfs is a memfd, console and channel are socket pairs, and
//! QEMU dies with us, however we die.

mod channel;
mod console;
mod conversation;
pub mod deterministic;
pub mod first_cpu;
pub mod init;
pub mod initramfs;
mod outbox;
pub mod qemu;

use std::io;
use std::ops::ControlFlow::{Break, Continue};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use unwindlab_oracle::trace::Recording;

use self::channel::{ChannelError, FromHost, ToHost};
use self::console::OuterConsole;
use self::conversation::{Answer, OuterError, out_of_turn, trial_answer, until_last};
use self::qemu::{OuterMachine, inherited_path};
use crate::interrupt::Interrupt;
use crate::plan::measurement::{MeasuredFigures, Measurement, NotMeasured};
use crate::plan::sweep::{Message, SweepPlan};
use crate::plan::{Executor, InfraError, Progress, TrialPlan};

/// From power-on to the init's hello; a loaded 2-core machine needs 4 to 8 s.
const BOOT_LIMIT: Duration = Duration::from_secs(90);
/// A running trial speaks twice a second; after this long without a word the outer machine is
/// taken for dead.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);
/// A sweep speaks after every trial, but first its guest has to boot.
const SWEEP_SILENCE_LIMIT: Duration = Duration::from_secs(90);
/// A measurement has limits of its own, several in a row; it says nothing before its end.
const BENCH_SILENCE_LIMIT: Duration = Duration::from_secs(300);

/// A running outer machine.
#[derive(Debug)]
pub struct Emulated {
    child: Child,
    stream: UnixStream,
    console: OuterConsole,
    interrupt: Interrupt,
    /// Why this host, for [`Executor::host`].
    description: String,
}

impl Emulated {
    /// Boots the outer machine and waits until its KVM is known to be fit.
    ///
    /// # Errors
    /// [`InfraError`] with the console when it does not come up.
    pub fn start(
        outer: &OuterMachine,
        why: &str,
        interrupt: &Interrupt,
    ) -> Result<Self, InfraError> {
        let mut host = Self::spawn(outer, interrupt)
            .map_err(|error| OuterError::Start(error).with_console(String::new()))?;
        match host.receive(BOOT_LIMIT) {
            Ok(FromHost::Hello { version, release }) if version == env!("CARGO_PKG_VERSION") => {
                host.description = format!("emulated (outer kernel {release}; {why})");
                Ok(host)
            }
            Ok(FromHost::Unfit { reason }) => Err(host.failed(&OuterError::Unfit(reason))),
            Ok(_) => Err(host.failed(&OuterError::OtherProgram)),
            Err(error) => Err(host.failed(&OuterError::Boot(error))),
        }
    }

    fn spawn(outer: &OuterMachine, interrupt: &Interrupt) -> io::Result<Self> {
        let (stream, channel_end) = UnixStream::pair()?;
        let (console, console_end) = UnixStream::pair()?;
        let initrd = outer.initramfs.as_fd();
        let (channel_fd, console_fd) = (channel_end.as_raw_fd(), console_end.as_raw_fd());
        let options = [
            ("-accel", "tcg,thread=multi,tb-size=512".to_owned()),
            ("-device", "virtio-serial-pci".to_owned()),
            (
                "-device",
                "virtserialport,chardev=channel,name=unwindlab".to_owned(),
            ),
            ("-smp", outer.cpus.to_string()),
            ("-initrd", inherited_path(initrd)),
            ("-chardev", format!("socket,id=channel,fd={channel_fd}")),
            ("-chardev", format!("socket,id=console,fd={console_fd}")),
        ];
        let inherited = [initrd, channel_end.as_fd(), console_end.as_fd()];
        let errors = OwnedFd::from(console_end.try_clone()?);
        Ok(Self {
            child: outer.start(&options, inherited, errors)?,
            stream,
            console: OuterConsole::collect(console)?,
            interrupt: interrupt.clone(),
            description: String::new(),
        })
    }

    /// Sends an order and takes its answers until the last. An outer machine that is silent for
    /// `silence` is taken for dead; without a last answer it is ended.
    fn order<T>(
        &mut self,
        order: &ToHost,
        silence: Duration,
        take: impl FnMut(FromHost) -> Answer<T>,
    ) -> Result<T, InfraError> {
        let sent = channel::send(&mut self.stream, order).map_err(OuterError::Send);
        let receive = || {
            self.receive(silence).map_err(|error| match error {
                ChannelError::Interrupted => OuterError::Interrupted,
                error => OuterError::Lost(error),
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

    /// Ends the machine and says why, with everything it printed.
    fn failed(&mut self, error: &OuterError) -> InfraError {
        self.end();
        error.with_console(self.console.text())
    }

    fn end(&mut self) {
        // Both fail only when the process is already gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.console.join();
    }
}

impl Executor for Emulated {
    fn host(&self) -> String {
        self.description.clone()
    }

    fn run(&mut self, plan: &TrialPlan, progress: &dyn Progress) -> Result<Recording, InfraError> {
        let order = ToHost::Run(Box::new(plan.clone()));
        self.order(&order, SILENCE_LIMIT, |message| {
            trial_answer(message, &plan.scenario, progress)
        })
    }

    fn sweep(
        &mut self,
        plan: &SweepPlan,
        take: &mut dyn FnMut(Message) -> bool,
    ) -> Result<(), InfraError> {
        let order = ToHost::Sweep(Box::new(plan.clone()));
        self.order(&order, SWEEP_SILENCE_LIMIT, |message| match message {
            FromHost::Sweep(message) => {
                let last = matches!(*message, Message::Done(_) | Message::Failed { .. });
                match (take(*message), last) {
                    (false, _) => Break(Err(OuterError::Interrupted)),
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
        self.order(&order, BENCH_SILENCE_LIMIT, |message| match message {
            FromHost::Bench(answer) => Break(Ok(answer)),
            other => out_of_turn(other),
        })
    }
}

impl Drop for Emulated {
    fn drop(&mut self) {
        self.end();
    }
}
