//! Breakpoints, single steps and NMIs, exact to the instruction.

use std::time::Duration;

use super::failure::{Failure, Outcome, holds, same, some};
use super::lab::{
    ADDRESS, BELL, Lab, guest, interrupted, machine, next_stop, resume, started, step, vcpu,
    write_interrupt_table,
};
use crate::{BreakpointError, DataAccess, DataBreakpoint, Machine, Pause, Run, Stop};

super::checks! {
    KernelCode:
        every_nmi_is_taken_exactly_once
        an_nmi_is_taken_at_the_instruction_it_was_injected_at
        an_nmi_in_the_handler_waits_for_its_return
        a_step_holds_an_nmi_back
        a_breakpoint_is_met_once_each_turn
        a_step_is_one_instruction_also_at_breakpoints
        many_steps_stop_early_only_for_a_reason
        paused_steps_go_on_where_they_were
        a_step_leaves_no_trap_flag_on_the_stack
        stepping_over_an_output_is_one_stop
        the_guests_own_debug_exceptions_are_its_own
        a_running_vcpu_steps_after_a_pause
        a_breakpoint_on_data_stops_behind_the_access;
}

// Vector 2 counts NMIs in r12; the loop counts its turns in rbx.
guest!(nmi_counter:
    "lidt [0x1ffff0]"
    "xor r12d, r12d"
    "xor ebx, ebx"
    "sti"
    "out 0xe0, eax"
    "2: inc rbx"
    "jmp 2b"
    ".skip 0x100 - (. - 998b)"
    "inc r12"
    "iretq"
);

