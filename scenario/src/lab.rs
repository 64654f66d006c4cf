//! The `lab` part of a scenario: the kernel's lab client acts as several tracers at once.

use schemars::JsonSchema;
use serde::Deserialize;
use unwindlab_abi::LabPlan;
use unwindlab_abi::lab::{
    LabAsk, LabChurn, LabContext, LabPlace, LabPoint, LabPoke, MAX_CLIENTS, MAX_LOG_PAGES,
    MAX_PLACES, SYMBOL_BYTES, clients,
};

use super::error::Complaints;
use super::inject::places::address_of;
use super::located::At;
use super::model::Scenario;
use super::place::{KernelPlace, SymbolOffset};
use super::resolve::KernelSymbols;
use super::units::Time;

/// Most requests in a row. More only fill the log.
const MAX_COUNT: u32 = 1000;
/// Shortest sleep, in microseconds, of a thread that disturbs the workload: the thread must leave
/// the CPU to others.
const MIN_PERIOD_US: u64 = 10;
/// Most clients that several threads register: with so few, the kernel has places for all (R3 takes the order of the
/// log for that of the registrations).
const MAX_BESIDE: u32 = 32;
/// Longest callback, in microseconds, because it is a busy wait.
const MAX_DELAY_US: u64 = 20_000;

/// What the kernel's lab client does: clients of the deferred unwinder, beside perf, that request
/// unwinds of the workload's threads. The kernel must have the lab client.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Lab {
    /// Number of clients, registered before the workload starts and numbered from 0. The kernel has
    /// room for fewer than 64 and refuses the last ones.
    #[schemars(range(min = 1, max = 64))]
    pub clients: At<u32>,
    /// Where clients make requests.
    #[serde(default)]
    pub ask: Vec<At<Ask>>,
    /// Instructions of the kernel at which clients make requests, by kprobes: 4 at most.
    #[serde(default)]
    pub places: Vec<At<Place>>,
    /// Requests from inside callbacks.
    pub nested: Option<Nested>,
    /// Threads on one CPU that make all clients request an unwind of what runs on another.
    #[serde(default)]
    pub poke: Vec<At<PokeThread>>,
    /// Threads that cancel clients and register them again.
    pub churn: Option<At<Churn>>,
    /// Clients that are cancelled before the workload starts and still make requests.
    #[serde(default)]
    pub cancelled: Vec<At<u32>>,
    /// Least duration of a callback (a busy wait), up to 20 ms (default: none).
    #[serde(default)]
    pub callback_delay: Option<At<Time>>,
    /// Pages of the log, 64 records each (default 2048). Requests end when it is seven eighths
    /// full.
    #[serde(default = "log_pages")]
    #[schemars(range(min = 1, max = 32768))]
    pub log_pages: At<u32>,
}

/// Requests at one point.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Ask {
    /// The point.
    pub at: LabPoint,
    /// The contexts, on top of the thread, one after the other (default: task).
    pub contexts: Option<At<Vec<LabContext>>>,
    /// The clients (default: all).
    pub clients: Option<Vec<At<u32>>>,
    /// Number of requests in a row (default 1).
    #[schemars(range(min = 1, max = 1000))]
    pub count: Option<At<u32>>,
}

/// Requests at an instruction of the kernel.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Place {
    /// The instruction, which the kernel must take a kprobe at.
    pub kernel: At<SymbolOffset>,
    /// The clients (default: all).
    pub clients: Option<Vec<At<u32>>>,
    /// Number of requests in a row (default 1).
    #[schemars(range(min = 1, max = 1000))]
    pub count: Option<At<u32>>,
}

/// Requests from inside callbacks.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Nested {
    /// In the callbacks of these clients ...
    #[serde(rename = "in")]
    pub inside: Vec<At<u32>>,
    /// ... these clients make requests.
    pub clients: Vec<At<u32>>,
}

/// A thread that disturbs the workload.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PokeThread {
    /// The CPU on which it runs.
    pub from: At<u8>,
    /// The CPU that it interrupts.
    pub to: At<u8>,
    /// The context of the requests there: softirq, hardirq or nmi.
    pub context: At<LabContext>,
    /// The period.
    pub every: At<Time>,
    /// Number of requests in a row (default 1).
    #[schemars(range(min = 1, max = 1000))]
    pub count: Option<At<u32>>,
}

/// Threads that cancel clients and register them again, each one after the other.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Churn {
    /// The CPU on which the thread runs.
    pub cpu: At<u8>,
    /// CPUs of further threads. The clients are dealt out to all threads in turn.
    #[serde(default)]
    pub also_on: Vec<At<u8>>,
    /// The clients (default: all).
    pub clients: Option<Vec<At<u32>>>,
    /// The period.
    pub every: At<Time>,
}

const fn log_pages() -> At<u32> {
    At::unwritten(2048)
}

