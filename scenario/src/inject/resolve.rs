//! Resolves the injections of a checked scenario: names become addresses and numbers.

use unwindlab_abi::lab::kind;
use unwindlab_abi::{Command, mark};

use super::places::{place, symbol_address};
use super::{
    Event, Fail, Injection, LabRecord, MarkKind, Poke, RecordKind, Schedule, TaskKind, When,
};
use crate::error::Complaints;
use crate::located::At;
use crate::model::Scenario;
use crate::resolve::KernelSymbols;
use crate::units::{Number, Time};
use unwindlab_engine::plan::{
    ActionPlan, ArrivalPlan, CodePlace, EventPlan, ExitPlan, InjectionPlan, PokePlan, TaskFilter,
    TriggerPlan,
};
use unwindlab_oracle::trace::record::record_type;

/// Longest time that a vCPU stands still, unless the scenario sets another. On a loaded machine a good kernel took
/// 2.6 s to come to the next point of `lab-cancel-in-long-callback`.
const FREEZE_LIMIT_MS: u64 = 10_000;

/// All injections, then the points of the schedule. Complains about what has no plan.
pub(crate) fn resolve(
    scenario: &Scenario,
    symbols: &dyn KernelSymbols,
    complaints: &mut Complaints<'_>,
) -> Vec<InjectionPlan> {
    let vcpus = *scenario.machine.vcpus;
    let names: Vec<_> = scenario.inject.iter().map(|it| it.names().0).collect();
    let mut plans = Vec::new();
    for (number, injection) in scenario.inject.iter().enumerate() {
        let (name, after) = injection.names();
        let number_of = |after: &String| {
            let named = |name: &Option<&At<String>>| name.is_some_and(|it| **it == *after);
            u32::try_from(names.iter().position(named)?).ok()
        };
        let found = after.map_or_else(Vec::new, |after| {
            after.as_slice().iter().filter_map(number_of).collect()
        });
        let resolver = Resolver {
            symbols,
            vcpus,
            follows: after.is_some(),
        };
        let Some((trigger, action)) = resolver.injection(injection, complaints) else {
            continue;
        };
        let word = injection.word();
        plans.push(InjectionPlan {
            name: match name {
                Some(name) => format!("injection {} ({word}, `{}`)", number + 1, name.as_str()),
                None => format!("injection {} ({word})", number + 1),
            },
            trigger,
            after: found,
            action,
            target: injection.when().and_then(|it| it.target).map(|it| **it),
        });
    }
    if let Some(schedule) = &scenario.schedule {
        let first = plans.len();
        plans.extend(points(schedule, first, symbols, complaints));
    }
    plans
}

/// The points of the schedule. Each follows the previous point of the same vCPU.
fn points(
    schedule: &Schedule,
    first: usize,
    symbols: &dyn KernelSymbols,
    complaints: &mut Complaints<'_>,
) -> Vec<InjectionPlan> {
    let repeat = or_one(schedule.repeat.as_ref());
    let of = u32::try_from(schedule.points.len()).unwrap_or(u32::MAX);
    let mut plans: Vec<InjectionPlan> = Vec::new();
    for (turn, point) in (0_u32..).zip(schedule.points.iter()) {
        let Some(place) = place(&point.at, symbols, complaints) else {
            continue;
        };
        let mine = |other: &&(u32, u8)| other.1 == *point.vcpu;
        let vcpus: Vec<(u32, u8)> = (0_u32..)
            .zip(schedule.points.iter().map(|it| *it.vcpu))
            .collect();
        let before = vcpus.iter().filter(mine).rfind(|other| other.0 < turn);
        let before = before.map(|it| it.0 + u32::try_from(first).unwrap_or(u32::MAX));
        plans.push(InjectionPlan {
            name: match &point.name {
                Some(name) => format!("point {} of the schedule (`{}`)", turn + 1, name.as_str()),
                None => format!("point {} of the schedule", turn + 1),
            },
            trigger: TriggerPlan::Arrival(ArrivalPlan {
                hit: or_one(point.hit.as_ref()),
                repeat,
                by: by(point.task.as_ref(), point.thread.as_ref()),
                vcpu: Some(*point.vcpu),
                ..ArrivalPlan::first(place)
            }),
            after: before.into_iter().collect(),
            action: ActionPlan::Pass {
                turn,
                of,
                limit_ms: limit(schedule.limit.as_ref()),
            },
            target: None,
        });
    }
    plans
}

