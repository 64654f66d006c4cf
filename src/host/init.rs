//! The outer machine's init: this binary as pid 1 of an emulated KVM host.
//!
//! It makes /dev/kvm, tells the command that it is fit, and runs trials until the channel closes.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, finit_module, reboot};

use super::channel::{self, ChannelError, FromHost, ToHost};
use super::deterministic::after_interrupt::ExitAfterInterrupt;
use super::deterministic::region::Inside;
use super::deterministic::turns::take_turns;
use super::first_cpu;
use super::initramfs::{KERNELS, MODULE_ORDER, PEER};
use super::native::Native;
use super::outbox::Outbox;
use super::perf_tool;

/// The first virtio port of the first controller.
const PORT: &str = "/dev/vport0p1";

/// Whether this process is the outer machine's init rather than a command.
#[must_use]
pub fn is_outer_init() -> bool {
    rustix::process::getpid().is_init() && Path::new(MODULE_ORDER).exists()
}

/// Serves trials; powers the machine off at the end, whatever that is.
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
    match Inside::open()? {
        Some(region) => serve_at(region),
        None => serve_at(open_port()?),
    }
}

fn serve_at(mut port: impl Read + Write) -> anyhow::Result<()> {
    let mut native = match prepare_kvm() {
        Ok(native) => native,
        Err(error) => {
            channel::send(
                &mut port,
                &FromHost::Unfit {
                    reason: format!("{error:#}"),
                },
            )?;
            return Ok(());
        }
    };
    channel::send(
        &mut port,
        &FromHost::Hello {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            release: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
        },
    )?;
    loop {
        let mut in_turns = None;
        let plan = match channel::receive(&mut port) {
            Ok(ToHost::Run(plan)) => plan,
            Ok(ToHost::RunInTurns { plan, seed }) => {
                in_turns = Some(ExitAfterInterrupt::begin()?);
                take_turns(seed, plan.vcpus)?;
                plan
            }
            Ok(ToHost::Sweep(plan)) => {
                let mut lost = None;
                let mut outbox = Outbox::new(&mut port);
                native.sweep(&plan, &mut |message| {
                    lost = outbox.put(message).err();
                    lost.is_none()
                });
                match lost {
                    Some(error) => return Err(error.into()),
                    None => continue,
                }
            }
            Ok(ToHost::Bench(order)) => {
                // Whoever does not want to wait any more ends the whole machine.
                let answer = native.bench(&order, &|| true);
                channel::send(&mut port, &FromHost::Bench(answer))?;
                continue;
            }
            Err(ChannelError::Closed) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let mut lost = None;
        let recording = native.run(&plan, &mut |progress| {
            lost = channel::send(&mut port, &FromHost::Progress(progress.clone())).err();
            lost.is_none()
        });
        drop(in_turns);
        if let Some(error) = lost {
            return Err(error.into());
        }
        channel::send(&mut port, &FromHost::Recording(Box::new(recording)))?;
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

fn prepare_kvm() -> anyhow::Result<Native> {
    // Guest RAM in huge pages: some 50 page faults a boot instead of tens of thousands. Where the
    // outer kernel has no such switch, it is only slower.
    let _ = fs::write(
        "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
        "advise",
    );
    for module in fs::read_to_string(MODULE_ORDER)?.lines() {
        let file = File::open(module)?;
        finit_module(&file, c"", 0)
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
    let peer = Path::new(PEER);
    let native = Native::new(unwindlab_vmm::open_kvm()?, kernels, perf_tool)?;
    Ok(match peer.exists() {
        true => native.with_peer(peer),
        false => native,
    })
}
