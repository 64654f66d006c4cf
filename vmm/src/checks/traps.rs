//! More breakpoints than a CPU has: planted traps.

use std::time::Duration;

use super::failure::{Failure, Outcome, holds, refusal, same, some};
use super::lab::{
    ADDRESS, Lab, bytes, guest, interrupted, machine, next_stop, resume, vcpu,
    write_interrupt_table,
};
use crate::{BreakpointError, Machine, Run, Stop, TrapError};

super::checks! {
    Machines:
        code_that_the_guest_changed_is_told_of_and_left_alone
        a_checkpoint_has_no_traps;
    KernelCode:
        each_of_eight_places_is_met_once_a_turn
        on_the_callers_thread_they_are_met_too
        an_nmi_is_taken_at_the_trap_and_the_arrival_told_once
        a_step_from_a_trap_is_one_instruction
        an_instruction_that_faults_comes_back_to_its_trap
        a_trap_keeps_the_shadow_of_the_instruction_before
        places_that_take_no_trap_are_limited
        the_guests_own_breakpoints_stay_in_effect;
}

// A loop of seven instructions of three bytes, and a jump back, from 0x40 on. Vector 2 counts NMIs
// in r12.
guest!(turns_of_three_bytes:
    "lidt [0x1ffff0]"
    "xor r12d, r12d"
    "xor ebx, ebx"
    "xor eax, eax"
    "sti"
    ".skip 0x40 - (. - 998b), 0x90"
    "inc rbx"
    "mov rcx, rbx"
    "mov rdx, rcx"
    "mov rsi, rdx"
    "mov rdi, rsi"
    "mov r8, rdi"
    "mov rax, r8"
    "jmp 998b + 0x40"
    ".skip 0x100 - (. - 998b)"
    "inc r12"
    "iretq"
);

guest!(short:
    "2: push rax"
    "pop rax"
    "push rbx"
    "pop rbx"
    "push rcx"
    "pop rcx"
    "xor eax, eax"
    "xor ebx, ebx"
    "jmp 2b"
);

// Reads where nothing is mapped; vector 14 points it to where something is, and counts in r12.
guest!(faults:
    "lidt [0x1ffff0]"
    "xor r12d, r12d"
    ".skip 0x40 - (. - 998b), 0x90"
    "2: mov rbx, 0x800000000"
    "mov rax, [rbx]"
    "mov rcx, rcx"
    "mov rdx, rdx"
    "mov rsi, rsi"
    "mov rdi, rdi"
    "jmp 2b"
    ".skip 0x100 - (. - 998b)"
    "inc r12"
    "mov ebx, 0x100000"
    "add rsp, 8"
    "iretq"
);

// Lets interrupts in, and has none.
guest!(lets_in:
    ".skip 0x40, 0x90"
    "2: sti"
    "mov rax, rax"
    "mov rcx, rcx"
    "mov rdx, rdx"
    "mov rsi, rsi"
    "mov rdi, rdi"
    "cli"
    "jmp 2b"
);

// Breaks at an instruction of its own, and watches a word that it writes; vector 1 counts in r12.
guest!(has_breakpoints_of_its_own:
    "lidt [0x1ffff0]"
    "xor r12d, r12d"
    "lea rax, [rip + 3f]"
    "mov dr0, rax"
    "mov eax, 0x180000"
    "mov dr1, rax"
    // Enabled: 0, execution; 1, eight bytes written.
    "mov eax, 0x90060a"
    "mov dr7, rax"
    "out 0xe0, eax"
    ".skip 0x60 - (. - 998b), 0x90"
    "2: mov rcx, rcx"
    "3: mov rdx, rdx"
    "mov [0x180000], rdx"
    "mov rsi, rsi"
    "out 0xe1, eax"
    "jmp 2b"
    ".skip 0x100 - (. - 998b)"
    "inc r12"
    "push rax"
    "xor eax, eax"
    "mov dr6, rax"
    "pop rax"
    "or qword ptr [rsp + 16], 0x10000"
    "iretq"
);

