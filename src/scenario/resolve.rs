//! Scenario and kernel to [`TrialPlan`]: every name becomes an address, every default a value.

use unwindlab_abi::lab::SYMBOL as LAB_CLIENT;
use unwindlab_abi::plan::{GuestPlan, Workload};

use super::error::{Complaints, ScenarioErrors};
use super::events;
use super::lab;
use super::located::{At, Location};
use super::model::{Fail, Injection, Nmi, Place as WrittenPlace, Scenario};
use super::place::SymbolOffset;
use crate::runner::TrialPlan;
use crate::runner::plan::{ActionPlan, InjectionPlan, KernelAddresses, Limits, Place, TriggerPlan};

/// From the start of the machine to the agent's `Ready`; a stock kernel takes 3 s on the
/// emulated host with two other machines beside it.
const BOOT_LIMIT_MS: u64 = 60_000;

/// What must be in a kernel's symbol table for there to be anything to test.
const FEATURE: &str = "unwind_deferred_request";

/// Names and addresses of a kernel's text.
pub trait KernelSymbols {
    /// Addresses of all symbols of this name, in order; more than one for static functions.
    fn addresses(&self, name: &str) -> Vec<u64>;
    /// Bytes from the symbol to the one after it.
    fn size(&self, name: &str) -> Option<u64>;
    /// Names that could have been meant, best first.
    fn similar(&self, name: &str) -> Vec<String>;
    /// Offset of the pointer to the running task from the CPU's GS base.
    fn current_task_offset(&self) -> Option<u64>;
    /// The symbol that holds an address, and bytes from its start.
    fn resolve(&self, address: u64) -> Option<(String, u64)>;
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The kernel has nothing that could be tested: a skip, not an error of the scenario.
    #[error("{0}")]
    Unsupported(String),
    /// The scenario names what the kernel does not have.
    #[error(transparent)]
    Scenario(#[from] ScenarioErrors),
}

/// Resolves a checked scenario for a kernel. `file` is the scenario's in messages, `kernel` the
/// content hash by which the executor finds the image.
///
/// # Errors
/// [`ResolveError`].
pub fn resolve(
    file: &str,
    scenario: &Scenario,
    symbols: &dyn KernelSymbols,
    kernel: &str,
) -> Result<TrialPlan, ResolveError> {
    if symbols.addresses(FEATURE).is_empty() {
        return Err(ResolveError::Unsupported(format!(
            "the kernel has no deferred unwinding (no symbol `{FEATURE}`)"
        )));
    }
    if scenario.lab.is_some() && symbols.addresses(LAB_CLIENT).is_empty() {
        return Err(ResolveError::Unsupported(format!(
            "the kernel has no lab client (no symbol `{LAB_CLIENT}`); `--source debian` builds one \
             that has"
        )));
    }
    let current_task = symbols.current_task_offset().ok_or_else(|| {
        ResolveError::Unsupported("the kernel has no per-CPU `current_task`".to_owned())
    })?;
    let mut complaints = Complaints::new(file);
    let injections = scenario
        .inject
        .iter()
        .filter_map(|injection| {
            let (trigger, action) = match injection {
                Injection::Nmi(nmi) => (
                    trigger(nmi, *scenario.machine.vcpus, symbols, &mut complaints)?,
                    ActionPlan::Nmi,
                ),
                Injection::Fail(fail) => (
                    call(fail, symbols, &mut complaints)?,
                    ActionPlan::Fail {
                        returns: *fail.returns,
                    },
                ),
            };
            Some(InjectionPlan { trigger, action })
        })
        .collect();
    let guest = GuestPlan {
        tracing: events::resolve(&scenario.perf, scenario.lab.is_some(), &mut complaints),
        workload: workload(scenario),
        lab: scenario.lab.as_ref().map(lab::resolve),
    };
    Ok(complaints.into_result(TrialPlan {
        scenario: String::clone(&scenario.name),
        kernel: kernel.to_owned(),
        vcpus: *scenario.machine.vcpus,
        memory_mib: scenario.machine.memory.mib,
        cmdline: String::clone(&scenario.machine.cmdline),
        guest,
        injections,
        settle_ms: scenario.settle.millis_ceil(),
        limits: Limits {
            boot_ms: BOOT_LIMIT_MS,
            run_ms: scenario.timeout.millis_ceil(),
        },
        symbols: KernelAddresses { current_task },
    })?)
}

fn workload(scenario: &Scenario) -> Workload {
    let written = &scenario.workload;
    Workload {
        kind: *written.kind,
        frames: *written.frames,
        frames_step: *written.frames_step,
        threads: *written.threads,
        iterations: *written.iterations,
        wild_ends: *written.wild_ends,
    }
}

/// `None` where a complaint was made.
fn trigger(
    nmi: &Nmi,
    vcpus: u8,
    symbols: &dyn KernelSymbols,
    complaints: &mut Complaints<'_>,
) -> Option<TriggerPlan> {
    let or_one = |written: &Option<At<u64>>| written.as_ref().map_or(1, |n| **n);
    if let Some(every) = &nmi.every {
        return Some(TriggerPlan::Rate {
            period_us: every.micros(),
            count: or_one(&nmi.count),
            vcpus: nmi.vcpus.as_ref().map_or_else(
                || (0..vcpus).collect(),
                |list| list.iter().map(|vcpu| **vcpu).collect(),
            ),
        });
    }
    let at = nmi.at.as_ref()?;
    let place = match &**at {
        WrittenPlace::Kernel(place) => Place::Kernel {
            address: kernel_address(place, at.location(), symbols, complaints)?,
        },
        // The agent names its text only once it runs; an executor that does not find the name
        // says so.
        WrittenPlace::User(place) => Place::User {
            symbol: place.symbol.clone(),
            offset: place.offset,
        },
    };
    Some(TriggerPlan::Arrival {
        place,
        first: or_one(&nmi.first),
        hit: or_one(&nmi.hit),
        repeat: or_one(&nmi.repeat),
        times: nmi.times.as_ref().map_or(1, |n| **n),
        sweep: nmi.sweep.as_ref().is_some_and(|sweep| **sweep),
    })
}

/// The call of a function. `None` where a complaint was made.
fn call(
    fail: &Fail,
    symbols: &dyn KernelSymbols,
    complaints: &mut Complaints<'_>,
) -> Option<TriggerPlan> {
    let or_one = |written: &Option<At<u64>>| written.as_ref().map_or(1, |n| **n);
    let place = SymbolOffset {
        symbol: String::clone(&fail.function),
        offset: 0,
    };
    let address = kernel_address(&place, fail.function.location(), symbols, complaints)?;
    Some(TriggerPlan::Arrival {
        place: Place::Kernel { address },
        first: or_one(&fail.first),
        hit: or_one(&fail.hit),
        repeat: or_one(&fail.repeat),
        times: 1,
        sweep: false,
    })
}

fn kernel_address(
    place: &SymbolOffset,
    location: Location,
    symbols: &dyn KernelSymbols,
    complaints: &mut Complaints<'_>,
) -> Option<u64> {
    let name = &place.symbol;
    let address = match symbols.addresses(name).as_slice() {
        [address] => *address,
        [] => {
            let near = symbols.similar(name);
            let hint = if near.is_empty() {
                String::new()
            } else {
                format!(" (near it: {})", near.join(", "))
            };
            complaints.add(location, format!("the kernel has no symbol `{name}`{hint}"));
            return None;
        }
        many => {
            let count = many.len();
            complaints.add(
                location,
                format!("the kernel has {count} symbols `{name}`, expected a name that is unique"),
            );
            return None;
        }
    };
    let size = symbols.size(name).unwrap_or(0);
    if place.offset > 0 && place.offset >= size {
        complaints.add(
            location,
            format!(
                "found offset {:#x}, but `{name}` has {size:#x} bytes",
                place.offset
            ),
        );
        return None;
    }
    address.checked_add(place.offset)
}
