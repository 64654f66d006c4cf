//! The deterministic KVM host: an emulated one whose time is counted in instructions, and which
//! nothing from outside reaches once it runs.
//!
//! It has one CPU, which one thread of QEMU executes, no device that works beside it, and a clock
//! and a source of random numbers with fixed beginnings. An outer machine makes one trial, because
//! a second one would depend on when it was asked for. What is left open (which vCPU runs when)
//! follows from the seed: see [`turns`].

pub(super) mod after_interrupt;
pub(super) mod region;
pub(super) mod turns;

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::ops::ControlFlow::Continue;
use std::os::fd::AsFd as _;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, OFlags, fcntl_setfl, memfd_create};
use unwindlab_oracle::trace::Recording;

use self::region::Outside;
use super::qemu::{CMDLINE, OuterMachine, inherited_path};
use crate::host::channel::{self, ChannelError, FromHost, ToHost};
use crate::host::conversation::{Answer, HostError, trial_answer, until_last};
use crate::interrupt::Interrupt;
use crate::plan::sweep::{Message, SweepPlan};
use crate::plan::{Executor, InfraError, Progress, TrialPlan};

/// An instruction takes 2^3 ns, about as long as without this mode: the rates in scenarios assume
/// that.
const ICOUNT: &str = "shift=3,sleep=off";
/// The time at which the outer machine believes that it is switched on.
const CLOCK: &str = "base=2026-01-01T00:00:00,clock=vm";
/// How often the command looks for news.
const LOOK: Duration = Duration::from_millis(50);
/// A machine that says nothing for so long is taken for dead. It speaks twice in a second of its
/// own time, which can be half a minute of ours.
const SILENCE_LIMIT: Duration = Duration::from_secs(180);
/// Bytes of the console that are kept.
const CONSOLE_LIMIT: u64 = 256 << 10;

/// Runs each trial in an outer machine of its own.
#[derive(Debug)]
pub struct Deterministic {
    outer: OuterMachine,
    seed: u64,
    description: String,
    interrupt: Interrupt,
}

impl Deterministic {
    /// A host whose trials follow from `seed`. Nothing is started yet.
    #[must_use]
    pub fn new(outer: OuterMachine, release: &str, seed: u64, interrupt: &Interrupt) -> Self {
        Self {
            description: format!("emulated, deterministic, seed {seed} (outer kernel {release})"),
            outer,
            seed,
            interrupt: interrupt.clone(),
        }
    }
}

impl Executor for Deterministic {
    fn host(&self) -> String {
        self.description.clone()
    }

    fn run(&mut self, plan: &TrialPlan, progress: &dyn Progress) -> Result<Recording, InfraError> {
        let without_console = |error: HostError| error.with_console(String::new());
        let order = ToHost::RunInTurns {
            plan: Box::new(plan.clone()),
            seed: self.seed,
        };
        let mut message = Vec::new();
        channel::send(&mut message, &order)
            .map_err(|error| without_console(HostError::Send(error)))?;
        let mut running = Running::start(&self.outer, self.seed, &message).map_err(|error| {
            without_console(HostError::Start {
                what: "QEMU",
                source: error,
            })
        })?;
        let take = |message| match message {
            FromHost::Hello { version, .. } if version == env!("CARGO_PKG_VERSION") => Continue(()),
            FromHost::Hello { .. } => Answer::Break(Err(HostError::OtherProgram)),
            message => trial_answer(message, &plan.scenario, progress),
        };
        let recording = until_last(|| running.receive(&self.interrupt), take);
        running.end();
        recording.map_err(|error| error.with_console(running.console()))
    }

    fn sweep(
        &mut self,
        _: &SweepPlan,
        _: &mut dyn FnMut(Message) -> bool,
    ) -> Result<(), InfraError> {
        Err(InfraError {
            reason: "a sweep has no deterministic mode".to_owned(),
            console: String::new(),
        })
    }
}

/// An outer machine that runs its only trial.
#[derive(Debug)]
struct Running {
    child: Child,
    region: Outside,
    /// Messages that it sent, as far as they are not received.
    unread: VecDeque<u8>,
    console: File,
}

impl Running {
    fn start(outer: &OuterMachine, seed: u64, message: &[u8]) -> io::Result<Self> {
        let region = Outside::new(message)?;
        // A file takes what is written at once: a pipe could make QEMU wait and retry.
        let console = File::from(memfd_create("unwindlab-console", MemfdFlags::CLOEXEC)?);
        let errors = console.try_clone()?;
        fcntl_setfl(&errors, OFlags::APPEND)?;
        let inherited = [
            outer.initramfs.packed()?,
            region.file().as_fd(),
            console.as_fd(),
        ];
        let [initrd_path, region_path, console_path] = inherited.map(inherited_path);
        let options = [
            ("-append", CMDLINE.to_owned()),
            ("-accel", "tcg,thread=single,tb-size=512".to_owned()),
            ("-icount", ICOUNT.to_owned()),
            ("-rtc", CLOCK.to_owned()),
            ("-seed", seed.to_string()),
            ("-smp", "1".to_owned()),
            ("-initrd", initrd_path),
            (
                "-object",
                format!(
                    "memory-backend-file,id=region,mem-path={region_path},size={},share=on",
                    region::SIZE
                ),
            ),
            ("-device", "ivshmem-plain,memdev=region".to_owned()),
            (
                "-chardev",
                format!("file,id=console,path={console_path},append=on"),
            ),
        ];
        let child = outer.start(&options, &inherited, None, errors.into())?;
        Ok(Self {
            child,
            region,
            unread: VecDeque::new(),
            console,
        })
    }

    /// Waits for the next message.
    fn receive(&mut self, interrupt: &Interrupt) -> Result<FromHost, HostError> {
        let started = Instant::now();
        while self.unread.is_empty() {
            // In this order: what it said last, it said before it was gone.
            let gone = self.child.try_wait().map_err(HostError::Watch)?;
            self.unread = self.region.news().map_err(HostError::Watch)?.into();
            if !self.unread.is_empty() {
                break;
            }
            if let Some(status) = gone {
                return Err(HostError::Died(status));
            }
            if interrupt.is_set() {
                return Err(HostError::Interrupted);
            }
            if started.elapsed() > SILENCE_LIMIT {
                let silent = ChannelError::Silent(SILENCE_LIMIT.as_secs());
                return Err(HostError::Lost(silent));
            }
            std::thread::sleep(LOOK);
        }
        channel::receive(&mut self.unread).map_err(HostError::Lost)
    }

    fn end(&mut self) {
        // Both fail only when the process is already gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The end of what the machine printed.
    fn console(&mut self) -> String {
        let mut text = Vec::new();
        let length = self.console.metadata().map_or(0, |it| it.len());
        let from = length.saturating_sub(CONSOLE_LIMIT);
        // What cannot be read is not shown; there is nothing else to do for it.
        let _ = self.console.seek(io::SeekFrom::Start(from));
        let _ = self.console.read_to_end(&mut text);
        String::from_utf8_lossy(&text).replace('\r', "")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}
