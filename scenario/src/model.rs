//! A scenario as written: the types of the YAML, which are also the source of its JSON schema.
//!
//! The types restrict single values. What concerns two values is checked in [`super::check`], what
//! concerns the kernel in [`super::resolve`]. An editor shows the doc comments of the fields to the
//! author of a scenario.

use schemars::JsonSchema;
use serde::Deserialize;
use unwindlab_abi::bpf::BpfStack;
use unwindlab_abi::plan::{SframeSection, WorkloadKind};
use unwindlab_abi::user_mode::{Asker, HandlerKind, UnwinderKind};

use super::explore::Explore;
use super::inject::{Injection, Schedule};
use super::lab::Lab;
use super::located::At;
use super::tracefs::Tracefs;
use super::units::{Count, Memory, Time};
use unwindlab_oracle::trace::SnapshotStyle;

/// A scenario: a machine, what runs in it, what is done to it, and the expected results.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Scenario {
    /// Lower-case words joined by `-`; equal to the file's name without `.yaml`.
    pub name: At<String>,
    /// One line: what the scenario shows.
    pub description: At<String>,
    /// The machine under test.
    #[serde(default)]
    pub machine: Machine,
    /// What runs in the guest.
    pub workload: Workload,
    /// What perf traces, on every CPU and for every task.
    #[serde(default)]
    pub perf: Perf,
    /// What the kernel's lab client does: many tracers beside perf (default: none).
    pub lab: Option<Lab>,
    /// The workload's threads unwind themselves: a BPF program on the sampling tracepoint sends the
    /// interrupted thread a signal with a nonce, and its handler writes the stack (default: none).
    pub user_mode: Option<At<UserMode>>,
    /// A BPF client of user stacks on the sampling tracepoint, beside perf (default: none).
    pub bpf: Option<At<Bpf>>,
    /// Instances of tracefs that ask for deferred user stacks, beside perf (default: none).
    pub tracefs: Option<Tracefs>,
    /// The distribution's own perf records instead of the harness. It must show a sample for each
    /// `pmu-overflow`, with the kernel frames of its instruction and, merged behind them, the user
    /// frames as built.
    pub perf_tool: Option<At<PerfTool>>,
    /// What is done to the machine while the workload runs.
    #[serde(default)]
    pub inject: Vec<Injection>,
    /// Points in the code that the vCPUs pass in this order. A vCPU that comes to its point before
    /// its turn waits there.
    pub schedule: Option<At<Schedule>>,
    /// Note from outside each return of a task to user mode, so that it is known which requests
    /// were answered before (default: as long as there are few). `true`: note a million of them;
    /// `false`: none.
    pub witness: Option<bool>,
    /// Run the scenario many times and stop vCPUs at random.
    pub explore: Option<At<Explore>>,
    /// How long the workload runs on after the last injection, or after its start if there is none
    /// (default: until the `iterations` are made; if none are written, 50 ms, or shorter where each thread has made two
    /// iterations behind the last injection and only perf traces).
    pub settle: Option<At<Time>>,
    /// When to give up on the workload (default 20 s): so long after the guest last came to the place of
    /// an injection, or ended one of its `iterations`, and after four times that in all. A scenario that is cut short is a `timeout` or a `hang`,
    /// never a pass.
    #[serde(default = "default_timeout")]
    pub timeout: At<Time>,
    /// Expected numbers, checked besides the invariants.
    #[serde(default)]
    pub expect: Expect,
    /// Invariants to check, by ID (default: all).
    pub invariants: Option<Vec<At<String>>>,
    /// Invariants that must have been exercised. A scenario that does not exercise them does not
    /// pass.
    #[serde(default)]
    pub require: Vec<At<String>>,
    /// The part of the trace that is compared with `snapshots/NAME.snap`, because it must be the
    /// same in every run (default: none).
    pub snapshot: Option<At<SnapshotStyle>>,
}

/// How the workload's threads unwind themselves. Each thread is then a process of its own.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct UserMode {
    /// What asks for stacks: `bpf` (default): a BPF program, `itimer`: `setitimer(ITIMER_PROF)`, every 10 ms of the process's
    /// CPU time, `thread-timer`: `timer_create` with `SIGEV_THREAD_ID`, every 10 ms of the thread's, `sigtrap`: perf's attribute, for
    /// `nmi:nmi_handler`.
    #[serde(default)]
    pub ask: At<Asker>,
    /// The number of the signal, 1 to 64 (default 40, a real-time signal). Of `itimer` it is 27, of `sigtrap` 5.
    #[serde(default = "signal")]
    #[schemars(range(min = 1, max = 64))]
    pub signal: At<u32>,
    /// The handler runs on an alternate stack (default: on the thread's own).
    #[serde(default)]
    pub alternate_stack: bool,
    /// The thread blocks the signal during each iteration (default: never). Only for `deep`; if a timer asks, until the end,
    /// with any.
    #[serde(default)]
    pub blocked: At<bool>,
    /// The handler has `SA_RESTART` (default: `true`).
    #[serde(default = "yes")]
    pub restart: bool,
    /// A thread opts in after so many iterations (default 0).
    #[serde(default)]
    pub opts_in_after: u64,
    /// Every second thread does not opt in, and is compared with the one before it (N5).
    #[serde(default)]
    pub twins: At<bool>,
    /// The thread's process has another one, which sleeps with the signal unblocked (default: none).
    #[serde(default)]
    pub bystander: bool,
    /// What the handler does before it unwinds: `prompt` (default): nothing, `calls`: a `getppid`,
    /// `hangs`: it waits, in user mode, for the end of the trial, `faults`: it reads address 0, `raises`: it sends
    /// its thread a signal that the program handles.
    #[serde(default)]
    pub handler: HandlerKind,
    /// How the handler unwinds: by `frame-pointers` (default), by `eh-frame`, or `semantic`: by `.eh_frame`, with the
    /// functions that an interpreter executes in place of its own frame.
    #[serde(default)]
    pub unwinder: UnwinderKind,
}

