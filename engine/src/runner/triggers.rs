//! When injections are due: all triggers of a trial.

use std::time::{Duration, Instant};

use unwindlab_vmm::DataAccess;

use super::arrivals::{Arrival, Arrivals, Place, TaskField, ThreadIteration};
use super::books::Books;
use super::delays::{Delays, later};
use super::error::TrialError;
use super::rate::{Period, Rates};
use super::sightings::Sightings;
use crate::driver::session::AgentSession;
use crate::plan::{CodePlace, InjectionPlan, TriggerPlan};

/// An injection whose trigger was met.
#[derive(Debug, Clone, Copy)]
pub struct DueInjection {
    /// Its index in the scenario.
    pub spec: u32,
    /// The vCPU on which the trigger was met.
    pub vcpu: u8,
    /// Who met it: of a vCPU that did not stop by itself nothing is known.
    pub by: ThreadIteration,
}

impl DueInjection {
    /// One of which it is not known who met the trigger.
    pub fn by_nobody(spec: u32, vcpu: u8) -> Self {
        Self {
            spec,
            vcpu,
            by: ThreadIteration::default(),
        }
    }
}

/// The triggers, by kind.
#[derive(Debug, Default)]
pub struct Triggers {
    /// At an instruction.
    pub arrivals: Arrivals,
    /// At an event that is seen from outside.
    pub sightings: Sightings,
    /// After a time.
    pub delays: Delays,
    /// Periodically.
    pub rates: Rates,
}

impl Triggers {
    /// The triggers of these injections in a workload that is about to start.
    pub fn of(
        plan: &[InjectionPlan],
        session: &AgentSession,
        now: Instant,
    ) -> Result<Self, TrialError> {
        let mut triggers = Self::default();
        let mut arrivals = Vec::new();
        for (spec, injection) in (0_u32..).zip(plan) {
            let follows = !injection.after.is_empty();
            match &injection.trigger {
                TriggerPlan::Arrival(plan) => {
                    let place = place(&plan.place, session)?;
                    arrivals.push(Arrival::new(spec, place, plan, follows));
                }
                TriggerPlan::Rate {
                    period_us,
                    count,
                    vcpus,
                    backs_off,
                } => {
                    let period = Duration::from_micros(*period_us);
                    let period = Period::new(period, *backs_off);
                    for &vcpu in vcpus {
                        triggers.rates.add(spec, vcpu, period.clone(), *count, now);
                    }
                }
                // Begins with the one that it follows, or is due at the start.
                TriggerPlan::Delay { micros, .. } if follows || *micros == 0 => {}
                TriggerPlan::Delay { micros, .. } => {
                    triggers.delays.add(spec, 0, later(now, *micros));
                }
                TriggerPlan::Event { event, hit, repeat } => {
                    triggers.sightings.add(spec, *event, *hit, *repeat, follows);
                }
            }
        }
        triggers.arrivals = Arrivals::new(arrivals);
        Ok(triggers)
    }

    /// When the next injection is due that does not wait for the guest.
    pub fn next_due(&self) -> Option<Instant> {
        { self.rates.next().into_iter() }
            .chain(self.delays.next())
            .min()
    }

    /// Whether all injections are made.
    pub fn are_complete(&self, plan: &[InjectionPlan], books: &Books) -> bool {
        let delayed = (0_u32..).zip(plan).all(|(spec, it)| {
            !matches!(it.trigger, TriggerPlan::Delay { .. })
                || books.made(spec) >= it.trigger.injections()
        });
        delayed && self.arrivals.complete() && self.rates.complete() && self.sightings.complete()
    }

    /// An injection was made: releases those that follow it. Returns those of them that are due at
    /// once, in order.
    pub fn follow(
        &mut self,
        plan: &[InjectionPlan],
        books: &mut Books,
        made: DueInjection,
    ) -> Vec<DueInjection> {
        let mut at_once = Vec::new();
        for (spec, next) in (0_u32..).zip(plan) {
            if !books.completes(&next.after, made.spec) {
                continue;
            }
            match next.trigger {
                TriggerPlan::Arrival(_) => self.arrivals.release(spec),
                TriggerPlan::Event { .. } => self.sightings.release(spec),
                TriggerPlan::Delay { micros, repeat } => {
                    if !books.begin_delay(spec, repeat) {
                        continue;
                    }
                    if micros == 0 {
                        at_once.push(DueInjection { spec, ..made });
                    } else {
                        let due = later(Instant::now(), micros);
                        self.delays.add(spec, made.vcpu, due);
                    }
                }
                // Refused by the scenario's check.
                TriggerPlan::Rate { .. } => {}
            }
        }
        at_once
    }
}

/// The injections that are due when the workload starts.
pub fn due_at_start(plan: &[InjectionPlan]) -> impl Iterator<Item = DueInjection> {
    let at_start = |it: &InjectionPlan| {
        it.after.is_empty() && matches!(it.trigger, TriggerPlan::Delay { micros: 0, .. })
    };
    { (0_u32..).zip(plan) }
        .filter(move |(_, it)| at_start(it))
        .map(|(spec, _)| DueInjection::by_nobody(spec, 0))
}

/// The address of an instruction, or the field of whatever task will be armed.
fn place(place: &CodePlace, session: &AgentSession) -> Result<Place, TrialError> {
    Ok(match *place {
        CodePlace::Kernel { address } => Place::Code(address),
        CodePlace::User { ref symbol, offset } => {
            let found = session.user_symbol(symbol);
            let found = found.ok_or_else(|| TrialError::NoUserSymbol(symbol.clone()))?;
            Place::Code(found.start.wrapping_add(offset))
        }
        CodePlace::TaskField {
            offset,
            bytes,
            reads,
        } => {
            let access = match reads {
                true => DataAccess::ReadWrite,
                false => DataAccess::Write,
            };
            let field = TaskField::new(offset, bytes, access);
            Place::Field(field.ok_or(TrialError::NoSuchField { offset, bytes })?)
        }
    })
}
