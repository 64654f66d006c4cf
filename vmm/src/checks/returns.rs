//! Returns that the VMM executes in the place of the guest's instructions.

use std::time::Duration;

use super::failure::{Failure, Outcome, holds, same};
use super::lab::{ADDRESS, Lab, guest, machine, next_stop, vcpu, write_interrupt_table};
use crate::{Machine, ReturnWatch, Run, Stop};

super::checks! {
    KernelCode:
        an_iret_to_itself_is_executed_twice
        a_stepped_iret_is_executed_again_where_the_vcpu_is_put_back_to_it
        an_interrupt_is_taken_once_though_the_vcpu_was_stopped_on_its_way;
}

/// Where the guest maps itself once more: a kernel's code is in the upper half.
const UPPER_HALF: u64 = 0xffff_ff80_0000_0000;

// Goes to the upper half. An `iretq`, at 0x80, to itself, and from there on to 0xc0. Behind it is an endless loop.
guest!(returns_to_itself:
    "upper_half"
    "out 0xe0, eax"
    "mov rbx, rsp"
    "xor eax, eax"
    "mov ax, ss"
    "push rax"
    "push rbx"
    "pushfq"
    "mov ax, cs"
    "push rax"
    "lea rcx, [rip + 998b + 0xc0]"
    "push rcx"
    "mov rbx, rsp"
    "mov ax, ss"
    "push rax"
    "push rbx"
    "pushfq"
    "mov ax, cs"
    "push rax"
    "lea rcx, [rip + 998b + 0x80]"
    "push rcx"
    ".skip 0x80 - (. - 998b), 0x90"
    "iretq"
    "2: jmp 2b"
    ".skip 0xc0 - (. - 998b), 0x90"
    "out 0xe1, eax"
    "3: jmp 3b"
);

// Switches x2APIC mode on, goes to the upper half, and waits there without a stack segment. The handler counts in r12, ends the
// interrupt, and loads a stack segment, which the `iretq` at 0x180 takes away again.
guest!(counts_interrupts:
    "lidt [0x1ffff0]"
    "x2apic"
    "xor r12d, r12d"
    "mov r13w, ss"
    "xor r14d, r14d"
    "mov ss, r14w"
    "upper_half"
    "sti"
    "out 0xe0, eax"
    "3: pause"
    "jmp 3b"
    ".skip 0x100 - (. - 998b), 0x90"
    "inc r12"
    "mov ecx, 0x80b"
    "xor eax, eax"
    "xor edx, edx"
    "wrmsr"
    "mov ss, r13w"
    ".skip 0x180 - (. - 998b), 0x90"
    "iretq"
);

/// A vCPU that is kicked while KVM gives it an interrupt leaves with that interrupt on its way, and is given it again. Once more, it would be one
/// too many.
fn an_interrupt_is_taken_once_though_the_vcpu_was_stopped_on_its_way(lab: &Lab) -> Outcome {
    const VECTOR: u8 = 0x30;
    let mut machine = machine(1, counts_interrupts())?;
    write_interrupt_table(&machine, &[u64::from(VECTOR)])?;
    machine.start()?;
    let stop = next_stop(&mut machine)?;
    holds!(matches!(stop, Stop::Port { port: 0xe0, .. }), "{stop:x?}");
    machine.watch_returns(watch(ADDRESS + 0x180))?;
    for number in 1..=u64::from(lab.rounds(1000)) {
        vcpu(&mut machine)?.inject_irq(VECTOR)?;
        let mut taken = 0;
        // So short that many a run ends at its beginning.
        for run in 1..=1000 {
            vcpu(&mut machine)?.resume(Run::Continue)?;
            machine.next_event(Duration::from_micros(10 * (run + number % 40)));
            vcpu(&mut machine)?.pause()?;
            let stop = vcpu(&mut machine)?.stop();
            same!(stop, Some(Stop::Paused));
            taken = vcpu(&mut machine)?.regs()?.r12;
            if taken >= number && !vcpu(&mut machine)?.irq_pending()? {
                break;
            }
        }
        same!(taken, number);
    }
    Ok(())
}

/// An NMI that comes right at the `iret` of another returns to it. KVM skips an `out` that is left in
/// place: the guest would run on behind the `iret`.
fn an_iret_to_itself_is_executed_twice(_: &Lab) -> Outcome {
    let mut machine = watched()?;
    vcpu(&mut machine)?.resume(Run::Continue)?;
    let stop = next_stop(&mut machine)?;
    holds!(matches!(stop, Stop::Port { port: 0xe1, .. }), "{stop:x?}");
    Ok(())
}

/// A checkpoint may be of an `iret`, and a restore may follow a step over it. KVM skips an `out` that it has yet to complete and that the
/// vCPU is at again.
fn a_stepped_iret_is_executed_again_where_the_vcpu_is_put_back_to_it(_: &Lab) -> Outcome {
    let mut machine = watched()?;
    let iret = UPPER_HALF + ADDRESS + 0x80;
    vcpu(&mut machine)?.resume(Run::To(iret))?;
    same!(next_stop(&mut machine)?, Stop::Stepped { pc: iret });
    // To itself.
    vcpu(&mut machine)?.resume(Run::Step)?;
    same!(next_stop(&mut machine)?, Stop::Stepped { pc: iret });
    let before = machine.checkpoint()?;
    vcpu(&mut machine)?.resume(Run::Step)?;
    same!(next_stop(&mut machine)?, Stop::Stepped { pc: iret + 0x40 });
    machine.restore(&before)?;
    vcpu(&mut machine)?.resume(Run::Continue)?;
    let stop = next_stop(&mut machine)?;
    holds!(matches!(stop, Stop::Port { port: 0xe1, .. }), "{stop:x?}");
    Ok(())
}

/// The guest before its first `iretq`, which is watched.
fn watched() -> Result<Machine, Failure> {
    let mut machine = machine(1, returns_to_itself())?;
    machine.start()?;
    let stop = next_stop(&mut machine)?;
    holds!(matches!(stop, Stop::Port { port: 0xe0, .. }), "{stop:x?}");
    machine.watch_returns(watch(UPPER_HALF + ADDRESS + 0x80))?;
    Ok(machine)
}

/// The return at this address.
fn watch(site: u64) -> ReturnWatch {
    ReturnWatch {
        sites: vec![site],
        most: 10,
        ..ReturnWatch::default()
    }
}
