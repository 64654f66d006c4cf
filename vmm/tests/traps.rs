//! More breakpoints than a CPU has: planted traps. They need a KVM that runs kernel code as a CPU
//! does; elsewhere these tests say that they skip.
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
    ADDRESS, PATIENCE, guest, machine, next_stop, runs_kernel_code, write_interrupt_table,
};
use unwindlab_vmm::{BreakpointError, Machine, Run, Stop, TrapError};

// A loop of seven instructions of three bytes, and a jump back, from 0x40 on. Vector 2 counts NMIs
// in r12.
guest!(turns:
    "lidt [0x1ffff0]"
    "xor r12d, r12d"
    "xor ebx, ebx"
    "xor eax, eax"
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
guest!(debugs_itself:
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

fn resume(machine: &mut Machine, run: Run) {
    machine.vcpu(0).unwrap().resume(run).unwrap();
}

fn rbx(machine: &mut Machine) -> u64 {
    machine.vcpu(0).unwrap().regs().unwrap().rbx
}

/// Lets vCPU 0 go on to its next stop, past those that are nothing new.
fn go_on(machine: &mut Machine) -> Stop {
    loop {
        resume(machine, Run::Continue);
        match next_stop(machine) {
            Stop::BackAtBreakpoint { .. } => {}
            stop => return stop,
        }
    }
}

#[test]
fn each_of_eight_places_is_met_once_a_turn() {
    if !runs_kernel_code() {
        return;
    }
    let mut machine = machine(1, turns());
    machine.set_breakpoints(&eight(), &[]).unwrap();
    let mut code = [0; 3];
    let vcpu = machine.vcpu(0).unwrap();
    let all: Vec<[u8; 3]> = { eight().into_iter() }
        .map(|pc| {
            vcpu.read_virt(pc, &mut code).unwrap();
            code
        })
        .collect();
    assert_eq!(all[0], [0x48, 0xff, 0xc3], "traps are not seen");
    let mut there = [0; 21];
    machine.memory().read(at(0), &mut there).unwrap();
    let planted = there.chunks(3).zip(&all).filter(|(now, was)| now != was);
    assert_eq!(
        planted.count(),
        4,
        "but are there: the jump has one of the CPU's own"
    );
    for turn in 0..50 {
        for (number, pc) in (0..).zip(eight()) {
            let stop = match (turn, number) {
                (0, 0) => {
                    resume(&mut machine, Run::Continue);
                    next_stop(&mut machine)
                }
                _ => go_on(&mut machine),
            };
            assert_eq!(stop, Stop::Breakpoint { pc });
            let done = turn + u64::from(number > 0);
            assert_eq!(rbx(&mut machine), done, "before the instruction");
        }
    }
    machine.set_breakpoints(&[], &[]).unwrap();
    let mut after = [0; 21];
    machine.memory().read(at(0), &mut after).unwrap();
    assert_eq!(
        after.chunks(3).collect::<Vec<_>>(),
        all[..7].iter().collect::<Vec<_>>()
    );
    resume(&mut machine, Run::Continue);
    assert_eq!(machine.next_event(Duration::from_millis(20)), None);
}

#[test]
fn on_the_callers_thread_they_are_met_too() {
    if !runs_kernel_code() {
        return;
    }
    let mut machine = machine(1, turns());
    machine.set_breakpoints(&eight(), &[]).unwrap();
    for pc in eight().into_iter().cycle().take(24) {
        let event = machine.run_here(0, Run::Continue, PATIENCE).unwrap();
        assert_eq!(event.unwrap().stop, Stop::Breakpoint { pc });
    }
    machine.set_breakpoints(&[], &[]).unwrap();
    let time = Duration::from_millis(20);
    assert_eq!(machine.run_here(0, Run::Continue, time).unwrap(), None);
}

#[test]
fn an_nmi_is_taken_at_the_trap_and_the_arrival_told_once() {
    if !runs_kernel_code() {
        return;
    }
    let mut machine = machine(1, turns());
    write_interrupt_table(&machine, &[2]);
    let handler = ADDRESS + 0x100;
    let mut places = eight();
    places.push(handler);
    machine.set_breakpoints(&places, &[]).unwrap();
    resume(&mut machine, Run::Continue);
    let mut stop = next_stop(&mut machine);
    for turn in 1..=20 {
        for pc in eight() {
            assert_eq!(stop, Stop::Breakpoint { pc });
            let injected = machine.vcpu(0).unwrap().inject_nmi().unwrap();
            assert!(!injected.after.masked);
            resume(&mut machine, Run::Continue);
            assert_eq!(next_stop(&mut machine), Stop::Breakpoint { pc: handler });
            let vcpu = machine.vcpu(0).unwrap();
            let mut frame = [0; 8];
            vcpu.read_virt(vcpu.regs().unwrap().rsp, &mut frame)
                .unwrap();
            assert_eq!(u64::from_le_bytes(frame), pc, "the interrupted instruction");
            stop = go_on(&mut machine);
        }
        let regs = machine.vcpu(0).unwrap().regs().unwrap();
        assert_eq!((regs.rbx, regs.r12), (turn, 8 * turn));
    }
}

#[test]
fn a_step_from_a_trap_is_one_instruction() {
    if !runs_kernel_code() {
        return;
    }
    let mut machine = machine(1, turns());
    machine.set_breakpoints(&eight(), &[]).unwrap();
    resume(&mut machine, Run::Continue);
    assert_eq!(next_stop(&mut machine), Stop::Breakpoint { pc: at(0) });
    for _ in 0..5 {
        for number in 1..=8 {
            let pc = at(3 * (number % 8));
            resume(&mut machine, Run::Step);
            assert_eq!(next_stop(&mut machine), Stop::Stepped { pc });
            // As with breakpoints of the CPU's own: it is met when it is resumed from.
            resume(&mut machine, Run::Step);
            assert_eq!(next_stop(&mut machine), Stop::Breakpoint { pc });
        }
    }
    assert_eq!(rbx(&mut machine), 5);
    resume(&mut machine, Run::Steps(3.try_into().unwrap()));
    assert_eq!(next_stop(&mut machine), Stop::Breakpoint { pc: at(3) });
}

#[test]
fn an_instruction_that_faults_comes_back_to_its_trap() {
    if !runs_kernel_code() {
        return;
    }
    let mut machine = machine(1, faults());
    write_interrupt_table(&machine, &[14]);
    // The load is the second: behind the move of ten bytes.
    let places = [10, 13, 16, 19, 22].map(at);
    machine
        .set_breakpoints(&[at(13), at(16), at(19), at(22)], &[])
        .unwrap();
    machine.set_breakpoints(&places, &[]).unwrap();
    resume(&mut machine, Run::Continue);
    let mut stop = next_stop(&mut machine);
    for turn in 1..=5 {
        for pc in places {
            assert_eq!(stop, Stop::Breakpoint { pc });
            stop = go_on(&mut machine);
        }
        let regs = machine.vcpu(0).unwrap().regs().unwrap();
        assert_eq!((regs.r12, regs.rflags & 0x100), (turn, 0));
    }
}

#[test]
fn a_trap_keeps_the_shadow_of_the_instruction_before() {
    if !runs_kernel_code() {
        return;
    }
    let mut machine = machine(1, lets_in());
    // The last one first: what comes first has a breakpoint of the CPU's own.
    let places = [13, 10, 7, 4].map(at);
    machine.set_breakpoints(&places, &[]).unwrap();
    machine
        .set_breakpoints(&[13, 10, 7, 4, 1].map(at), &[])
        .unwrap();
    let mut there = [0; 1];
    machine.memory().read(at(1), &mut there).unwrap();
    assert_eq!(there, [0xe6], "it is a trap that is looked at");
    resume(&mut machine, Run::Continue);
    for _ in 0..5 {
        assert_eq!(next_stop(&mut machine), Stop::Breakpoint { pc: at(1) });
        assert!(machine.vcpu(0).unwrap().nmi_state().unwrap().shadow);
        for offset in [4, 7, 10, 13] {
            assert_eq!(go_on(&mut machine), Stop::Breakpoint { pc: at(offset) });
            assert!(!machine.vcpu(0).unwrap().nmi_state().unwrap().shadow);
        }
        resume(&mut machine, Run::Continue);
    }
}

#[test]
fn places_that_take_no_trap_are_limited() {
    if !runs_kernel_code() {
        return;
    }
    let mut machine = machine(1, short());
    let one_byte: Vec<u64> = (0..6).map(|offset| ADDRESS + offset).collect();
    let refused = machine.set_breakpoints(&one_byte[..5], &[]).unwrap_err();
    assert!(
        matches!(refused, BreakpointError::TooMany { asked: 5 }),
        "{refused}"
    );
    let refused = machine
        .set_breakpoints(&one_byte[..3], &[0x5000, 0x6000])
        .unwrap_err();
    assert!(
        matches!(refused, BreakpointError::TooMany { asked: 5 }),
        "{refused}"
    );
    // The CPU's own go to those that need them.
    let others = [ADDRESS + 6, ADDRESS + 8, ADDRESS + 10];
    machine.set_breakpoints(&others, &[]).unwrap();
    let all: Vec<u64> = { one_byte[..4].iter().chain(&others).copied() }.collect();
    machine.set_breakpoints(&all, &[]).unwrap();
    resume(&mut machine, Run::Continue);
    let mut stop = next_stop(&mut machine);
    for pc in { 0..20 }.flat_map(|_| all.iter().copied()) {
        assert_eq!(stop, Stop::Breakpoint { pc });
        stop = go_on(&mut machine);
    }
}

#[test]
fn code_that_the_guest_changed_is_told_of_and_left_alone() {
    let mut machine = machine(1, turns());
    machine.set_breakpoints(&eight(), &[]).unwrap();
    let mut there = [0; 24];
    machine.memory().read(at(0), &mut there).unwrap();
    let trap = (0..8).find(|it| there[3 * it] == 0xe6).unwrap();
    let address = at(3 * trap as u64);
    machine.memory().write(address, &[0xcc]).unwrap();
    let told = machine.set_breakpoints(&[], &[]).unwrap_err();
    assert!(
        matches!(told, BreakpointError::Trap(TrapError::Changed { address: it, .. }) if it == address),
        "{told}"
    );
    let mut now = [0; 2];
    machine.memory().read(address, &mut now).unwrap();
    assert_eq!(now, [0xcc, 0xf7]);
}

#[test]
fn a_checkpoint_has_no_traps() {
    let mut machine = machine(1, turns());
    let before = machine.checkpoint().unwrap();
    machine.set_breakpoints(&eight(), &[]).unwrap();
    let with = machine.checkpoint().unwrap();
    machine.set_breakpoints(&[], &[]).unwrap();
    assert_eq!(machine.differences(&with).unwrap(), [""; 0]);
    machine.set_breakpoints(&eight(), &[]).unwrap();
    machine.restore(&before).unwrap();
    let pages = machine.differences(&before).unwrap();
    assert_eq!(
        pages,
        ["page 0x100000"],
        "traps are what the caller wants, and stay"
    );
    machine.set_breakpoints(&[], &[]).unwrap();
    assert_eq!(machine.differences(&before).unwrap(), [""; 0]);
}

#[test]
fn the_guests_own_breakpoints_stay_in_effect() {
    if !runs_kernel_code() {
        return;
    }
    let turn = |machine: &mut Machine, places: &[u64]| {
        let mut met = Vec::new();
        loop {
            match go_on(machine) {
                Stop::Breakpoint { pc } => met.push(pc),
                Stop::Port { port: 0xe1, .. } => break,
                other => panic!("{other:x?}"),
            }
        }
        assert_eq!(met, places);
        machine.vcpu(0).unwrap().regs().unwrap().r12
    };
    let mut machine = machine(1, debugs_itself());
    write_interrupt_table(&machine, &[1]);
    resume(&mut machine, Run::Continue);
    assert!(matches!(
        next_stop(&mut machine),
        Stop::Port { port: 0xe0, .. }
    ));
    for number in 1..=5 {
        assert_eq!(turn(&mut machine, &[]), 2 * number, "one of each kind");
    }
    let refused = machine.set_breakpoints(&[], &[0x5000]).unwrap_err();
    assert!(
        matches!(refused, BreakpointError::NoneLeft { asked: 1 }),
        "{refused}"
    );
    // Among them the instruction that it breaks at, and the one that writes the word.
    let places = [0x60, 0x63, 0x66, 0x6e].map(|offset| ADDRESS + offset);
    machine.set_breakpoints(&places, &[]).unwrap();
    for number in 6..=20 {
        assert_eq!(turn(&mut machine, &places), 2 * number);
    }
}