/// Checks what the types do not express.
pub(super) fn check(scenario: &Scenario, complaints: &mut Complaints<'_>) {
    let Some(lab) = &scenario.lab else { return };
    let clients = *lab.clients;
    complaints.require(
        (1..=MAX_CLIENTS).contains(&clients),
        lab.clients.location(),
        || format!("found {clients} clients, expected 1 to {MAX_CLIENTS}"),
    );
    complaints.require(
        (1..=MAX_LOG_PAGES).contains(&*lab.log_pages),
        lab.log_pages.location(),
        || {
            format!(
                "found {} pages, expected 1 to {MAX_LOG_PAGES}",
                *lab.log_pages
            )
        },
    );
    complaints.require(
        !lab.ask.is_empty() || !lab.poke.is_empty() || !lab.places.is_empty(),
        lab.clients.location(),
        || "found clients that never ask, expected `ask`, `places` or `poke`".to_owned(),
    );
    check_places(lab, complaints);
    for (index, ask) in lab.ask.iter().enumerate() {
        check_ask(lab, index, ask, complaints);
    }
    let nested = lab
        .nested
        .iter()
        .flat_map(|n| n.inside.iter().chain(&n.clients));
    let churned = lab.churn.iter().filter_map(|churn| churn.clients.as_ref());
    for client in nested.chain(churned.flatten()).chain(&lab.cancelled) {
        check_client(clients, client, complaints);
    }
    for poke in &lab.poke {
        check_poke(poke, *scenario.machine.vcpus, complaints);
    }
    if let Some(churn) = &lab.churn {
        check_churn(lab, churn, *scenario.machine.vcpus, complaints);
    }
    if let Some(delay) = &lab.callback_delay {
        complaints.require(delay.micros() <= MAX_DELAY_US, delay.location(), || {
            format!("found {}, expected up to {MAX_DELAY_US} us", **delay)
        });
    }
}

fn check_ask(lab: &Lab, index: usize, ask: &At<Ask>, complaints: &mut Complaints<'_>) {
    let earlier = lab.ask.iter().take(index).any(|other| other.at == ask.at);
    complaints.require(!earlier, ask.location(), || {
        "found the same `at` twice, expected each once".to_owned()
    });
    if let Some(contexts) = &ask.contexts {
        complaints.require(ask.at != LabPoint::Nmi, contexts.location(), || {
            "found `contexts` at `nmi`, expected none: an NMI is one".to_owned()
        });
        complaints.require(!contexts.is_empty(), contexts.location(), || {
            "found no context, expected at least one".to_owned()
        });
    }
    if let Some(count) = &ask.count {
        check_count(count, complaints);
    }
    for client in ask.clients.iter().flatten() {
        check_client(*lab.clients, client, complaints);
    }
}

fn check_places(lab: &Lab, complaints: &mut Complaints<'_>) {
    if let Some(more) = lab.places.get(MAX_PLACES) {
        complaints.add(
            more.location(),
            format!("found more than {MAX_PLACES} places, which the lab client has room for"),
        );
    }
    for place in &lab.places {
        let symbol = &place.kernel.symbol;
        complaints.require(symbol.len() < SYMBOL_BYTES, place.kernel.location(), || {
            format!("found `{symbol}`, expected a name of less than {SYMBOL_BYTES} bytes")
        });
        if let Some(count) = &place.count {
            check_count(count, complaints);
        }
        for client in place.clients.iter().flatten() {
            check_client(*lab.clients, client, complaints);
        }
    }
}

fn check_poke(poke: &PokeThread, vcpus: u8, complaints: &mut Complaints<'_>) {
    check_cpu(&poke.from, vcpus, complaints);
    check_cpu(&poke.to, vcpus, complaints);
    check_period(&poke.every, complaints);
    let context = &poke.context;
    complaints.require(**context != LabContext::Task, context.location(), || {
        "found context `task`, expected `softirq`, `hardirq` or `nmi`: a poke interrupts".to_owned()
    });
    if let Some(count) = &poke.count {
        check_count(count, complaints);
    }
}

fn check_churn(lab: &Lab, churn: &At<Churn>, vcpus: u8, complaints: &mut Complaints<'_>) {
    check_cpu(&churn.cpu, vcpus, complaints);
    check_period(&churn.every, complaints);
    complaints.require(lab.cancelled.is_empty(), churn.location(), || {
        "found `churn` beside `cancelled`, expected one of them".to_owned()
    });
    let Some(other) = churn.also_on.first() else {
        return;
    };
    for cpu in &churn.also_on {
        check_cpu(cpu, vcpus, complaints);
    }
    let clients = *lab.clients;
    let churned = churn.clients.as_ref().map_or(clients as usize, Vec::len);
    complaints.require(churned > churn.also_on.len(), other.location(), || {
        format!(
            "found {} threads, expected no more than the {churned} clients that are dealt out to them",
            churn.also_on.len() + 1
        )
    });
    complaints.require(clients <= MAX_BESIDE, other.location(), || {
        format!(
            "found {clients} clients, expected {MAX_BESIDE} at most beside `also-on`: who is refused when the \
             kernel's places are taken is told by the order of registrations"
        )
    });
}

