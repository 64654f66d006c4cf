//! The machine with tiny guests, on whatever KVM there is: none of them executes an
//! instruction that a KVM with an incomplete instruction emulator could not.
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
use std::time::{Duration, Instant};

use guest::{ADDRESS, BELL, PATIENCE, guest, kvm, machine, next_stop, started};
use unwindlab_vmm::{
    InspectError, Kernel, Machine, MachineConfig, Pause, Pmu, ResumeError, Run, Stop,
};

guest!(sizes:
    "mov eax, 0x12345678"
    "out 0xe0, al"
    "out 0xe1, ax"
    "out 0xef, eax"
    "99: jmp 99b"
);

guest!(counter:
    "xor eax, eax"
    "2: out 0xe0, eax"
    "inc eax"
    "jmp 2b"
);

// Counts in rbx, and rings with its low half each 65,536th time.
guest!(busy:
    "xor ebx, ebx"
    "2: inc rbx"
    "test bx, bx"
    "jnz 2b"
    "mov rax, rbx"
    "shr rax, 16"
    "out 0xe0, eax"
    "jmp 2b"
);

guest!(hello:
    "lea rsi, [rip + 3f]"
    "mov ecx, 5"
    "mov edx, 0x3f8"
    "2: mov al, [rsi]"
    "out dx, al"
    "inc rsi"
    "dec ecx"
    "jnz 2b"
    "out 0xe0, eax"
    "3: .ascii \"hello\""
);

// An interrupt table that is not there: the first exception ends in a triple fault.
guest!(triple_fault:
    "lidt [rip + 2f]"
    "mov byte ptr [0xffffffffffff0000], 1"
    "2: .quad 0, 0"
);

guest!(keyboard_reset: "mov al, 0xfe" "out 0x64, al");
guest!(silent: "99: jmp 99b");
guest!(sleeper: "cli" "hlt" "99: jmp 99b");
guest!(string_output: "mov rsi, 0x100000" "mov ecx, 3" "mov edx, 0xe0" "rep outsb" "99: jmp 99b");
guest!(nowhere:
    "mov eax, [0xd0000000]"
    "out 0xe0, eax"
    "mov [0xd0000000], eax"
    "mov dx, 0x1234"
    "in eax, dx"
    "out 0xe1, eax"
    "mov dx, 0x3fd"
    "in al, dx"
    "out 0xe2, al"
);

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

#[test]
fn a_doorbell_stops_with_size_and_value() {
    let mut machine = started(1, sizes());
    for (port, size, value) in [(0xe0, 1, 0x78), (0xe1, 2, 0x5678), (0xef, 4, 0x1234_5678)] {
        assert_eq!(next_stop(&mut machine), Stop::Port { port, size, value });
        let mut vcpu = machine.vcpu(0).unwrap();
        assert_eq!(vcpu.stop(), Some(Stop::Port { port, size, value }));
        vcpu.resume(Run::Continue).unwrap();
    }
    assert_eq!(machine.next_event(Duration::from_millis(20)), None);
}

#[test]
fn after_a_doorbell_the_output_is_done() {
    let mut machine = started(1, sizes());
    next_stop(&mut machine);
    let vcpu = machine.vcpu(0).unwrap();
    let regs = vcpu.regs().unwrap();
    // `mov eax, imm32` has 5 bytes, `out imm8, al` two.
    assert_eq!(regs.rip, ADDRESS + 7);
    assert_eq!(regs.rax, 0x1234_5678);
    assert_eq!(regs.rsi, 0x7000, "the boot protocol's zero page");
    let sregs = vcpu.sregs().unwrap();
    assert_eq!(sregs.cs.l, 1, "64-bit code");
    let mut code = [0; 7];
    vcpu.read_virt(ADDRESS, &mut code).unwrap();
    assert_eq!(code[..], sizes()[..7]);
    assert_eq!(vcpu.translate(ADDRESS).unwrap(), Some(ADDRESS));
    assert_eq!(vcpu.translate(1 << 40).unwrap(), None);
    assert!(matches!(
        vcpu.read_virt(0x40_0000 - 1, &mut code),
        Err(InspectError::Unmapped {
            address: 0x40_0000,
            ..
        })
    ));
    assert_eq!(
        vcpu.msr(0xc000_0080).unwrap() & 0x500,
        0x500,
        "EFER: long mode"
    );
    assert!(matches!(
        vcpu.msr(0xdead_beef),
        Err(InspectError::NoSuchMsr { .. })
    ));
}

#[test]
fn every_doorbell_arrives_once_and_in_order() {
    let mut machine = started(1, counter());
    for value in 0..2_000 {
        assert_eq!(
            next_stop(&mut machine),
            Stop::Port {
                port: BELL,
                size: 4,
                value
            }
        );
        machine.vcpu(0).unwrap().resume(Run::Continue).unwrap();
    }
}

