//! Checkpoints: the machine is what it was, as often as one likes, also in nests.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::tests_outside_test_module,
    reason = "all of it is a test"
)]

mod guest;

use guest::{ADDRESS, guest, machine, next_stop, started};
use unwindlab_vmm::{Checkpoint, Machine, Run, Stop};

/// Where the guest writes its count: a page each.
const PAGES: u64 = 0x18_0000;

// Counts in ebx, writes the count into one of 16 pages in turn, and rings with it.
guest!(writer:
    "xor ebx, ebx"
    "2: inc ebx"
    "mov eax, ebx"
    "and eax, 15"
    "shl eax, 12"
    "mov [rax + 0x180000], ebx"
    "mov eax, ebx"
    "out 0xe0, eax"
    "jmp 2b"
);

fn ring(machine: &mut Machine) -> u32 {
    let Stop::Port { value, .. } = next_stop(machine) else {
        panic!("no ring");
    };
    value
}

fn resume(machine: &mut Machine) {
    machine.vcpu(0).unwrap().resume(Run::Continue).unwrap();
}

/// Lets it ring so often.
fn go_on(machine: &mut Machine, times: u32) -> u32 {
    (0..times).fold(0, |_, _| {
        resume(machine);
        ring(machine)
    })
}

fn assert_same(machine: &mut Machine, checkpoint: &Checkpoint) {
    let differences = machine.differences(checkpoint).unwrap();
    assert!(differences.is_empty(), "{differences:?}");
}

fn count_in(machine: &Machine, page: u64) -> u64 {
    machine.memory().load_u64(PAGES + page * 4096).unwrap()
}

#[test]
fn a_machine_is_what_it_was_as_often_as_one_likes() {
    let mut machine = started(2, writer());
    assert_eq!(ring(&mut machine), 1);
    assert_eq!(go_on(&mut machine, 4), 5);
    let checkpoint = machine.checkpoint().unwrap();
    for round in 0..20 {
        assert_eq!(go_on(&mut machine, 3), 8, "round {round}");
        assert_eq!(count_in(&machine, 6), 6);
        assert!(!machine.differences(&checkpoint).unwrap().is_empty());
        let restored = machine.restore(&checkpoint).unwrap();
        assert!(restored.copied >= 3, "{restored:?}");
        assert_same(&mut machine, &checkpoint);
        assert_eq!(count_in(&machine, 6), 0);
        assert_eq!(count_in(&machine, 5), 5);
        assert!(machine.vcpu(0).unwrap().regs().unwrap().rip > ADDRESS);
    }
}

#[test]
fn what_the_vmm_wrote_is_taken_back_too() {
    let mut machine = started(2, writer());
    ring(&mut machine);
    let checkpoint = machine.checkpoint().unwrap();
    machine.memory().write(PAGES + 4096 * 40, b"hello").unwrap();
    machine.memory().store_u64(PAGES + 4096 * 41, 7).unwrap();
    assert_eq!(machine.restore(&checkpoint).unwrap().copied, 2);
    assert_eq!((count_in(&machine, 40), count_in(&machine, 41)), (0, 0));
    assert_eq!(machine.restore(&checkpoint).unwrap().copied, 0);
}

#[test]
fn checkpoints_can_be_nested() {
    let mut machine = started(2, writer());
    ring(&mut machine);
    let outer = machine.checkpoint().unwrap();
    assert_eq!(go_on(&mut machine, 9), 10);
    let inner = machine.checkpoint().unwrap();
    assert_eq!(go_on(&mut machine, 20), 30);
    for _ in 0..3 {
        machine.restore(&outer).unwrap();
        assert_same(&mut machine, &outer);
        assert_eq!(go_on(&mut machine, 1), 2);
        machine.restore(&inner).unwrap();
        assert_same(&mut machine, &inner);
        assert_eq!(go_on(&mut machine, 1), 11);
    }
    machine.restore(&inner).unwrap();
    machine.restore(&outer).unwrap();
    assert_same(&mut machine, &outer);
}

#[test]
fn the_console_and_another_machines_checkpoint_are_left_alone() {
    let mut one = started(2, writer());
    let mut other = started(2, writer());
    ring(&mut one);
    ring(&mut other);
    one.checkpoint().unwrap();
    let checkpoint = other.checkpoint().unwrap();
    assert!(one.restore(&checkpoint).is_err());
}

#[test]
fn a_twin_goes_on_where_the_first_machine_was() {
    let mut first = started(2, writer());
    ring(&mut first);
    first.checkpoint().unwrap();
    assert_eq!(go_on(&mut first, 9), 10);
    let inner = first.checkpoint().unwrap();
    let mut twin = machine(2, writer());
    twin.memory().write(PAGES + 4096 * 40, b"its own").unwrap();
    twin.adopt(&inner).unwrap();
    assert_same(&mut twin, &inner);
    assert_eq!(go_on(&mut twin, 5), 15);
    assert_eq!(go_on(&mut first, 1), 11, "the first one is not disturbed");
    // Checkpoints of either, as long as they are nested in the first one.
    let later = first.checkpoint().unwrap();
    twin.restore(&later).unwrap();
    assert_same(&mut twin, &later);
    assert_eq!(go_on(&mut twin, 1), 12);
    let own = twin.checkpoint().unwrap();
    assert_eq!(go_on(&mut twin, 1), 13);
    twin.restore(&own).unwrap();
    assert_same(&mut twin, &own);
}

#[test]
fn a_machine_that_has_run_is_no_twin() {
    let mut first = started(2, writer());
    ring(&mut first);
    let checkpoint = first.checkpoint().unwrap();
    assert!(first.adopt(&checkpoint).is_err(), "it has one of its own");
    assert!(machine(1, writer()).adopt(&checkpoint).is_err(), "one vCPU");
}
