//! From a request and a scenario to a sweep's plan.

use std::collections::BTreeSet;
use std::ops::Range;

use super::request::{PairChoice, PathPlace, PointChoice, SweepRequest};
use crate::campaign::context::required_trial;
use crate::campaign::error::{CampaignError, SweepRequestError};
use crate::campaign::replay_file::ReplayPlace;
use crate::host::provider::{ProviderError, TestKernel};
use unwindlab_engine::plan::TrialPlan;
use unwindlab_engine::plan::sweep::{Beginning, Made, Pairs, Points, SweepPlan};
use unwindlab_engine::plan::{ActionPlan, CodePlace, TaskFilter, TriggerPlan};
use unwindlab_scenario::inject::places::address_of;
use unwindlab_scenario::{KernelSymbols, Loaded, near};

/// Longest path, in instructions; the exit work of an entry with a long stack has some ten
/// thousand.
const LONGEST: u32 = 200_000;
/// A trial takes milliseconds; on a machine with other work ten times as many.
const LIMIT_MS: u64 = 5_000;
/// Where an NMI's handler begins (arch/x86/entry/entry_64.S).
const NMI_ENTRY: &str = "asm_exc_nmi";
/// perf's buffers for call chains (kernel/events/callchain.c).
const CALLCHAINS: &str = "callchain_cpus_entries";

/// The sweep of a scenario on a kernel.
pub(in crate::campaign) fn plan(
    request: &SweepRequest,
    loaded: &Loaded,
    kernel: &dyn TestKernel,
) -> Result<SweepPlan, CampaignError> {
    let symbols = kernel.symbols();
    let mut trial = required_trial(loaded, kernel)?;
    trial.choice = request.options.choice;
    if request.options.others_run {
        // At each return that it sees, the witness stops all vCPUs: one in the middle of single steps
        // would run on at full speed.
        trial.witness = None;
    }
    let begins = beginning(request, loaded, &trial, symbols)?;
    let (points, second) = points(request, kernel)?;
    let pairs = request.pairs.map(|choice| pairs(second, choice, symbols));
    Ok(SweepPlan {
        request: begins.injection,
        beginning: begins.at,
        made: begins.made,
        then: begins.then,
        in_handler: begins.in_handler,
        jobs: request.options.jobs,
        points,
        shard: request.options.shard,
        pairs: pairs.transpose()?,
        done: BTreeSet::new(),
        longest: LONGEST,
        arrivals: 1,
        patience: None,
        limit_ms: LIMIT_MS,
        others_run: request.options.others_run,
        check_restores: request.options.check_restores,
        trial,
    })
}

fn pairs(
    points: Points,
    choice: PairChoice,
    symbols: &dyn KernelSymbols,
) -> Result<Pairs, ProviderError> {
    let one = |name: &str| match symbols.addresses(name).as_slice() {
        [address] => Some(*address),
        _ => None,
    };
    let entry = one(NMI_ENTRY).ok_or_else(|| {
        ProviderError::Unavailable(format!(
            "the kernel has no symbol `{NMI_ENTRY}`, which pairs need"
        ))
    })?;
    Ok(Pairs {
        points,
        all: choice.all,
        entry,
        callchains: one(CALLCHAINS),
    })
}

/// Where a path begins.
struct Begins {
    /// The injection that begins it.
    injection: u32,
    at: Beginning,
    made: Made,
    then: Option<u64>,
    in_handler: bool,
}

fn beginning(
    request: &SweepRequest,
    loaded: &Loaded,
    trial: &TrialPlan,
    symbols: &dyn KernelSymbols,
) -> Result<Begins, SweepRequestError> {
    let elsewhere = |at| Begins {
        injection: u32::try_from(trial.injections.len()).unwrap_or(u32::MAX),
        at,
        made: Made::Nothing,
        then: None,
        in_handler: false,
    };
    let in_handler = match request.path.start.from() {
        Some(PathPlace::Kernel(place)) => {
            let address = address_of(place, symbols).map_err(SweepRequestError::From)?;
            // Of an interrupt's handler.
            if let Some(irq) = first_request(trial).filter(|it| it.made.is_irq()) {
                return Ok(Begins {
                    then: Some(address),
                    ..irq
                });
            }
            return Ok(elsewhere(Beginning::Kernel {
                address,
                hit: 1,
                any_task: false,
            }));
        }
        Some(PathPlace::User(entry)) => {
            let number = entry.get();
            return Ok(elsewhere(Beginning::Entry { number }));
        }
        Some(PathPlace::Handler) => true,
        None => false,
    };
    let first = first_request(trial);
    let mut begins = first.ok_or_else(|| SweepRequestError::NoRequest(loaded.file.clone()))?;
    begins.in_handler = in_handler;
    if !request.path.start.allows_request() {
        begins.made = Made::Nothing;
    }
    Ok(begins)
}

