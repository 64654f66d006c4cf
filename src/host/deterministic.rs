//! The deterministic KVM host: an emulated one whose time is counted in instructions, and into which nothing
//! comes from outside once it runs.
//!
//! One CPU, one thread of QEMU's that executes it, no device that works beside it, a clock and a source of random
//! numbers that begin where they are told. One outer machine makes one trial, because a second one
//! would depend on when it was asked for. What is left open (which vCPU runs when) follows from the
//! seed: see [`turns`].

pub mod after_interrupt;
pub mod region;
pub mod turns;

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, OFlags, fcntl_setfl, memfd_create};

use self::region::Outside;
use super::channel::{self, FromHost, ToHost};
use super::emulated::{self, OuterMachine};
use super::told;
use crate::interrupt::Interrupt;
use crate::plan::sweep::{Message, SweepPlan};
use crate::plan::{Executor, InfraError, Progress, TrialPlan};
use unwindlab_oracle::trace::Recording;

/// An instruction takes 2^3 ns, about what it takes without this mode: scenarios have their rates from there.
const ICOUNT: &str = "shift=3,sleep=off";
/// When the outer machine thinks that it is switched on.
const CLOCK: &str = "base=2026-01-01T00:00:00,clock=vm";
/// How often the command looks for news.
const LOOK: Duration = Duration::from_millis(50);
/// A machine that says nothing for so long is taken for dead. It speaks three times in a second of its own
/// time, which can be half a minute of ours.
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

    fn trial(&self, plan: &TrialPlan, progress: &dyn Progress) -> Result<Recording, InfraError> {
        let failed = |reason: String| InfraError {
            reason,
            console: String::new(),
        };
        let order = ToHost::RunInTurns {
            plan: Box::new(plan.clone()),
            seed: self.seed,
        };
        let mut message = Vec::new();
        channel::send(&mut message, &order).map_err(|error| failed(error.to_string()))?;
        let mut running = Running::start(&self.outer, self.seed, &message)
            .map_err(|error| failed(format!("cannot start QEMU: {error}")))?;
        let ended = running.wait(plan, progress, &self.interrupt);
        running.end();
        ended.map_err(|reason| InfraError {
            reason,
            console: running.console(),
        })
    }
}

impl Executor for Deterministic {
    fn host(&self) -> String {
        self.description.clone()
    }

    fn run(&mut self, plan: &TrialPlan, progress: &dyn Progress) -> Result<Recording, InfraError> {
        self.trial(plan, progress)
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

/// An outer machine at its one trial.
#[derive(Debug)]
struct Running {
    child: Child,
    region: Outside,
    console: File,
}

impl Running {
    fn start(outer: &OuterMachine, seed: u64, message: &[u8]) -> std::io::Result<Self> {
        let region = Outside::new(message)?;
        // A file takes what is written at once: a pipe could have QEMU wait, and try again later.
        let console = File::from(memfd_create("unwindlab-console", MemfdFlags::CLOEXEC)?);
        let errors = console.try_clone()?;
        fcntl_setfl(&errors, OFlags::APPEND)?;
        let inherited = [
            outer.initramfs.as_fd(),
            region.file().as_fd(),
            console.as_fd(),
        ];
        let arguments = machine_arguments(outer, seed, inherited.map(|fd| fd.as_raw_fd()));
        let child = emulated::start_qemu(outer, inherited, arguments, errors.into())?;
        Ok(Self {
            child,
            region,
            console,
        })
    }

    /// Waits for the recording; else the reason why there is none.
    fn wait(
        &mut self,
        plan: &TrialPlan,
        progress: &dyn Progress,
        interrupt: &Interrupt,
    ) -> Result<Recording, String> {
        let mut heard = Instant::now();
        loop {
            // In this order: what it said last, it said before it was gone.
            let gone = self.child.try_wait().map_err(|error| error.to_string())?;
            let news = self.region.news().map_err(|error| error.to_string())?;
            let mut messages = news.as_slice();
            while !messages.is_empty() {
                heard = Instant::now();
                match channel::receive(&mut messages).map_err(|error| error.to_string())? {
                    FromHost::Hello { version, .. } if version == env!("CARGO_PKG_VERSION") => {}
                    FromHost::Progress(p) => progress.step(&told(&plan.scenario, &p)),
                    FromHost::Recording(recording) => return Ok(*recording),
                    FromHost::Unfit { reason } => return Err(reason),
                    FromHost::Hello { .. } | FromHost::Sweep(_) | FromHost::Bench(_) => {
                        return Err("the outer machine's init is not this program".to_owned());
                    }
                }
            }
            if let Some(status) = gone {
                return Err(format!("the outer machine died ({status})"));
            }
            if interrupt.is_set() {
                return Err("interrupted".to_owned());
            }
            if heard.elapsed() > SILENCE_LIMIT {
                let limit = SILENCE_LIMIT.as_secs();
                return Err(format!("the outer machine hangs: no word for {limit} s"));
            }
            std::thread::sleep(LOOK);
        }
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
        let _ = self.console.seek(std::io::SeekFrom::Start(from));
        let _ = self.console.read_to_end(&mut text);
        String::from_utf8_lossy(&text).replace('\r', "")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

fn machine_arguments(
    outer: &OuterMachine,
    seed: u64,
    [initrd, region, console]: [RawFd; 3],
) -> Vec<OsString> {
    let path = |fd: RawFd| format!("/proc/self/fd/{fd}");
    let mut arguments = emulated::common_arguments(outer);
    let mut add = |name: &str, value: String| {
        arguments.push(name.into());
        arguments.push(value.into());
    };
    add("-accel", "tcg,thread=single,tb-size=512".to_owned());
    add("-icount", ICOUNT.to_owned());
    add("-rtc", CLOCK.to_owned());
    add("-seed", seed.to_string());
    add("-smp", "1".to_owned());
    add("-initrd", path(initrd));
    add(
        "-object",
        format!(
            "memory-backend-file,id=region,mem-path={},size={},share=on",
            path(region),
            region::SIZE
        ),
    );
    add("-device", "ivshmem-plain,memdev=region".to_owned());
    add(
        "-chardev",
        format!("file,id=console,path={},append=on", path(console)),
    );
    arguments
}
