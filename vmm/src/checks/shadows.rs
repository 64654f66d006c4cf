//! Instructions that hold interrupts, or debug exceptions, back from the one behind them: `mov ss`, `sti`, and `popf`, which does not.

use super::failure::{Failure, Outcome, holds, same};
use super::lab::{
    ADDRESS, Lab, guest, interrupted, machine, run, step, vcpu, write_interrupt_table,
};
use crate::{Machine, Run, Stop};

super::checks! {
    KernelCode:
        steps_go_on_behind_mov_ss
        a_breakpoint_behind_the_shadow_of_mov_ss_is_met
        steps_past_popf_and_sti_are_one_instruction_each
        an_nmi_in_the_shadow_of_sti_is_taken_where_the_state_says;
}

/// Where the guests' loops begin.
const LOOP: u64 = ADDRESS + 0x40;
/// Their handler.
const HANDLER: u64 = ADDRESS + 0x100;

// Vector 1 counts in r12.
guest!(loads_ss:
    "lidt [0x1ffff0]"
    "xor r12d, r12d"
    "xor ebx, ebx"
    "mov eax, ss"
    ".skip 0x40 - (. - 998b), 0x90"
    "mov ss, eax"
    "inc rbx"
    "inc rbx"
    "inc rbx"
    "jmp 998b + 0x40"
    ".skip 0x100 - (. - 998b)"
    "inc r12"
    "iretq"
);

// No handler: an exception that nobody wants ends in a triple fault.
guest!(changes_flags:
    "pushfq"
    "pop rax"
    "or rax, 0x200"
    ".skip 0x40 - (. - 998b), 0x90"
    "push rax"
    "popfq"
    "inc rbx"
    "cli"
    "sti"
    "inc rbx"
    "pushfq"
    "pop rcx"
    "cli"
    "jmp 998b + 0x40"
);

// Vector 2 counts in r12.
guest!(lets_nmis_in:
    "lidt [0x1ffff0]"
    "xor r12d, r12d"
    ".skip 0x40 - (. - 998b), 0x90"
    "cli"
    "sti"
    "inc rbx"
    "inc rbx"
    "jmp 998b + 0x40"
    ".skip 0x100 - (. - 998b)"
    "inc r12"
    "iretq"
);

/// A machine at the start of its loop.
fn at_loop(code: &[u8], vectors: &[u64]) -> Result<Machine, Failure> {
    let mut machine = machine(1, code)?;
    write_interrupt_table(&machine, vectors)?;
    machine.set_breakpoints(&[LOOP], &[])?;
    let stop = run(&mut machine, Run::Continue)?;
    same!(stop, Stop::Breakpoint { pc: LOOP });
    machine.set_breakpoints(&[], &[])?;
    Ok(machine)
}

/// A step from `mov ss` ends behind it, or, as the CPU has it, behind the next instruction too (Intel SDM vol. 3, "Masking
/// Exceptions and Interrupts When Switching Stacks"): no later, and the steps behind it are one instruction each.
fn steps_go_on_behind_mov_ss(_: &Lab) -> Outcome {
    let mut machine = at_loop(loads_ss(), &[1])?;
    let [held, behind] = [LOOP + 2, LOOP + 5];
    for turn in 1..=10 {
        let first = step(&mut machine)?;
        holds!([held, behind].contains(&first), "a step to {first:#x}");
        if first == held {
            same!(step(&mut machine)?, behind);
        }
        for pc in [LOOP + 8, LOOP + 11, LOOP] {
            same!(step(&mut machine)?, pc, "turn {turn}");
        }
        let regs = vcpu(&mut machine)?.regs()?;
        same!(
            (regs.rbx, regs.r12),
            (3 * turn, 0),
            "no exception is the guest's"
        );
    }
    Ok(())
}

/// A breakpoint right behind `mov ss` may have no effect (Intel SDM vol. 3, "Instruction-Breakpoint Exception Condition"), one behind that has.
fn a_breakpoint_behind_the_shadow_of_mov_ss_is_met(_: &Lab) -> Outcome {
    let mut machine = at_loop(loads_ss(), &[1])?;
    let [held, behind] = [LOOP + 2, LOOP + 5];
    machine.set_breakpoints(&[held, behind], &[])?;
    for turn in 0..10 {
        let mut stop = run(&mut machine, Run::Continue)?;
        if stop == (Stop::Breakpoint { pc: held }) {
            stop = run(&mut machine, Run::Continue)?;
        }
        same!(stop, Stop::Breakpoint { pc: behind });
        let regs = vcpu(&mut machine)?.regs()?;
        same!((regs.rbx, regs.r12), (3 * turn + 1, 0));
    }
    Ok(())
}

fn steps_past_popf_and_sti_are_one_instruction_each(_: &Lab) -> Outcome {
    let mut machine = at_loop(changes_flags(), &[])?;
    // push, popfq, inc, cli, sti, inc, pushfq, pop, cli, jmp.
    let ends = [1, 2, 5, 6, 7, 10, 11, 12, 13, 0];
    for turn in 1..=10 {
        for end in ends {
            same!(step(&mut machine)?, LOOP + end, "turn {turn}");
        }
        let regs = vcpu(&mut machine)?.regs()?;
        same!(regs.rbx, 2 * turn);
        same!(
            regs.rcx & 0x300,
            0x200,
            "interrupts are on, and no trap flag is seen"
        );
    }
    Ok(())
}

/// KVM reports the shadow, and it has the CPU heed it (`svm_nmi_blocked`, `vmx_nmi_blocked`).
fn an_nmi_in_the_shadow_of_sti_is_taken_where_the_state_says(_: &Lab) -> Outcome {
    let mut machine = at_loop(lets_nmis_in(), &[2])?;
    // `cli`, `sti`: the shadow is over the first `inc`.
    let [shadowed, behind] = [LOOP + 2, LOOP + 5];
    for turn in 1..=10 {
        machine.set_breakpoints(&[shadowed], &[])?;
        let stop = run(&mut machine, Run::Continue)?;
        same!(stop, Stop::Breakpoint { pc: shadowed });
        machine.set_breakpoints(&[HANDLER], &[])?;
        let receipt = vcpu(&mut machine)?.inject_nmi()?;
        let stop = run(&mut machine, Run::Continue)?;
        same!(stop, Stop::Breakpoint { pc: HANDLER });
        let expected = match receipt.after.takes_one_here() {
            true => shadowed,
            false => behind,
        };
        same!(
            interrupted(&mut machine)?,
            expected,
            "with {:?}",
            receipt.after
        );
        same!(vcpu(&mut machine)?.regs()?.r12, turn - 1);
    }
    Ok(())
}
