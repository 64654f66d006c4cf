//! The outer machine's init: this binary as pid 1 of an emulated KVM host.
//!
//! It makes /dev/kvm available, tells the command so, and carries out orders until the channel
//! closes.

use std::cell::RefCell;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, finit_module, reboot};

use super::deterministic::after_interrupt::ExitAfterInterrupt;
use super::deterministic::region::Inside;
use super::deterministic::turns::take_turns;
use super::first_cpu;
use super::initramfs::{KERNELS, MODULE_ORDER, PEER};
use crate::host::channel::ToHost;
use crate::host::emulated_intel;
use crate::host::native::{MachineBuilder, Native};
use crate::host::perf_tool;
use crate::host::serve::{self, Place};

/// The first virtio port of the first controller.
const PORT: &str = "/dev/vport0p1";

/// Whether this process is the outer machine's init rather than a command.
#[must_use]
pub fn is_outer_init() -> bool {
    rustix::process::getpid().is_init() && Path::new(MODULE_ORDER).exists()
}

/// Carries out orders; then powers the machine off, whatever ended them.
pub fn main() {
    if let Err(error) = serve() {
        // stderr is the outer console, which the command attaches to its own error.
        eprintln!("unwindlab: outer init: {error:#}");
    }
    rustix::fs::sync();
    let _ = reboot(RebootCommand::PowerOff);
}

fn serve() -> anyhow::Result<()> {
    mount_kernel_filesystems()?;
    first_cpu::leave()?;
    if let Some(mut mailbox) = emulated_intel::inside()? {
        return serve::serve(prepare_kvm(false), &mut mailbox, &OuterMachine::default());
    }
    let machine = OuterMachine {
        in_qemu: true,
        exits: RefCell::default(),
    };
    match Inside::open()? {
        Some(mut region) => serve::serve(prepare_kvm(true), &mut region, &machine),
        None => serve::serve(prepare_kvm(true), &mut open_port()?, &machine),
    }
}

/// The outer machine as the place of orders.
#[derive(Default)]
struct OuterMachine {
    in_qemu: bool,
    /// Stays from one order to the next: to begin it patches the kernel's text.
    exits: RefCell<Option<ExitAfterInterrupt>>,
}

impl Place for OuterMachine {
    fn prepare(&self, order: &ToHost) -> anyhow::Result<()> {
        let mut exits = self.exits.borrow_mut();
        match order {
            // What is measured is the host as it is.
            ToHost::Bench(_) => *exits = None,
            // Not only counted time makes QEMU leave its CPU loop: so does what one of its CPUs asks of another. Only QEMU delivers an
            // interrupt twice.
            _ if self.in_qemu && exits.is_none() => *exits = Some(ExitAfterInterrupt::begin()?),
            _ => {}
        }
        if let ToHost::RunInTurns { plan, seed } = order {
            take_turns(*seed, plan.vcpus)?;
        }
        Ok(())
    }

    fn keep_kernel(&self, hash: &str, bytes: u64, image: &mut dyn Read) -> anyhow::Result<PathBuf> {
        let path = Path::new(KERNELS).join(hash);
        let got = io::copy(&mut image.take(bytes), &mut File::create(&path)?)?;
        anyhow::ensure!(
            got == bytes,
            "the kernel's image ends after {got} of {bytes} bytes"
        );
        Ok(path)
    }

    fn rest(&self) {
        // Files that were mounted stay: they are nowhere else.
        let _ = fs::write("/proc/sys/vm/drop_caches", "3");
    }
}

fn mount_kernel_filesystems() -> std::io::Result<()> {
    for (kind, target) in [("devtmpfs", "/dev"), ("proc", "/proc"), ("sysfs", "/sys")] {
        fs::create_dir_all(target)?;
        mount(kind, target, kind, MountFlags::empty(), None)?;
    }
    Ok(())
}

/// The port appears when the virtio probe is done, which need not be before init runs.
fn open_port() -> std::io::Result<File> {
    let started = Instant::now();
    loop {
        match OpenOptions::new().read(true).write(true).open(PORT) {
            Ok(port) => return Ok(port),
            Err(error) if started.elapsed() > Duration::from_secs(10) => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn prepare_kvm(in_qemu: bool) -> anyhow::Result<Native> {
    // Guest RAM in huge pages: some 50 page faults a boot instead of tens of thousands. An outer
    // kernel without this switch is only slower.
    let _ = fs::write(
        "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
        "advise",
    );
    for line in fs::read_to_string(MODULE_ORDER)?.lines() {
        let (module, parameters) = line.split_once(' ').unwrap_or((line, ""));
        let file = File::open(module)?;
        finit_module(&file, &CString::new(parameters)?, 0)
            .map_err(|e| anyhow::anyhow!("cannot load {module} in the outer machine: {e}"))?;
    }
    let kernels = fs::read_dir(KERNELS)?
        .map(|entry| {
            let entry = entry?;
            Ok((
                entry.file_name().to_string_lossy().into_owned(),
                entry.path(),
            ))
        })
        .collect::<std::io::Result<_>>()?;
    let perf_tool = match fs::read(perf_tool::FILE) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        other => Some(other?),
    };
    let kvm = unwindlab_vmm::open_kvm()?;
    if in_qemu {
        // Its TCG can lose what Linux patches while another CPU executes it. The machine ends with this process.
        std::mem::forget(unwindlab_vmm::StillVm::new(&kvm)?);
    }
    let builder = MachineBuilder::new(kvm, kernels, perf_tool)?;
    let peer = Path::new(PEER);
    Ok(Native::new(builder, peer.exists().then_some(peer)))
}
