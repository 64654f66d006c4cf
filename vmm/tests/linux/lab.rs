//! The machines of these tests.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use unwindlab_vmm::probe::probe;
use unwindlab_vmm::{
    Kernel, Kvm, LINUX_CMDLINE, Machine, MachineConfig, Pmu, Run, Stop, VcpuEvent, open_kvm,
};

use crate::initrd;

/// Ports of the guest's init.
pub mod port {
    /// Init runs; the value is the number of CPUs.
    pub const READY: u16 = 0x510;
    /// A job is done.
    pub const DONE: u16 = 0x511;
    /// Low and high half of an address.
    pub const LOW: u16 = 0x512;
    /// See [`LOW`].
    pub const HIGH: u16 = 0x513;
    /// NMIs that the kernel counted.
    pub const NMIS: u16 = 0x514;
    /// A counter.
    pub const COUNT: u16 = 0x515;
}

/// Longer than a boot on a busy emulated host.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Lab {
    kvm: Kvm,
    vmlinux: Vec<u8>,
    initrd: Vec<u8>,
}

impl Lab {
    /// `None` where there is no kernel, or no KVM for it; says so then.
    pub fn new(variable: &str) -> Option<Self> {
        let Some(path) = std::env::var_os(variable) else {
            eprintln!("SKIPPED: {variable} names no kernel");
            return None;
        };
        let kvm = open_kvm().unwrap_or_else(|error| panic!("these tests need KVM: {error}"));
        let report = probe(&kvm).unwrap();
        if !report.is_usable() {
            eprintln!("SKIPPED: {report}");
            return None;
        }
        let vmlinux = std::fs::read(&path).unwrap();
        let initrd = initrd::with_init(&std::fs::read("/proc/self/exe").unwrap());
        Some(Self {
            kvm,
            vmlinux,
            initrd,
        })
    }

    pub fn build(&self, vcpus: u8, options: &str, job: &str) -> Machine {
        let config = MachineConfig {
            vcpus,
            memory_mib: 256,
            kernel: Kernel::Elf(Cow::Borrowed(&self.vmlinux)),
            initrd: &self.initrd,
            cmdline: &format!("{LINUX_CMDLINE} {options} -- {job}"),
            doorbell_ports: 0x510..=0x51f,
            pmu: Pmu::None,
        };
        Machine::build(&self.kvm, &config).unwrap()
    }

    /// A machine whose init is about to do `job`.
    pub fn boot(&self, vcpus: u8, job: &str) -> Machine {
        let begin = Instant::now();
        let mut machine = self.build(vcpus, "", job);
        let built = begin.elapsed();
        machine.start().unwrap();
        let online = expect(&mut machine, port::READY);
        println!(
            "  {vcpus} vCPUs: built in {built:.2?}, init after {:.2?}",
            begin.elapsed()
        );
        assert_eq!(online, u32::from(vcpus), "{}", console(&machine));
        machine
    }

    /// Addresses of kernel symbols.
    pub fn symbols<const N: usize>(&self, names: [&str; N]) -> [u64; N] {
        let mut machine = self.boot(1, &format!("symbols {}", names.join(" ")));
        go_on(&mut machine);
        names.map(|name| {
            let low = expect(&mut machine, port::LOW);
            go_on(&mut machine);
            let high = expect(&mut machine, port::HIGH);
            go_on(&mut machine);
            let address = u64::from(high) << 32 | u64::from(low);
            assert_ne!(address, 0, "no symbol {name}");
            address
        })
    }
}

pub fn console(machine: &Machine) -> String {
    String::from_utf8_lossy(&machine.console().snapshot()).into_owned()
}

/// The next stop, whichever vCPU's.
pub fn next(machine: &mut Machine) -> VcpuEvent {
    let Some(event) = machine.next_event(PATIENCE) else {
        silent(machine)
    };
    event
}

/// Shows where the vCPUs of a silent guest are.
fn silent(machine: &mut Machine) -> ! {
    println!("console:\n{}", console(machine));
    machine.pause_all().unwrap();
    for index in 0..machine.vcpu_count() {
        let vcpu = machine.vcpu(index).unwrap();
        println!(
            "vCPU {index}: {:x?} {:x?}",
            vcpu.regs().unwrap(),
            vcpu.nmi_state().unwrap()
        );
    }
    panic!("the guest is silent");
}

/// The next stop must be vCPU 0's doorbell `port`; gives the value.
pub fn expect(machine: &mut Machine, port: u16) -> u32 {
    match next(machine) {
        VcpuEvent {
            vcpu: 0,
            stop:
                Stop::Port {
                    port: rung,
                    size: 4,
                    value,
                },
        } if rung == port => value,
        other => panic!(
            "{other:x?} instead of port {port:#x}; console:\n{}",
            console(machine)
        ),
    }
}

pub fn go_on(machine: &mut Machine) {
    machine.vcpu(0).unwrap().resume(Run::Continue).unwrap();
}
