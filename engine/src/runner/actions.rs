//! What is done to the machine: one function an action, each confirmed before it counts.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use unwindlab_oracle::trace::recording::VcpuPlace;
use unwindlab_vmm::{Pause, Run, VcpuHandle};

use super::arrivals::{Anchor, ThreadIteration};
use super::corruption::CorruptedWords;
use super::error::TrialError;
use super::freezer::Freezer;
use super::triggers::DueInjection;
use crate::driver::{Driver, DriverError, place};
use crate::plan::{ActionPlan, PokePlan};

/// How long a vCPU is led on by a single step, or to an anchor. What takes longer waits for an interrupt, which is held back.
pub const MOST_LED: Duration = Duration::from_secs(1);
/// How late a tick is after an NMI in user mode: longer than an iteration of a workload takes.
const TICK_LATE: Duration = Duration::from_millis(100);

/// Why a vCPU executes single instructions right now.
#[derive(Debug, Clone, Copy)]
pub enum Stepping {
    /// On the way of a burst or a sweep.
    Lead {
        spec: u32,
        by: ThreadIteration,
        /// Where to run before the steps.
        anchor: Option<Anchor>,
        /// How many instructions are left.
        steps: u64,
        /// When this step, or the way to the anchor, began.
        since: Instant,
    },
    /// Past a point of a schedule with so many.
    Pass { of: u32 },
}

impl Stepping {
    /// So many instructions on the way of an arrival.
    pub fn by_steps(spec: u32, by: ThreadIteration, steps: u64) -> Self {
        Self::lead(spec, by, None, steps)
    }

    /// So many instructions on the way of an arrival, from an anchor on if there is one.
    pub fn lead(spec: u32, by: ThreadIteration, anchor: Option<Anchor>, steps: u64) -> Self {
        Self::Lead {
            spec,
            by,
            anchor,
            steps,
            since: Instant::now(),
        }
    }

    /// Whether it is on the way of an arrival of this thread.
    pub fn leads(&self, thread: u32) -> bool {
        matches!(self, Self::Lead { by, .. } if by.thread == Some(thread))
    }

    /// How a vCPU is to run for it.
    pub const fn run(self) -> Run {
        match self {
            Self::Lead {
                anchor: Some(Anchor { pc, .. }),
                ..
            } => Run::To(pc),
            Self::Lead { .. } | Self::Pass { .. } => Run::Step,
        }
    }
}

/// Carries actions out, and knows those that last.
#[derive(Debug, Default)]
pub struct Actions {
    /// The vCPUs that stand still.
    pub freezer: Freezer,
    /// Those that are led on, by vCPU.
    pub stepping: BTreeMap<u8, Stepping>,
    /// The frame pointers that are to be put right.
    pub corrupted: CorruptedWords,
}

impl Actions {
    /// Carries out an action on vCPU `target`, or where its trigger was met. Returns where it found
    /// what it was done to.
    pub fn perform(
        &mut self,
        driver: &mut Driver,
        action: ActionPlan,
        due: DueInjection,
        target: u8,
    ) -> Result<VcpuPlace, TrialError> {
        let limit = Duration::from_millis;
        Ok(match action {
            ActionPlan::Nmi => inject_nmi(driver, due, target)?,
            ActionPlan::PmuOverflow => on_stopped(driver, target, |vcpu| {
                Ok(vcpu.pmu_overflow(None).map(drop)?)
            })?,
            ActionPlan::Irq { vector } => inject_irq(driver, due, target, vector)?,
            ActionPlan::Fail { returns } => {
                on_stopped(driver, target, |vcpu| Ok(vcpu.return_now(returns)?))?
            }
            ActionPlan::Freeze { limit_ms } => {
                self.freezer
                    .freeze(driver, target, due.spec, limit(limit_ms))?
            }
            ActionPlan::Preempt { limit_ms } => {
                let found = self
                    .freezer
                    .freeze(driver, target, due.spec, limit(limit_ms))?;
                self.freezer.set_passing(target);
                found
            }
            ActionPlan::Thaw if !self.freezer.is_frozen(target) => {
                // An error of the scenario's order.
                let by = due.vcpu;
                return Err(TrialError::NotFrozen { target, by });
            }
            // Its time was over before.
            ActionPlan::EndPreemption if !self.freezer.is_frozen(target) => {
                driver.stop_and_look(due.vcpu)?
            }
            ActionPlan::Thaw | ActionPlan::EndPreemption => {
                let found = driver.stop_and_look(target)?;
                self.freezer.thaw(driver, target)?;
                found
            }
            // Made when the helper says so.
            ActionPlan::Guest { .. } => driver.stop_and_look(due.vcpu)?,
            ActionPlan::Corrupt { frame, with } => self
                .corrupted
                .corrupt(driver, due.vcpu, due.by, frame, with)?,
            ActionPlan::Poke(poke) => {
                driver.while_all_stopped(|driver| write_variable(driver, &poke, target))?
            }
            ActionPlan::Pass { turn, of, limit_ms } => {
                let found = driver.stop_and_look(due.vcpu)?;
                if self.freezer.is_turn(turn, of) {
                    self.stepping.insert(due.vcpu, Stepping::Pass { of });
                } else {
                    let limit = limit(limit_ms);
                    self.freezer
                        .wait_for_turn(driver, due.vcpu, due.spec, limit, turn);
                }
                found
            }
        })
    }

