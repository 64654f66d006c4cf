//! Carrying out an order on the KVM host: a process is started, looked at, and ended.

use std::path::Path;
use std::time::Duration;

use super::ours;
use super::process::Process;
use super::qemu::{self, Peer};
use super::resident::Resident;
use super::rows::BOOT_LIMIT;
use crate::plan::MachineSpec;
use crate::plan::measurement::{Figures, Vmm};

/// What machines are started with on this KVM host.
#[expect(missing_debug_implementations, reason = "holds a closure")]
#[derive(Clone, Copy)]
pub struct Bench<'a> {
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

impl Bench<'_> {
    /// Starts a VMM, and looks at it when its guest is ready.
    ///
    /// # Errors
    /// What did not work, in one line; so of all that follow.
    pub fn start(&self, vmm: Vmm) -> Result<Figures, String> {
        let (after, resident) = match vmm {
            Vmm::Ours => {
                let mut process = self.ours(0, Duration::ZERO)?;
                let after = process.ready(BOOT_LIMIT, self.go_on)?;
                (after, process.resident(self.machine.memory_mib)?)
            }
            Vmm::Qemu => {
                let mut running = self.qemu(false)?;
                let after = running.process.ready(BOOT_LIMIT, self.go_on)?;
                (after, running.process.resident(self.machine.memory_mib)?)
            }
        };
        let Resident {
            guest_kib,
            beyond_kib,
            anonymous_kib,
        } = resident;
        Ok(Figures::Started {
            micros: u64::try_from(after.as_micros()).unwrap_or(u64::MAX),
            beyond_kib,
            guest_kib,
            anonymous_kib,
        })
    }

    /// Puts a machine back so often, each time after it ran for a while.
    pub fn restore(&self, vmm: Vmm, times: u32, run: Duration) -> Result<Figures, String> {
        match vmm {
            Vmm::Ours => {
                let mut process = self.ours(times, run)?;
                process.ready(BOOT_LIMIT, self.go_on)?;
                ours::restores(&mut process, times, self.go_on)
            }
            Vmm::Qemu => {
                let mut running = self.qemu(true)?;
                running.process.ready(BOOT_LIMIT, self.go_on)?;
                running.restores(times, run)
            }
        }
    }

    fn ours(&self, times: u32, run: Duration) -> Result<Process, String> {
        Process::start(ours::command(
            self.machine,
            self.kernel,
            self.cmdline,
            (times, run),
        ))
    }

    fn qemu(&self, with_monitor: bool) -> Result<qemu::Running, String> {
        let peer = self
            .peer
            .ok_or("the KVM host was not given QEMU".to_owned())?;
        peer.start(self.machine, self.kernel, self.cmdline, with_monitor)
    }
}
