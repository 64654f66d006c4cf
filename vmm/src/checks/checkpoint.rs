//! Checkpoints: the machine is what it was, as often as one likes, also in nests.

use super::failure::{Failure, Outcome, holds, same};
use super::lab::{ADDRESS, Lab, guest, machine, next_stop, resume, started, vcpu};
use crate::{Checkpoint, Machine, Run, Stop};

super::checks! {
    Machines:
        a_machine_is_what_it_was_as_often_as_one_likes
        what_the_vmm_wrote_is_taken_back_too
        checkpoints_can_be_nested
        checkpoints_along_a_run_can_be_restored_in_any_order
        the_console_and_another_machines_checkpoint_are_left_alone
        a_twin_goes_on_where_the_first_machine_was
        a_machine_that_has_run_is_no_twin;
    // A paravirtual KVM takes the TSC's offset and ignores it.
    KernelCode:
        the_tscs_of_two_vcpus_stay_as_far_apart_as_they_are;
}

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

fn ring(machine: &mut Machine) -> Result<u32, Failure> {
    match next_stop(machine)? {
        Stop::Port { value, .. } => Ok(value),
        stop => Err(Failure::unexpected(format!("{stop:x?}"), "a ring")),
    }
}

/// Lets it ring so often.
fn go_on(machine: &mut Machine, times: u32) -> Result<u32, Failure> {
    (0..times).try_fold(0, |_, _| {
        resume(machine, Run::Continue)?;
        ring(machine)
    })
}

fn is_at(machine: &mut Machine, checkpoint: &Checkpoint) -> Outcome {
    same!(machine.differences(checkpoint)?, [""; 0]);
    Ok(())
}

fn count_in(machine: &Machine, page: u64) -> Result<u64, Failure> {
    Ok(machine.memory().load_u64(PAGES + page * 4096)?)
}

fn a_machine_is_what_it_was_as_often_as_one_likes(_: &Lab) -> Outcome {
    let mut machine = started(2, writer())?;
    same!(ring(&mut machine)?, 1);
    same!(go_on(&mut machine, 4)?, 5);
    let checkpoint = machine.checkpoint()?;
    for round in 0..20 {
        same!(go_on(&mut machine, 3)?, 8, "round {round}");
        same!(count_in(&machine, 6)?, 6);
        holds!(!machine.differences(&checkpoint)?.is_empty());
        let restored = machine.restore(&checkpoint)?;
        holds!(restored.copied >= 3, "{restored:?}");
        is_at(&mut machine, &checkpoint)?;
        same!(count_in(&machine, 6)?, 0);
        same!(count_in(&machine, 5)?, 5);
        holds!(vcpu(&mut machine)?.regs()?.rip > ADDRESS);
    }
    Ok(())
}

fn what_the_vmm_wrote_is_taken_back_too(_: &Lab) -> Outcome {
    let mut machine = started(2, writer())?;
    ring(&mut machine)?;
    let checkpoint = machine.checkpoint()?;
    machine.memory().write(PAGES + 4096 * 40, b"hello")?;
    machine.memory().store_u64(PAGES + 4096 * 41, 7)?;
    same!(machine.restore(&checkpoint)?.copied, 2);
    same!((count_in(&machine, 40)?, count_in(&machine, 41)?), (0, 0));
    same!(machine.restore(&checkpoint)?.copied, 0);
    Ok(())
}

fn checkpoints_can_be_nested(_: &Lab) -> Outcome {
    let mut machine = started(2, writer())?;
    ring(&mut machine)?;
    let outer = machine.checkpoint()?;
    same!(go_on(&mut machine, 9)?, 10);
    let inner = machine.checkpoint()?;
    same!(go_on(&mut machine, 20)?, 30);
    for _ in 0..3 {
        machine.restore(&outer)?;
        is_at(&mut machine, &outer)?;
        same!(go_on(&mut machine, 1)?, 2);
        machine.restore(&inner)?;
        is_at(&mut machine, &inner)?;
        same!(go_on(&mut machine, 1)?, 11);
    }
    machine.restore(&inner)?;
    machine.restore(&outer)?;
    is_at(&mut machine, &outer)?;
    Ok(())
}