/// A BPF client of user stacks.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Bpf {
    /// How it gets a stack. `at-once`: by `bpf_get_stack` where the event is; `task-work`: in task work, by
    /// `bpf_get_task_stack`; `own-walk`: in task work, by frame pointers and `bpf_copy_from_user`.
    pub stack: BpfStack,
}

/// How the distribution's perf records: `perf record --all-cpus --call-graph fp,defer`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PerfTool {
    /// The event to count.
    pub event: At<ToolEvent>,
}

/// An event of the CPU's performance counters, by perf's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ToolEvent {
    /// Cycles.
    Cycles,
    /// Instructions. Synthetic counters do not count them, but overflow where `inject` says.
    Instructions,
}

/// The machine under test.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Machine {
    /// Number of vCPUs, 1 to 8 (default 1).
    #[schemars(range(min = 1, max = 8))]
    pub vcpus: At<u8>,
    /// Guest RAM, 64 MiB to 8 GiB (default 256 MiB).
    pub memory: At<Memory>,
    /// Words appended to the harness's own kernel command line.
    pub cmdline: At<String>,
    /// The guest's performance counters: `none` (default), `synthetic` ones of the VMM, which
    /// overflow where `inject` says, or those of the `host`.
    pub pmu: At<Pmu>,
}

/// The guest's performance counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Pmu {
    /// None.
    None,
    /// Synthetic ones of the VMM, which overflow where `inject` says.
    Synthetic,
    /// Those of the KVM host.
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
    /// What each iteration of a thread does.
    pub kind: At<WorkloadKind>,
    /// User frames that an unwind must show, including the leaf: 3 to 131072.
    #[schemars(range(min = 3))]
    pub frames: At<u32>,
    /// Thread i has `frames + i * frames-step` frames, so that their stacks differ (default 0).
    #[serde(default)]
    pub frames_step: At<u32>,
    /// Number of threads (default 1). Thread i starts on CPU `i % vcpus`.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 255))]
    pub threads: At<u32>,
    /// Iterations of each thread; 0 (default): until all injections are made and the settle time is
    /// over. Fewer if a settle time is written and over before.
    #[serde(default)]
    pub iterations: At<u64>,
    /// End the chain of thread i with an invalid frame pointer, number i modulo 6 of: 0, the
    /// address of its own frame, a backward one, a misaligned one, one into the kernel, a
    /// non-canonical one. Not for `exit`.
    #[serde(default)]
    pub wild_ends: At<bool>,
    /// Back the stacks with huge pages of 2 MiB. Only for `missing-pages`.
    #[serde(default)]
    pub huge_pages: At<bool>,
    /// The SFrame section of the code (default `v3`). Only for `frameless`.
    #[serde(default)]
    pub sframe: At<Option<SframeSection>>,
    /// The C program to execute, `f001` for that of finding F001. Only for `program`.
    pub program: Option<At<String>>,
}

/// What perf traces.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Perf {
    /// Data pages of each CPU's ring buffer, a power of two (default 256). Nothing in the guest
    /// reads the buffer: records that do not fit are lost.
    pub ring_pages: At<u32>,
    /// `sample_max_stack` of the default sampler (default: the kernel's).
    pub max_stack: Option<At<u16>>,
    /// The sysctl `perf_event_max_contexts_per_stack`, up to 1000 (default: the kernel's, 8).
    pub max_contexts: Option<At<u16>>,
    /// Also record the entry to and the return from every system call (raw_syscalls:sys_enter and
    /// sys_exit).
    pub markers: bool,
    /// Also record context switches, on the tracking event.
    pub switches: bool,
    /// Events that replace the default ones: `tracking` (dummy; fork, exit and deferred chains),
    /// and `nmi` (a sample with a deferred chain in every NMI) or, in a machine with performance
    /// counters, `cycles` (one in every overflow of a counter).
    pub events: Option<At<Vec<PerfEvent>>>,
}

