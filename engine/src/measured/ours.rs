//! Our own VMM as a process: this program once more, which does nothing but boot one machine.
//!
//! `unwindlab --bench-machine KERNEL VCPUS MIB TIMES MILLISECONDS CMDLINE` prints `r` when the
//! agent has said its first word, and then, TIMES times, lets the machine run for MILLISECONDS,
//! puts it back, and prints a line `MICROSECONDS PAGES`. Then it waits to be killed.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _, stdout};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use unwindlab_abi::{MAILBOX_PORT, MARK_PORT};
use unwindlab_vmm::{Kernel, Machine, MachineConfig, Pmu, Stop};

use super::VmmError;
use super::process::{BOOT_LIMIT, Process};
use crate::driver::image::guest_initrd;
use crate::plan::MachineSpec;
use crate::plan::measurement::MeasuredFigures;

/// The first argument of the process.
const OPTION: &str = "--bench-machine";

/// Whether this process was started to be one machine.
#[must_use]
pub fn is_machine() -> bool {
    std::env::args_os().nth(1).as_deref() == Some(OsStr::new(OPTION))
}

/// The command that starts one, with how often it is put back, and how long it runs each time.
#[must_use]
pub fn command(
    spec: &MachineSpec,
    kernel: &Path,
    cmdline: &str,
    (times, run): (u32, Duration),
) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(OPTION).arg(kernel);
    command.args([
        spec.vcpus.to_string(),
        spec.memory_mib.to_string(),
        times.to_string(),
        run.as_millis().to_string(),
        cmdline.to_owned(),
    ]);
    command
}

/// Reads the times of a process that restores, after its first word.
///
/// # Errors
/// [`VmmError`] where it prints something else.
pub fn restores(
    process: &mut Process,
    times: u32,
    go_on: &dyn Fn() -> bool,
) -> Result<MeasuredFigures, VmmError> {
    let (mut micros, mut copied) = (Vec::new(), Vec::new());
    // All come in one piece, so that nothing disturbs the process meanwhile.
    process.wait(BOOT_LIMIT, go_on)?;
    for line in BufReader::new(&mut process.words)
        .lines()
        .take(times as usize)
    {
        let line = line.map_err(VmmError::Read)?;
        let numbers = line
            .split_once(' ')
            .and_then(|(took, pages)| Some((took.parse().ok()?, pages.parse().ok()?)));
        let Some((took, pages)) = numbers else {
            return Err(VmmError::NoTime(crate::text::printable(&line)));
        };
        micros.push(took);
        copied.push(pages);
    }
    if micros.len() < times as usize {
        return Err(process.ended().into());
    }
    Ok(MeasuredFigures::Restored {
        micros,
        copied,
        asking: None,
    })
}

/// Runs as one machine, until the process is killed.
pub fn main() {
    if let Err(error) = run() {
        eprintln!("unwindlab: {error:#}");
        return;
    }
    loop {
        std::thread::park();
    }
}

fn run() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(2).collect();
    let [kernel, vcpus, memory_mib, times, run_ms, cmdline] = arguments.as_slice() else {
        bail!("{OPTION} is for `unwindlab bench` itself");
    };
    let mut machine = build(kernel, vcpus.parse()?, memory_mib.parse()?, cmdline)?;
    machine.start()?;
    let event = machine.next_event(BOOT_LIMIT);
    match event.map(|event| event.stop) {
        Some(Stop::Port {
            port: MAILBOX_PORT, ..
        }) => {}
        other => {
            let console = machine.console().snapshot();
            let console = String::from_utf8_lossy(&console);
            bail!("the guest did not come to its agent: {other:?}\n{console}");
        }
    }
    let mut out = stdout().lock();
    out.write_all(b"r")?;
    out.flush()?;
    let restored = restore(&mut machine, times.parse()?, run_ms.parse()?)?;
    out.write_all(restored.as_bytes())?;
    out.flush()?;
    drop(out);
    // The process's memory is measured from now on: the machine stays.
    std::mem::forget(machine);
    Ok(())
}

fn build(kernel: &str, vcpus: u8, memory_mib: u32, cmdline: &str) -> anyhow::Result<Machine> {
    let image = File::open(kernel).with_context(|| format!("cannot read {kernel}"))?;
    let initrd = guest_initrd()?;
    let config = MachineConfig {
        vcpus,
        memory_mib,
        kernel: Kernel::File(&image),
        initrd: &initrd,
        cmdline,
        doorbell_ports: MAILBOX_PORT..=MARK_PORT + 3,
        pmu: Pmu::None,
    };
    Ok(Machine::build(&unwindlab_vmm::open_kvm()?, &config)?)
}

/// Runs the machine and puts it back `times` times; a line for each.
fn restore(machine: &mut Machine, times: u32, run_ms: u64) -> anyhow::Result<String> {
    let mut lines = String::new();
    if times == 0 {
        return Ok(lines);
    }
    let saved = machine.checkpoint()?;
    for _ in 0..times {
        machine.start()?;
        // Nobody answers the agent, and what it says about that is ignored.
        let until = Instant::now() + Duration::from_millis(run_ms);
        while let Some(event) = machine.next_event(until.saturating_duration_since(Instant::now()))
        {
            let mut vcpu = machine
                .vcpu(event.vcpu)
                .ok_or_else(|| anyhow!("no vCPU {}", event.vcpu))?;
            vcpu.resume(unwindlab_vmm::Run::Continue)?;
        }
        machine.pause_all()?;
        let begin = Instant::now();
        let restored = machine.restore(&saved)?;
        let took = begin.elapsed().as_micros();
        lines.push_str(&format!("{took} {}\n", restored.copied));
    }
    Ok(lines)
}
