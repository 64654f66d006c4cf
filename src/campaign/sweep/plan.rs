//! From a request and a scenario to a sweep's plan.

use std::collections::BTreeSet;
use std::ops::Range;

use super::request::{PairChoice, PointChoice, SweepRequest};
use crate::campaign::context::required_trial;
use crate::campaign::error::{CampaignError, SweepRequestError};
use crate::campaign::replay_file::ReplayPlace;
use crate::host::provider::{ProviderError, TestKernel};
use crate::scenario::inject::places::address_of;
use crate::scenario::{KernelSymbols, Loaded, near};
use unwindlab_engine::plan::TrialPlan;
use unwindlab_engine::plan::sweep::SweepPlan;
use unwindlab_engine::plan::sweep::{Pairs, Points};
use unwindlab_engine::plan::{ActionPlan, ArrivalPlan, CodePlace, TriggerPlan};

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
    let trial = required_trial(loaded, kernel)?;
    let from = request.path.start.from();
    let from = from.map(|place| address_of(place, symbols));
    let from = from.transpose().map_err(SweepRequestError::From)?;
    let first = match from {
        Some(_) => u32::try_from(trial.injections.len()).unwrap_or(u32::MAX),
        None => first_request(&trial)
            .ok_or_else(|| SweepRequestError::NoRequest(loaded.file.clone()))?,
    };
    let (points, second) = points(request, kernel)?;
    let pairs = request.pairs.map(|choice| pairs(second, choice, symbols));
    Ok(SweepPlan {
        request: first,
        asks: request.path.start.allows_request() && from.is_none(),
        from,
        jobs: request.options.jobs,
        points,
        pairs: pairs.transpose()?,
        done: BTreeSet::new(),
        longest: LONGEST,
        limit_ms: LIMIT_MS,
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

/// The first injection that a path can begin with.
fn first_request(trial: &TrialPlan) -> Option<u32> {
    (0_u32..)
        .zip(&trial.injections)
        .find(|(_, injection)| {
            let in_kernel = |at: &ArrivalPlan| matches!(at.place, CodePlace::Kernel { .. });
            matches!(injection.action, ActionPlan::Nmi)
                && matches!(&injection.trigger, TriggerPlan::Arrival(at) if in_kernel(at))
        })
        .map(|(index, _)| index)
}

/// The points for the first NMI that a request chooses, and those for the second.
fn points(
    request: &SweepRequest,
    kernel: &dyn TestKernel,
) -> Result<(Points, Points), SweepRequestError> {
    let symbols = kernel.symbols();
    Ok(match &request.points {
        PointChoice::In { functions, once } => {
            let mut ranges = Vec::new();
            for name in functions {
                ranges.extend(code_of(name, symbols)?);
            }
            let chosen = Points::In {
                functions: (!ranges.is_empty()).then_some(ranges),
                once: *once,
            };
            (chosen.clone(), chosen)
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