struct Resolver<'a> {
    symbols: &'a dyn KernelSymbols,
    vcpus: u8,
    /// Whether the injection comes after another one.
    follows: bool,
}

impl Resolver<'_> {
    /// `None` with a complaint.
    fn injection(
        &self,
        injection: &Injection,
        complaints: &mut Complaints<'_>,
    ) -> Option<(TriggerPlan, ActionPlan)> {
        let action = match injection {
            Injection::Nmi(_) => ActionPlan::Nmi,
            Injection::PmuOverflow(_) => ActionPlan::PmuOverflow,
            Injection::Fail(fail) => {
                let returns = *fail.returns;
                return Some((self.call(fail, complaints)?, ActionPlan::Fail { returns }));
            }
            Injection::Irq(irq) => ActionPlan::Irq {
                vector: u8::try_from(irq.vector.0).unwrap_or(u8::MAX),
            },
            Injection::Freeze(freeze) => ActionPlan::Freeze {
                limit_ms: limit(freeze.limit.as_ref()),
            },
            Injection::Thaw(_) => ActionPlan::Thaw,
            Injection::Poke(poke) => ActionPlan::Poke(self.poke(poke, complaints)?),
            Injection::Corrupt(it) => ActionPlan::Corrupt {
                frame: *it.frame,
                with: *it.with,
            },
            Injection::Migrate(it) => {
                let cpu = u32::from(*it.to);
                helped(Command::Migrate { cpu }, it.of.as_ref())
            }
            Injection::Signal(it) => helped(Command::Signal, it.of.as_ref()),
            Injection::BlockFault(it) => {
                helped(Command::Block { frame: *it.frame }, it.of.as_ref())
            }
            Injection::ReleaseFault(it) => helped(Command::Release, it.of.as_ref()),
            Injection::Unmap(it) => helped(Command::Unmap { frame: *it.frame }, it.of.as_ref()),
            Injection::PageOut(it) => helped(Command::PageOut { frame: *it.frame }, it.of.as_ref()),
            Injection::Truncate(it) => {
                helped(Command::Truncate { frame: *it.frame }, it.of.as_ref())
            }
            Injection::Kill(it) => helped(Command::Kill, it.of.as_ref()),
            Injection::Exec(it) => helped(Command::Exec, it.of.as_ref()),
        };
        let trigger = self.trigger(&injection.when()?, complaints)?;
        Some((trigger, action))
    }

    fn trigger(&self, when: &When<'_>, complaints: &mut Complaints<'_>) -> Option<TriggerPlan> {
        let repeat = or_one(when.repeat);
        if let Some(every) = when.every {
            return Some(TriggerPlan::Rate {
                period_us: every.micros(),
                count: or_one(when.count),
                backs_off: when.backs_off.is_some_and(|it| **it),
                vcpus: when.vcpus.map_or_else(
                    || (0..self.vcpus).collect(),
                    |list| list.iter().map(|vcpu| **vcpu).collect(),
                ),
            });
        }
        if let Some(event) = when.on {
            return Some(TriggerPlan::Event {
                event: event_plan(**event),
                hit: or_one(when.hit),
                repeat,
            });
        }
        let Some(at) = when.at else {
            let micros = when.delay.map_or(0, |delay| delay.micros());
            let repeat = if self.follows { repeat } else { 1 };
            return Some(TriggerPlan::Delay { micros, repeat });
        };
        Some(TriggerPlan::Arrival(ArrivalPlan {
            first: or_one(when.first),
            hit: or_one(when.hit),
            repeat,
            times: when.times.map_or(1, |n| **n),
            sweep: when.sweep.is_some_and(|sweep| **sweep),
            by: by(when.task, when.thread),
            vcpu: when.vcpu.map(|vcpu| **vcpu),
            in_nmi: when.in_nmi.is_some_and(|it| **it),
            ..ArrivalPlan::first(place(at, self.symbols, complaints)?)
        }))
    }

    /// The call of the function that fails.
    fn call(&self, fail: &Fail, complaints: &mut Complaints<'_>) -> Option<TriggerPlan> {
        let address = symbol_address(&fail.function, self.symbols);
        let address = complaints.accept(fail.function.location(), address)?;
        Some(TriggerPlan::Arrival(ArrivalPlan {
            first: or_one(fail.first.as_ref()),
            hit: or_one(fail.hit.as_ref()),
            repeat: or_one(fail.repeat.as_ref()),
            by: by(None, fail.thread.as_ref()),
            ..ArrivalPlan::first(CodePlace::Kernel { address })
        }))
    }

    fn poke(&self, poke: &Poke, complaints: &mut Complaints<'_>) -> Option<PokePlan> {
        let (name, location) = (poke.variable.as_str(), poke.variable.location());
        let mut address = complaints.accept(location, symbol_address(name, self.symbols))?;
        if poke.cpu.is_some() {
            let offset = self.symbols.percpu_offset(name);
            let offset = offset.ok_or_else(|| format!("`{name}` is not a per-CPU variable"));
            address = complaints.accept(location, offset)?;
        }
        Some(PokePlan {
            address,
            cpu: poke.cpu.as_ref().map(|cpu| **cpu),
            bytes: poke.bytes.as_ref().map_or(4, |bytes| **bytes),
            value: poke.value.0,
        })
    }
}

