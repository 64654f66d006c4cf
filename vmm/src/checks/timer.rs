//! Ticks that are late.

use std::thread::sleep;
use std::time::Duration;

use super::failure::{Failure, Outcome, holds, same};
use super::lab::{Lab, guest, next_stop, resume, started, vcpu};
use crate::kvm::msr::{TSC, TSC_DEADLINE};
use crate::{Machine, Run, Stop};

super::checks! {
    Machines:
        a_timer_that_is_armed_is_postponed_and_an_interrupt_under_way_is_seen
        clocks_that_go_on_take_the_timer_with_them;
    // A paravirtual KVM takes the TSC's offset and ignores it.
    KernelCode:
        a_timer_that_has_fired_is_armed_again_by_a_restore;
}

// Arms the LAPIC's timer in deadline mode, far away, and rings; then for now, rings after a while, and stays. Interrupts
// are off all the time.
guest!(clockmaker:
    "x2apic"
    "mov ecx, 0x832"
    "mov eax, 0x40030"
    "wrmsr"
    "out 0xe0, eax"
    "rdtsc"
    "add edx, 2"
    "mov ecx, 0x6e0"
    "wrmsr"
    "out 0xe0, eax"
    "rdtsc"
    "wrmsr"
    "mov ecx, 20000"
    "3: pause"
    "loop 3b"
    "2: out 0xe0, eax"
    "jmp 2b"
);

// Arms the LAPIC's timer for 2 to the power of 31 ticks from now, about a second, and rings again and again. Interrupts are off all
// the time.
guest!(snoozer:
    "x2apic"
    "mov ecx, 0x832"
    "mov eax, 0x40030"
    "wrmsr"
    "rdtsc"
    "add eax, 0x80000000"
    "adc edx, 0"
    "mov ecx, 0x6e0"
    "wrmsr"
    "2: out 0xe0, eax"
    "jmp 2b"
);

fn ring(machine: &mut Machine) -> Outcome {
    let stop = next_stop(machine)?;
    holds!(matches!(stop, Stop::Port { .. }), "{stop:x?}");
    Ok(())
}

fn go_on(machine: &mut Machine) -> Outcome {
    resume(machine, Run::Continue)?;
    ring(machine)
}

fn deadline(machine: &mut Machine) -> Result<u64, Failure> {
    Ok(vcpu(machine)?.msr(TSC_DEADLINE)?)
}

fn a_timer_that_is_armed_is_postponed_and_an_interrupt_under_way_is_seen(_: &Lab) -> Outcome {
    let mut machine = started(1, clockmaker())?;
    ring(&mut machine)?;
    same!(deadline(&mut machine)?, 0, "not armed");
    machine.postpone_timers(Duration::from_secs(1000))?;
    same!(deadline(&mut machine)?, 0, "not armed");

    go_on(&mut machine)?;
    let armed = deadline(&mut machine)?;
    machine.postpone_timers(Duration::from_millis(1))?;
    same!(deadline(&mut machine)?, armed, "it is later than that");
    machine.postpone_timers(Duration::from_secs(1000))?;
    holds!(deadline(&mut machine)? > armed);
    holds!(!vcpu(&mut machine)?.irq_pending()?);

    go_on(&mut machine)?;
    holds!(vcpu(&mut machine)?.irq_pending()?);
    machine.postpone_timers(Duration::from_secs(1000))?;
    holds!(vcpu(&mut machine)?.irq_pending()?, "it waits");
    let before = vcpu(&mut machine)?.msr(TSC_DEADLINE)?;
    same!(before, 0, "it has fired");
    let late = Duration::from_secs(1000);
    vcpu(&mut machine)?.take_back_timer(late)?;
    holds!(!vcpu(&mut machine)?.irq_pending()?);
    holds!(deadline(&mut machine)? > armed, "it comes later");
    Ok(())
}

fn clocks_that_go_on_take_the_timer_with_them(_: &Lab) -> Outcome {
    const FURTHER: u64 = 1 << 40;
    let mut machine = started(1, clockmaker())?;
    ring(&mut machine)?;
    go_on(&mut machine)?;
    let armed = deadline(&mut machine)?;
    let before = vcpu(&mut machine)?.msr(TSC)?;
    machine.advance_clocks(0, before + FURTHER)?;
    // (The TSC itself stays on a paravirtual KVM, which takes the offset and ignores it.)
    let moved = deadline(&mut machine)?;
    holds!((armed + 1..=armed + FURTHER).contains(&moved), "{moved}");
    machine.advance_clocks(0, before)?;
    same!(deadline(&mut machine)?, moved, "it is not put back");
    Ok(())
}

fn a_timer_that_has_fired_is_armed_again_by_a_restore(_: &Lab) -> Outcome {
    let mut machine = started(1, snoozer())?;
    ring(&mut machine)?;
    let checkpoint = machine.checkpoint()?;
    let armed = deadline(&mut machine)?;
    go_on(&mut machine)?;
    // KVM has yet to make the interrupt: it does that when the vCPU runs.
    while vcpu(&mut machine)?.msr(TSC)? < armed {
        sleep(Duration::from_millis(10));
    }
    machine.restore(&checkpoint)?;
    same!(deadline(&mut machine)?, armed);
    same!(machine.differences(&checkpoint)?, [""; 0]);
    // What waits is in a register when the vCPU has entered the guest twice.
    let mut rings = 0;
    while vcpu(&mut machine)?.msr(TSC)? < armed {
        holds!(!vcpu(&mut machine)?.irq_pending()?, "ring {rings}");
        go_on(&mut machine)?;
        rings += 1;
    }
    holds!(rings > 2, "a second was too short for {rings}");
    go_on(&mut machine)?;
    go_on(&mut machine)?;
    holds!(vcpu(&mut machine)?.irq_pending()?, "it fires again");
    Ok(())
}