// Turns with one byte per instruction, from 0x40 on.
guest!(turns_of_bytes:
    "sti"
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
guest!(steps_itself:
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
guest!(accesses_of_data:
    "mov rdi, 0x300000"
    "2: mov rax, [rdi]"
    "inc rax"
    "mov [rdi + 4], eax"
    "mov [rdi + 8], rax"
    "jmp 2b"
);

fn pc(machine: &mut Machine) -> Result<u64, Failure> {
    Ok(vcpu(machine)?.regs()?.rip)
}

fn nmi_counter_machine() -> Result<Machine, Failure> {
    let mut machine = machine(1, nmi_counter())?;
    write_interrupt_table(&machine, &[2])?;
    machine.start()?;
    holds!(matches!(next_stop(&mut machine)?, Stop::Port { .. }));
    Ok(machine)
}

fn every_nmi_is_taken_exactly_once(lab: &Lab) -> Outcome {
    let mut machine = nmi_counter_machine()?;
    for injected in 1..=u64::from(lab.rounds(1_000)) {
        let mut cpu = vcpu(&mut machine)?;
        let receipt = cpu.inject_nmi()?;
        holds!(!receipt.before.masked, "the handler is done long ago");
        let turns = cpu.regs()?.rbx;
        cpu.resume(Run::Continue)?;
        // Until the loop has turned again, thus the handler has returned.
        loop {
            same!(cpu.pause()?, Pause::Paused);
            let regs = cpu.regs()?;
            let state = cpu.nmi_state()?;
            if regs.rbx > turns && state.pending == 0 && !state.injected && !state.masked {
                same!(regs.r12, injected);
                break;
            }
            cpu.resume(Run::Continue)?;
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    Ok(())
}

fn an_nmi_is_taken_at_the_instruction_it_was_injected_at(_: &Lab) -> Outcome {
    let mut machine = nmi_counter_machine()?;
    let handler = ADDRESS + 0x100;
    vcpu(&mut machine)?.set_breakpoints(&[handler])?;
    for _ in 0..50 {
        let pc = step(&mut machine)?;
        let mut cpu = vcpu(&mut machine)?;
        cpu.inject_nmi()?;
        cpu.resume(Run::Continue)?;
        same!(next_stop(&mut machine)?, Stop::Breakpoint { pc: handler });
        same!(interrupted(&mut machine)?, pc);
        holds!(vcpu(&mut machine)?.nmi_state()?.masked);
        // Out of the handler again: `inc` and `iretq`.
        for _ in 0..2 {
            step(&mut machine)?;
        }
        same!(self::pc(&mut machine)?, pc);
    }
    Ok(())
}

fn an_nmi_in_the_handler_waits_for_its_return(_: &Lab) -> Outcome {
    let mut machine = nmi_counter_machine()?;
    let handler = ADDRESS + 0x100;
    let mut cpu = vcpu(&mut machine)?;
    cpu.set_breakpoints(&[handler])?;
    cpu.inject_nmi()?;
    cpu.resume(Run::Continue)?;
    same!(next_stop(&mut machine)?, Stop::Breakpoint { pc: handler });
    let mut cpu = vcpu(&mut machine)?;
    let receipt = cpu.inject_nmi()?;
    holds!(receipt.after.masked);
    cpu.resume(Run::Continue)?;
    same!(
        next_stop(&mut machine)?,
        Stop::Breakpoint { pc: handler },
        "the second"
    );
    same!(vcpu(&mut machine)?.regs()?.r12, 1);
    resume(&mut machine, Run::Continue)?;
    same!(
        machine.next_event(Duration::from_millis(100)),
        None,
        "there is no third"
    );
    Ok(())
}

fn a_step_holds_an_nmi_back(_: &Lab) -> Outcome {
    let mut machine = nmi_counter_machine()?;
    vcpu(&mut machine)?.inject_nmi()?;
    for _ in 0..10 {
        step(&mut machine)?;
        let cpu = vcpu(&mut machine)?;
        same!(cpu.regs()?.r12, 0);
        same!(cpu.nmi_state()?.pending, 1);
    }
    Ok(())
}

fn a_breakpoint_is_met_once_each_turn(_: &Lab) -> Outcome {
    let mut machine = machine(1, turns_of_bytes())?;
    let at = |offset| ADDRESS + 0x40 + offset;
    let mut cpu = vcpu(&mut machine)?;
    cpu.set_breakpoints(&[at(0), at(1), at(2), at(3)])?;
    holds!(cpu.set_breakpoints(&[0; 5]).is_err());
    machine.start()?;
    for turn in 0..100 {
        for offset in 0..4 {
            same!(
                next_stop(&mut machine)?,
                Stop::Breakpoint { pc: at(offset) }
            );
            let cpu = vcpu(&mut machine)?;
            same!(cpu.regs()?.rbx, turn, "before the instruction");
            resume(&mut machine, Run::Continue)?;
        }
    }
    same!(next_stop(&mut machine)?, Stop::Breakpoint { pc: at(0) });
    vcpu(&mut machine)?.set_breakpoints(&[])?;
    resume(&mut machine, Run::Continue)?;
    same!(machine.next_event(Duration::from_millis(20)), None);
    Ok(())
}

fn a_step_is_one_instruction_also_at_breakpoints(_: &Lab) -> Outcome {
    let mut machine = machine(1, turns_of_bytes())?;
    let at = |offset| ADDRESS + 0x40 + offset;
    vcpu(&mut machine)?.set_breakpoints(&[at(0), at(2)])?;
    machine.start()?;
    same!(next_stop(&mut machine)?, Stop::Breakpoint { pc: at(0) });
    // The breakpoint at 2 is at the end of the second step: reported when it is resumed from.
    let steps = [at(1), at(2)];
    for pc in steps {
        resume(&mut machine, Run::Step)?;
        same!(next_stop(&mut machine)?, Stop::Stepped { pc });
    }
    resume(&mut machine, Run::Step)?;
    same!(next_stop(&mut machine)?, Stop::Breakpoint { pc: at(2) });
    for pc in [at(3), at(6), at(0)] {
        resume(&mut machine, Run::Step)?;
        same!(next_stop(&mut machine)?, Stop::Stepped { pc });
    }
    Ok(())
}

fn many_steps_stop_early_only_for_a_reason(_: &Lab) -> Outcome {
    let mut machine = machine(1, turns_of_bytes())?;
    let at = |offset| ADDRESS + 0x40 + offset;
    let steps = |count: u32| count.try_into().map(Run::Steps);
    vcpu(&mut machine)?.set_breakpoints(&[at(0)])?;
    machine.start()?;
    same!(next_stop(&mut machine)?, Stop::Breakpoint { pc: at(0) });
    resume(&mut machine, steps(4)?)?;
    same!(next_stop(&mut machine)?, Stop::Stepped { pc: at(6) });
    resume(&mut machine, steps(10)?)?;
    same!(next_stop(&mut machine)?, Stop::Breakpoint { pc: at(0) });
    vcpu(&mut machine)?.set_breakpoints(&[])?;
    resume(&mut machine, steps(50)?)?;
    same!(next_stop(&mut machine)?, Stop::Stepped { pc: at(0) });
    same!(vcpu(&mut machine)?.regs()?.rbx, 11);
    resume(&mut machine, steps(u32::MAX)?)?;
    same!(machine.next_event(Duration::from_millis(20)), None);
    same!(vcpu(&mut machine)?.pause()?, Pause::Paused);
    Ok(())
}

fn paused_steps_go_on_where_they_were(_: &Lab) -> Outcome {
    const TURN: u32 = 5;
    let mut machine = machine(1, turns_of_bytes())?;
    let start = ADDRESS + 0x40;
    vcpu(&mut machine)?.set_breakpoints(&[start])?;
    machine.start()?;
    same!(next_stop(&mut machine)?, Stop::Breakpoint { pc: start });
    vcpu(&mut machine)?.set_breakpoints(&[])?;
    // A fast host may be through before it is paused.
    for turns in (8..20).map(|power| 1 << power) {
        let before = vcpu(&mut machine)?.regs()?.rbx;
        resume(&mut machine, Run::Steps((turns * TURN).try_into()?))?;
        let paused = vcpu(&mut machine)?.pause()?;
        let soon = vcpu(&mut machine)?.regs()?.rbx.wrapping_sub(before);
        if paused == Pause::Paused {
            holds!(soon < u64::from(turns), "paused after all {turns} turns");
            resume(&mut machine, Run::AsBefore)?;
        }
        same!(next_stop(&mut machine)?, Stop::Stepped { pc: start });
        let after = vcpu(&mut machine)?.regs()?.rbx;
        same!(after.wrapping_sub(before), u64::from(turns));
        if paused == Pause::Paused {
            return Ok(());
        }
    }
    Err(Failure::unexpected(
        "a million steps at once",
        "a pause in them",
    ))
}

fn a_step_leaves_no_trap_flag_on_the_stack(_: &Lab) -> Outcome {
    let mut machine = machine(1, pushes_flags())?;
    for offset in [1, 2, 4, 6] {
        resume(&mut machine, Run::Step)?;
        same!(
            next_stop(&mut machine)?,
            Stop::Stepped {
                pc: ADDRESS + offset
            }
        );
    }
    let regs = vcpu(&mut machine)?.regs()?;
    same!((regs.rax & 0xf00, regs.rbx & 0xf00), (0, 0));
    same!(regs.rflags & 0xf00, 0);
    Ok(())
}

fn stepping_over_an_output_is_one_stop(_: &Lab) -> Outcome {
    let mut machine = machine(1, output())?;
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
        resume(&mut machine, Run::Step)?;
        same!(next_stop(&mut machine)?, expected);
    }
    same!(machine.console().len(), 1);
    Ok(())
}

fn the_guests_own_debug_exceptions_are_its_own(_: &Lab) -> Outcome {
    let mut traps = Vec::new();
    for breakpoints in [&[][..], &[0xffff_ffff_8000_0000]] {
        let mut machine = machine(1, steps_itself())?;
        write_interrupt_table(&machine, &[1, 3])?;
        vcpu(&mut machine)?.set_breakpoints(breakpoints)?;
        machine.start()?;
        for turn in 1..=20 {
            holds!(matches!(next_stop(&mut machine)?, Stop::Port { .. }));
            let regs = vcpu(&mut machine)?.regs()?;
            same!(regs.r13, turn, "int3");
            holds!(regs.r14 & 1 << 14 != 0, "DR6 {:#x}", regs.r14);
            traps.push(regs.r12);
            resume(&mut machine, Run::Continue)?;
        }
    }
    let (without, with) = traps.split_at(20);
    holds!(
        without.first() >= Some(&5),
        "it steps itself {without:?} times"
    );
    same!(
        without,
        with,
        "a breakpoint of ours makes no difference to the guest"
    );
    Ok(())
}

fn a_running_vcpu_steps_after_a_pause(_: &Lab) -> Outcome {
    let mut machine = started(1, turns_of_bytes())?;
    for _ in 0..100 {
        vcpu(&mut machine)?.pause()?;
        let before = pc(&mut machine)?;
        let pc = step(&mut machine)?;
        holds!(pc != before, "{pc:#x}");
        resume(&mut machine, Run::Continue)?;
    }
    Ok(())
}

fn a_breakpoint_on_data_stops_behind_the_access(_: &Lab) -> Outcome {
    // Behind the read, behind the write, and the instruction after that.
    let (read, write) = (ADDRESS + 10, ADDRESS + 16);
    let data = |access| some(DataBreakpoint::new(0x30_0000, 8, access), "a breakpoint");
    let mut machine = machine(1, accesses_of_data())?;
    let expected = |machine: &mut Machine, code: &[u64], access, run, pcs: &[u64]| {
        let met = vec![data(access)?];
        machine.set_breakpoints_and_data(code, &[], &met)?;
        for &pc in pcs {
            resume(machine, run)?;
            let met = met.clone();
            same!(next_stop(machine)?, Stop::Data { pc, met });
        }
        Ok::<_, Failure>(())
    };
    let m = &mut machine;
    expected(m, &[], DataAccess::Write, Run::Continue, &[write; 3])?;
    let both = [read, write, read];
    expected(m, &[], DataAccess::ReadWrite, Run::Continue, &both)?;
    // The step that makes the access stops there too, once.
    expected(
        m,
        &[],
        DataAccess::Write,
        Run::Steps(9.try_into()?),
        &[write],
    )?;
    resume(m, Run::Step)?;
    same!(next_stop(m)?, Stop::Stepped { pc: write + 4 });
    // A breakpoint on the next instruction is a stop of its own.
    expected(m, &[write], DataAccess::Write, Run::Continue, &[write])?;
    resume(m, Run::Continue)?;
    same!(next_stop(m)?, Stop::Breakpoint { pc: write });
    let refused = m.set_breakpoints_and_data(&[], &[1, 2, 3, 4], &[data(DataAccess::Write)?]);
    holds!(matches!(
        refused,
        Err(BreakpointError::TooMany { asked: 5 })
    ));
    Ok(())
}