fn at(offset: u64) -> u64 {
    ADDRESS + 0x40 + offset
}

/// The seven instructions, and the jump back.
fn eight() -> Vec<u64> {
    (0..8).map(|number| at(3 * number)).collect()
}

fn rbx(machine: &mut Machine) -> Result<u64, Failure> {
    Ok(vcpu(machine)?.regs()?.rbx)
}

/// Lets vCPU 0 go on to its next stop, past those that are nothing new.
fn go_on(machine: &mut Machine) -> Result<Stop, Failure> {
    loop {
        resume(machine, Run::Continue)?;
        match next_stop(machine)? {
            Stop::BackAtBreakpoint { .. } => {}
            stop => return Ok(stop),
        }
    }
}

fn each_of_eight_places_is_met_once_a_turn(_: &Lab) -> Outcome {
    let mut machine = machine(1, turns_of_three_bytes())?;
    machine.set_breakpoints(&eight(), &[])?;
    let mut all = Vec::new();
    let cpu = vcpu(&mut machine)?;
    for pc in eight() {
        let mut code = [0; 3];
        cpu.read_virt(pc, &mut code)?;
        all.push(code);
    }
    same!(all.first(), Some(&[0x48, 0xff, 0xc3]), "traps are not seen");
    let there: [u8; 21] = bytes(machine.memory(), at(0))?;
    let planted = there.chunks(3).zip(&all).filter(|(now, was)| now != was);
    same!(
        planted.count(),
        4,
        "but are there: the jump has one of the CPU's own"
    );
    for turn in 0..50 {
        for (number, pc) in (0..).zip(eight()) {
            let stop = match (turn, number) {
                (0, 0) => {
                    resume(&mut machine, Run::Continue)?;
                    next_stop(&mut machine)?
                }
                _ => go_on(&mut machine)?,
            };
            same!(stop, Stop::Breakpoint { pc });
            let done = turn + u64::from(number > 0);
            same!(rbx(&mut machine)?, done, "before the instruction");
        }
    }
    machine.set_breakpoints(&[], &[])?;
    let after: [u8; 21] = bytes(machine.memory(), at(0))?;
    let instructions: Vec<u8> = all.iter().take(7).flatten().copied().collect();
    same!(after.as_slice(), instructions.as_slice());
    resume(&mut machine, Run::Continue)?;
    same!(machine.next_event(Duration::from_millis(20)), None);
    Ok(())
}

fn on_the_callers_thread_they_are_met_too(_: &Lab) -> Outcome {
    let mut machine = machine(1, turns_of_three_bytes())?;
    machine.run_here();
    machine.set_breakpoints(&eight(), &[])?;
    for pc in eight().into_iter().cycle().take(24) {
        // Past the arrivals that are nothing new.
        let stop = loop {
            resume(&mut machine, Run::Continue)?;
            match next_stop(&mut machine)? {
                Stop::BackAtBreakpoint { .. } => {}
                stop => break stop,
            }
        };
        same!(stop, Stop::Breakpoint { pc });
    }
    machine.set_breakpoints(&[], &[])?;
    resume(&mut machine, Run::Continue)?;
    same!(machine.next_event(Duration::from_millis(20)), None);
    Ok(())
}

fn an_nmi_is_taken_at_the_trap_and_the_arrival_told_once(_: &Lab) -> Outcome {
    let mut machine = machine(1, turns_of_three_bytes())?;
    write_interrupt_table(&machine, &[2])?;
    let handler = ADDRESS + 0x100;
    let mut places = eight();
    places.push(handler);
    machine.set_breakpoints(&places, &[])?;
    resume(&mut machine, Run::Continue)?;
    let mut stop = next_stop(&mut machine)?;
    for turn in 1..=20 {
        for pc in eight() {
            same!(stop, Stop::Breakpoint { pc });
            let injected = vcpu(&mut machine)?.inject_nmi()?;
            holds!(!injected.after.masked);
            resume(&mut machine, Run::Continue)?;
            same!(next_stop(&mut machine)?, Stop::Breakpoint { pc: handler });
            same!(
                interrupted(&mut machine)?,
                pc,
                "the interrupted instruction"
            );
            stop = go_on(&mut machine)?;
        }
        let regs = vcpu(&mut machine)?.regs()?;
        same!((regs.rbx, regs.r12), (turn, 8 * turn));
    }
    Ok(())
}

