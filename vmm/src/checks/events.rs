//! What waits in a vCPU, over a checkpoint (`KVM_SET_VCPU_EVENTS`, Documentation/virt/kvm/api.rst, 4.32).

use super::failure::{Failure, Outcome, holds, same};
use super::lab::{
    ADDRESS, Lab, guest, interrupted, machine, run, step, vcpu, write_interrupt_table,
};
use crate::{Machine, Run, Stop};

super::checks! {
    KernelCode:
        a_checkpoint_holds_an_nmi_that_waits
        a_checkpoint_holds_that_nmis_are_masked
        a_checkpoint_holds_the_shadow_of_sti;
}

const LOOP: u64 = ADDRESS + 0x40;
const HANDLER: u64 = ADDRESS + 0x100;

// Vector 2 counts NMIs in r12.
guest!(waits_for_nmis:
    "lidt [0x1ffff0]"
    "xor r12d, r12d"
    "xor ebx, ebx"
    "sti"
    ".skip 0x40 - (. - 998b), 0x90"
    "inc rbx"
    "inc rbx"
    "cli"
    "sti"
    "inc rbx"
    "jmp 998b + 0x40"
    ".skip 0x100 - (. - 998b)"
    "inc r12"
    "iretq"
);

/// A machine at `place`, with a breakpoint on the handler only.
fn at(place: u64) -> Result<Machine, Failure> {
    let mut machine = machine(1, waits_for_nmis())?;
    write_interrupt_table(&machine, &[2])?;
    machine.set_breakpoints(&[place], &[])?;
    let stop = run(&mut machine, Run::Continue)?;
    same!(stop, Stop::Breakpoint { pc: place });
    machine.set_breakpoints(&[HANDLER], &[])?;
    Ok(machine)
}

fn to_handler(machine: &mut Machine) -> Outcome {
    let stop = run(machine, Run::Continue)?;
    same!(stop, Stop::Breakpoint { pc: HANDLER });
    Ok(())
}

fn a_checkpoint_holds_an_nmi_that_waits(_: &Lab) -> Outcome {
    let mut machine = at(LOOP)?;
    let receipt = vcpu(&mut machine)?.inject_nmi()?;
    let checkpoint = machine.checkpoint()?;
    for round in 0..5 {
        to_handler(&mut machine)?;
        same!(interrupted(&mut machine)?, LOOP, "round {round}");
        same!(vcpu(&mut machine)?.regs()?.r12, 0);
        step(&mut machine)?;
        same!(step(&mut machine)?, LOOP);
        same!(vcpu(&mut machine)?.nmi_state()?.pending, 0);
        machine.restore(&checkpoint)?;
        same!(vcpu(&mut machine)?.nmi_state()?, receipt.after);
    }
    Ok(())
}

/// Not only what KVM says of it: an NMI waits until the `iret`.
fn a_checkpoint_holds_that_nmis_are_masked(_: &Lab) -> Outcome {
    let mut machine = at(LOOP)?;
    vcpu(&mut machine)?.inject_nmi()?;
    to_handler(&mut machine)?;
    let checkpoint = machine.checkpoint()?;
    for round in 0..5 {
        step(&mut machine)?;
        same!(step(&mut machine)?, LOOP);
        holds!(!vcpu(&mut machine)?.nmi_state()?.masked, "it is out");
        machine.restore(&checkpoint)?;
        holds!(vcpu(&mut machine)?.nmi_state()?.masked, "it is in again");
        vcpu(&mut machine)?.inject_nmi()?;
        // The breakpoint of the handler was met before the checkpoint.
        to_handler(&mut machine)?;
        same!(interrupted(&mut machine)?, LOOP, "round {round}");
        same!(vcpu(&mut machine)?.regs()?.r12, 1, "the first is over");
        machine.restore(&checkpoint)?;
    }
    Ok(())
}

fn a_checkpoint_holds_the_shadow_of_sti(_: &Lab) -> Outcome {
    // `inc`, `inc`, `cli`, `sti`.
    let shadowed = LOOP + 8;
    let mut machine = at(shadowed)?;
    let state = vcpu(&mut machine)?.nmi_state()?;
    let checkpoint = machine.checkpoint()?;
    for round in 0..5 {
        step(&mut machine)?;
        holds!(!vcpu(&mut machine)?.nmi_state()?.shadow, "round {round}");
        machine.restore(&checkpoint)?;
        same!(vcpu(&mut machine)?.nmi_state()?, state, "round {round}");
    }
    Ok(())
}