fn check_count(count: &At<u32>, complaints: &mut Complaints<'_>) {
    complaints.require((1..=MAX_COUNT).contains(&**count), count.location(), || {
        format!("found count {}, expected 1 to {MAX_COUNT}", **count)
    });
}

fn check_client(clients: u32, client: &At<u32>, complaints: &mut Complaints<'_>) {
    complaints.require(**client < clients, client.location(), || {
        format!(
            "found client {}, expected one of {clients}, from 0",
            **client
        )
    });
}

fn check_cpu(cpu: &At<u8>, vcpus: u8, complaints: &mut Complaints<'_>) {
    complaints.require(**cpu < vcpus, cpu.location(), || {
        format!(
            "found CPU {}, expected one of the machine's {vcpus}, from 0",
            **cpu
        )
    });
}

fn check_period(every: &At<Time>, complaints: &mut Complaints<'_>) {
    complaints.require(every.micros() >= MIN_PERIOD_US, every.location(), || {
        format!("found {}, expected {MIN_PERIOD_US} us or more", **every)
    });
}

/// Resolves the part; the scenario has been checked.
pub(super) fn resolve(
    lab: &Lab,
    symbols: &dyn KernelSymbols,
    complaints: &mut Complaints<'_>,
) -> LabPlan {
    // The client looks the symbol up itself; here it is told before anything runs.
    for place in &lab.places {
        let named = KernelPlace::Symbol((*place.kernel).clone());
        complaints.accept(place.kernel.location(), address_of(&named, symbols));
    }
    let all = first(*lab.clients);
    let mut ask = [LabAsk::default(); LabPoint::COUNT];
    for written in &lab.ask {
        let contexts = written.contexts.as_ref().map(|list| list.iter());
        let contexts = contexts.map(|list| list.fold(0, |bits, c| bits | 1 << c.number()));
        if let Some(slot) = ask.get_mut(written.at.index()) {
            *slot = LabAsk {
                clients: written.clients.as_ref().map_or(all, |list| mask(list)),
                contexts: contexts.unwrap_or(1 << LabContext::Task.number()),
                count: written.count.as_ref().map_or(1, |count| **count),
            };
        }
    }
    if let Some(slot) = ask.get_mut(LabPoint::Poke.index()) {
        slot.clients = all;
    }
    let delay = lab.callback_delay.as_ref().map_or(0, |it| it.micros());
    LabPlan {
        clients: *lab.clients,
        log_pages: *lab.log_pages,
        ask,
        nested_in: lab.nested.as_ref().map_or(0, |n| mask(&n.inside)),
        nested: lab.nested.as_ref().map_or(0, |n| mask(&n.clients)),
        callback_delay_us: u32::try_from(delay).unwrap_or(u32::MAX),
        cancelled: mask(&lab.cancelled),
        places: lab.places.iter().map(|it| place_plan(it, all)).collect(),
        pokes: lab.poke.iter().map(|poke| poke_plan(poke)).collect(),
        churn: lab
            .churn
            .iter()
            .flat_map(|it| churn_plan(it, all))
            .collect(),
    }
}

fn churn_plan(churn: &Churn, all: u64) -> Vec<LabChurn> {
    let cpus: Vec<u32> = std::iter::once(&churn.cpu)
        .chain(&churn.also_on)
        .map(|cpu| u32::from(**cpu))
        .collect();
    let churned = churn.clients.as_ref().map_or(all, |list| mask(list));
    let dealt = |number| {
        clients(churned)
            .skip(number)
            .step_by(cpus.len())
            .fold(0, |mask, client| mask | 1 << client)
    };
    let period_us = churn.every.micros();
    let threads = cpus.iter().enumerate();
    threads
        .map(|(number, &cpu)| LabChurn {
            cpu,
            clients: dealt(number),
            period_us,
        })
        .collect()
}

fn place_plan(place: &Place, all: u64) -> LabPlace {
    LabPlace {
        symbol: place.kernel.symbol.clone(),
        offset: u32::try_from(place.kernel.offset).unwrap_or(u32::MAX),
        clients: place.clients.as_ref().map_or(all, |list| mask(list)),
        count: place.count.as_ref().map_or(1, |count| **count),
    }
}

fn poke_plan(poke: &PokeThread) -> LabPoke {
    LabPoke {
        from: u32::from(*poke.from),
        to: u32::from(*poke.to),
        context: *poke.context,
        count: poke.count.as_ref().map_or(1, |count| **count),
        period_us: poke.every.micros(),
    }
}

/// A bit for each of so many clients.
fn first(clients: u32) -> u64 {
    1_u64.checked_shl(clients).map_or(u64::MAX, |bit| bit - 1)
}

fn mask(clients: &[At<u32>]) -> u64 {
    clients.iter().fold(0, |bits, client| {
        bits | 1_u64.checked_shl(**client).unwrap_or(0)
    })
}