fn a_step_from_a_trap_is_one_instruction(_: &Lab) -> Outcome {
    let mut machine = machine(1, turns_of_three_bytes())?;
    machine.set_breakpoints(&eight(), &[])?;
    resume(&mut machine, Run::Continue)?;
    same!(next_stop(&mut machine)?, Stop::Breakpoint { pc: at(0) });
    for _ in 0..5 {
        for number in 1..=8 {
            let pc = at(3 * (number % 8));
            resume(&mut machine, Run::Step)?;
            same!(next_stop(&mut machine)?, Stop::Stepped { pc });
            // As with breakpoints of the CPU's own: it is met when it is resumed from.
            resume(&mut machine, Run::Step)?;
            same!(next_stop(&mut machine)?, Stop::Breakpoint { pc });
        }
    }
    same!(rbx(&mut machine)?, 5);
    resume(&mut machine, Run::Steps(3.try_into()?))?;
    same!(next_stop(&mut machine)?, Stop::Breakpoint { pc: at(3) });
    Ok(())
}

fn an_instruction_that_faults_comes_back_to_its_trap(_: &Lab) -> Outcome {
    let mut machine = machine(1, faults())?;
    write_interrupt_table(&machine, &[14])?;
    // The load is the second: behind the move of ten bytes.
    let places = [10, 13, 16, 19, 22].map(at);
    machine.set_breakpoints(&[at(13), at(16), at(19), at(22)], &[])?;
    machine.set_breakpoints(&places, &[])?;
    resume(&mut machine, Run::Continue)?;
    let mut stop = next_stop(&mut machine)?;
    for turn in 1..=5 {
        for pc in places {
            same!(stop, Stop::Breakpoint { pc });
            stop = go_on(&mut machine)?;
        }
        let regs = vcpu(&mut machine)?.regs()?;
        same!((regs.r12, regs.rflags & 0x100), (turn, 0));
    }
    Ok(())
}

fn a_trap_keeps_the_shadow_of_the_instruction_before(_: &Lab) -> Outcome {
    let mut machine = machine(1, lets_in())?;
    // The last one first: what comes first has a breakpoint of the CPU's own.
    let places = [13, 10, 7, 4].map(at);
    machine.set_breakpoints(&places, &[])?;
    machine.set_breakpoints(&[13, 10, 7, 4, 1].map(at), &[])?;
    same!(
        bytes(machine.memory(), at(1))?,
        [0xe6],
        "it is a trap that is looked at"
    );
    resume(&mut machine, Run::Continue)?;
    for _ in 0..5 {
        same!(next_stop(&mut machine)?, Stop::Breakpoint { pc: at(1) });
        holds!(vcpu(&mut machine)?.nmi_state()?.shadow);
        for offset in [4, 7, 10, 13] {
            same!(go_on(&mut machine)?, Stop::Breakpoint { pc: at(offset) });
            holds!(!vcpu(&mut machine)?.nmi_state()?.shadow);
        }
        resume(&mut machine, Run::Continue)?;
    }
    Ok(())
}

fn places_that_take_no_trap_are_limited(_: &Lab) -> Outcome {
    let mut machine = machine(1, short())?;
    let places: Vec<u64> = (0..6).map(|offset| ADDRESS + offset).collect();
    let one_byte = |count| places.get(..count).unwrap_or_default();
    let refused = refusal(machine.set_breakpoints(one_byte(5), &[]))?;
    holds!(
        matches!(refused, BreakpointError::TooMany { asked: 5 }),
        "{refused}"
    );
    let refused = refusal(machine.set_breakpoints(one_byte(3), &[0x5000, 0x6000]))?;
    holds!(
        matches!(refused, BreakpointError::TooMany { asked: 5 }),
        "{refused}"
    );
    // The CPU's own go to those that need them.
    let others = [ADDRESS + 6, ADDRESS + 8, ADDRESS + 10];
    machine.set_breakpoints(&others, &[])?;
    let all: Vec<u64> = { one_byte(4).iter().chain(&others).copied() }.collect();
    machine.set_breakpoints(&all, &[])?;
    resume(&mut machine, Run::Continue)?;
    let mut stop = next_stop(&mut machine)?;
    for pc in { 0..20 }.flat_map(|_| all.iter().copied()) {
        same!(stop, Stop::Breakpoint { pc });
        stop = go_on(&mut machine)?;
    }
    Ok(())
}

