//! The KVM host's part of a measurement: a VMM is started as a process, measured, and ended.

pub mod ours;
mod process;
pub(crate) mod qemu;
mod resident;

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use self::process::{BOOT_LIMIT, Process, ProcessError};
use self::qemu::{Peer, RunningQemu};
use self::resident::Resident;
use crate::plan::MachineSpec;
use crate::plan::measurement::{MeasuredFigures, Vmm};
use crate::qmp::QmpError;

/// What VMMs are measured with on this KVM host.
#[expect(missing_debug_implementations, reason = "holds a closure")]
#[derive(Clone, Copy)]
pub struct VmmBench<'a> {
    /// The machine.
    pub machine: &'a MachineSpec,
    /// The kernel's image.
    pub kernel: &'a Path,
    /// The whole kernel command line.
    pub cmdline: &'a str,
    /// QEMU, where the KVM host was given it.
    pub peer: Option<&'a Peer>,
    /// Whether to go on; asked while something is waited for.
    pub go_on: &'a dyn Fn() -> bool,
}

/// Why a VMM could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum VmmError {
    /// Its process failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// QEMU's monitor failed.
    #[error(transparent)]
    Monitor(#[from] QmpError),
    /// A file or socket for QEMU cannot be made.
    #[error("cannot prepare QEMU: {0}")]
    Prepare(#[source] io::Error),
    /// The KVM host was started without QEMU.
    #[error("the KVM host was not given QEMU")]
    NoQemu,
    /// Our VMM's times cannot be read.
    #[error("its times cannot be read: {0}")]
    Read(#[source] io::Error),
    /// Our VMM printed this instead of a time.
    #[error("said `{0}`")]
    NoTime(String),
}

impl VmmBench<'_> {
    /// Starts a VMM, and measures it when its guest is ready.
    ///
    /// # Errors
    /// [`VmmError`].
    pub fn start(&self, vmm: Vmm) -> Result<MeasuredFigures, VmmError> {
        let (after, resident) = match vmm {
            Vmm::Ours => self.ready(&mut self.ours(0, Duration::ZERO)?),
            Vmm::Qemu => self.ready(&mut self.qemu(None)?.process),
        }?;
        let Resident {
            guest_kib,
            beyond_kib,
            anonymous_kib,
        } = resident;
        Ok(MeasuredFigures::Started {
            micros: u64::try_from(after.as_micros()).unwrap_or(u64::MAX),
            beyond_kib,
            guest_kib,
            anonymous_kib,
        })
    }

    /// Puts a machine back `times` times, each time after it ran for a while.
    ///
    /// # Errors
    /// [`VmmError`].
    pub fn restore(
        &self,
        vmm: Vmm,
        times: u32,
        run: Duration,
    ) -> Result<MeasuredFigures, VmmError> {
        match vmm {
            Vmm::Ours => {
                let mut process = self.ours(times, run)?;
                process.ready(BOOT_LIMIT, self.go_on)?;
                ours::restores(&mut process, times, self.go_on)
            }
            Vmm::Qemu => {
                let (monitor, theirs) = UnixStream::pair().map_err(VmmError::Prepare)?;
                let mut running = self.qemu(Some(theirs))?;
                running.process.ready(BOOT_LIMIT, self.go_on)?;
                qemu::restores(monitor, times, run)
            }
        }
    }

    /// Waits until the guest is ready; how long that took, and the process's memory then.
    fn ready(&self, process: &mut Process) -> Result<(Duration, Resident), ProcessError> {
        let after = process.ready(BOOT_LIMIT, self.go_on)?;
        Ok((after, process.resident(self.machine.memory_mib)?))
    }

    fn ours(&self, times: u32, run: Duration) -> Result<Process, ProcessError> {
        Process::start(ours::command(
            self.machine,
            self.kernel,
            self.cmdline,
            (times, run),
        ))
    }

    /// QEMU, with the other end of its monitor's connection.
    fn qemu(&self, monitor: Option<UnixStream>) -> Result<RunningQemu, VmmError> {
        let peer = self.peer.ok_or(VmmError::NoQemu)?;
        peer.start(self.machine, self.kernel, self.cmdline, monitor)
    }
}
