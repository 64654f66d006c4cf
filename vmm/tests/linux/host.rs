//! The tests.

use std::time::{Duration, Instant};

use unwindlab_vmm::{Machine, Pause, Run, Stop};

use crate::lab::{Lab, console, expect, go_on, next, port};

type Test = fn(&Lab);

/// All of them, by name.
pub const TESTS: [(&str, Test); 10] = [
    ("boots_with_one_two_and_four_vcpus", boots),
    ("the_clock_is_stable", the_clock_is_stable),
    (
        "a_breakpoint_counts_system_calls",
        a_breakpoint_counts_system_calls,
    ),
    ("single_steps_through_a_system_call", single_steps),
    ("every_nmi_is_taken_exactly_once", every_nmi_once),
    ("an_nmi_at_every_instruction", an_nmi_at_every_instruction),
    ("pause_and_resume_lose_nothing", pause_and_resume),
    ("a_doorbell_is_answered_quickly", round_trip),
    ("panics_are_on_the_console", panics),
    ("reboots_are_told", reboots),
];

fn boots(lab: &Lab) {
    for vcpus in [1, 2, 4] {
        let machine = lab.boot(vcpus, "count");
        print!("{}", console(&machine));
    }
}

/// MSR_KVM_SYSTEM_TIME_NEW holds where KVM tells a vCPU the time; byte 29 there has flags,
/// the lowest says that all vCPUs' clocks agree (Documentation/virt/kvm/x86/msr.rst).
fn the_clock_is_stable(lab: &Lab) {
    let mut machine = lab.boot(2, "count");
    machine.pause_all().unwrap();
    for index in 0..2 {
        let address = machine.vcpu(index).unwrap().msr(0x4b56_4d01).unwrap();
        assert_eq!(address & 1, 1, "kvmclock is on");
        let mut flags = [0];
        machine
            .memory()
            .read((address & !1) + 29, &mut flags)
            .unwrap();
        println!("  vCPU {index}: kvmclock flags {:#x}", flags[0]);
        assert_eq!(flags[0] & 1, 1, "kvmclock is not stable across vCPUs");
    }
}

fn a_breakpoint_counts_system_calls(lab: &Lab) {
    let [getppid] = lab.symbols(["__x64_sys_getppid"]);
    let mut machine = lab.boot(2, "syscalls");
    machine
        .vcpu(0)
        .unwrap()
        .set_breakpoints(&[getppid])
        .unwrap();
    go_on(&mut machine);
    for _ in 0..5 {
        expect(&mut machine, port::NMIS);
        for _ in 0..100 {
            go_on(&mut machine);
            assert_eq!(next(&mut machine).stop, Stop::Breakpoint { pc: getppid });
        }
        go_on(&mut machine);
        assert_eq!(expect(&mut machine, port::DONE), 0, "init has no parent");
        go_on(&mut machine);
    }
}

fn single_steps(lab: &Lab) {
    let [getppid] = lab.symbols(["__x64_sys_getppid"]);
    let mut machine = lab.boot(1, "syscalls");
    machine
        .vcpu(0)
        .unwrap()
        .set_breakpoints(&[getppid])
        .unwrap();
    go_on(&mut machine);
    expect(&mut machine, port::NMIS);
    go_on(&mut machine);
    assert_eq!(next(&mut machine).stop, Stop::Breakpoint { pc: getppid });
    let begin = Instant::now();
    let mut steps = 0;
    // Out of the kernel, to the loop in user mode.
    loop {
        let pc = step(&mut machine);
        steps += 1;
        assert!(steps < 2_000, "does not leave the kernel: {pc:#x}");
        if pc < 1 << 47 {
            break;
        }
    }
    println!(
        "  {steps} steps to user mode, {:.1?} each",
        begin.elapsed() / steps
    );
    machine.vcpu(0).unwrap().set_breakpoints(&[]).unwrap();
    go_on(&mut machine);
    assert_eq!(expect(&mut machine, port::DONE), 0);
}

fn every_nmi_once(lab: &Lab) {
    let [getppid] = lab.symbols(["__x64_sys_getppid"]);
    let mut machine = lab.boot(2, "syscalls");
    let mut injected = 0;
    let mut first = None;
    machine
        .vcpu(0)
        .unwrap()
        .set_breakpoints(&[getppid])
        .unwrap();
    go_on(&mut machine);
    for _ in 0..10 {
        let counted = expect(&mut machine, port::NMIS);
        assert_eq!(counted, *first.get_or_insert(counted) + injected);
        for turn in 0..100 {
            go_on(&mut machine);
            assert_eq!(next(&mut machine).stop, Stop::Breakpoint { pc: getppid });
            if turn % 3 == 0 {
                let receipt = machine.vcpu(0).unwrap().inject_nmi().unwrap();
                assert!(!receipt.before.masked);
                injected += 1;
            }
        }
        go_on(&mut machine);
        assert_eq!(expect(&mut machine, port::DONE), 0);
        go_on(&mut machine);
    }
    let text = console(&machine);
    println!(
        "  {injected} NMIs; {} lines of \"unknown reason\"",
        text.matches("unknown reason").count()
    );
}

