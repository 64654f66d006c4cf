//! Resolves a scenario for a kernel: every name becomes an address, every default a value.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use unwindlab_abi::lab::SYMBOL as LAB_CLIENT;
use unwindlab_abi::plan::{GuestPlan, WorkloadKind, WorkloadPlan};
use unwindlab_guest_kernel::lines::{LineError, NO_LINES};
use unwindlab_guest_kernel::types::NO_TYPES;
use unwindlab_guest_kernel::types::{LayoutError, Member};
use unwindlab_vmm::SiteError;

use super::asking;
use super::error::{Complaints, ScenarioErrors};
use super::events;
use super::explore;
use super::inject;
use super::lab;
use super::lacks::{self, BPF, BTF, FEATURE, OWN_STACK, SFRAME, TRACEFS_CLIENT, USER_UNWIND};
use super::model::{Pmu, Scenario};
use super::perf_tool;
use super::tracefs;
use super::user_returns;
use unwindlab_engine::plan::{
    ActionPlan, ArrivalPlan, InjectionPlan, KernelAddresses, Limits, PmuPlan, TaskFilter,
    TriggerPlan,
};
use unwindlab_engine::plan::{Settle, TrialPlan};

/// How long a workload without an end of its own runs on.
const SETTLE_MS: u64 = 50;
/// From the start of the machine to the agent's `Ready`. A stock kernel takes 3 s on the emulated
/// host beside two other machines.
const BOOT_LIMIT_MS: u64 = 60_000;

/// The lines of a kernel's source.
pub trait SourceLines {
    /// Where a line begins: one address for each place where it is inlined.
    ///
    /// # Errors
    /// [`LineError`] if there is no such place.
    fn place(&self, file: &str, line: u32) -> Result<Vec<u64>, LineError>;
    /// The files and lines of the instruction at an address.
    fn at(&self, address: u64) -> Vec<(&str, u32)>;
    /// The lines of a file that have code.
    fn with_code(&self, file: &str) -> BTreeSet<u32>;
    /// The text of a file, if available.
    fn text(&self, file: &str) -> Option<String>;
}

/// The symbols and the code of a kernel.
pub trait KernelSymbols {
    /// Addresses of all symbols of this name, in order. Static functions may share a name.
    fn addresses(&self, name: &str) -> Vec<u64>;
    /// Where the pointer to the ring of the kernel's messages is (`prb`, kernel/printk/printk.c).
    fn message_ring(&self) -> Option<u64> {
        match self.addresses("prb").as_slice() {
            [only] => Some(*only),
            _ => None,
        }
    }
    /// Bytes from the symbol to the one after it.
    fn size(&self, name: &str) -> Option<u64>;
    /// Similar names, best first.
    fn similar(&self, name: &str) -> Vec<String>;
    /// Offset of the pointer to the running task from the CPU's GS base.
    fn current_task_offset(&self) -> Option<u64>;
    /// Offset of a per-CPU variable from a CPU's GS base; `None` for other symbols.
    fn percpu_offset(&self, _name: &str) -> Option<u64> {
        None
    }
    /// Where a member of a struct is, by the kernel's own type information.
    ///
    /// # Errors
    /// [`LayoutError`].
    fn member(&self, _structure: &str, _path: &str) -> Result<Member, LayoutError> {
        Err(LayoutError::NoTypes)
    }
    /// The id by which a BPF program calls a function, by the kernel's own type information.
    ///
    /// # Errors
    /// [`LayoutError`].
    fn function(&self, _name: &str) -> Result<u32, LayoutError> {
        Err(LayoutError::NoTypes)
    }
    /// Up to `length` bytes of the kernel's text as linked; `None` if the image cannot be read
    /// there.
    fn code(&self, _address: u64, _length: usize) -> Option<Vec<u8>> {
        None
    }
    /// Nothing is known of the kernel.
    fn is_unknown(&self) -> bool {
        false
    }
    /// What no other kernel has: the hash of its image.
    fn identity(&self) -> Option<String> {
        None
    }
    /// The symbol that contains an address, and the offset in it.
    fn resolve(&self, address: u64) -> Option<(String, u64)>;
    /// The lines of the source, if the kernel was built with DWARF.
    fn lines(&self) -> Option<&dyn SourceLines> {
        None
    }
    /// Addresses of the kernel's `RDPMC` instructions.
    ///
    /// # Errors
    /// [`RdpmcError`] if the kernel's image cannot be read.
    fn rdpmc_sites(&self) -> Result<Vec<u64>, RdpmcError> {
        Ok(Vec::new())
    }
}