fn code_that_the_guest_changed_is_told_of_and_left_alone(_: &Lab) -> Outcome {
    let mut machine = machine(1, turns_of_three_bytes())?;
    machine.set_breakpoints(&eight(), &[])?;
    let there: [u8; 24] = bytes(machine.memory(), at(0))?;
    let mut instructions = eight().into_iter().zip(there.chunks(3));
    let trap = instructions.find(|(_, code)| code.first() == Some(&0xe6));
    let (address, _) = some(trap, "a trap")?;
    machine.memory().write(address, &[0xcc])?;
    let told = refusal(machine.set_breakpoints(&[], &[]))?;
    holds!(
        matches!(told, BreakpointError::Trap(TrapError::Changed { address: it, .. }) if it == address),
        "{told}"
    );
    same!(bytes(machine.memory(), address)?, [0xcc, 0xf7]);
    Ok(())
}

fn a_checkpoint_has_no_traps(_: &Lab) -> Outcome {
    let mut machine = machine(1, turns_of_three_bytes())?;
    let before = machine.checkpoint()?;
    machine.set_breakpoints(&eight(), &[])?;
    let with = machine.checkpoint()?;
    machine.set_breakpoints(&[], &[])?;
    same!(machine.differences(&with)?, [""; 0]);
    machine.set_breakpoints(&eight(), &[])?;
    machine.restore(&before)?;
    let pages = machine.differences(&before)?;
    same!(
        pages,
        ["page 0x100000"],
        "traps are what the caller wants, and stay"
    );
    machine.restore(&before)?;
    let again = machine.restore(&before)?.copied;
    same!(again, 0, "code under traps is not written anew");
    machine.set_breakpoints(&[], &[])?;
    same!(machine.differences(&before)?, [""; 0]);
    Ok(())
}

fn the_guests_own_breakpoints_stay_in_effect(_: &Lab) -> Outcome {
    let turn = |machine: &mut Machine, places: &[u64]| -> Result<u64, Failure> {
        let mut met = Vec::new();
        loop {
            match go_on(machine)? {
                Stop::Breakpoint { pc } => met.push(pc),
                Stop::Port { port: 0xe1, .. } => break,
                other => return Err(Failure::unexpected(format!("{other:x?}"), "a breakpoint")),
            }
        }
        same!(met.as_slice(), places);
        Ok(vcpu(machine)?.regs()?.r12)
    };
    let mut machine = machine(1, has_breakpoints_of_its_own())?;
    write_interrupt_table(&machine, &[1])?;
    resume(&mut machine, Run::Continue)?;
    holds!(matches!(
        next_stop(&mut machine)?,
        Stop::Port { port: 0xe0, .. }
    ));
    for number in 1..=5 {
        same!(turn(&mut machine, &[])?, 2 * number, "one of each kind");
    }
    let refused = refusal(machine.set_breakpoints(&[], &[0x5000]))?;
    holds!(
        matches!(refused, BreakpointError::NoneLeft { asked: 1 }),
        "{refused}"
    );
    // Among them the instruction that it breaks at, and the one that writes the word.
    let places = [0x60, 0x63, 0x66, 0x6e].map(|offset| ADDRESS + offset);
    machine.set_breakpoints(&places, &[])?;
    for number in 6..=20 {
        same!(turn(&mut machine, &places)?, 2 * number);
    }
    Ok(())
}
