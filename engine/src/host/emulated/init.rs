//! The outer machine's init: this binary as pid 1 of an emulated KVM host.
//!
//! It makes /dev/kvm available, tells the command so, and carries out orders until the channel
//! closes.

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
use super::outbox::Outbox;
use crate::host::native::{MachineBuilder, Native};
use crate::host::perf_tool;
use crate::plan::TrialPlan;
use crate::plan::measurement::NotMeasured;

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
    match Inside::open()? {
        Some(region) => serve_at(region),
        None => serve_at(open_port()?),
    }
}

fn serve_at(mut port: impl Read + Write) -> anyhow::Result<()> {
    let mut native = match prepare_kvm() {
        Ok(native) => native,
        Err(error) => {
            let reason = format!("{error:#}");
            return Ok(channel::send(&mut port, &FromHost::Unfit { reason })?);
        }
    };
    let release = rustix::system::uname();
    let hello = FromHost::Hello {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        release: release.release().to_string_lossy().into_owned(),
    };
    channel::send(&mut port, &hello)?;
    loop {
        match channel::receive(&mut port) {
            Ok(order) => carry_out(order, &mut native, &mut port)?,
            Err(ChannelError::Closed) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Carries out an order and sends its answers.
fn carry_out(order: ToHost, native: &mut Native, port: &mut impl Write) -> anyhow::Result<()> {
    // What is measured is the host as it is. Not only counted time makes QEMU leave its CPU loop: so
    // does what one of its CPUs asks of another.
    let exits = match &order {
        ToHost::Bench(_) => None,
        _ => Some(ExitAfterInterrupt::begin()?),
    };
    let last = match order {
        ToHost::Run(plan) => trial(&plan, native, port)?,
        ToHost::RunInTurns { plan, seed } => {
            take_turns(seed, plan.vcpus)?;
            trial(&plan, native, port)?
        }
        ToHost::Sweep(plan) => {
            let mut sent = Ok(());
            let mut outbox = Outbox::new(port);
            native.sweep(&plan, &mut |message| {
                sent = outbox.put(message);
                sent.is_ok()
            });
            return Ok(sent?);
        }
        // A command that does not want to wait ends the whole machine.
        ToHost::Bench(order) => {
            FromHost::Bench(native.bench(&order, &|| true).map_err(NotMeasured::from))
        }
    };
    drop(exits);
    Ok(channel::send(port, &last)?)
}

/// Runs a trial and sends its progress; its last answer.
fn trial(
    plan: &TrialPlan,
    native: &mut Native,
    port: &mut impl Write,
) -> Result<FromHost, ChannelError> {
    let mut sent = Ok(());
    let recording = native.run(plan, &mut |progress| {
        sent = channel::send(port, &FromHost::Progress(progress.clone()));
        sent.is_ok()
    });
    sent.map(|()| FromHost::Recording(Box::new(recording)))
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
    // Guest RAM in huge pages: some 50 page faults a boot instead of tens of thousands. An outer
    // kernel without this switch is only slower.
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
    let builder = MachineBuilder::new(unwindlab_vmm::open_kvm()?, kernels, perf_tool)?;
    let peer = Path::new(PEER);
    Ok(Native::new(builder, peer.exists().then_some(peer)))
}
