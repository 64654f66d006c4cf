//! The VMM's process: this program once more, confined, which touches the guests' memory so that the command does not.
//!
//! It inherits /dev/kvm, opened, reads the kernel under test, and writes no file. Its orders come from its standard input, a
//! socket; what it says goes to its standard error, another one.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use unwindlab_guest_kernel::child::{die_with_us, inherit};
use unwindlab_guest_kernel::confine::{Allowed, confine};
use unwindlab_vmm::Kvm;

use super::{MachineBuilder, Native};
use crate::host::channel::{self, ToHost};
use crate::host::conversation::HostError;
use crate::host::process::HostProcess;
use crate::host::serve::{self, Place};
use crate::interrupt::Interrupt;
use crate::plan::InfraError;

/// The first argument of the process.
const OPTION: &str = "--vmm-process";
/// From the start to the hello: the guest's initramfs is packed.
const START_LIMIT: Duration = Duration::from_secs(30);

/// What the process works with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Given {
    /// Images by content hash.
    pub kernels: Vec<(String, OsString)>,
    /// The archive of the distribution's perf.
    pub perf_tool: Option<Vec<u8>>,
    /// The folder of the QEMU that measurements compare with.
    pub peer: Option<OsString>,
}

impl Given {
    /// Besides the system's, the files that it may open: `program` is its own.
    fn files(&self, program: &Path) -> Allowed {
        let kernels = self.kernels.iter().map(|it| Path::new(&it.1));
        let peer = self.peer.iter().map(Path::new);
        // Measurements start VMMs that open /dev/kvm themselves.
        let begin = Allowed::system().and_device(Path::new("/dev/kvm"));
        { kernels.chain(peer).chain([program]) }.fold(begin, Allowed::and_read)
    }
}

/// Starts it, confined as [`confine`] has it, and waits for its hello. `program` is the program that has [`main`]; `kvm` is known to be
/// fit (see [`unwindlab_vmm::probe`]), unless it is to be checked; `why` it was chosen, in one line.
///
/// # Errors
/// [`InfraError`], with what it said.
pub fn start(
    program: &Path,
    kvm: &Kvm,
    given: &Given,
    why: &str,
    interrupt: &Interrupt,
) -> Result<HostProcess, InfraError> {
    let mut host = spawn(program, kvm, given, interrupt).map_err(|source| {
        let error = HostError::Start {
            what: "the VMM's process",
            source,
        };
        error.with_console(String::new())
    })?;
    let up = host.give(given).and_then(|()| host.hello(START_LIMIT));
    match up {
        Ok(_) => {
            host.description = format!("native ({why})");
            Ok(host)
        }
        Err(error) => Err(host.failed(&error)),
    }
}

fn spawn(
    program: &Path,
    kvm: &Kvm,
    given: &Given,
    interrupt: &Interrupt,
) -> io::Result<HostProcess> {
    let program = program.canonicalize()?;
    let (stream, orders) = UnixStream::pair()?;
    let (console, errors) = UnixStream::pair()?;
    // SAFETY: the descriptor is open as long as `kvm` is borrowed.
    let device = unsafe { std::os::fd::BorrowedFd::borrow_raw(kvm.as_raw_fd()) };
    let device = device.try_clone_to_owned()?;
    let mut command = Command::new(&program);
    inherit(&mut command, &[device.as_fd()]);
    command.arg(OPTION).arg(device.as_raw_fd().to_string());
    command
        .stdin(OwnedFd::from(orders))
        .stdout(Stdio::null())
        .stderr(OwnedFd::from(errors));
    // Ctrl-C is for the command, which then tells what is done already.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    confine(&mut command, &given.files(&program), "the VMM's process").map_err(io::Error::other)?;
    die_with_us(&mut command);
    HostProcess::new(command.spawn()?, stream, console, interrupt)
}

/// Whether this process was started to be the VMM.
#[must_use]
pub fn is_vmm() -> bool {
    std::env::args_os().nth(1).as_deref() == Some(OsStr::new(OPTION))
}

/// Carries out orders until the channel closes.
pub fn main() {
    if let Err(error) = run() {
        eprintln!("unwindlab: VMM: {error:#}");
    }
}

fn run() -> anyhow::Result<()> {
    let device = std::env::args().nth(2).and_then(|it| it.parse().ok());
    let device = device.ok_or_else(|| anyhow::anyhow!("{OPTION} is for unwindlab itself"))?;
    let mut port = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let given: Given = channel::receive(&mut port)?;
    // SAFETY: the command opened this for us alone, and nothing else here knows its number.
    let kvm = unsafe { Kvm::from_raw_fd(device) };
    serve::serve(native(kvm, given), &mut port, &ThisMachine)
}

fn native(kvm: Kvm, given: Given) -> anyhow::Result<Native> {
    let kernels = given.kernels.into_iter();
    let kernels: HashMap<String, PathBuf> = kernels.map(|(id, path)| (id, path.into())).collect();
    let builder = MachineBuilder::new(kvm, kernels, given.perf_tool)?;
    Ok(Native::new(builder, given.peer.as_deref().map(Path::new)))
}

/// This machine as the place of orders.
struct ThisMachine;

impl Place for ThisMachine {
    fn prepare(&self, order: &ToHost) -> anyhow::Result<()> {
        match order {
            ToHost::RunInTurns { .. } => anyhow::bail!("a native host has its own time"),
            _ => Ok(()),
        }
    }
}
