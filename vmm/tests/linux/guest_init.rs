//! The guest's part: what init does there. Its first argument says what.

use std::arch::asm;
use std::fs;

use rustix::mount::{MountFlags, mount};

use crate::lab::port;

/// Never returns: init must not.
pub fn main() -> ! {
    // SAFETY: no memory is involved; the result is that port instructions are allowed.
    assert_eq!(unsafe { libc::iopl(3) }, 0);
    fs::create_dir_all("/proc").unwrap();
    mount("proc", "/proc", "proc", MountFlags::empty(), None).unwrap();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    pin(0);
    let args: Vec<String> = std::env::args().skip(1).collect();
    out(port::READY, u32::try_from(cpus).unwrap());
    match args.first().map(String::as_str) {
        Some("symbols") => symbols(&args[1..]),
        Some("syscalls") => syscalls(),
        Some("count") => on_all(cpus, count),
        Some("spin") => on_all(cpus, spin),
        Some("panic") => fs::write("/proc/sysrq-trigger", "c").unwrap(),
        Some("exit") => std::process::exit(3),
        Some("reboot") => reboot(),
        other => panic!("nothing to do for {other:?}"),
    }
    loop {
        std::thread::park();
    }
}

fn out(port: u16, value: u32) {
    // SAFETY: writes to a port that the test harness watches; no memory is touched.
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nostack)) }
}

fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

/// Tells the addresses of kernel symbols, in the order of their names.
fn symbols(names: &[String]) {
    let table = fs::read_to_string("/proc/kallsyms").unwrap();
    for name in names {
        let line = table
            .lines()
            .find(|line| line.split(' ').nth(2) == Some(name));
        let address = line
            .and_then(|line| line.split(' ').next())
            .map_or("0", |address| address);
        let address = u64::from_str_radix(address, 16).unwrap();
        out(port::LOW, (address & 0xffff_ffff) as u32);
        out(port::HIGH, (address >> 32) as u32);
    }
    out(port::DONE, 0);
}

/// NMIs that the kernel counted on CPU 0.
fn nmis() -> u32 {
    let table = fs::read_to_string("/proc/interrupts").unwrap();
    let line = table
        .lines()
        .find(|line| line.trim_start().starts_with("NMI:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Rounds of 100 getppid, each with the kernel's count of NMIs and the result's sum.
fn syscalls() {
    loop {
        out(port::NMIS, nmis());
        let mut sum = 0;
        for _ in 0..100 {
            // SAFETY: getppid touches no memory. Not the library's: it must be a real call.
            sum += unsafe { libc::syscall(libc::SYS_getppid) };
        }
        out(port::DONE, u32::try_from(sum).unwrap());
    }
}

/// A thread on each CPU, this one on the first.
fn on_all(cpus: usize, job: fn()) {
    for cpu in 1..cpus {
        std::thread::spawn(move || {
            pin(cpu);
            job();
        });
    }
    job();
}

/// Rings with a counter.
fn count() {
    for count in 0.. {
        out(port::COUNT, count);
    }
}

/// As above, with some work in between.
fn spin() {
    for count in 0.. {
        for _ in 0..5_000 {
            // SAFETY: getppid touches no memory.
            unsafe { libc::syscall(libc::SYS_getppid) };
        }
        out(port::COUNT, count);
    }
}

/// Asks the kernel for a reboot by the method that its command line names.
fn reboot() {
    rustix::system::reboot(rustix::system::RebootCommand::Restart).unwrap();
}
