//! A scenario as written: the types of the YAML, which are also the source of its JSON schema.
//!
//! Types hold what can be said of one value alone; what takes two values, or the kernel, is
//! said in [`super::check`] and [`super::resolve`]. Doc comments of fields are what an editor
//! shows to the author of a scenario.

use schemars::JsonSchema;
use serde::Deserialize;
use unwindlab_abi::plan::WorkloadKind;

use super::explore::Explore;
use super::inject::{Injection, Schedule};
use super::lab::Lab;
use super::located::At;
use super::units::{Count, Memory, Time};
use unwindlab_oracle::trace::SnapshotStyle;

/// One scenario: a machine, what runs in it, what is done to it, and what must come out.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Scenario {
    /// Lower-case words joined by `-`; the same as the file's name without `.yaml`.
    pub name: At<String>,
    /// One line: what is shown by this scenario.
    pub description: At<String>,
    /// The machine under test.
    #[serde(default)]
    pub machine: Machine,
    /// What runs in the guest.
    pub workload: Workload,
    /// What is traced, by perf, on every CPU and for every task.
    #[serde(default)]
    pub perf: Perf,
    /// What the kernel's lab client does: many tracers beside perf. None where this is missing.
    pub lab: Option<Lab>,
    /// The distribution's own perf records, instead of the harness, and what it shows is judged: a
    /// sample for each `pmu-overflow`, with the kernel frames of its instruction and, merged behind
    /// them, the user frames as built.
    pub perf_tool: Option<At<PerfTool>>,
    /// What is done to the machine while the workload runs.
    #[serde(default)]
    pub inject: Vec<Injection>,
    /// Points in the code that the vCPUs are to pass one after the other, in this order. A vCPU
    /// that comes to its point before its turn stands still there.
    pub schedule: Option<At<Schedule>>,
    /// The scenario is run many times, and vCPUs are stopped at random meanwhile.
    pub explore: Option<At<Explore>>,
    /// The workload runs on for this long after the last injection (after its start where there
    /// is none) before it is told to stop.
    #[serde(default = "default_settle")]
    pub settle: At<Time>,
    /// When to give up on the workload. A scenario that is cut short is a `timeout` or a `hang`,
    /// never a verdict.
    #[serde(default = "default_timeout")]
    pub timeout: At<Time>,
    /// What the scenario must have achieved, besides the invariants.
    #[serde(default)]
    pub expect: Expect,
    /// Invariants to check, by ID. All of them where this is missing.
    pub invariants: Option<Vec<At<String>>>,
    /// Invariants that must have been exercised: a scenario whose point was never reached has
    /// not passed.
    #[serde(default)]
    pub require: Vec<At<String>>,
    /// What of the trace must be the same every time, and is compared with
    /// `snapshots/NAME.snap`. Nothing where this is missing.
    pub snapshot: Option<At<SnapshotStyle>>,
}

/// How the distribution's perf records: `perf record --all-cpus --call-graph fp,defer`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PerfTool {
    /// The event.
    pub event: At<ToolEvent>,
}

/// An event of the CPU's counters, as perf names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ToolEvent {
    /// Cycles.
    Cycles,
    /// Instructions; the synthetic counters do not count them, but overflow all the same.
    Instructions,
}

/// The machine under test.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Machine {
    /// 1 to 8.
    #[schemars(range(min = 1, max = 8))]
    pub vcpus: At<u8>,
    /// Guest RAM, 64 MiB to 8 GiB.
    pub memory: At<Memory>,
    /// Words added to the harness's own kernel command line.
    pub cmdline: At<String>,
    /// The performance counters of the guest: none, those of the VMM (`synthetic`), which overflow
    /// where `inject` says, or the KVM host's.
    pub pmu: At<Pmu>,
}

/// Which performance counters the guest has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Pmu {
    /// None.
    None,
    /// The VMM's.
    Synthetic,
    /// The KVM host's.
    Host,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            vcpus: At::unwritten(1),
            memory: At::unwritten(Memory { mib: 256 }),
            cmdline: At::unwritten(String::new()),
            pmu: At::unwritten(Pmu::None),
        }
    }
}

/// What runs in the guest: threads, each with a user stack known by construction.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Workload {
    /// What a thread does, over and over.
    pub kind: At<WorkloadKind>,
    /// User frames that an unwind must show, the leaf's included: 3 or more.
    #[schemars(range(min = 3))]
    pub frames: At<u32>,
    /// Thread i has `frames + i * frames-step` frames, so that stacks tell threads apart.
    #[serde(default)]
    pub frames_step: At<u32>,
    /// Threads; thread i starts on CPU `i % vcpus`.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 255))]
    pub threads: At<u32>,
    /// Iterations of each thread; 0: until the injections are made and the settle time is over.
    #[serde(default)]
    pub iterations: At<u64>,
    /// The root of thread i ends its chain with the i-th of six frame pointers that lead nowhere,
    /// counted round: 0, one of a frame to itself, one backward, one misaligned, one into the
    /// kernel, one that is not canonical. Not for `exit`.
    #[serde(default)]
    pub wild_ends: At<bool>,
    /// Stacks are made of huge pages of 2 MiB. For `missing-pages`.
    #[serde(default)]
    pub huge_pages: At<bool>,
}