/// Text to append to the name of a missing symbol: similar names, or nothing.
pub fn near(name: &str, symbols: &dyn KernelSymbols) -> String {
    match symbols.similar(name).as_slice() {
        [] => String::new(),
        near => format!(" (near it: {})", near.join(", ")),
    }
}

/// Why the `RDPMC` instructions of a kernel are not known.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum RdpmcError {
    /// The kernel's image cannot be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The image is not as expected.
    #[error(transparent)]
    Image(#[from] SiteError),
}

/// What the kernel lacks.
#[derive(Debug, thiserror::Error)]
pub enum UnsupportedKernel {
    /// There is nothing to test.
    #[error("the kernel has no deferred unwinding (no symbol `{FEATURE}`)")]
    DeferredUnwinding,
    /// The lab client, which the scenario uses.
    #[error(
        "the kernel has no lab client (no symbol `{LAB_CLIENT}`); `--source debian` builds one \
         that has"
    )]
    LabClient,
    /// The option of tracefs that the scenario sets.
    #[error(
        "the kernel's tracefs asks for no deferred stacks (no symbol `{TRACEFS_CLIENT}`); \
         `--patch proposal:tracefs-stack` adds that"
    )]
    TracefsClient,
    /// BPF programs, for a scenario with a BPF client.
    #[error("the kernel has no BPF programs (no symbol `{BPF}`)")]
    Bpf,
    /// BTF, by which a BPF program names a kernel function that it calls.
    #[error(
        "the kernel has no BTF (no symbol `{BTF}`), so a BPF program cannot call its functions"
    )]
    Btf,
    /// A function that a BPF program calls.
    #[error("the kernel has no function `{0}` for BPF programs")]
    BpfFunction(&'static str),
    /// The id by which a BPF program calls it.
    #[error("no BPF program can call the kernel's `{0}`: {1}")]
    NotCallable(&'static str, #[source] LayoutError),
    /// SFrame sections, which the workload registers.
    #[error(
        "the kernel reads no SFrame sections (no symbol `{SFRAME}`); `--patch proposal:sframe` adds \
         that"
    )]
    Sframe,
    /// The system call for a thread's own stack.
    #[error(
        "the kernel has no system call unwind_self (no symbol `{OWN_STACK}`); `--patch \
         proposal:own-stack` adds that"
    )]
    OwnStack,
    /// The signal that asks a thread for its stack.
    #[error(
        "the kernel asks no thread for its stack (no symbol `{USER_UNWIND}`); `--patch \
         proposal:user-unwind` adds that"
    )]
    UserUnwind,
    /// Debug information, for a scenario that names lines of the source.
    #[error("{NO_LINES}")]
    Lines,
    /// Type information, for a scenario that names a field of the task.
    #[error("{NO_TYPES}")]
    Types,
    /// The variable by which the running task is identified.
    #[error("the kernel has no per-CPU `current_task`")]
    CurrentTask,
    /// A known driver for synthetic counters.
    #[error("no synthetic performance counters: {0}")]
    Counters(#[from] RdpmcError),
    /// Any driver for synthetic counters.
    #[error("no synthetic performance counters: the kernel has no RDPMC instruction")]
    Rdpmc,
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// The kernel lacks what the scenario tests: a skip, not an error of the scenario.
    #[error(transparent)]
    Unsupported(#[from] UnsupportedKernel),
    /// The scenario names something that the kernel does not have.
    #[error(transparent)]
    Scenario(#[from] ScenarioErrors),
}

/// What is written to which file below `/proc/sys/kernel`.
fn sysctls(scenario: &Scenario) -> Vec<(String, String)> {
    let contexts = scenario.perf.max_contexts.as_ref();
    let contexts = contexts.map(|it| ("perf_event_max_contexts_per_stack", **it));
    let all = contexts.into_iter();
    all.map(|(name, value)| (name.to_owned(), value.to_string()))
        .collect()
}

/// Resolves a checked scenario for a kernel. `file` is the scenario's file in messages, `kernel`
/// the content hash by which the executor finds the image.
///
/// # Errors
/// [`ResolveError`].
pub fn resolve(
    file: &str,
    scenario: &Scenario,
    symbols: &dyn KernelSymbols,
    kernel: &str,
) -> Result<TrialPlan, ResolveError> {
    lacks::check(scenario, symbols)?;
    let current_task = symbols.current_task_offset();
    let current_task = current_task.ok_or(UnsupportedKernel::CurrentTask)?;
    let pmu = pmu(*scenario.machine.pmu, symbols)?;
    let mut complaints = Complaints::new(file);
    let injections: Vec<InjectionPlan> =
        inject::resolve::resolve(scenario, symbols, &mut complaints);
    let triggers: Vec<_> = injections.iter().map(|it| &it.trigger).collect();
    let explore = explore::resolve(scenario, &triggers, symbols, &mut complaints);
    let guest = GuestPlan {
        tracing: events::resolve(scenario, Some(symbols), &mut complaints),
        workload: workload(scenario),
        lab: { scenario.lab.as_ref() }.map(|it| lab::resolve(it, symbols, &mut complaints)),
        tracefs: scenario.tracefs.as_ref().map(tracefs::resolve),
        commands: injections
            .iter()
            .any(|it| matches!(it.action, ActionPlan::Guest { .. })),
        kernel_threads: injections.iter().any(any_task),
        perf_tool: scenario.perf_tool.as_deref().map(perf_tool::resolve),
        sysctls: sysctls(scenario),
        operation: None,
        survey: None,
        user_mode: { scenario.user_mode.as_deref() }
            .map(|it| asking::user_mode(it, symbols))
            .transpose()?,
        bpf: { scenario.bpf.as_deref() }
            .map(|it| asking::bpf(it, symbols))
            .transpose()?,
    };
    // What else is wrong is no matter of the kernel, and comes first.
    let lacks_lines = complaints.take(NO_LINES);
    let lacks_types = complaints.take(NO_TYPES);
    if complaints.is_empty() && lacks_lines {
        return Err(UnsupportedKernel::Lines.into());
    }
    if complaints.is_empty() && lacks_types {
        return Err(UnsupportedKernel::Types.into());
    }
    let leaves_records = guest.leaves_records();
    Ok(complaints.into_result(TrialPlan {
        scenario: String::clone(&scenario.name),
        kernel: kernel.to_owned(),
        vcpus: *scenario.machine.vcpus,
        memory_mib: scenario.machine.memory.mib,
        cmdline: String::clone(&scenario.machine.cmdline),
        pmu,
        guest,
        injections,
        settle: settle(scenario),
        limits: Limits {
            boot_ms: BOOT_LIMIT_MS,
            run_ms: scenario.timeout.millis_ceil(),
        },
        symbols: KernelAddresses {
            current_task,
            printk: symbols.message_ring(),
            sysenter: match symbols.addresses("entry_SYSENTER_compat").as_slice() {
                [only] if *scenario.workload.kind == WorkloadKind::CompatSysenter => Some(*only),
                _ => None,
            },
        },
        explore,
        // A program may use the debug registers that the witness takes.
        witness: match *scenario.workload.kind {
            WorkloadKind::Program => None,
            _ => user_returns::plan(scenario.witness, leaves_records, symbols),
        },
        choice: None,
    })?)
}

/// Whether an injection may hit any task.
const fn any_task(injection: &InjectionPlan) -> bool {
    matches!(
        injection.trigger,
        TriggerPlan::Arrival(ArrivalPlan {
            by: TaskFilter::Any,
            ..
        })
    )
}

/// A kernel without `RDPMC` has no driver for synthetic counters.
fn pmu(written: Pmu, symbols: &dyn KernelSymbols) -> Result<PmuPlan, UnsupportedKernel> {
    match written {
        Pmu::None => Ok(PmuPlan::None),
        Pmu::Host => Ok(PmuPlan::Host),
        Pmu::Synthetic => match symbols.rdpmc_sites()? {
            sites if sites.is_empty() => Err(UnsupportedKernel::Rdpmc),
            rdpmc => Ok(PmuPlan::Synthetic { rdpmc }),
        },
    }
}

/// How long the workload runs on.
fn settle(scenario: &Scenario) -> Settle {
    let workload = &scenario.workload;
    // What others than perf do may take its time, beside the workload or behind it.
    let others = scenario.lab.is_some()
        || scenario.user_mode.is_some()
        || scenario.bpf.is_some()
        || scenario.tracefs.is_some()
        || scenario.perf_tool.is_some()
        || scenario.schedule.is_some()
        || scenario.explore.is_some();
    match &scenario.settle {
        Some(settle) => Settle::Ms(settle.millis_ceil()),
        None if *workload.iterations > 0 || workload.kind.ends_by_itself() => Settle::ItEnds,
        None if others || scenario.inject.is_empty() => Settle::Ms(SETTLE_MS),
        None => Settle::Iterations { most_ms: SETTLE_MS },
    }
}

fn workload(scenario: &Scenario) -> WorkloadPlan {
    let written = &scenario.workload;
    WorkloadPlan {
        kind: *written.kind,
        frames: *written.frames,
        frames_step: *written.frames_step,
        threads: *written.threads,
        iterations: *written.iterations,
        wild_ends: *written.wild_ends,
        huge_pages: *written.huge_pages,
        sframe: written.sframe.unwrap_or_default(),
        program: None,
        reproducer: written.program.as_deref().cloned(),
    }
}
