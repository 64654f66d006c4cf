//! The emulated KVM host: QEMU's TCG emulates an AMD CPU with SVM, the outer Linux's `kvm_amd`
//! gives /dev/kvm on it, and this same binary is its init.
//!
//! The command's side: `qemu` is the command line, `initramfs` what the machine boots into,
//! `starts` how often it is started. The machine's side: `init`, with `first_cpu`.
//!
//! Nothing is left on disk: the initramfs is a memfd, console and channel are socket pairs, and
//! QEMU dies with us, however we die.

pub mod deterministic;
pub mod first_cpu;
pub mod init;
pub mod initramfs;
pub mod qemu;
mod starts;

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use self::qemu::{OuterMachine, inherited_path};
use self::starts::StartError;
use super::conversation::HostError;
use super::process::HostProcess;
use crate::interrupt::Interrupt;
use crate::plan::{InfraError, Progress};

/// From power-on to the init's hello; a loaded 2-core machine needs 4 to 8 s.
const BOOT_LIMIT: Duration = Duration::from_secs(90);

/// Boots the outer machine and waits until its KVM is known to be fit. One that dies in its boot, where
/// no guest has executed anything, is started again as [`starts`] has it; [`Executor::host`](crate::plan::Executor::host) says so.
///
/// # Errors
/// [`InfraError`] with the console when it does not come up.
pub fn start(
    outer: &OuterMachine,
    why: &str,
    progress: &dyn Progress,
    interrupt: &Interrupt,
) -> Result<HostProcess, InfraError> {
    let started = starts::until_up(progress, || start_once(outer, interrupt))?;
    let ((mut host, release), deaths) = started;
    host.deaths = deaths.len();
    host.description = format!(
        "emulated (outer kernel {release}; {why}{})",
        starts::told(&deaths)
    );
    Ok(host)
}

/// Boots it once; the host and its `uname -r`.
fn start_once(
    outer: &OuterMachine,
    interrupt: &Interrupt,
) -> Result<(HostProcess, String), StartError> {
    let mut host = spawn(outer, interrupt).map_err(|source| {
        let error = HostError::Start {
            what: "QEMU",
            source,
        };
        StartError::Failed(error.with_console(String::new()))
    })?;
    match host.hello(BOOT_LIMIT) {
        Ok(release) => Ok((host, release)),
        Err(error @ HostError::Boot(_)) => Err(StartError::Died(host.failed(&error))),
        Err(error) => Err(StartError::Failed(host.failed(&error))),
    }
}

fn spawn(outer: &OuterMachine, interrupt: &Interrupt) -> io::Result<HostProcess> {
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
    let child = outer.start(&options, inherited, errors)?;
    HostProcess::new(child, stream, console, interrupt)
}
