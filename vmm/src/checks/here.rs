//! Running a vCPU on the thread of the caller.

use std::num::NonZeroU32;
use std::thread;
use std::time::{Duration, Instant};

use super::failure::{Failure, Outcome, holds, same};
use super::lab::{ADDRESS, BELL, Lab, PATIENCE, guest, machine, next_stop, vcpu};
use crate::{Machine, Pause, ResumeError, Run, Stop};

super::checks! {
    Machines:
        it_stops_where_it_would_on_its_own_thread
        it_runs_while_it_is_waited_for
        another_thread_may_run_it
        two_vcpus_keep_their_threads;
    KernelCode:
        it_steps_and_meets_breakpoints_as_on_its_own_thread
        paused_before_it_ran_it_goes_on_as_it_was_to;
}

guest!(bells:
    "xor eax, eax"
    "997: inc eax"
    "out 0xe0, eax"
    "jmp 997b"
);

guest!(silent_here:
    "sti"
    "99: jmp 99b"
);

/// A machine whose vCPU runs where it is waited for.
fn here(code: &'static [u8]) -> Result<Machine, Failure> {
    let mut machine = machine(1, code)?;
    machine.run_here();
    Ok(machine)
}

fn stop(machine: &mut Machine, run: Run) -> Result<Stop, Failure> {
    vcpu(machine)?.resume(run)?;
    next_stop(machine)
}

fn bell(value: u32) -> Stop {
    Stop::Port {
        port: BELL,
        size: 4,
        value,
    }
}

fn it_stops_where_it_would_on_its_own_thread(_: &Lab) -> Outcome {
    let mut machine = machine(1, bells())?;
    same!(stop(&mut machine, Run::Continue)?, bell(1));
    // It can change.
    machine.run_here();
    for value in 2..=20 {
        same!(stop(&mut machine, Run::Continue)?, bell(value));
    }
    Ok(())
}

fn it_steps_and_meets_breakpoints_as_on_its_own_thread(_: &Lab) -> Outcome {
    let mut machine = here(bells())?;
    same!(stop(&mut machine, Run::Continue)?, bell(1));
    let pc = ADDRESS + 2;
    same!(stop(&mut machine, Run::Step)?, Stop::Stepped { pc });
    let behind = Stop::Stepped { pc: pc + 2 };
    same!(stop(&mut machine, Run::Steps(NonZeroU32::MIN))?, behind);
    same!(stop(&mut machine, Run::Continue)?, bell(2));
    vcpu(&mut machine)?.set_breakpoints(&[pc])?;
    same!(stop(&mut machine, Run::Continue)?, Stop::Breakpoint { pc });
    Ok(())
}

fn it_runs_while_it_is_waited_for(_: &Lab) -> Outcome {
    let mut machine = here(silent_here())?;
    let begin = Instant::now();
    let time = Duration::from_millis(100);
    vcpu(&mut machine)?.resume(Run::Continue)?;
    // Twice, so that a timer is used again; and no time at all is over at once.
    same!(machine.next_event(time), None);
    same!(machine.next_event(time), None);
    holds!(begin.elapsed() >= 2 * time);
    same!(machine.next_event(Duration::ZERO), None);
    same!(vcpu(&mut machine)?.stop(), None);
    let refused = vcpu(&mut machine)?.resume(Run::Continue);
    holds!(matches!(refused, Err(ResumeError::NotStopped { vcpu: 0 })));
    same!(vcpu(&mut machine)?.pause()?, Pause::Paused);
    same!(vcpu(&mut machine)?.stop(), Some(Stop::Paused));
    // It does not run while it stands still.
    let pc = vcpu(&mut machine)?.regs()?.rip;
    same!(machine.next_event(Duration::from_millis(1)), None);
    same!(vcpu(&mut machine)?.regs()?.rip, pc);
    same!(vcpu(&mut machine)?.pause()?, Pause::WasStopped);
    Ok(())
}

fn paused_before_it_ran_it_goes_on_as_it_was_to(_: &Lab) -> Outcome {
    let mut machine = here(bells())?;
    same!(stop(&mut machine, Run::Continue)?, bell(1));
    vcpu(&mut machine)?.resume(Run::Step)?;
    same!(vcpu(&mut machine)?.pause()?, Pause::Paused);
    let stepped = Stop::Stepped { pc: ADDRESS + 2 };
    same!(stop(&mut machine, Run::AsBefore)?, stepped);
    Ok(())
}

fn another_thread_may_run_it(_: &Lab) -> Outcome {
    let mut machine = here(bells())?;
    same!(stop(&mut machine, Run::Continue)?, bell(1));
    let there = thread::scope(|scope| {
        let there = scope.spawn(|| stop(&mut machine, Run::Continue));
        there.join().map_err(|panic| Failure::panicked(&*panic))
    });
    same!(there??, bell(2));
    same!(stop(&mut machine, Run::Continue)?, bell(3));
    Ok(())
}

fn two_vcpus_keep_their_threads(_: &Lab) -> Outcome {
    let mut machine = machine(2, silent_here())?;
    machine.run_here();
    let begin = Instant::now();
    while vcpu(&mut machine)?.regs()?.rip == ADDRESS {
        holds!(begin.elapsed() < PATIENCE);
        vcpu(&mut machine)?.resume(Run::Continue)?;
        // Nobody waits for it.
        thread::sleep(Duration::from_millis(1));
        vcpu(&mut machine)?.pause()?;
    }
    Ok(())
}
