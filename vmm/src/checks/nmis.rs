//! NMIs that come one after the other, at one instruction, and at a breakpoint.

use super::failure::{Failure, Outcome, holds, same};
use super::lab::{
    ADDRESS, Lab, guest, interrupted, machine, run, step, vcpu, write_interrupt_table,
};
use crate::kvm::cpuid::on_tcg;
use crate::{Machine, Run, Stop};

super::checks! {
    KernelCode:
        a_second_nmi_is_taken_right_behind_the_iret
        several_nmis_are_taken_at_one_instruction
        a_breakpoint_that_was_passed_is_passed_behind_an_nmi_too
        a_breakpoint_that_was_not_met_is_met_behind_an_nmi;
}

/// The guest's instructions of interest, one byte each.
const LOOP: u64 = ADDRESS + 0x40;
/// Its handler.
const HANDLER: u64 = ADDRESS + 0x100;

// Vector 2 counts NMIs in r12; the loop counts its turns in rbx.
guest!(takes_nmis:
    "lidt [0x1ffff0]"
    "xor r12d, r12d"
    "xor ebx, ebx"
    "sti"
    ".skip 0x40 - (. - 998b), 0x90"
    "nop"
    "nop"
    "nop"
    "inc rbx"
    "jmp 998b + 0x40"
    ".skip 0x100 - (. - 998b)"
    "inc r12"
    "iretq"
);

/// A machine at the first instruction of its loop.
fn at_loop() -> Result<Machine, Failure> {
    let mut machine = machine(1, takes_nmis())?;
    write_interrupt_table(&machine, &[2])?;
    machine.set_breakpoints(&[LOOP], &[])?;
    let stop = run(&mut machine, Run::Continue)?;
    same!(stop, Stop::Breakpoint { pc: LOOP });
    Ok(machine)
}

/// Has the vCPU take an NMI here: it is at the handler then.
fn take(machine: &mut Machine) -> Outcome {
    let receipt = vcpu(machine)?.inject_nmi()?;
    holds!(receipt.after.takes_one_here(), "{:?}", receipt.after);
    let stop = run(machine, Run::Continue)?;
    same!(stop, Stop::Breakpoint { pc: HANDLER });
    holds!(vcpu(machine)?.nmi_state()?.masked, "it handles one");
    Ok(())
}

/// NMIs are blocked until IRET (Intel SDM vol. 3, "Handling Multiple NMIs"; AMD APM vol. 2, 8.2.3): the second one comes before another instruction.
fn a_second_nmi_is_taken_right_behind_the_iret(_: &Lab) -> Outcome {
    let mut machine = at_loop()?;
    machine.set_breakpoints(&[HANDLER], &[])?;
    for turn in 0..10 {
        let pc = step(&mut machine)?;
        let rbx = vcpu(&mut machine)?.regs()?.rbx;
        take(&mut machine)?;
        same!(interrupted(&mut machine)?, pc);
        let receipt = vcpu(&mut machine)?.inject_nmi()?;
        holds!(receipt.after.masked, "{:?}", receipt.after);
        let stop = run(&mut machine, Run::Continue)?;
        same!(stop, Stop::Breakpoint { pc: HANDLER }, "the second");
        same!(
            interrupted(&mut machine)?,
            pc,
            "nothing was executed in between"
        );
        let regs = vcpu(&mut machine)?.regs()?;
        same!((regs.rbx, regs.r12), (rbx, 2 * turn + 1));
        // `inc` and `iretq`, and what follows.
        step(&mut machine)?;
        same!(step(&mut machine)?, pc);
    }
    Ok(())
}

/// By steps, which stop behind the `iret` on every host.
fn several_nmis_are_taken_at_one_instruction(_: &Lab) -> Outcome {
    let mut machine = at_loop()?;
    machine.set_breakpoints(&[HANDLER], &[])?;
    for place in 0..5 {
        let pc = step(&mut machine)?;
        let rbx = vcpu(&mut machine)?.regs()?.rbx;
        for number in 1..=5 {
            take(&mut machine)?;
            same!(interrupted(&mut machine)?, pc, "NMI {number}");
            step(&mut machine)?;
            same!(step(&mut machine)?, pc, "NMI {number}");
            let regs = vcpu(&mut machine)?.regs()?;
            same!((regs.rbx, regs.r12), (rbx, 5 * place + number));
        }
    }
    Ok(())
}

/// RFLAGS.RF lets the vCPU past the breakpoint, and is in the frame of an NMI that comes first (Intel SDM vol. 3,
/// "Instruction-Breakpoint Exception Condition").
fn a_breakpoint_that_was_passed_is_passed_behind_an_nmi_too(_: &Lab) -> Outcome {
    let mut machine = at_loop()?;
    for turn in 1..=10 {
        vcpu(&mut machine)?.inject_nmi()?;
        let stop = run(&mut machine, Run::Continue)?;
        same!(stop, Stop::Breakpoint { pc: LOOP });
        let regs = vcpu(&mut machine)?.regs()?;
        same!((regs.rbx, regs.r12), (turn, turn), "once a turn");
    }
    Ok(())
}

/// The frame of an NMI that comes at another instruction has no RF: it is no fault.
fn a_breakpoint_that_was_not_met_is_met_behind_an_nmi(_: &Lab) -> Outcome {
    let mut machine = at_loop()?;
    machine.set_breakpoints(&[], &[])?;
    let pc = step(&mut machine)?;
    machine.set_breakpoints(&[pc, HANDLER], &[])?;
    let receipt = vcpu(&mut machine)?.inject_nmi()?;
    holds!(receipt.after.takes_one_here(), "{:?}", receipt.after);
    let stop = run(&mut machine, Run::Continue)?;
    same!(stop, Stop::Breakpoint { pc: HANDLER });
    same!(interrupted(&mut machine)?, pc);
    let flags = frame_flags(&mut machine)?;
    let stop = run(&mut machine, Run::Continue)?;
    same!(stop, Stop::Breakpoint { pc });
    match (vcpu(&mut machine)?.regs()?.rbx, on_tcg()) {
        (0, _) => Ok(()),
        (_, true) => Err(Failure::NotAvailable(
            "QEMU's TCG sets RF in the frame of an NMI, so the breakpoint is passed once"
                .to_owned(),
        )),
        (turns, false) => Err(Failure::unexpected(
            format!("no stop in {turns} turn of the loop, and flags {flags:#x} in the frame"),
            "a stop at the interrupted instruction",
        )),
    }
}

/// At the first instruction of a handler: the flags in its frame.
fn frame_flags(machine: &mut Machine) -> Result<u64, Failure> {
    let vcpu = vcpu(machine)?;
    let mut flags = [0; 8];
    vcpu.read_virt(vcpu.regs()?.rsp + 16, &mut flags)?;
    Ok(u64::from_le_bytes(flags))
}
