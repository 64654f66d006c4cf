//! Breakpoints, single steps and NMIs, exact to the instruction. They need a KVM that runs
//! kernel code as a CPU does; elsewhere these tests say that they skip.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::tests_outside_test_module,
    reason = "all of it is a test"
)]

mod guest;

use std::time::Duration;

use guest::{
    ADDRESS, BELL, guest, machine, next_stop, runs_kernel_code, started, write_interrupt_table,
};
use unwindlab_vmm::{BreakpointError, DataAccess, DataBreakpoint, Machine, Pause, Run, Stop};

// Vector 2 counts NMIs in r12; the loop counts its turns in rbx.
guest!(nmi_counter:
    "lidt [0x1ffff0]"
    "xor r12d, r12d"
    "xor ebx, ebx"
    "out 0xe0, eax"
    "2: inc rbx"
    "jmp 2b"
    ".skip 0x100 - (. - 998b)"
    "inc r12"
    "iretq"
);

// Turns with one byte per instruction, from 0x40 on.
guest!(turns:
    "xor ebx, ebx"
    ".skip 0x40 - (. - 998b), 0x90"
    "nop"
    "nop"
    "nop"
    "inc rbx"
    "jmp 998b + 0x40"
);

guest!(output:
    "nop"
    "out 0xe0, eax"
    "mov dx, 0x3f8"
    "out dx, al"
    "nop"
    "nop"
);

// Steps itself by the trap flag over three instructions; vector 1 counts in r12. Vector 3
// counts in r13.
guest!(debugs_itself:
    "lidt [0x1ffff0]"
    "xor r12d, r12d"
    "xor r13d, r13d"
    "2: pushfq"
    "or qword ptr [rsp], 0x100"
    "popfq"
    "nop"
    "nop"
    "pushfq"
    "and qword ptr [rsp], ~0x100"
    "popfq"
    "int3"
    "out 0xe0, eax"
    "jmp 2b"
    ".skip 0x100 - (. - 998b)"
    "inc r12"
    "mov r14, dr6"
    "iretq"
    ".skip 0x200 - (. - 998b)"
    "inc r13"
    "iretq"
);

guest!(pushes_flags:
    "pushfq"
    "pop rax"
    "pushfw"
    "pop bx"
    "nop"
);

// Reads, then writes 8 bytes at 0x300000, and writes behind them.
guest!(accesses:
    "mov rdi, 0x300000"
    "2: mov rax, [rdi]"
    "inc rax"
    "mov [rdi + 4], eax"
    "mov [rdi + 8], rax"
    "jmp 2b"
);

fn resume(machine: &mut Machine, run: Run) {
    machine.vcpu(0).unwrap().resume(run).unwrap();
}

fn pc(machine: &mut Machine) -> u64 {
    machine.vcpu(0).unwrap().regs().unwrap().rip
}

fn nmi_counter_machine() -> Machine {
    let mut machine = machine(1, nmi_counter());
    write_interrupt_table(&machine, &[2]);
    machine.start().unwrap();
    assert!(matches!(next_stop(&mut machine), Stop::Port { .. }));
    machine
}

