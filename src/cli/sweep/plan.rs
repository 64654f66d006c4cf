//! From the command line and a scenario to a sweep's plan.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::cli::args::SweepArgs;
use crate::cli::error::CommandError;
use crate::host::provider::{ProviderError, TestKernel};
use crate::plan::TrialPlan;
use crate::plan::sweep::SweepPlan;
use crate::plan::sweep::{Pairs, Points};
use crate::plan::{ActionPlan, ArrivalPlan, CodePlace, TriggerPlan};
use crate::scenario::inject::places::{PlaceError, address_of};
use crate::scenario::{KernelSymbols, Loaded, ResolveError, near, resolve};

/// Longest path, in instructions; the exit work of an entry with a long stack has some ten thousand.
const LONGEST: u32 = 200_000;
/// A trial takes milliseconds; on a machine with other work ten times as many.
const LIMIT_MS: u64 = 5_000;
/// Where an NMI's handler begins (arch/x86/entry/entry_64.S).
const NMI_ENTRY: &str = "asm_exc_nmi";
/// perf's buffers for call chains (kernel/events/callchain.c).
const CALLCHAINS: &str = "callchain_cpus_entries";

/// Which points of a path to try, and which behind a first NMI.
pub(in crate::cli) struct Choice {
    pub(in crate::cli) first: Points,
    pub(in crate::cli) second: Points,
}

/// Which points to try, for a kernel.
pub(in crate::cli) type ChoosePoints<'a> =
    &'a dyn Fn(&dyn TestKernel) -> Result<Choice, CommandError>;

/// The sweep of a scenario on a kernel.
pub(in crate::cli) fn plan(
    args: &SweepArgs,
    loaded: &Loaded,
    kernel: &dyn TestKernel,
    points: ChoosePoints<'_>,
) -> Result<SweepPlan, CommandError> {
    let symbols = kernel.symbols();
    let resolved = resolve(&loaded.file, &loaded.scenario, symbols, kernel.hash());
    let trial = resolved.map_err(|error| match error {
        ResolveError::Unsupported(lack) => ProviderError::Unavailable(lack.to_string()).into(),
        ResolveError::Scenario(errors) => CommandError::Scenario(errors),
    })?;
    let from = match &args.from {
        None => None,
        Some(place) => {
            let wrong = |why: PlaceError| CommandError::Usage(format!("--from: {why}"));
            Some(address_of(place, symbols).map_err(wrong)?)
        }
    };
    let request = match (from, request(&trial)) {
        (None, Some(request)) => request,
        (None, None) => {
            return Err(CommandError::Usage(format!(
                "{}: a sweep begins at an NMI at an instruction of the kernel, and the scenario has \
                 none: name one with --from",
                loaded.file
            )));
        }
        (Some(_), _) => u32::try_from(trial.injections.len()).unwrap_or(u32::MAX),
    };
    let Choice { first, second } = points(kernel)?;
    Ok(SweepPlan {
        request,
        asks: !args.no_request && from.is_none(),
        from,
        jobs: args.jobs,
        points: first,
        pairs: match args.pairs {
            true => Some(pairs(second, args.all, symbols)?),
            false => None,
        },
        done: BTreeSet::new(),
        longest: LONGEST,
        limit_ms: LIMIT_MS,
        check_restores: args.check_restores,
        trial,
    })
}

fn pairs(points: Points, all: bool, symbols: &dyn KernelSymbols) -> Result<Pairs, CommandError> {
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
        all,
        entry,
        callchains: one(CALLCHAINS),
    })
}

/// The first injection that a path can begin with.
fn request(trial: &TrialPlan) -> Option<u32> {
    (0_u32..)
        .zip(&trial.injections)
        .find(|(_, injection)| {
            let in_kernel = |at: &ArrivalPlan| matches!(at.place, CodePlace::Kernel { .. });
            matches!(injection.action, ActionPlan::Nmi)
                && matches!(&injection.trigger, TriggerPlan::Arrival(at) if in_kernel(at))
        })
        .map(|(index, _)| index)
}

/// Those that the options name.
pub(in crate::cli) fn points(
    args: &SweepArgs,
    symbols: &dyn KernelSymbols,
) -> Result<Choice, CommandError> {
    let everywhere = |once| Points::In {
        functions: None,
        once,
    };
    if !args.points.is_empty() {
        let seconds: Vec<u32> = args.points.iter().filter_map(|point| point.then).collect();
        if !seconds.is_empty() && !args.pairs {
            let why = "--point N:M names a pair: add --pairs";
            return Err(CommandError::Usage(why.to_owned()));
        }
        return Ok(Choice {
            first: Points::These(args.points.iter().map(|point| point.number).collect()),
            second: match seconds.is_empty() {
                true => everywhere(false),
                false => Points::These(seconds),
            },
        });
    }
    let mut ranges = Vec::new();
    for name in &args.functions {
        ranges.extend(code_of(name, symbols)?);
    }
    let chosen = match ranges.is_empty() {
        true => everywhere(args.once),
        false => Points::In {
            functions: Some(ranges),
            once: args.once,
        },
    };
    Ok(Choice {
        first: chosen.clone(),
        second: chosen,
    })
}

/// Where the functions of this name lie.
pub(in crate::cli) fn code_of(
    name: &str,
    symbols: &dyn KernelSymbols,
) -> Result<Vec<Range<u64>>, CommandError> {
    let size = symbols.size(name).unwrap_or(0);
    let starts = symbols.addresses(name);
    if starts.is_empty() {
        let near = near(name, symbols);
        return Err(CommandError::Usage(format!(
            "the kernel has no function `{name}`{near}"
        )));
    }
    let code = |start: u64| start..start.saturating_add(size);
    Ok(starts.into_iter().map(code).collect())
}
