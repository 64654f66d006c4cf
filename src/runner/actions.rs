//! What is done to the machine: one function an action, each confirmed before it counts.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use unwindlab_vmm::{Pause, Run, VcpuHandle};

use super::arrivals::Who;
use super::delays::later;
use super::error::TrialError;
use super::stops::Stepping;
use super::trial::Trial;
use crate::driver::vcpu::{VcpuError, nmi_state, vcpu, while_stopped};
use crate::driver::watch;
use crate::plan::{ActionPlan, InjectionPlan, PokePlan, TriggerPlan};
use unwindlab_oracle::trace::recording::{Injection, Recording};

/// Where an injection found what it was done to.
pub(super) type Found = (u8, u64, u8);

/// What else is known of one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Made {
    pub who: Who,
    /// The vCPU stood there for it, and takes NMIs there.
    pub exact: bool,
}

impl Trial<'_> {
    /// Makes injection `spec`, whose trigger vCPU `index` met, and then those that follow it in
    /// the same stop.
    pub(super) fn act(&mut self, spec: u32, index: u8, who: Who) -> Result<(), TrialError> {
        let mut now = vec![(spec, index, who)];
        while let Some((spec, index, who)) = now.pop() {
            let Some(plan) = self.plan.injections.get(spec as usize) else {
                continue;
            };
            if self.first_progress.is_empty() {
                self.first_progress = self.session.progress(self.machine.memory());
            }
            if let ActionPlan::Guest { command, thread } = plan.action {
                self.command(spec, index, who, command, thread)?;
                continue;
            }
            let target = plan.target.unwrap_or(index);
            let known = if target == index { who } else { NOBODY };
            let stood = matches!(plan.trigger, TriggerPlan::Arrival(_)) && target == index;
            let exact = stood && self.takes_nmi_here(index)?;
            let found = self.perform(spec, plan, index, target, who)?;
            self.note_made(spec, found, Made { who: known, exact });
            self.follow(spec, index, who, &mut now);
        }
        self.note_completion();
        self.refresh_breakpoints()
    }

    /// Writes an injection down that was made.
    pub(super) fn note_made(&mut self, spec: u32, (vcpu, rip, cpl): Found, made: Made) {
        let Some(plan) = self.plan.injections.get(spec as usize) else {
            return;
        };
        made_list(&mut self.session.recording, plan.action).push(Injection {
            spec,
            vcpu: u32::from(vcpu),
            rip,
            cpl,
            thread: made.who.thread,
            iteration: made.who.iteration,
            exact: made.exact && cpl == 0,
        });
        *self.made.entry(spec).or_default() += 1;
    }

    fn perform(
        &mut self,
        spec: u32,
        plan: &InjectionPlan,
        index: u8,
        target: u8,
        who: Who,
    ) -> Result<Found, TrialError> {
        match plan.action {
            ActionPlan::Nmi => self.on_stopped(target, |vcpu| Ok(vcpu.inject_nmi().map(drop)?)),
            ActionPlan::PmuOverflow => {
                self.on_stopped(target, |vcpu| Ok(vcpu.pmu_overflow(None).map(drop)?))
            }
            ActionPlan::Irq { vector } => {
                self.on_stopped(target, |vcpu| Ok(vcpu.inject_irq(vector)?))
            }
            ActionPlan::Fail { returns } => {
                self.on_stopped(target, |vcpu| Ok(vcpu.return_now(returns)?))
            }
            ActionPlan::Freeze { limit_ms } => self.freeze(spec, target, limit_ms),
            ActionPlan::Thaw => self.thaw(target, index),
            ActionPlan::Preempt { limit_ms } => {
                let found = self.freeze(spec, target, limit_ms)?;
                self.frozen.passing(target);
                Ok(found)
            }
            ActionPlan::EndPreemption if self.frozen.is(target) => self.thaw(target, index),
            // Its time was over before.
            ActionPlan::EndPreemption => self.on_stopped(index, |_| Ok(())),
            // Asynchronous: `act` has given the command.
            ActionPlan::Guest { .. } => self.on_stopped(index, |_| Ok(())),
            ActionPlan::Corrupt { frame, with } => self.corrupt(index, who, frame, with),
            ActionPlan::Poke(poke) => self.poke(&poke, target),
            ActionPlan::Pass { turn, of, limit_ms } => {
                let found = self.on_stopped(index, |_| Ok(()))?;
                if self.frozen.is_turn(turn, of) {
                    self.stepping.insert(index, Stepping::Pass { of });
                } else {
                    let limit = Duration::from_millis(limit_ms);
                    let now = Instant::now();
                    self.frozen.freeze(index, spec, limit, None, now);
                    self.frozen.wait_for(index, turn);
                }
                Ok(found)
            }
        }
    }

    /// Whether a vCPU that stands still is in the handler of an NMI.
    pub(super) fn in_nmi(&mut self, index: u8) -> Result<bool, TrialError> {
        Ok(nmi_state(&mut self.machine, index)?.masked)
    }

    fn takes_nmi_here(&mut self, index: u8) -> Result<bool, TrialError> {
        Ok(nmi_state(&mut self.machine, index)?.takes_one_here())
    }

    /// Does something to a vCPU while it stands still.
    pub(super) fn on_stopped(
        &mut self,
        index: u8,
        what: impl FnOnce(&mut VcpuHandle<'_>) -> Result<(), VcpuError>,
    ) -> Result<Found, TrialError> {
        Ok(while_stopped(&mut self.machine, index, |vcpu| {
            let (rip, cpl) = watch::place(vcpu)?;
            what(vcpu)?;
            Ok((index, rip, cpl))
        })?)
    }

    fn freeze(&mut self, spec: u32, target: u8, limit_ms: u64) -> Result<Found, TrialError> {
        let mut vcpu = vcpu(&mut self.machine, target)?;
        let paused = vcpu.pause().map_err(VcpuError::from)?;
        let (rip, cpl) = watch::place(&vcpu).map_err(VcpuError::from)?;
        // One that stopped for a reason of its own goes on when that has been dealt with.
        let run = (paused == Pause::Paused).then_some(Run::Continue);
        let limit = Duration::from_millis(limit_ms);
        self.frozen.freeze(target, spec, limit, run, Instant::now());
        Ok((target, rip, cpl))
    }

    /// Thaws one that is frozen; that it is not is an error of the scenario's order.
    fn thaw(&mut self, target: u8, index: u8) -> Result<Found, TrialError> {
        if !self.frozen.is(target) {
            return Err(TrialError::NotFrozen { target, by: index });
        }
        let found = self.on_stopped(target, |_| Ok(()))?;
        // What follows the same injection may be due at its next instruction.
        self.refresh_breakpoints()?;
        self.let_go(target)?;
        Ok(found)
    }

    pub(super) fn let_go(&mut self, target: u8) -> Result<(), TrialError> {
        match self.frozen.thaw(target) {
            Some(run) => self.resume(target, run),
            None => Ok(()),
        }
    }

    /// A point of the schedule was passed: the next one's vCPU may pass it, if it waits there.
    pub(super) fn passed(&mut self, of: u32) -> Result<(), TrialError> {
        if let Some(next) = self.frozen.passed(of) {
            self.stepping.insert(next, Stepping::Pass { of });
            if self.frozen.thaw(next).is_some() {
                self.resume(next, Run::Step)?;
            }
        }
        Ok(())
    }

    /// Writes a variable while no vCPU runs that could write it too, and reads it back.
    fn poke(&mut self, poke: &PokePlan, target: u8) -> Result<Found, TrialError> {
        let by = poke.cpu.unwrap_or(target);
        let paused = self.machine.pause_all().map_err(VcpuError::from)?;
        let written = self.write_variable(poke, by);
        for (index, paused) in (0..).zip(paused) {
            if paused == Pause::Paused {
                vcpu(&mut self.machine, index)?
                    .resume(Run::Continue)
                    .map_err(VcpuError::from)?;
            }
        }
        written
    }

    fn write_variable(&mut self, poke: &PokePlan, by: u8) -> Result<Found, TrialError> {
        let base = match poke.cpu {
            Some(_) => watch::kernel_gs_base(&mut self.machine, by)?,
            None => 0,
        };
        let handle = vcpu(&mut self.machine, by)?;
        let (rip, cpl) = watch::place(&handle).map_err(VcpuError::from)?;
        let address = base.wrapping_add(poke.address);
        let value = poke.value.to_le_bytes();
        let bytes = value.get(..usize::from(poke.bytes)).unwrap_or(&value);
        handle.write_virt(address, bytes).map_err(VcpuError::from)?;
        let mut now = [0; 8];
        let now = now.get_mut(..bytes.len()).unwrap_or_default();
        handle.read_virt(address, now).map_err(VcpuError::from)?;
        if now != bytes {
            return Err(TrialError::NotPoked { address });
        }
        Ok((by, rip, cpl))
    }

    /// Lets go what waited for injection `spec` to be made.
    pub(super) fn follow(&mut self, spec: u32, index: u8, who: Who, now: &mut Vec<(u32, u8, Who)>) {
        let at = now.len();
        let followers = (0_u32..).zip(&self.plan.injections);
        let due: Vec<_> = followers
            .filter(|(_, it)| completes(&it.after, spec, &self.made))
            .collect();
        for (number, next) in due {
            match &next.trigger {
                TriggerPlan::Arrival(_) => self.arrivals.release(number),
                TriggerPlan::Event { .. } => self.sightings.release(number),
                TriggerPlan::Delay { repeat, .. }
                    if self.begun.get(&number).copied().unwrap_or(0) >= *repeat => {}
                TriggerPlan::Delay { micros: 0, .. } => {
                    *self.begun.entry(number).or_default() += 1;
                    // Those taken first stand last.
                    now.insert(at, (number, index, who));
                }
                TriggerPlan::Delay { micros, .. } => {
                    *self.begun.entry(number).or_default() += 1;
                    self.delays
                        .add(number, index, later(Instant::now(), *micros));
                }
                // Refused by the scenario's check.
                TriggerPlan::Rate { .. } => {}
            }
        }
    }
}

