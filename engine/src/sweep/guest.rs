//! What a sweep does with its guest everywhere: lets it go on, makes NMIs and checkpoints.

use std::ops::Range;
use std::time::Duration;

use unwindlab_oracle::trace::recording::Injection;
use unwindlab_vmm::Checkpoint;

use super::error::{Phase, SweepError};
use crate::driver::{Driver, Happening};
use crate::plan::sweep::{Made, SweepPlan, TICKS_LATE};

/// The workload thread whose path is swept.
pub(super) const THREAD: u32 = 0;
/// Longest time between two stops of a guest that is well.
pub(super) const LEG: Duration = Duration::from_secs(10);
const PAGE: u64 = 4096;
/// Pages of the NMI's stack, `EXCEPTION_STKSZ`.
const NMI_STACK_PAGES: u64 = 2;

/// Lets the guest go on after something that the sweep has no interest in.
pub(super) fn pass(
    driver: &mut Driver,
    happening: Happening,
    phase: Phase,
) -> Result<(), SweepError> {
    if matches!(happening, Happening::Nothing) {
        return Err(SweepError::Silent { phase });
    }
    match driver.pass(happening)? {
        Some(end) => Err(SweepError::GuestEnded { end, phase }),
        None => Ok(()),
    }
}

/// Whose an injection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Injected {
    thread: Option<u32>,
    iteration: Option<u64>,
}

impl Injected {
    /// One in this iteration of the swept thread; of no thread where the path may be a child's, or is
    /// a process's that the iteration starts.
    pub(super) fn of(plan: &SweepPlan, iteration: u64) -> Self {
        let known = !plan.any_task() && !plan.trial.guest.workload.kind.is_process();
        Self {
            thread: known.then_some(THREAD),
            iteration: known.then_some(iteration),
        }
    }
}

/// Injects an NMI into a vCPU that stands still.
pub(super) fn nmi(
    driver: &mut Driver,
    index: u8,
    spec: u32,
    of: Injected,
) -> Result<Injection, SweepError> {
    let place = driver.place(index)?;
    let state = driver.vcpu(index)?.inject_nmi()?.before;
    Ok(Injection {
        spec,
        vcpu: place.vcpu,
        rip: place.rip,
        cpl: place.cpl,
        thread: of.thread,
        iteration: of.iteration,
        exact: place.cpl == 0 && state.takes_one_here(),
        interrupt_waits: place.interrupt_waits,
        stack_pointer: place.stack_pointer,
    })
}

/// Whether a task stands on a vCPU, outside of an NMI's handler.
pub(super) fn stands(driver: &mut Driver, index: u8, task: u64) -> Result<bool, SweepError> {
    Ok(driver.current_task(index)? == task && !driver.nmi_state(index)?.masked)
}

/// A checkpoint to make trials from.
pub(super) fn checkpoint(driver: &mut Driver) -> Result<Checkpoint, SweepError> {
    without_ticks(driver)?;
    Ok(driver.machine.checkpoint()?)
}

/// The same of a guest in which the interrupt of this vector was just made, which may be a tick's.
pub(super) fn checkpoint_behind(driver: &mut Driver, made: Made) -> Result<Checkpoint, SweepError> {
    if !made.is_tick() {
        return checkpoint(driver);
    }
    driver.machine.pause_all()?;
    driver.machine.postpone_timers(TICKS_LATE)?;
    Ok(driver.machine.checkpoint()?)
}

/// Makes the ticks of a guest that stands still late, for what is done with it next. A trial takes
/// about as long as it is from one tick to the next: each would have one or two, which take a third
/// of its time and would mask a missing self-IPI. What waits for a timer waits so much longer. One
/// that waits already, since single steps hold interrupts back, comes as late.
pub(super) fn without_ticks(driver: &mut Driver) -> Result<(), SweepError> {
    driver.machine.pause_all()?;
    for vcpu in 0..driver.machine.vcpu_count() {
        without_tick(driver, vcpu)?;
    }
    Ok(())
}

/// The same of a vCPU that stands still. Others that run are stopped meanwhile: what they send it would be lost.
pub(super) fn without_tick(driver: &mut Driver, vcpu: u8) -> Result<(), SweepError> {
    driver.while_all_stopped(|driver| Ok(driver.vcpu(vcpu)?.take_back_timer(TICKS_LATE)?))
}

/// The stack of an NMI whose handler is about to begin with this stack pointer.
pub(super) const fn nmi_stack(rsp: u64) -> Range<u64> {
    let top = (rsp & !(PAGE - 1)).saturating_add(PAGE);
    top.saturating_sub(NMI_STACK_PAGES * PAGE)..top
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stack_of_an_nmi_is_two_pages_that_end_behind_its_frame() {
        let stack = nmi_stack(0xffff_fe00_0000_efd8);
        assert_eq!(stack, 0xffff_fe00_0000_d000..0xffff_fe00_0000_f000);
    }
}
