//! The machine with tiny guests, on whatever KVM there is. The checks are in `vmm/src/checks/bare_metal.rs`; here is what says nothing
//! of a KVM: configurations, and what this process keeps.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::tests_outside_test_module,
    reason = "all of it is a test"
)]

mod guest;

use std::borrow::Cow;
use std::time::Instant;

use guest::{ADDRESS, PATIENCE, guest, kvm, machine, next_stop, started};
use unwindlab_vmm::{Kernel, Machine, MachineConfig, Pmu};

guest::tests! {
    a_doorbell_stops_with_size_and_value
    after_a_doorbell_the_output_is_done
    every_doorbell_arrives_once_and_in_order
    pause_and_stop_of_its_own_at_the_same_moment_lose_nothing
    what_needs_a_stopped_vcpu_is_refused_while_it_runs
    the_console_keeps_what_the_guest_writes
    a_triple_fault_is_a_shutdown
    a_reset_by_the_keyboard_controller_is_told
    string_output_rings_for_each_item
    where_nothing_is_all_ones_are_read
    a_sleeping_vcpu_can_be_paused
    eight_vcpus_start_stop_and_wait
    an_nmi_is_confirmed_and_a_second_one_refused
    the_probe_comes_to_a_verdict_in_time
}

guest!(counter:
    "xor eax, eax"
    "2: out 0xe0, eax"
    "inc eax"
    "jmp 2b"
);

guest!(silent: "99: jmp 99b");

// Starts the other vCPUs by the local APIC; each rings with 16-bit code, then the first does.
guest!(starter:
    "lea rsi, [rip + 4f]"
    "mov edi, 0x30000"
    "mov ecx, 16"
    "2: mov al, [rsi]"
    "mov [rdi], al"
    "inc rsi"
    "inc rdi"
    "dec ecx"
    "jnz 2b"
    "mov ebx, 0xfee00300"
    "mov dword ptr [rbx], 0x000c4500"
    "mov dword ptr [rbx], 0x000c4630"
    "mov dword ptr [rbx], 0x000c4630"
    "mov eax, 0xb5b"
    "out 0xe1, eax"
    "99: jmp 99b"
    ".code16"
    "4: mov ax, 0xa9"
    "out 0xe0, ax"
    "99: jmp 99b"
    ".code64"
);

fn build_error(change: impl FnOnce(&mut MachineConfig<'static>)) -> String {
    let mut config = MachineConfig {
        vcpus: 1,
        memory_mib: 4,
        kernel: Kernel::Flat {
            address: ADDRESS,
            code: Cow::Borrowed(silent()),
        },
        initrd: &[],
        cmdline: "",
        doorbell_ports: 0xe0..=0xef,
        pmu: Pmu::None,
    };
    change(&mut config);
    Machine::build(&kvm(), &config)
        .map(|_| ())
        .unwrap_err()
        .to_string()
}

#[test]
fn bad_configurations_are_told_apart() {
    static BIG: [u8; 5 << 20] = [0; 5 << 20];
    static LONG: [u8; 3000] = [b'a'; 3000];
    let elf = |bytes: &'static [u8]| Kernel::Elf(Cow::Borrowed(bytes));
    let far = Kernel::Flat {
        address: u64::MAX,
        code: Cow::Borrowed(&BIG),
    };
    let errors = [
        ("0 vCPUs", build_error(|config| config.vcpus = 0)),
        ("9 vCPUs", build_error(|config| config.vcpus = 9)),
        ("0 MiB", build_error(|config| config.memory_mib = 0)),
        (
            "port 0x3f8",
            build_error(|config| config.doorbell_ports = 0x3f0..=0x400),
        ),
        (
            "initrd of 5242880 bytes",
            build_error(|config| config.initrd = &BIG),
        ),
        ("NUL", build_error(|config| config.cmdline = "a\0b")),
        (
            "has 3000 bytes",
            build_error(|config| config.cmdline = std::str::from_utf8(&LONG).unwrap()),
        ),
        (
            "no ELF image",
            build_error(|config| config.kernel = elf(b"MZ")),
        ),
        (
            "no ELF image",
            build_error(|config| config.kernel = elf(b"\x7fELF\x02\x01")),
        ),
        ("ends at", build_error(|config| config.kernel = far)),
    ];
    for (expected, error) in errors {
        assert!(error.contains(expected), "{expected:?} is not in {error:?}");
    }
}

/// Files, threads and mappings of this process.
fn census() -> (usize, usize, usize) {
    let count = |path| std::fs::read_dir(path).unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ours = maps
        .lines()
        .filter(|line| line.contains("guest-memory") || line.contains("kvm-vcpu"));
    (
        count("/proc/self/fd"),
        count("/proc/self/task"),
        ours.count(),
    )
}

/// Runs alone in its process: other tests' machines would be counted too.
#[test]
fn dropping_a_machine_leaves_nothing_behind() {
    if std::env::var_os("ALONE").is_none() {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "dropping_a_machine_leaves_nothing_behind",
                "--test-threads=1",
            ])
            .env("ALONE", "1")
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    drop(started(1, silent()));
    let before = census();
    for vcpus in [1, 4, 8] {
        drop(machine(vcpus, silent()));
        let begin = Instant::now();
        drop(started(vcpus, starter()));
        let mut stopped = started(vcpus, counter());
        next_stop(&mut stopped);
        drop(stopped);
        let mut half = started(vcpus, silent());
        half.vcpu(0).unwrap().pause().unwrap();
        drop(half);
        assert!(begin.elapsed() < PATIENCE);
        assert_eq!(census(), before);
    }
    let machine = started(1, silent());
    assert_ne!(census(), before, "the census sees a machine");
    let memory = machine.memory().clone();
    drop(machine);
    memory.write(0, &[1]).unwrap();
    drop(memory);
    assert_eq!(census(), before);
}