    /// Whether an action lets vCPU `target` go on.
    pub fn is_to_thaw(&self, action: ActionPlan, target: u8) -> bool {
        matches!(action, ActionPlan::Thaw | ActionPlan::EndPreemption)
            && self.freezer.is_frozen(target)
    }

    /// A point of the schedule was passed: the next one's vCPU may pass it, if it waits there.
    pub fn passed(&mut self, driver: &mut Driver, of: u32) -> Result<(), TrialError> {
        if let Some(next) = self.freezer.passed(of) {
            self.stepping.insert(next, Stepping::Pass { of });
            if self.freezer.release(driver, next).is_some() {
                driver.resume(next, Run::Step)?;
            }
        }
        Ok(())
    }

    /// Lets vCPUs go on freely that have been led on for so long. Returns whose arrivals they were.
    pub fn let_go(
        &mut self,
        driver: &mut Driver,
        least: Duration,
    ) -> Result<Vec<(u32, ThreadIteration)>, TrialError> {
        let late = self.stepping.iter().filter_map(|(&vcpu, it)| match *it {
            Stepping::Lead {
                spec, by, since, ..
            } => (since.elapsed() >= least).then_some((vcpu, (spec, by))),
            Stepping::Pass { .. } => None,
        });
        let mut lost = Vec::new();
        for (vcpu, arrival) in late.collect::<Vec<_>>() {
            // What it stopped for by itself is dealt with.
            if driver.vcpu(vcpu)?.pause().map_err(DriverError::from)? == Pause::Paused {
                self.stepping.remove(&vcpu);
                driver.resume(vcpu, Run::Continue)?;
                lost.push(arrival);
            }
        }
        Ok(lost)
    }

    /// Lets a vCPU go on: by one instruction, where something leads it.
    pub fn resume_as_led(&self, driver: &mut Driver, index: u8) -> Result<(), TrialError> {
        let led = self.stepping.get(&index);
        let run = led.map_or(Run::Continue, |it| it.run());
        Ok(driver.resume(index, run)?)
    }
}

/// Injects an NMI. Where a thread met its trigger in user mode, no tick comes with it: that would answer
/// the request for a self-IPI that is missing.
fn inject_nmi(
    driver: &mut Driver,
    due: DueInjection,
    target: u8,
) -> Result<VcpuPlace, DriverError> {
    driver.with_stopped(target, |driver| {
        hold_tick(driver, due, target)?;
        on_stopped(driver, target, |vcpu| Ok(vcpu.inject_nmi().map(drop)?))
    })
}

/// Injects an interrupt. A tick that comes with it would wait in its handler, and answer as with an NMI
/// what is asked there.
fn inject_irq(
    driver: &mut Driver,
    due: DueInjection,
    target: u8,
    vector: u8,
) -> Result<VcpuPlace, DriverError> {
    driver.with_stopped(target, |driver| {
        hold_tick(driver, due, target)?;
        on_stopped(driver, target, |vcpu| Ok(vcpu.inject_irq(vector)?))
    })
}

/// Where a thread met its trigger in user mode, the next tick is late, one that waits already too. What another vCPU
/// sends meanwhile would be lost, so all stand still for that.
fn hold_tick(driver: &mut Driver, due: DueInjection, target: u8) -> Result<(), DriverError> {
    if due.by.thread.is_none() || driver.place(target)?.cpl != 3 {
        return Ok(());
    }
    driver.while_all_stopped(|driver| Ok(driver.vcpu(target)?.take_back_timer(TICK_LATE)?))
}

/// Does something to a vCPU while it stands still. Returns where it stood.
fn on_stopped(
    driver: &mut Driver,
    index: u8,
    what: impl FnOnce(&mut VcpuHandle<'_>) -> Result<(), DriverError>,
) -> Result<VcpuPlace, DriverError> {
    driver.while_stopped(index, |vcpu| {
        let found = place(vcpu)?;
        what(vcpu)?;
        Ok(found)
    })
}

/// Writes a variable while no vCPU runs that could write it too, and reads it back.
fn write_variable(
    driver: &mut Driver,
    poke: &PokePlan,
    target: u8,
) -> Result<VcpuPlace, TrialError> {
    let by = poke.cpu.unwrap_or(target);
    let base = match poke.cpu {
        Some(_) => driver.kernel_gs_base(by)?,
        None => 0,
    };
    let found = driver.place(by)?;
    let address = base.wrapping_add(poke.address);
    let value = poke.value.to_le_bytes();
    let bytes = value.get(..usize::from(poke.bytes)).unwrap_or(&value);
    let vcpu = driver.vcpu(by)?;
    vcpu.write_virt(address, bytes)?;
    let mut now = [0; 8];
    let now = now.get_mut(..bytes.len()).unwrap_or_default();
    vcpu.read_virt(address, now)?;
    match now == bytes {
        true => Ok(found),
        false => Err(TrialError::NotPoked { address }),
    }
}
