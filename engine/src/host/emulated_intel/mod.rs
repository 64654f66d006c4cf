//! The emulated KVM host with an Intel CPU: Bochs, whose CPU has VMX, boots the outer Linux, `kvm_intel` gives /dev/kvm, and this same
//! binary is its init. It is much slower than QEMU, and never chosen unasked.
//!
//! The command's side: `loader` and `boot_disk` are what Bochs boots, `emulator` is its process, `carrier` brings bytes to and from the
//! `mailbox`. The machine's side: `ata`, by which init reaches the mailbox.
//!
//! Nothing is left outside of the cache: all that Bochs is given are memfds, pipes and a pseudoterminal, and it dies with us.

mod ata;
mod boot_disk;
mod carrier;
mod emulator;
mod loader;
mod mailbox;

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use unwindlab_guest_kernel::Bochs;

use self::ata::Ata;
use self::mailbox::Inside;
use super::conversation::HostError;
use super::emulated::initramfs::Initramfs;
use super::process::{HostProcess, Limits};
use crate::interrupt::Interrupt;
use crate::plan::{InfraError, Progress};

/// From power-on to the init's hello: less than half a minute with a CPU of its own, minutes beside other work.
const BOOT_LIMIT: Duration = Duration::from_secs(30 * 60);
/// The limits of what the machine does then: a second of its time can be half a minute of ours.
const LIMITS: Limits = Limits {
    trial: Duration::from_secs(10 * 60),
    sweep: Duration::from_secs(30 * 60),
    measurement: Duration::from_secs(60 * 60),
    check: Duration::from_secs(10 * 60),
    check_there: Duration::from_secs(20),
};
/// RAM in MiB: no more than Bochs has without a file to swap to.
const MEMORY_MIB: u32 = 2048;
/// CPUs. With one, NMIs that were due every 2 ms came every 30 to 70 ms (docs/intel.md).
const CPUS: u32 = 2;
/// Instructions of a CPU in a second of the machine's. With 200 million and two CPUs, guests did not come on.
const RATE: u32 = 400_000_000;
/// Has an outer kernel that panics end Bochs, by a fault that Bochs takes for its own end, rather than boot once more.
const END_WORD: &str = "reboot=triple";
/// Tells the machine's init that its orders are in a mailbox.
const MAILBOX_WORD: &str = "unwindlab.mailbox";

/// What an outer machine in Bochs is made of.
#[derive(Debug)]
pub struct OuterMachine {
    /// The emulator.
    pub bochs: Bochs,
    /// The outer kernel, an ELF with a PVH note.
    pub vmlinux: PathBuf,
    /// Its initramfs, with the kernels under test.
    pub initramfs: Initramfs,
}

/// Boots the outer machine.
///
/// # Errors
/// [`InfraError`] with the console when it does not come up.
pub fn start(
    outer: &OuterMachine,
    why: &str,
    progress: &dyn Progress,
    interrupt: &Interrupt,
) -> Result<HostProcess, InfraError> {
    progress.step("booting the outer machine in Bochs, which is slow");
    let mut host = emulator::spawn(outer, interrupt).map_err(|source| {
        let what = "Bochs";
        HostError::Start { what, source }.with_console(String::new())
    })?;
    match host.hello(BOOT_LIMIT) {
        Ok(release) => {
            let bochs = &outer.bochs.version;
            host.description =
                format!("emulated-intel (Bochs {bochs}, outer kernel {release}; {why})");
            Ok(host)
        }
        Err(error) => Err(host.failed(&error)),
    }
}

/// The machine's end of the mailbox; `None` where this machine has none.
///
/// # Errors
/// When the disk cannot be used.
pub(super) fn inside() -> io::Result<Option<impl Read + Write>> {
    let cmdline = std::fs::read_to_string("/proc/cmdline")?;
    let has_one = cmdline.split_whitespace().any(|it| it == MAILBOX_WORD);
    has_one.then(|| Ata::open().map(Inside::new)).transpose()
}