/// The first injection that a path can begin with: an NMI at an instruction, or an interrupt at one
/// in user mode.
fn first_request(trial: &TrialPlan) -> Option<Begins> {
    (0_u32..)
        .zip(&trial.injections)
        .find_map(|(injection, it)| {
            let TriggerPlan::Arrival(arrival) = &it.trigger else {
                return None;
            };
            let (at, made) = match (&arrival.place, it.action) {
                (CodePlace::Kernel { address }, ActionPlan::Nmi) => (
                    Beginning::Kernel {
                        address: *address,
                        hit: arrival.hit,
                        any_task: arrival.by == TaskFilter::Any,
                    },
                    Made::Nmi,
                ),
                (CodePlace::User { symbol, offset }, action) => (
                    Beginning::User {
                        symbol: symbol.clone(),
                        offset: *offset,
                    },
                    match action {
                        ActionPlan::Nmi => Made::Nmi,
                        ActionPlan::Irq { vector } => Made::Irq { vector },
                        _ => return None,
                    },
                ),
                _ => return None,
            };
            Some(Begins {
                injection,
                at,
                made,
                then: None,
                in_handler: false,
            })
        })
}

/// The points for the first NMI that a request chooses, and those for the second.
fn points(
    request: &SweepRequest,
    kernel: &dyn TestKernel,
) -> Result<(Points, Points), SweepRequestError> {
    let symbols = kernel.symbols();
    Ok(match &request.points {
        PointChoice::In {
            functions,
            once,
            each,
        } => {
            let mut ranges = Vec::new();
            for name in functions {
                ranges.extend(code_of(name, symbols)?);
            }
            let chosen = |each| Points::In {
                functions: (!ranges.is_empty()).then(|| ranges.clone()),
                once: *once,
                each,
            };
            // Of pairs, first NMIs are compared by what they leave behind.
            (chosen(*each || request.pairs.is_some()), chosen(*each))
        }
        PointChoice::Numbered(points) => {
            let seconds: Vec<u32> = points.iter().filter_map(|point| point.second).collect();
            if !seconds.is_empty() && request.pairs.is_none() {
                return Err(SweepRequestError::PointOfPair);
            }
            let second = match seconds.is_empty() {
                true => Points::In {
                    functions: None,
                    once: false,
                    each: true,
                },
                false => Points::These(seconds),
            };
            let first = points.iter().map(|point| point.number).collect();
            (Points::These(first), second)
        }
        PointChoice::Replayed(point) => {
            let same = kernel.hash() == point.kernel;
            let second = point.second.as_ref().unwrap_or(&point.first);
            (
                replayed(&point.first, same, symbols)?,
                replayed(second, same, symbols)?,
            )
        }
    })
}

/// A place of a replay file in a kernel: in another image than the one it was found in, all of its
/// function.
fn replayed(
    place: &ReplayPlace,
    same: bool,
    symbols: &dyn KernelSymbols,
) -> Result<Points, SweepRequestError> {
    let code = code_of(&place.function, symbols)?;
    Ok(match same {
        true => Points::At {
            addresses: code
                .iter()
                .map(|code| code.start.wrapping_add(place.offset))
                .collect(),
            occurrence: place.occurrence,
        },
        false => Points::In {
            functions: Some(code),
            once: false,
            each: true,
        },
    })
}

/// Where the functions of this name lie.
fn code_of(name: &str, symbols: &dyn KernelSymbols) -> Result<Vec<Range<u64>>, SweepRequestError> {
    let size = symbols.size(name).unwrap_or(0);
    let starts = symbols.addresses(name);
    if starts.is_empty() {
        return Err(SweepRequestError::NoFunction {
            name: name.to_owned(),
            near: near(name, symbols),
        });
    }
    let code = |start: u64| start..start.saturating_add(size);
    Ok(starts.into_iter().map(code).collect())
}