/// Whether injection `spec`, which was just made, is the last of those that another one comes `after`
/// to be made so often.
fn completes(after: &[u32], spec: u32, made: &BTreeMap<u32, u64>) -> bool {
    let made = |spec: &u32| made.get(spec).copied().unwrap_or(0);
    after.contains(&spec) && after.iter().all(|other| made(other) >= made(&spec))
}

/// Where an injection that was made is written down.
const fn made_list(recording: &mut Recording, action: ActionPlan) -> &mut Vec<Injection> {
    match action {
        // Which is an NMI too.
        ActionPlan::Nmi | ActionPlan::PmuOverflow => &mut recording.injections,
        ActionPlan::Fail { .. } => &mut recording.failures,
        _ => &mut recording.actions,
    }
}

/// Of a vCPU that did not stop by itself nothing is known.
pub(super) const NOBODY: Who = Who {
    thread: None,
    iteration: None,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_are_complete_when_the_last_of_them_is_made_so_often() {
        let mut made = BTreeMap::new();
        let mut completions = Vec::new();
        // The first runs ahead, the second overtakes it, the third is of no interest.
        for spec in [0, 0, 2, 1, 1, 1, 0] {
            *made.entry(spec).or_default() += 1;
            completions.push(completes(&[0, 1], spec, &made));
        }
        assert_eq!(completions, [false, false, false, true, true, false, true]);
        assert!(completes(&[2], 2, &made) && !completes(&[], 2, &made));
    }
}
