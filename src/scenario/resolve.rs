//! Scenario and kernel to [`TrialPlan`]: every name becomes an address, every default a value.

use std::collections::BTreeSet;

use unwindlab_abi::lab::SYMBOL as LAB_CLIENT;
use unwindlab_abi::plan::{GuestPlan, Workload};
use unwindlab_guest_kernel::lines::NO_LINES;

use super::error::{Complaints, ScenarioErrors};
use super::events;
use super::explore;
use super::inject;
use super::lab;
use super::model::{Pmu, Scenario};
use super::perf_tool;
use crate::plan::TrialPlan;
use crate::plan::{
    ActionPlan, ArrivalPlan, By, InjectionPlan, KernelAddresses, Limits, PmuPlan, TriggerPlan,
};

/// From the start of the machine to the agent's `Ready`; a stock kernel takes 3 s on the
/// emulated host with two other machines beside it.
const BOOT_LIMIT_MS: u64 = 60_000;

/// What must be in a kernel's symbol table for there to be anything to test.
const FEATURE: &str = "unwind_deferred_request";

/// The lines of a kernel's source.
pub trait SourceLines {
    /// Where a line begins, once for each place where it is inlined.
    ///
    /// # Errors
    /// Why there is no such place, in one line.
    fn place(&self, file: &str, line: u32) -> Result<Vec<u64>, String>;
    /// Files and lines that the instruction at an address comes from.
    fn at(&self, address: u64) -> Vec<(&str, u32)>;
    /// The lines of a file that have code.
    fn with_code(&self, file: &str) -> BTreeSet<u32>;
    /// The text of a file, where it is at hand.
    fn text(&self, file: &str) -> Option<String>;
}

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
    /// What to add to a CPU's GS base for the address of its copy of a per-CPU variable; `None`
    /// for what is none.
    fn percpu_offset(&self, _name: &str) -> Option<u64> {
        None
    }
    /// Bytes of the kernel's text as linked, up to `length` of them; `None` where the image
    /// cannot be read there.
    fn code(&self, _address: u64, _length: usize) -> Option<Vec<u8>> {
        None
    }
    /// The symbol that holds an address, and bytes from its start.
    fn resolve(&self, address: u64) -> Option<(String, u64)>;
    /// The lines of the source, where the kernel was built with DWARF.
    fn lines(&self) -> Option<&dyn SourceLines> {
        None
    }
    /// Addresses of the kernel's `RDPMC` instructions, or why they are not known.
    ///
    /// # Errors
    /// Where the kernel's image cannot be read.
    fn rdpmc_sites(&self) -> Result<Vec<u64>, String> {
        Ok(Vec::new())
    }
}

/// What to say behind a name that the kernel does not have: those that could have been meant, or nothing.
pub fn near(name: &str, symbols: &dyn KernelSymbols) -> String {
    match symbols.similar(name).as_slice() {
        [] => String::new(),
        near => format!(" (near it: {})", near.join(", ")),
    }
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
    if inject::resolve::names_lines(scenario) && symbols.lines().is_none() {
        return Err(ResolveError::Unsupported(NO_LINES.to_owned()));
    }
    let current_task = symbols.current_task_offset().ok_or_else(|| {
        ResolveError::Unsupported("the kernel has no per-CPU `current_task`".to_owned())
    })?;
    let pmu = pmu(*scenario.machine.pmu, symbols)?;
    let mut complaints = Complaints::new(file);
    let injections: Vec<InjectionPlan> =
        inject::resolve::resolve(scenario, symbols, &mut complaints);
    let triggers: Vec<_> = injections.iter().map(|it| &it.trigger).collect();
    let explore = explore::resolve(scenario, &triggers, symbols, &mut complaints);
    let guest = GuestPlan {
        tracing: events::resolve(scenario, Some(symbols), &mut complaints),
        workload: workload(scenario),
        lab: scenario.lab.as_ref().map(lab::resolve),
        commands: injections
            .iter()
            .any(|it| matches!(it.action, ActionPlan::Guest { .. })),
        kernel_threads: injections.iter().any(any_task),
        perf_tool: scenario.perf_tool.as_deref().map(perf_tool::resolve),
    };
    Ok(complaints.into_result(TrialPlan {
        scenario: String::clone(&scenario.name),
        kernel: kernel.to_owned(),
        vcpus: *scenario.machine.vcpus,
        memory_mib: scenario.machine.memory.mib,
        cmdline: String::clone(&scenario.machine.cmdline),
        pmu,
        guest,
        injections,
        settle_ms: scenario.settle.millis_ceil(),
        limits: Limits {
            boot_ms: BOOT_LIMIT_MS,
            run_ms: scenario.timeout.millis_ceil(),
        },
        symbols: KernelAddresses {
            current_task,
            printk: match symbols.addresses("prb").as_slice() {
                [only] => Some(*only),
                _ => None,
            },
        },
        explore,
    })?)
}

/// Whether an injection may hit any task.
const fn any_task(injection: &InjectionPlan) -> bool {
    matches!(
        injection.trigger,
        TriggerPlan::Arrival(ArrivalPlan { by: By::Any, .. })
    )
}

/// A kernel in which no `RDPMC` is found has no driver that could use synthetic counters.
fn pmu(written: Pmu, symbols: &dyn KernelSymbols) -> Result<PmuPlan, ResolveError> {
    let unsupported = |reason: String| {
        ResolveError::Unsupported(format!("no synthetic performance counters: {reason}"))
    };
    match written {
        Pmu::None => Ok(PmuPlan::None),
        Pmu::Host => Ok(PmuPlan::Host),
        Pmu::Synthetic => match symbols.rdpmc_sites().map_err(unsupported)? {
            sites if sites.is_empty() => Err(unsupported(
                "the kernel has no RDPMC instruction".to_owned(),
            )),
            rdpmc => Ok(PmuPlan::Synthetic { rdpmc }),
        },
    }
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
        huge_pages: *written.huge_pages,
    }
}
