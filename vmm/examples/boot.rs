//! Boots a Linux kernel and prints its console, doorbells and times.
//!
//! `boot VMLINUX INITRD VCPUS MIB SECONDS CMDLINE`: runs until SECONDS have passed since the
//! last event, the machine ends, or the guest's doorbell 0x510 has rung twice.

use std::borrow::Cow;
use std::error::Error;
use std::time::{Duration, Instant};

use unwindlab_vmm::{Kernel, Machine, MachineConfig, Pmu, Run, Stop, open_kvm};

/// The port to which the guest's init reports its progress.
const PROGRESS: u16 = 0x510;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [kernel, initrd, vcpus, mib, seconds, cmdline] = args.as_slice() else {
        return Err("usage: boot VMLINUX INITRD VCPUS MIB SECONDS CMDLINE".into());
    };
    let kernel = std::fs::read(kernel)?;
    let initrd = std::fs::read(initrd)?;
    let config = MachineConfig {
        vcpus: vcpus.parse()?,
        memory_mib: mib.parse()?,
        kernel: Kernel::Elf(Cow::Borrowed(&kernel)),
        initrd: &initrd,
        cmdline,
        doorbell_ports: 0x510..=0x51f,
        pmu: Pmu::None,
    };
    let kvm = open_kvm()?;
    let begin = Instant::now();
    let mut machine = Machine::build(&kvm, &config)?;
    println!("built in {:?}", begin.elapsed());
    machine.start()?;
    run(&mut machine, Duration::from_secs(seconds.parse()?), begin)?;
    println!(
        "--- console\n{}---",
        String::from_utf8_lossy(&machine.console().snapshot())
    );
    Ok(())
}

fn run(machine: &mut Machine, patience: Duration, begin: Instant) -> Result<(), Box<dyn Error>> {
    let mut progress = 0;
    while let Some(event) = machine.next_event(patience) {
        println!("{:?} after {:?}", event, begin.elapsed());
        let Stop::Port { port, .. } = event.stop else {
            return Ok(());
        };
        progress += u32::from(port == PROGRESS);
        if progress == 1 {
            return Ok(());
        }
        if let Some(mut vcpu) = machine.vcpu(event.vcpu) {
            vcpu.resume(Run::Continue)?;
        }
    }
    println!("silent for {patience:?}");
    machine.pause_all()?;
    for index in 0..machine.vcpu_count() {
        if let Some(vcpu) = machine.vcpu(index) {
            println!("vCPU {index}: {:x?}", vcpu.regs()?);
        }
    }
    Ok(())
}