/// The n-th time, the NMI comes n instructions after the system call's first.
fn an_nmi_at_every_instruction(lab: &Lab) {
    let [getppid, nmi] = lab.symbols(["__x64_sys_getppid", "asm_exc_nmi"]);
    let mut machine = lab.boot(1, "syscalls");
    machine
        .vcpu(0)
        .unwrap()
        .set_breakpoints(&[getppid])
        .unwrap();
    go_on(&mut machine);
    let before = expect(&mut machine, port::NMIS);
    for steps in 0..100 {
        go_on(&mut machine);
        assert_eq!(next(&mut machine).stop, Stop::Breakpoint { pc: getppid });
        let mut at = getppid;
        for _ in 0..steps {
            let pc = step(&mut machine);
            at = pc;
        }
        let mut vcpu = machine.vcpu(0).unwrap();
        vcpu.inject_nmi().unwrap();
        vcpu.set_breakpoints(&[nmi]).unwrap();
        vcpu.resume(Run::Continue).unwrap();
        assert_eq!(next(&mut machine).stop, Stop::Breakpoint { pc: nmi });
        let mut vcpu = machine.vcpu(0).unwrap();
        let mut interrupted = [0; 8];
        vcpu.read_virt(vcpu.regs().unwrap().rsp, &mut interrupted)
            .unwrap();
        assert_eq!(u64::from_le_bytes(interrupted), at, "after {steps} steps");
        vcpu.set_breakpoints(&[getppid]).unwrap();
    }
    go_on(&mut machine);
    assert_eq!(expect(&mut machine, port::DONE), 0);
    go_on(&mut machine);
    assert_eq!(expect(&mut machine, port::NMIS), before + 100);
}

fn pause_and_resume(lab: &Lab) {
    let mut machine = lab.boot(2, "spin");
    go_on(&mut machine);
    let mut counts = [0, 0];
    let mut paused = 0;
    let begin = Instant::now();
    for round in 0..10_000_usize {
        let index = round % 2;
        let vcpu = u8::try_from(index).unwrap();
        let found = machine.vcpu(vcpu).unwrap().pause().unwrap();
        paused += u32::from(found == Pause::Paused);
        while let Some(event) = machine.next_event(Duration::ZERO) {
            let count = &mut counts[usize::from(event.vcpu)];
            let expected = Stop::Port {
                port: port::COUNT,
                size: 4,
                value: *count,
            };
            assert_eq!(event.stop, expected);
            *count += 1;
            if event.vcpu != vcpu {
                machine
                    .vcpu(event.vcpu)
                    .unwrap()
                    .resume(Run::Continue)
                    .unwrap();
            }
        }
        machine.vcpu(vcpu).unwrap().resume(Run::Continue).unwrap();
    }
    println!(
        "  {paused} pauses, doorbells {counts:?}, {:.2?} a round",
        begin.elapsed() / 10_000
    );
    assert!(
        counts.iter().all(|count| *count > 0),
        "no progress: {counts:?}"
    );
    println!("  {}", console(&machine));
}

fn round_trip(lab: &Lab) {
    const ROUNDS: u32 = 5_000;
    for vcpus in [1, 2] {
        let mut machine = lab.boot(vcpus, "count");
        go_on(&mut machine);
        let mut counts = [0, 0];
        let begin = Instant::now();
        for _ in 0..ROUNDS {
            let event = next(&mut machine);
            let count = &mut counts[usize::from(event.vcpu)];
            assert_eq!(
                event.stop,
                Stop::Port {
                    port: port::COUNT,
                    size: 4,
                    value: *count
                }
            );
            *count += 1;
            machine
                .vcpu(event.vcpu)
                .unwrap()
                .resume(Run::Continue)
                .unwrap();
        }
        println!(
            "  {vcpus} vCPUs: {:.1?} from one doorbell to the next",
            begin.elapsed() / ROUNDS
        );
    }
}

fn panics(lab: &Lab) {
    for (job, text) in [
        ("panic", "sysrq triggered crash"),
        ("exit", "Attempted to kill init"),
    ] {
        let mut machine = lab.boot(1, job);
        go_on(&mut machine);
        let stop = next(&mut machine).stop;
        println!("  {job}: {stop:?}");
        assert!(matches!(stop, Stop::Reset { .. } | Stop::Shutdown));
        let console = console(&machine);
        assert!(
            console.contains("Kernel panic") && console.contains(text),
            "{console}"
        );
    }
}

fn reboots(lab: &Lab) {
    for (option, expected) in [
        ("reboot=t", Stop::Shutdown),
        ("reboot=k", Stop::Reset { port: 0x64 }),
    ] {
        let mut machine = lab.build(2, option, "reboot");
        machine.start().unwrap();
        expect(&mut machine, port::READY);
        go_on(&mut machine);
        assert_eq!(next(&mut machine).stop, expected);
    }
}

/// One instruction on vCPU 0; gives the next one's address.
fn step(machine: &mut Machine) -> u64 {
    machine.vcpu(0).unwrap().resume(Run::Step).unwrap();
    match next(machine).stop {
        Stop::Stepped { pc } => pc,
        other => panic!("{other:x?} instead of a step"),
    }
}