#[test]
fn every_nmi_is_taken_exactly_once() {
    if !runs_kernel_code() {
        return;
    }
    let mut machine = nmi_counter_machine();
    for injected in 1..=1_000 {
        let mut vcpu = machine.vcpu(0).unwrap();
        let receipt = vcpu.inject_nmi().unwrap();
        assert!(!receipt.before.masked, "the handler is done long ago");
        let turns = vcpu.regs().unwrap().rbx;
        vcpu.resume(Run::Continue).unwrap();
        // Until the loop has turned again, thus the handler has returned.
        loop {
            assert_eq!(vcpu.pause().unwrap(), Pause::Paused);
            let regs = vcpu.regs().unwrap();
            let state = vcpu.nmi_state().unwrap();
            if regs.rbx > turns && state.pending == 0 && !state.injected && !state.masked {
                assert_eq!(regs.r12, injected);
                break;
            }
            vcpu.resume(Run::Continue).unwrap();
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

#[test]
fn an_nmi_is_taken_at_the_instruction_it_was_injected_at() {
    if !runs_kernel_code() {
        return;
    }
    let mut machine = nmi_counter_machine();
    let handler = ADDRESS + 0x100;
    machine
        .vcpu(0)
        .unwrap()
        .set_breakpoints(&[handler])
        .unwrap();
    for _ in 0..50 {
        resume(&mut machine, Run::Step);
        let Stop::Stepped { pc } = next_stop(&mut machine) else {
            panic!("no step")
        };
        let mut vcpu = machine.vcpu(0).unwrap();
        vcpu.inject_nmi().unwrap();
        vcpu.resume(Run::Continue).unwrap();
        assert_eq!(next_stop(&mut machine), Stop::Breakpoint { pc: handler });
        let vcpu = machine.vcpu(0).unwrap();
        let mut interrupted = [0; 8];
        vcpu.read_virt(vcpu.regs().unwrap().rsp, &mut interrupted)
            .unwrap();
        assert_eq!(u64::from_le_bytes(interrupted), pc);
        assert!(vcpu.nmi_state().unwrap().masked);
        // Out of the handler again: `inc` and `iretq`.
        for _ in 0..2 {
            resume(&mut machine, Run::Step);
            assert!(matches!(next_stop(&mut machine), Stop::Stepped { .. }));
        }
        assert_eq!(self::pc(&mut machine), pc);
    }
}

#[test]
fn an_nmi_in_the_handler_waits_for_its_return() {
    if !runs_kernel_code() {
        return;
    }
    let mut machine = nmi_counter_machine();
    let handler = ADDRESS + 0x100;
    let mut vcpu = machine.vcpu(0).unwrap();
    vcpu.set_breakpoints(&[handler]).unwrap();
    vcpu.inject_nmi().unwrap();
    vcpu.resume(Run::Continue).unwrap();
    assert_eq!(next_stop(&mut machine), Stop::Breakpoint { pc: handler });
    let mut vcpu = machine.vcpu(0).unwrap();
    let receipt = vcpu.inject_nmi().unwrap();
    assert!(receipt.after.masked);
    vcpu.resume(Run::Continue).unwrap();
    assert_eq!(
        next_stop(&mut machine),
        Stop::Breakpoint { pc: handler },
        "the second"
    );
    assert_eq!(machine.vcpu(0).unwrap().regs().unwrap().r12, 1);
    resume(&mut machine, Run::Continue);
    assert_eq!(
        machine.next_event(Duration::from_millis(100)),
        None,
        "there is no third"
    );
}

#[test]
fn a_step_holds_an_nmi_back() {
    if !runs_kernel_code() {
        return;
    }
    let mut machine = nmi_counter_machine();
    machine.vcpu(0).unwrap().inject_nmi().unwrap();
    for _ in 0..10 {
        resume(&mut machine, Run::Step);
        assert!(matches!(next_stop(&mut machine), Stop::Stepped { .. }));
        let vcpu = machine.vcpu(0).unwrap();
        assert_eq!(vcpu.regs().unwrap().r12, 0);
        assert_eq!(vcpu.nmi_state().unwrap().pending, 1);
    }
}

#[test]
fn a_breakpoint_is_met_once_each_turn() {
    if !runs_kernel_code() {
        return;
    }
    let mut machine = machine(1, turns());
    let at = |offset| ADDRESS + 0x40 + offset;
    let mut vcpu = machine.vcpu(0).unwrap();
    vcpu.set_breakpoints(&[at(0), at(1), at(2), at(3)]).unwrap();
    assert!(vcpu.set_breakpoints(&[0; 5]).is_err());
    machine.start().unwrap();
    for turn in 0..100 {
        for offset in 0..4 {
            assert_eq!(next_stop(&mut machine), Stop::Breakpoint { pc: at(offset) });
            let vcpu = machine.vcpu(0).unwrap();
            assert_eq!(vcpu.regs().unwrap().rbx, turn, "before the instruction");
            resume(&mut machine, Run::Continue);
        }
    }
    assert_eq!(next_stop(&mut machine), Stop::Breakpoint { pc: at(0) });
    machine.vcpu(0).unwrap().set_breakpoints(&[]).unwrap();
    resume(&mut machine, Run::Continue);
    assert_eq!(machine.next_event(Duration::from_millis(20)), None);
}

#[test]
fn a_step_is_one_instruction_also_at_breakpoints() {
    if !runs_kernel_code() {
        return;
    }
    let mut machine = machine(1, turns());
    let at = |offset| ADDRESS + 0x40 + offset;
    machine
        .vcpu(0)
        .unwrap()
        .set_breakpoints(&[at(0), at(2)])
        .unwrap();
    machine.start().unwrap();
    assert_eq!(next_stop(&mut machine), Stop::Breakpoint { pc: at(0) });
    // The breakpoint at 2 is at the end of the second step: reported when it is resumed from.
    let steps = [at(1), at(2)];
    for pc in steps {
        resume(&mut machine, Run::Step);
        assert_eq!(next_stop(&mut machine), Stop::Stepped { pc });
    }
    resume(&mut machine, Run::Step);
    assert_eq!(next_stop(&mut machine), Stop::Breakpoint { pc: at(2) });
    for pc in [at(3), at(6), at(0)] {
        resume(&mut machine, Run::Step);
        assert_eq!(next_stop(&mut machine), Stop::Stepped { pc });
    }
}

#[test]
fn many_steps_stop_early_only_for_a_reason() {
    if !runs_kernel_code() {
        return;
    }
    let mut machine = machine(1, turns());
    let at = |offset| ADDRESS + 0x40 + offset;
    let steps = |count: u32| Run::Steps(count.try_into().unwrap());
    machine.vcpu(0).unwrap().set_breakpoints(&[at(0)]).unwrap();
    machine.start().unwrap();
    assert_eq!(next_stop(&mut machine), Stop::Breakpoint { pc: at(0) });
    resume(&mut machine, steps(4));
    assert_eq!(next_stop(&mut machine), Stop::Stepped { pc: at(6) });
    resume(&mut machine, steps(10));
    assert_eq!(next_stop(&mut machine), Stop::Breakpoint { pc: at(0) });
    machine.vcpu(0).unwrap().set_breakpoints(&[]).unwrap();
    resume(&mut machine, steps(50));
    assert_eq!(next_stop(&mut machine), Stop::Stepped { pc: at(0) });
    assert_eq!(machine.vcpu(0).unwrap().regs().unwrap().rbx, 11);
    resume(&mut machine, steps(u32::MAX));
    assert_eq!(machine.next_event(Duration::from_millis(20)), None);
    assert_eq!(machine.vcpu(0).unwrap().pause().unwrap(), Pause::Paused);
}

#[test]
fn a_step_leaves_no_trap_flag_on_the_stack() {
    if !runs_kernel_code() {
        return;
    }
    let mut machine = machine(1, pushes_flags());
    for offset in [1, 2, 4, 6] {
        resume(&mut machine, Run::Step);
        assert_eq!(
            next_stop(&mut machine),
            Stop::Stepped {
                pc: ADDRESS + offset
            }
        );
    }
    let regs = machine.vcpu(0).unwrap().regs().unwrap();
    assert_eq!((regs.rax & 0xf00, regs.rbx & 0xf00), (0, 0));
    assert_eq!(regs.rflags & 0xf00, 0);
}

#[test]
fn stepping_over_an_output_is_one_stop() {
    if !runs_kernel_code() {
        return;
    }
    let mut machine = machine(1, output());
    let expected = [
        Stop::Stepped { pc: ADDRESS + 1 },
        Stop::Port {
            port: BELL,
            size: 4,
            value: 0,
        },
        Stop::Stepped { pc: ADDRESS + 7 },
        Stop::Stepped { pc: ADDRESS + 8 },
        Stop::Stepped { pc: ADDRESS + 9 },
    ];
    for expected in expected {
        resume(&mut machine, Run::Step);
        assert_eq!(next_stop(&mut machine), expected);
    }
    assert_eq!(machine.console().len(), 1);
}

#[test]
fn the_guests_own_debug_exceptions_are_its_own() {
    if !runs_kernel_code() {
        return;
    }
    let mut traps = Vec::new();
    for breakpoints in [&[][..], &[0xffff_ffff_8000_0000]] {
        let mut machine = machine(1, debugs_itself());
        write_interrupt_table(&machine, &[1, 3]);
        machine
            .vcpu(0)
            .unwrap()
            .set_breakpoints(breakpoints)
            .unwrap();
        machine.start().unwrap();
        for turn in 1..=20 {
            assert!(matches!(next_stop(&mut machine), Stop::Port { .. }));
            let regs = machine.vcpu(0).unwrap().regs().unwrap();
            assert_eq!(regs.r13, turn, "int3");
            assert_ne!(regs.r14 & 1 << 14, 0, "DR6 tells of a step");
            traps.push(regs.r12);
            resume(&mut machine, Run::Continue);
        }
    }
    let (without, with) = traps.split_at(20);
    assert!(without[0] >= 5, "it steps itself: {without:?}");
    assert_eq!(
        without, with,
        "a breakpoint of ours makes no difference to the guest"
    );
}

#[test]
fn a_running_vcpu_steps_after_a_pause() {
    if !runs_kernel_code() {
        return;
    }
    let mut machine = started(1, turns());
    for _ in 0..100 {
        machine.vcpu(0).unwrap().pause().unwrap();
        let before = pc(&mut machine);
        resume(&mut machine, Run::Step);
        let Stop::Stepped { pc } = next_stop(&mut machine) else {
            panic!("no step")
        };
        assert_ne!(pc, before);
        resume(&mut machine, Run::Continue);
    }
}

#[test]
fn a_breakpoint_on_data_stops_behind_the_access() {
    if !runs_kernel_code() {
        return;
    }
    // Behind the read, behind the write, and the instruction after that.
    let (read, write) = (ADDRESS + 10, ADDRESS + 16);
    let data = |access| DataBreakpoint::new(0x30_0000, 8, access).unwrap();
    let mut machine = machine(1, accesses());
    let expected = |machine: &mut Machine, code: &[u64], access, run, pcs: &[u64]| {
        let met = vec![data(access)];
        machine.set_breakpoints_and_data(code, &[], &met).unwrap();
        for &pc in pcs {
            resume(machine, run);
            let met = met.clone();
            assert_eq!(next_stop(machine), Stop::Data { pc, met });
        }
    };
    let m = &mut machine;
    expected(m, &[], DataAccess::Write, Run::Continue, &[write; 3]);
    let both = [read, write, read];
    expected(m, &[], DataAccess::ReadWrite, Run::Continue, &both);
    // The step that makes the access stops there too, once.
    expected(
        m,
        &[],
        DataAccess::Write,
        Run::Steps(9.try_into().unwrap()),
        &[write],
    );
    resume(m, Run::Step);
    assert_eq!(next_stop(m), Stop::Stepped { pc: write + 4 });
    // A breakpoint on the next instruction is a stop of its own.
    expected(m, &[write], DataAccess::Write, Run::Continue, &[write]);
    resume(m, Run::Continue);
    assert_eq!(next_stop(m), Stop::Breakpoint { pc: write });
    let refused = m.set_breakpoints_and_data(&[], &[1, 2, 3, 4], &[data(DataAccess::Write)]);
    assert!(matches!(
        refused,
        Err(BreakpointError::TooMany { asked: 5 })
    ));
}
