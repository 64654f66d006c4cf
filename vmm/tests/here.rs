//! Running a vCPU on the thread of the caller.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::tests_outside_test_module,
    reason = "all of it is a test"
)]

mod guest;

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use guest::{ADDRESS, BELL, PATIENCE, guest, machine, runs_kernel_code};
use unwindlab_vmm::{Machine, Pause, ResumeError, Run, Stop};

guest!(bells:
    "xor eax, eax"
    "997: inc eax"
    "out 0xe0, eax"
    "jmp 997b"
);

guest!(silent:
    "jmp 998b"
);

fn stop(machine: &mut Machine, run: Run) -> Option<Stop> {
    let event = machine.run_here(0, run, PATIENCE).unwrap();
    event.map(|event| event.stop)
}

fn bell(value: u32) -> Option<Stop> {
    Some(Stop::Port {
        port: BELL,
        size: 4,
        value,
    })
}

#[test]
fn it_stops_where_it_would_on_its_own_thread() {
    let mut machine = machine(1, bells());
    for value in 1..=20 {
        assert_eq!(stop(&mut machine, Run::Continue), bell(value));
    }
    // Between the two ways to run it one can change.
    machine.vcpu(0).unwrap().resume(Run::Continue).unwrap();
    assert_eq!(
        machine.next_event(PATIENCE).unwrap().stop,
        bell(21).unwrap()
    );
    if !runs_kernel_code() {
        return;
    }
    let pc = ADDRESS + 2;
    let stepped = |pc| Some(Stop::Stepped { pc });
    assert_eq!(stop(&mut machine, Run::Step), stepped(pc));
    assert_eq!(
        stop(&mut machine, Run::Steps(NonZeroU32::MIN)),
        stepped(pc + 2)
    );
    assert_eq!(stop(&mut machine, Run::Continue), bell(22));
    machine.vcpu(0).unwrap().set_breakpoints(&[pc]).unwrap();
    assert_eq!(
        stop(&mut machine, Run::Continue),
        Some(Stop::Breakpoint { pc })
    );
}

#[test]
fn it_is_stopped_when_the_time_is_over() {
    let mut machine = machine(1, silent());
    let begin = Instant::now();
    let time = Duration::from_millis(100);
    assert_eq!(machine.run_here(0, Run::Continue, time).unwrap(), None);
    assert!(begin.elapsed() >= time);
    assert_eq!(machine.vcpu(0).unwrap().stop(), Some(Stop::Paused));
    // Once more, so that a timer is used again; and no time at all is over at once.
    assert_eq!(machine.run_here(0, Run::Continue, time).unwrap(), None);
    let nothing = machine.run_here(0, Run::Continue, Duration::ZERO);
    assert_eq!(nothing.unwrap(), None);
}

#[test]
fn another_thread_may_run_it() {
    let mut machine = machine(1, bells());
    assert_eq!(stop(&mut machine, Run::Continue), bell(1));
    std::thread::scope(|scope| {
        let there = scope.spawn(|| stop(&mut machine, Run::Continue));
        assert_eq!(there.join().unwrap(), bell(2));
    });
    assert_eq!(stop(&mut machine, Run::Continue), bell(3));
}

#[test]
fn one_that_runs_is_refused_and_others_go_on() {
    let mut machine = machine(2, silent());
    machine.vcpu(0).unwrap().resume(Run::Continue).unwrap();
    let refused = machine.run_here(0, Run::Continue, PATIENCE);
    assert!(matches!(refused, Err(ResumeError::NotStopped { vcpu: 0 })));
    assert_eq!(machine.vcpu(0).unwrap().pause().unwrap(), Pause::Paused);
}
