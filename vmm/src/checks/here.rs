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
        it_is_stopped_when_the_time_is_over
        another_thread_may_run_it
        one_that_runs_is_refused_and_others_go_on;
    KernelCode:
        it_steps_and_meets_breakpoints_as_on_its_own_thread;
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

fn stop(machine: &mut Machine, run: Run) -> Result<Option<Stop>, Failure> {
    let event = machine.run_here(0, run, PATIENCE)?;
    Ok(event.map(|event| event.stop))
}

fn bell(value: u32) -> Option<Stop> {
    Some(Stop::Port {
        port: BELL,
        size: 4,
        value,
    })
}

fn it_stops_where_it_would_on_its_own_thread(_: &Lab) -> Outcome {
    let mut machine = machine(1, bells())?;
    for value in 1..=20 {
        same!(stop(&mut machine, Run::Continue)?, bell(value));
    }
    // Between the two ways to run it one can change.
    vcpu(&mut machine)?.resume(Run::Continue)?;
    same!(Some(next_stop(&mut machine)?), bell(21));
    Ok(())
}

fn it_steps_and_meets_breakpoints_as_on_its_own_thread(_: &Lab) -> Outcome {
    let mut machine = machine(1, bells())?;
    same!(stop(&mut machine, Run::Continue)?, bell(1));
    let pc = ADDRESS + 2;
    let stepped = |pc| Some(Stop::Stepped { pc });
    same!(stop(&mut machine, Run::Step)?, stepped(pc));
    same!(
        stop(&mut machine, Run::Steps(NonZeroU32::MIN))?,
        stepped(pc + 2)
    );
    same!(stop(&mut machine, Run::Continue)?, bell(2));
    vcpu(&mut machine)?.set_breakpoints(&[pc])?;
    same!(
        stop(&mut machine, Run::Continue)?,
        Some(Stop::Breakpoint { pc })
    );
    Ok(())
}

fn it_is_stopped_when_the_time_is_over(_: &Lab) -> Outcome {
    let mut machine = machine(1, silent_here())?;
    let begin = Instant::now();
    let time = Duration::from_millis(100);
    same!(machine.run_here(0, Run::Continue, time)?, None);
    holds!(begin.elapsed() >= time);
    same!(vcpu(&mut machine)?.stop(), Some(Stop::Paused));
    // Once more, so that a timer is used again; and no time at all is over at once.
    same!(machine.run_here(0, Run::Continue, time)?, None);
    let nothing = machine.run_here(0, Run::Continue, Duration::ZERO);
    same!(nothing?, None);
    Ok(())
}

fn another_thread_may_run_it(_: &Lab) -> Outcome {
    let mut machine = machine(1, bells())?;
    same!(stop(&mut machine, Run::Continue)?, bell(1));
    let there = thread::scope(|scope| {
        let there = scope.spawn(|| stop(&mut machine, Run::Continue));
        there.join().map_err(|panic| Failure::panicked(&*panic))
    });
    same!(there??, bell(2));
    same!(stop(&mut machine, Run::Continue)?, bell(3));
    Ok(())
}

fn one_that_runs_is_refused_and_others_go_on(_: &Lab) -> Outcome {
    let mut machine = machine(2, silent_here())?;
    vcpu(&mut machine)?.resume(Run::Continue)?;
    let refused = machine.run_here(0, Run::Continue, PATIENCE);
    holds!(matches!(refused, Err(ResumeError::NotStopped { vcpu: 0 })));
    same!(vcpu(&mut machine)?.pause()?, Pause::Paused);
    Ok(())
}
