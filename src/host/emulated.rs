//! The emulated KVM host: QEMU's TCG emulates an AMD CPU with SVM, the outer Linux's `kvm_amd`
//! gives /dev/kvm on it, and this same binary is its init (see [`super::init`]).
//!
//! Nothing is left on disk: the initramfs is a memfd, console and channel are socket pairs, and
//! QEMU dies with us, however we die.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use unwindlab_guest_kernel::Qemu;
use unwindlab_guest_kernel::child::end_with_us;

use super::channel::{self, ChannelError, FromHost, ToHost};
use super::console::OuterConsole;
use super::told;
use crate::interrupt::Interrupt;
use crate::plan::measurement::{Figures, Order};
use crate::plan::sweep::{Message, SweepPlan};
use crate::plan::{Executor, InfraError, Progress, TrialPlan};
use unwindlab_oracle::trace::Recording;

/// The outer machine's command line. `tsc=reliable`: without it the outer kernel does not trust
/// TCG's TSC, KVM has no master clock, and the guest's perf timestamps of two CPUs disagree.
/// The rest only saves boot time.
const CMDLINE: &str = "console=ttyS0 loglevel=4 tsc=reliable clocksource=tsc nokaslr \
    mitigations=off random.trust_cpu=on nowatchdog nmi_watchdog=0 audit=0 apparmor=0 selinux=0 \
    rcupdate.rcu_expedited=1 no_timer_check panic=-1 cryptomgr.notests";

/// From power-on to the init's hello; a loaded 2-core machine needs 4 to 8 s.
const BOOT_LIMIT: Duration = Duration::from_secs(90);
/// A running trial speaks twice a second; after this long without a word the outer machine is
/// taken for dead.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);

/// What an outer machine is made of.
#[derive(Debug)]
pub struct OuterMachine {
    /// QEMU.
    pub qemu: Qemu,
    /// The outer kernel, an ELF with a PVH note.
    pub vmlinux: PathBuf,
    /// Its initramfs (see [`super::initramfs`]).
    pub initramfs: OwnedFd,
    /// RAM in MiB: the initramfs twice, the guests, and some to live on.
    pub memory_mib: u32,
    /// CPUs.
    pub cpus: u32,
}

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
        let mut host = Self::spawn(outer, interrupt).map_err(|error| InfraError {
            reason: format!("cannot start QEMU: {error}"),
            console: String::new(),
        })?;
        match host.receive(BOOT_LIMIT) {
            Ok(FromHost::Hello { version, release }) if version == env!("CARGO_PKG_VERSION") => {
                host.description = format!("emulated (outer kernel {release}; {why})");
                Ok(host)
            }
            Ok(FromHost::Unfit { reason }) => Err(host.failed(&reason)),
            Ok(_) => Err(host.failed("the outer machine's init is not this program")),
            Err(error) => Err(host.failed(&format!("the outer machine did not come up: {error}"))),
        }
    }

    fn spawn(outer: &OuterMachine, interrupt: &Interrupt) -> std::io::Result<Self> {
        let (stream, channel_end) = UnixStream::pair()?;
        let (console, console_end) = UnixStream::pair()?;
        let inherited = [
            outer.initramfs.as_fd(),
            channel_end.as_fd(),
            console_end.as_fd(),
        ];
        let arguments = machine_arguments(outer, inherited.map(|fd| fd.as_raw_fd()));
        let errors = OwnedFd::from(console_end.try_clone()?);
        let child = start_qemu(outer, inherited, arguments, errors)?;
        Ok(Self {
            child,
            stream,
            console: OuterConsole::collect(console)?,
            interrupt: interrupt.clone(),
            description: String::new(),
        })
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
    fn failed(&mut self, what: &str) -> InfraError {
        self.end();
        InfraError {
            reason: what.to_owned(),
            console: self.console.text(),
        }
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
        channel::send(&mut self.stream, &ToHost::Run(Box::new(plan.clone())))
            .map_err(|error| self.failed(&error.to_string()))?;
        loop {
            match self.receive(SILENCE_LIMIT) {
                Ok(FromHost::Progress(p)) => progress.step(&told(&plan.scenario, &p)),
                Ok(FromHost::Recording(recording)) => return Ok(*recording),
                Ok(FromHost::Unfit { reason }) => return Err(self.failed(&reason)),
                Ok(FromHost::Hello { .. } | FromHost::Sweep(_) | FromHost::Bench(_)) => {
                    return Err(self.failed("the outer machine started over"));
                }
                Err(error) => {
                    return Err(self.failed(&format!("the outer machine died or hangs: {error}")));
                }
            }
        }
    }

    fn sweep(
        &mut self,
        plan: &SweepPlan,
        take: &mut dyn FnMut(Message) -> bool,
    ) -> Result<(), InfraError> {
        channel::send(&mut self.stream, &ToHost::Sweep(Box::new(plan.clone())))
            .map_err(|error| self.failed(&error.to_string()))?;
        loop {
            match self.receive(SWEEP_SILENCE_LIMIT) {
                Ok(FromHost::Sweep(message)) => {
                    let last = matches!(*message, Message::Done(_) | Message::Failed { .. });
                    if !take(*message) {
                        return Err(self.failed("interrupted"));
                    }
                    if last {
                        return Ok(());
                    }
                }
                Ok(FromHost::Unfit { reason }) => return Err(self.failed(&reason)),
                Ok(_) => return Err(self.failed("the outer machine started over")),
                Err(error) => {
                    return Err(self.failed(&format!("the outer machine died or hangs: {error}")));
                }
            }
        }
    }

    fn bench(&mut self, order: &Order) -> Result<Result<Figures, String>, InfraError> {
        channel::send(&mut self.stream, &ToHost::Bench(order.clone()))
            .map_err(|error| self.failed(&error.to_string()))?;
        match self.receive(BENCH_SILENCE_LIMIT) {
            Ok(FromHost::Bench(answer)) => Ok(answer),
            Ok(_) => Err(self.failed("the outer machine started over")),
            Err(error) => Err(self.failed(&format!("the outer machine died or hangs: {error}"))),
        }
    }
}