fn checkpoints_along_a_run_can_be_restored_in_any_order(_: &Lab) -> Outcome {
    /// So many that pages leave KVM's log on the way.
    const COUNT: u32 = 40;
    const OWN: u64 = PAGES + 4096 * 40;
    let mut machine = started(2, writer())?;
    ring(&mut machine)?;
    let mut along = vec![machine.checkpoint()?];
    for count in 2..=COUNT {
        same!(go_on(&mut machine, 1)?, count);
        // In every other one, this page is as in the first.
        machine.memory().store_u64(OWN, u64::from(count % 2))?;
        along.push(machine.checkpoint()?);
    }
    // 7 has no divisor in common with 40.
    let order = (0..COUNT).map(|it| it * 7 % COUNT);
    for (at, checkpoint) in order.filter_map(|it| Some((it, along.get(it as usize)?))) {
        machine.restore(checkpoint)?;
        is_at(&mut machine, checkpoint)?;
        same!(go_on(&mut machine, 3)?, at + 4);
    }
    let last = along
        .last()
        .ok_or_else(|| Failure::unexpected("no checkpoint", "40"))?;
    let mut twin = self::machine(2, writer())?;
    twin.adopt(last)?;
    for checkpoint in along.iter().rev().step_by(3) {
        twin.restore(checkpoint)?;
        is_at(&mut twin, checkpoint)?;
    }
    Ok(())
}

fn the_console_and_another_machines_checkpoint_are_left_alone(_: &Lab) -> Outcome {
    let mut one = started(2, writer())?;
    let mut other = started(2, writer())?;
    ring(&mut one)?;
    ring(&mut other)?;
    one.checkpoint()?;
    let checkpoint = other.checkpoint()?;
    holds!(one.restore(&checkpoint).is_err());
    Ok(())
}

fn a_twin_goes_on_where_the_first_machine_was(_: &Lab) -> Outcome {
    let mut first = started(2, writer())?;
    ring(&mut first)?;
    first.checkpoint()?;
    same!(go_on(&mut first, 9)?, 10);
    let inner = first.checkpoint()?;
    let mut twin = machine(2, writer())?;
    twin.memory().write(PAGES + 4096 * 40, b"its own")?;
    twin.adopt(&inner)?;
    is_at(&mut twin, &inner)?;
    same!(go_on(&mut twin, 5)?, 15);
    same!(go_on(&mut first, 1)?, 11, "the first one is not disturbed");
    // Checkpoints of either, as long as they are nested in the first one.
    let later = first.checkpoint()?;
    twin.restore(&later)?;
    is_at(&mut twin, &later)?;
    same!(go_on(&mut twin, 1)?, 12);
    let own = twin.checkpoint()?;
    same!(go_on(&mut twin, 1)?, 13);
    twin.restore(&own)?;
    is_at(&mut twin, &own)?;
    Ok(())
}

fn a_machine_that_has_run_is_no_twin(_: &Lab) -> Outcome {
    let mut first = started(2, writer())?;
    ring(&mut first)?;
    let checkpoint = first.checkpoint()?;
    holds!(first.adopt(&checkpoint).is_err(), "it has one of its own");
    holds!(
        machine(1, writer())?.adopt(&checkpoint).is_err(),
        "one vCPU"
    );
    Ok(())
}

/// KVM's clock depends on it: see [`CpuState::restore`](crate::checkpoint::CpuState::restore).
fn the_tscs_of_two_vcpus_stay_as_far_apart_as_they_are(_: &Lab) -> Outcome {
    let mut machine = started(2, writer())?;
    ring(&mut machine)?;
    let checkpoint = machine.checkpoint()?;
    let apart = |machine: &Machine| match machine.tsc_offsets()?.as_slice() {
        [one, other] => Ok(other.wrapping_sub(*one)),
        offsets => Err(Failure::unexpected(format!("{offsets:x?}"), "two vCPUs")),
    };
    let saved = apart(&machine)?;
    for round in 0..20 {
        go_on(&mut machine, 1)?;
        machine.restore(&checkpoint)?;
        same!(apart(&machine)?, saved, "round {round}");
    }
    Ok(())
}