#[test]
fn pause_and_stop_of_its_own_at_the_same_moment_lose_nothing() {
    let mut machine = started(1, busy());
    let (mut expected, mut paused, mut own, mut last) = (1, 0, 0, 0);
    for round in 0..10_000_u32 {
        // Pauses of ever other lengths, so that they meet the doorbell at every phase.
        for _ in 0..round % 97 * 16 {
            std::hint::spin_loop();
        }
        match machine.vcpu(0).unwrap().pause().unwrap() {
            Pause::Paused => {
                paused += 1;
                assert_eq!(machine.next_event(Duration::ZERO), None);
            }
            Pause::StoppedItself => {
                own += 1;
                let Err(ResumeError::NotSeen { .. }) =
                    machine.vcpu(0).unwrap().resume(Run::Continue)
                else {
                    panic!("a stop that nobody has seen can be resumed from");
                };
                let event = machine.next_event(Duration::ZERO).unwrap();
                assert_eq!(
                    event.stop,
                    Stop::Port {
                        port: BELL,
                        size: 4,
                        value: expected
                    }
                );
                expected += 1;
            }
            Pause::WasStopped => panic!("it was resumed"),
        }
        let mut vcpu = machine.vcpu(0).unwrap();
        assert_eq!(vcpu.pause().unwrap(), Pause::WasStopped);
        let count = vcpu.regs().unwrap().rbx;
        assert!(count >= last, "the guest went back");
        last = count;
        vcpu.resume(Run::Continue).unwrap();
    }
    assert!(paused > 0, "only stops of its own: {own}");
    assert_eq!(u64::from(expected) - 1, last >> 16);
}

#[test]
fn what_needs_a_stopped_vcpu_is_refused_while_it_runs() {
    let mut machine = started(1, silent());
    let mut vcpu = machine.vcpu(0).unwrap();
    assert_eq!(vcpu.stop(), None);
    assert!(matches!(
        vcpu.regs(),
        Err(InspectError::NotStopped { vcpu: 0 })
    ));
    assert!(vcpu.inject_nmi().is_err());
    assert!(vcpu.set_breakpoints(&[]).is_err());
    assert!(matches!(
        vcpu.resume(Run::Continue),
        Err(ResumeError::NotStopped { vcpu: 0 })
    ));
    assert!(machine.vcpu(1).is_none());
}

#[test]
fn the_console_keeps_what_the_guest_writes() {
    let mut machine = started(1, hello());
    assert!(matches!(next_stop(&mut machine), Stop::Port { .. }));
    assert_eq!(machine.console().snapshot(), b"hello");
    assert_eq!(machine.console().len(), 5);
}

#[test]
fn a_triple_fault_is_a_shutdown() {
    assert_eq!(next_stop(&mut started(1, triple_fault())), Stop::Shutdown);
}

#[test]
fn a_reset_by_the_keyboard_controller_is_told() {
    assert_eq!(
        next_stop(&mut started(1, keyboard_reset())),
        Stop::Reset { port: 0x64 }
    );
}

#[test]
fn string_output_rings_for_each_item() {
    let mut machine = started(1, string_output());
    for byte in &string_output()[..3] {
        let value = u32::from(*byte);
        assert_eq!(
            next_stop(&mut machine),
            Stop::Port {
                port: BELL,
                size: 1,
                value
            }
        );
        machine.vcpu(0).unwrap().resume(Run::Continue).unwrap();
    }
}

#[test]
fn where_nothing_is_all_ones_are_read() {
    let mut machine = started(1, nowhere());
    for (port, size, value) in [(0xe0, 4, u32::MAX), (0xe1, 4, u32::MAX), (0xe2, 1, 0x60)] {
        assert_eq!(next_stop(&mut machine), Stop::Port { port, size, value });
        machine.vcpu(0).unwrap().resume(Run::Continue).unwrap();
    }
}

#[test]
fn a_sleeping_vcpu_can_be_paused() {
    let mut machine = started(1, sleeper());
    assert_eq!(machine.next_event(Duration::from_millis(20)), None);
    let mut vcpu = machine.vcpu(0).unwrap();
    assert_eq!(vcpu.pause().unwrap(), Pause::Paused);
    assert_eq!(vcpu.stop(), Some(Stop::Paused));
    assert_eq!(vcpu.regs().unwrap().rip, ADDRESS + 2);
}

#[test]
fn eight_vcpus_start_stop_and_wait() {
    let mut machine = started(8, starter());
    let mut rung = Vec::new();
    while rung.len() < 8 {
        let event = machine.next_event(PATIENCE).expect("the guest is silent");
        let (port, value) = if event.vcpu == 0 {
            (0xe1, 0xb5b)
        } else {
            (BELL, 0xa9)
        };
        let size = if event.vcpu == 0 { 4 } else { 2 };
        assert_eq!(event.stop, Stop::Port { port, size, value });
        rung.push(event.vcpu);
        machine
            .vcpu(event.vcpu)
            .unwrap()
            .resume(Run::Continue)
            .unwrap();
    }
    rung.sort_unstable();
    assert_eq!(rung, (0..8).collect::<Vec<u8>>());
    assert_eq!(machine.pause_all().unwrap(), [Pause::Paused; 8]);
    assert_eq!(machine.pause_all().unwrap(), [Pause::WasStopped; 8]);
}

#[test]
fn an_nmi_is_confirmed_and_a_second_one_refused() {
    let mut machine = machine(1, silent());
    let mut vcpu = machine.vcpu(0).unwrap();
    let receipt = vcpu.inject_nmi().unwrap();
    assert_eq!((receipt.before.pending, receipt.after.pending), (0, 1));
    let error = vcpu.inject_nmi().unwrap_err().to_string();
    assert!(error.contains("already waits"), "{error}");
    assert_eq!(vcpu.nmi_state().unwrap(), receipt.after);
}

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
        let mut half = started(vcpus, busy());
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

#[test]
fn the_probe_comes_to_a_verdict_in_time() {
    let begin = Instant::now();
    let report = unwindlab_vmm::probe::probe(&kvm()).unwrap();
    assert!(begin.elapsed() < PATIENCE);
    assert_eq!(report.is_usable(), report.failed.is_none());
    println!("{report}");
}