/// A measurement has limits of its own, several in a row; it says nothing before its end.
const BENCH_SILENCE_LIMIT: Duration = Duration::from_secs(300);
/// A sweep speaks after every trial, but first its guest has to boot.
const SWEEP_SILENCE_LIMIT: Duration = Duration::from_secs(90);

impl Drop for Emulated {
    fn drop(&mut self) {
        self.end();
    }
}

fn machine_arguments(
    outer: &OuterMachine,
    [initrd, channel, console]: [RawFd; 3],
) -> Vec<OsString> {
    let mut arguments = common_arguments(outer);
    let mut add = |name: &str, value: String| {
        arguments.push(name.into());
        arguments.push(value.into());
    };
    add("-accel", "tcg,thread=multi,tb-size=512".to_owned());
    add("-device", "virtio-serial-pci".to_owned());
    add(
        "-device",
        "virtserialport,chardev=channel,name=unwindlab".to_owned(),
    );
    add("-smp", outer.cpus.to_string());
    add("-initrd", format!("/proc/self/fd/{initrd}"));
    add("-chardev", format!("socket,id=channel,fd={channel}"));
    add("-chardev", format!("socket,id=console,fd={console}"));
    arguments
}

/// Starts QEMU with these files open under their numbers. It ends with us.
pub(super) fn start_qemu(
    outer: &OuterMachine,
    inherited: [BorrowedFd<'_>; 3],
    arguments: Vec<OsString>,
    errors: OwnedFd,
) -> std::io::Result<Child> {
    // Nothing else is started meanwhile that could inherit them too.
    for fd in inherited {
        fcntl_setfd(fd, FdFlags::empty())?;
    }
    let mut command = outer.qemu.command();
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(errors);
    end_with_us(&mut command);
    command.spawn()
}

/// What every outer machine has; its console is the chardev `console`, which is to be added.
pub(super) fn common_arguments(outer: &OuterMachine) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = [
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-no-reboot",
        "-machine",
        "pc",
        "-cpu",
        "EPYC,+svm,+npt",
        "-serial",
        "chardev:console",
        "-append",
        CMDLINE,
    ]
    .map(OsString::from)
    .to_vec();
    arguments.extend(["-m".into(), outer.memory_mib.to_string().into()]);
    arguments.extend(["-kernel".into(), outer.vmlinux.clone().into()]);
    arguments
}