impl Default for Perf {
    fn default() -> Self {
        Self {
            ring_pages: At::unwritten(256),
            max_stack: None,
            max_contexts: None,
            markers: false,
            switches: false,
            events: None,
        }
    }
}

/// One perf event, with the field names of `struct perf_event_attr`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[allow(clippy::struct_excessive_bools, reason = "the attr's own bits")]
pub struct PerfEvent {
    /// The event's name in reports.
    pub name: At<String>,
    /// What it counts: an event by perf's name (`page-faults`), a tracepoint (`nmi:nmi_handler`),
    /// a probe (`kprobe:`, `kretprobe:`, `optprobe:`, `fprobe:`, `uprobe:`, `uretprobe:`), or a
    /// breakpoint (`breakpoint:task_work_run`, `mem:task.unwind_info.id/8:w`).
    pub event: At<String>,
    /// Count only occurrences whose fields meet this condition, in the kernel's own notation
    /// (Documentation/trace/events.rst): `id == 110`. For tracepoints and probes.
    pub filter: Option<At<String>>,
    /// Occurrences from one sample to the next; 0 (default): no samples.
    #[serde(default)]
    pub period: u64,
    /// Fields of a sample besides IDENTIFIER, TID, TIME and CPU, which every record has.
    #[serde(default)]
    pub sample: Vec<SampleField>,
    /// `sample_max_stack` (default: the kernel's).
    pub max_stack: Option<At<u16>>,
    /// Bytes that `stack-user` copies, a multiple of 8 (default: 4096).
    pub stack_bytes: Option<At<u16>>,
    /// Request the user chain later (attr bit 38).
    #[serde(default)]
    pub defer_callchain: bool,
    /// Receive deferred chains (attr bit 39).
    #[serde(default)]
    pub defer_output: bool,
    /// Record forks and exits.
    #[serde(default)]
    pub task: bool,
    /// Record changes of a task's name.
    #[serde(default)]
    pub comm: bool,
    /// Record mappings.
    #[serde(default)]
    pub mmap: bool,
    /// Record context switches.
    #[serde(default)]
    pub context_switch: bool,
    /// Count only the agent's tasks, which inherit the event from its main thread and include the
    /// workload, instead of all tasks.
    #[serde(default)]
    pub inherit: bool,
    /// Leave the user part out of the chain, deferred or not.
    #[serde(default)]
    pub exclude_callchain_user: bool,
    /// Leave the kernel part out of the chain.
    #[serde(default)]
    pub exclude_callchain_kernel: bool,
    /// Write to the ring buffer of this earlier event instead of an own one.
    pub output_to: Option<At<String>>,
}

/// A field of a sample.
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
    /// The user registers ip, sp and bp.
    RegsUser,
    /// The user stack, from the stack pointer on; `stack-bytes` of it.
    StackUser,
}

/// Expected numbers. Only the workload's tasks count: its threads and the processes they start.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Expect {
    /// Iterations of every thread between the first and the last injection.
    pub progress: Option<At<Count>>,
    /// Samples with a deferred chain.
    pub samples: Option<At<Count>>,
    /// Deferred chains (records of type 22).
    pub deferred: Option<At<Count>>,
    /// Different cookies among both.
    pub cookies: Option<At<Count>>,
    /// Samples that came after their deferred chain.
    pub late: Option<At<Count>>,
    /// Records of all tasks that the kernel reports as lost.
    pub lost: Option<At<Count>>,
    /// Frames of each deferred chain.
    pub frames: Option<At<Count>>,
    /// Nonces for which a signal was sent or task work scheduled (`user-mode`, `bpf`).
    pub nonces: Option<At<Count>>,
    /// Samples that used a pending nonce again.
    pub reused: Option<At<Count>>,
    /// Signals that the kernel refused.
    pub refused: Option<At<Count>>,
    /// Results that handlers wrote.
    pub results: Option<At<Count>>,
    /// Signals that the kernel refused with `EBUSY`.
    pub busy: Option<At<Count>>,
    /// Samples of threads that had not opted in.
    pub unasked: Option<At<Count>>,
    /// What a program saw of the kernel that its twin saw otherwise (violations of N5).
    pub changed: Option<At<Count>>,
    /// Nonces before whose handler the thread ran other code (violations of N2).
    pub late_results: Option<At<Count>>,
    /// Results with another stack than the thread's at the interruption (violations of N3).
    pub wrong_results: Option<At<Count>>,
    /// Different values of the signals of all results.
    pub values: Option<At<Count>>,
    /// Signals of timers that were not sent because one was pending, as results tell.
    pub overruns: Option<At<Count>>,
    /// Results of threads that are none of the workload's.
    pub strangers: Option<At<Count>>,
}

const fn default_timeout() -> At<Time> {
    At::unwritten(Time::from_micros(20_000_000))
}

const fn yes() -> bool {
    true
}

const fn signal() -> At<u32> {
    At::unwritten(40)
}

const fn one() -> At<u32> {
    At::unwritten(1)
}
