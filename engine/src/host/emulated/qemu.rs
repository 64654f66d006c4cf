//! QEMU's command line, as far as every outer machine has it, and the start of its process.

use std::ffi::OsString;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use sha2::{Digest as _, Sha256};
use unwindlab_guest_kernel::child::{die_with_us, inherit};
use unwindlab_guest_kernel::confine::confine;
use unwindlab_guest_kernel::{Qemu, SavedMachines};

use super::initramfs::Initramfs;

/// The outer machine's command line. `tsc=reliable`: without it the outer kernel does not trust
/// TCG's TSC, KVM has no master clock, and the guest's perf timestamps of two CPUs disagree.
/// A machine whose time is not counted is told the rate of its counter, too (`tsc_early_khz`, [`timekeeping`](crate::host::timekeeping)).
/// The rest only saves boot time.
pub(in crate::host) const CMDLINE: &str = "console=ttyS0 loglevel=4 tsc=reliable clocksource=tsc nokaslr \
    mitigations=off random.trust_cpu=on nowatchdog nmi_watchdog=0 audit=0 lsm= hardened_usercopy=off init_on_alloc=0 \
    rcupdate.rcu_expedited=1 no_timer_check panic=-1 cryptomgr.notests";

/// What an outer machine is made of.
#[derive(Debug)]
pub struct OuterMachine {
    /// QEMU.
    pub qemu: Qemu,
    /// The outer kernel, an ELF with a PVH note.
    pub vmlinux: PathBuf,
    /// Its initramfs.
    pub initramfs: Initramfs,
    /// RAM in MiB: the initramfs twice, the guests, and some to live on.
    pub memory_mib: u32,
    /// CPUs.
    pub cpus: u32,
    /// Where its states are kept, if one is to go on from one of them.
    pub saved: Option<SavedMachines>,
    /// Whether it may be one that was saved with guests, and be saved with its own.
    pub guests: bool,
}

impl OuterMachine {
    /// Starts QEMU with these options besides [`Self::common_arguments`], and with these files open
    /// under their numbers. It ends with us. It may read its own files, the outer kernel and `state`, write nothing, and has no
    /// network and no privileges, besides QEMU's own filter of system calls.
    pub(super) fn start(
        &self,
        options: &[(&str, String)],
        inherited: &[BorrowedFd<'_>],
        state: Option<&Path>,
        errors: OwnedFd,
    ) -> io::Result<Child> {
        let mut command = self.qemu.command();
        inherit(&mut command, inherited);
        command.args(self.common_arguments());
        for (option, value) in options {
            command.args([option, value.as_str()]);
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors);
        let files = self.qemu.files().and_read(&self.vmlinux);
        let files = { state.into_iter() }.fold(files, |files, state| files.and_read(state));
        confine(&mut command, &files, "QEMU").map_err(io::Error::other)?;
        die_with_us(&mut command);
        command.spawn()
    }

    /// All that a state of this machine depends on, as one hash.
    pub(super) fn identity(&self, machines: &SavedMachines) -> io::Result<String> {
        let mut hash = Sha256::new();
        let digest = |path: &Path| machines.digest(path).map_err(io::Error::other);
        self.initramfs.add_to(&mut hash, &digest)?;
        for part in [&self.qemu.program, &self.vmlinux] {
            hash.update(part.as_os_str().as_encoded_bytes());
            hash.update([0]);
        }
        for part in self.qemu.args.iter().chain(&self.common_arguments()) {
            hash.update(part.as_encoded_bytes());
            hash.update([0]);
        }
        hash.update(CMDLINE);
        hash.update(self.qemu.version.as_bytes());
        hash.update(self.cpus.to_le_bytes());
        let name = hash.finalize();
        Ok(name
            .iter()
            .take(16)
            .map(|byte| format!("{byte:02x}"))
            .collect())
    }

    /// Its console is the chardev `console`, which the other options have to define, as they have its command line.
    fn common_arguments(&self) -> Vec<OsString> {
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
        ]
        .map(OsString::from)
        .to_vec();
        arguments.extend(["-m".into(), self.memory_mib.to_string().into()]);
        arguments.extend(["-kernel".into(), self.vmlinux.clone().into()]);
        arguments
    }
}

/// By which path QEMU, or Bochs, opens a file that it inherits.
pub(in crate::host) fn inherited_path(fd: BorrowedFd<'_>) -> String {
    use std::os::fd::AsRawFd as _;
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}