/// What perf traces.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Perf {
    /// Data pages of each CPU's ring buffer; a power of two. There is no reader in the guest
    /// that could fall behind, but what does not fit is lost.
    pub ring_pages: At<u32>,
    /// `sample_max_stack` of the default sampler; the kernel's own default where missing.
    pub max_stack: Option<At<u16>>,
    /// Also record every entry to and return from a system call (raw_syscalls:sys_enter and
    /// sys_exit).
    pub markers: bool,
    /// Also record context switches, on the tracking event.
    pub switches: bool,
    /// Events instead of the default ones, which are `tracking` (dummy: fork, exit and deferred
    /// chains) and `nmi` (a sample with a deferred chain in every NMI), or `cycles` (one in every
    /// overflow of a counter) in a machine with performance counters.
    pub events: Option<At<Vec<PerfEvent>>>,
}

impl Default for Perf {
    fn default() -> Self {
        Self {
            ring_pages: At::unwritten(256),
            max_stack: None,
            markers: false,
            switches: false,
            events: None,
        }
    }
}

/// One perf event, in the words of `struct perf_event_attr`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[allow(clippy::struct_excessive_bools, reason = "the attr's own bits")]
pub struct PerfEvent {
    /// Name in reports.
    pub name: At<String>,
    /// What makes it count, as perf names it: `dummy`, `cpu-clock`, `page-faults`, `cycles`,
    /// a tracepoint such as `nmi:nmi_handler`, or a function of the kernel that is called
    /// (`kprobe:unwind_user`) or returns (`kretprobe:task_work_run`), or at which the kernel sets a
    /// breakpoint of the CPU (`breakpoint:task_work_run`).
    pub event: At<String>,
    /// A sample every so many occurrences; 0: it does not sample.
    #[serde(default)]
    pub period: u64,
    /// What a sample holds besides IDENTIFIER, TID, TIME and CPU, which every record has.
    #[serde(default)]
    pub sample: Vec<SampleField>,
    /// `sample_max_stack`; the kernel's own default where missing.
    pub max_stack: Option<At<u16>>,
    /// Ask for the user chain later (attr bit 38).
    #[serde(default)]
    pub defer_callchain: bool,
    /// Receive the chains that come later (attr bit 39).
    #[serde(default)]
    pub defer_output: bool,
    /// Fork and exit records.
    #[serde(default)]
    pub task: bool,
    /// Comm records.
    #[serde(default)]
    pub comm: bool,
    /// Mmap records.
    #[serde(default)]
    pub mmap: bool,
    /// Switch records.
    #[serde(default)]
    pub context_switch: bool,
    /// Only for the agent's own tasks, the workload's among them, which inherit it from its main
    /// thread; else for all tasks.
    #[serde(default)]
    pub inherit: bool,
    /// No user part in the chain, deferred or not.
    #[serde(default)]
    pub exclude_callchain_user: bool,
    /// Write into the ring buffer of this earlier event instead of one of its own.
    pub output_to: Option<At<String>>,
}

/// A part of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SampleField {
    /// The instruction pointer.
    Ip,
    /// The call chain.
    Callchain,
    /// The period.
    Period,
    /// A tracepoint's own fields.
    Raw,
}

/// What must have been achieved. Counts are of the workload's tasks only.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Expect {
    /// Iterations that every thread made between the first and the last injection.
    pub progress: Option<At<Count>>,
    /// Samples with a deferred chain.
    pub samples: Option<At<Count>>,
    /// Deferred chains (records of type 22).
    pub deferred: Option<At<Count>>,
    /// Different cookies among both.
    pub cookies: Option<At<Count>>,
    /// Samples that came after their deferred chain.
    pub late: Option<At<Count>>,
    /// Records that the kernel says it lost, of all tasks.
    pub lost: Option<At<Count>>,
    /// Frames of every deferred chain.
    pub frames: Option<At<Count>>,
}

const fn default_settle() -> At<Time> {
    At::unwritten(Time::from_micros(50_000))
}

const fn default_timeout() -> At<Time> {
    At::unwritten(Time::from_micros(20_000_000))
}

const fn one() -> At<u32> {
    At::unwritten(1)
}
