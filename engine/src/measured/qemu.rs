//! QEMU as the peer: its machine type `microvm`, made for a fast boot, with the options that make
//! it fastest here, and only the devices that the guest needs.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::{FdFlags, fcntl_setfd};
use unwindlab_abi::MAILBOX_PORT;
use unwindlab_guest_kernel::closure::{LIBRARIES, LOADER};
use unwindlab_guest_kernel::qemu::{FIRMWARE, PROGRAM};

use super::VmmError;
use super::process::{Process, memory_file, path_of};
use crate::driver::image::guest_initrd;
use crate::plan::MachineSpec;
use crate::plan::measurement::MeasuredFigures;
use crate::qmp::{Qmp, QmpError};

/// A QEMU with its libraries and firmware, in one folder of the KVM host's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// As [`unwindlab_guest_kernel::qemu::debian`] has it.
    pub dir: PathBuf,
}

/// A running QEMU, with what has to stay as long as it does.
#[derive(Debug)]
pub struct RunningQemu {
    /// Its process.
    pub process: Process,
    /// The initial file system, which it reads from here.
    _initrd: File,
}

impl Peer {
    /// Starts it. It has a monitor only where it is given one end of a connection for that: waiting
    /// for a connection takes time.
    ///
    /// # Errors
    /// [`VmmError`] where it cannot be started.
    pub fn start(
        &self,
        spec: &MachineSpec,
        kernel: &Path,
        cmdline: &str,
        monitor: Option<UnixStream>,
    ) -> Result<RunningQemu, VmmError> {
        let initrd = initrd().map_err(VmmError::Prepare)?;
        let mut command = self.command();
        command.args(arguments(spec, kernel, &path_of(&initrd), cmdline));
        if let Some(monitor) = &monitor {
            fcntl_setfd(monitor.as_fd(), FdFlags::empty())
                .map_err(|error| VmmError::Prepare(error.into()))?;
            let fd = monitor.as_raw_fd();
            command.arg("-chardev");
            command.arg(format!("socket,id=monitor,fd={fd}"));
            command.args(["-mon", "chardev=monitor,mode=control"]);
        }
        Ok(RunningQemu {
            process: Process::start(command)?,
            _initrd: initrd,
        })
    }

    /// Its own loader runs it, as the outer machine's QEMU is run.
    fn command(&self) -> Command {
        let mut command = Command::new(self.dir.join(LOADER));
        command
            .args(["--inhibit-cache", "--library-path"])
            .arg(self.dir.join(LIBRARIES))
            .arg(self.dir.join(PROGRAM))
            .arg("-L")
            .arg(self.dir.join(FIRMWARE));
        command
    }
}

/// The guest's initial file system as a file.
fn initrd() -> io::Result<File> {
    let mut file = memory_file("bench-initrd")?;
    let initrd = guest_initrd()?;
    file.write_all(&initrd)?;
    file.set_len(clear_of_tables(initrd.len() as u64))?;
    Ok(file)
}

/// The size to which an initial file system is padded, with zeros, which the kernel skips.
///
/// QEMU puts it at the end of RAM, from the beginning of a page on (`x86_load_linux()`, hw/i386/x86-common.c), and a
/// microvm's firmware puts the ACPI tables into the last page: with QEMU 10.0, the last 0x300 bytes of
/// 128 MiB. A file that ends behind the first 0xd00 bytes of its last page overwrites them, and the kernel hangs in its boot.
const fn clear_of_tables(size: u64) -> u64 {
    const PAGE: u64 = 4096;
    const LITTLE: u64 = 512;
    size.next_multiple_of(PAGE) + LITTLE
}

/// Saves a machine that has said its first word, through its monitor, then lets it run and puts it
/// back, again and again.
///
/// # Errors
/// [`VmmError`].
pub fn restores(
    monitor: UnixStream,
    times: u32,
    run: Duration,
) -> Result<MeasuredFigures, VmmError> {
    let disk = memory_file("bench-snapshots").map_err(VmmError::Prepare)?;
    let mut qmp = Qmp::open(monitor)?;
    qmp.add_snapshot_disk(&path_of(&disk))?;
    qmp.human("savevm ready")?;
    let begin = Instant::now();
    qmp.human("info status")?;
    let asking = micros(begin);
    let mut took = || -> Result<u64, QmpError> {
        thread::sleep(run);
        qmp.human("stop")?;
        let begin = Instant::now();
        qmp.human("loadvm ready")?;
        let took = micros(begin);
        qmp.human("cont")?;
        Ok(took)
    };
    Ok(MeasuredFigures::Restored {
        micros: (0..times).map(|_| took()).collect::<Result<_, _>>()?,
        copied: Vec::new(),
        asking: Some(asking),
    })
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// The agent's first word is an `out` to [`MAILBOX_PORT`]; the debug console there passes its
/// lowest byte on to standard output.
///
/// A stock kernel needs neither the interrupt controller nor the timer of a PC. It does look for
/// the real-time clock, which ACPI does not deny here: without one it waits 4 s for an answer. RAM
/// in a file in memory, as our VMM has it, makes this one slower.
fn arguments(spec: &MachineSpec, kernel: &Path, initrd: &str, cmdline: &str) -> Vec<OsString> {
    let (mib, vcpus) = (spec.memory_mib, spec.vcpus);
    let mut arguments: Vec<OsString> = [
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-no-reboot",
        "-accel",
        "kvm",
        "-cpu",
        "host",
        "-serial",
        "file:/proc/self/fd/2",
        "-chardev",
        "stdio,id=word,signal=off",
    ]
    .map(OsString::from)
    .to_vec();
    let mut add = |name: &str, value: OsString| arguments.extend([name.into(), value]);
    add("-machine", "microvm,rtc=on,pit=off,pic=off".into());
    add("-m", mib.to_string().into());
    add("-smp", vcpus.to_string().into());
    add(
        "-device",
        format!("isa-debugcon,iobase={MAILBOX_PORT:#x},chardev=word").into(),
    );
    add("-kernel", kernel.into());
    add("-initrd", initrd.into());
    add("-append", cmdline.into());
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_initial_file_system_leaves_the_end_of_its_page_free() {
        for size in [1, 4096, 4097, 2_544_639, 2_550_784] {
            let padded = clear_of_tables(size);
            assert!(
                padded >= size && (1..0xd00).contains(&(padded % 4096)),
                "{size}"
            );
        }
    }
}