fn helped(command: Command, of: Option<&At<u32>>) -> ActionPlan {
    let thread = of.map(|of| **of);
    ActionPlan::Guest { command, thread }
}

fn or_one(written: Option<&At<u64>>) -> u64 {
    written.map_or(1, |n| **n)
}

fn limit(written: Option<&At<Time>>) -> u64 {
    written.map_or(FREEZE_LIMIT_MS, |limit| limit.millis_ceil())
}

fn by(task: Option<&At<TaskKind>>, thread: Option<&At<u32>>) -> TaskFilter {
    match (task.map(|it| **it), thread) {
        (Some(TaskKind::Any), _) => TaskFilter::Any,
        (_, Some(thread)) => TaskFilter::Thread(**thread),
        (_, None) => TaskFilter::Workload,
    }
}

const fn event_plan(event: Event) -> EventPlan {
    match event {
        Event::Record(record) => EventPlan::Record(match record {
            RecordKind::Lost => record_type::LOST,
            RecordKind::Comm => record_type::COMM,
            RecordKind::Exit => record_type::EXIT,
            RecordKind::Fork => record_type::FORK,
            RecordKind::Sample => record_type::SAMPLE,
            RecordKind::Switch => record_type::SWITCH_CPU_WIDE,
            RecordKind::Deferred => record_type::CALLCHAIN_DEFERRED,
        }),
        Event::Lab(record) => EventPlan::Lab(match record {
            LabRecord::Request => kind::REQUEST,
            LabRecord::CallbackBegin => kind::CALLBACK,
            LabRecord::CallbackEnd => kind::CALLED,
            LabRecord::Return => kind::RETURN,
            LabRecord::Cancel => kind::CANCEL,
            LabRecord::Cancelled => kind::CANCELLED,
        }),
        Event::Exit(it) => EventPlan::Exit(ExitPlan {
            kind: it.kind,
            number: match it.number {
                Some(Number(number)) => Some(number),
                None => None,
            },
        }),
        Event::Mark(it) => EventPlan::Mark(match it {
            MarkKind::Arm => mark::ARM,
            MarkKind::Done => mark::DONE,
            MarkKind::Blocked => mark::BLOCKED,
        }),
    }
}
