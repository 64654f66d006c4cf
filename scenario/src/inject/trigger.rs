//! What an injection waits for, as written: a place and the tasks that count there, or an event.

use schemars::JsonSchema;
use serde::Deserialize;

use super::watch::WatchedField;
use crate::place::{KernelPlace, SymbolOffset};
use crate::units::Number;
use unwindlab_engine::plan::ExitKind;

/// An instruction, or an access.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum TriggerPlace {
    /// In the kernel's text.
    Kernel(KernelPlace),
    /// In the workload's text.
    User(SymbolOffset),
    /// Behind each instruction that accesses a field of the workload thread's `task_struct`.
    Watch(WatchedField),
}

/// The tasks whose arrivals at an instruction count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TaskKind {
    /// Workload threads in an iteration.
    Workload,
    /// Every task, at any time after the start.
    Any,
}

/// An event that the harness sees from outside the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Event {
    /// A record in a ring buffer of perf. The harness looks every millisecond.
    Record(RecordKind),
    /// A record in the log of the lab client. The harness looks every millisecond.
    Lab(LabRecord),
    /// A mark of a workload thread. It stops the vCPU.
    Mark(MarkKind),
    /// An access for which a vCPU leaves KVM. The vCPU stops behind the instruction.
    Exit(Exit),
}

/// Exits of a vCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Exit {
    /// The kind of access.
    pub kind: ExitKind,
    /// Only accesses to this port, physical address, MSR or counter.
    pub number: Option<Number>,
}

/// A record of perf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RecordKind {
    /// Any sample.
    Sample,
    /// A deferred chain, of type 22.
    Deferred,
    /// A task was created.
    Fork,
    /// A task has ended.
    Exit,
    /// A task's name changed.
    Comm,
    /// A context switch.
    Switch,
    /// Records were lost.
    Lost,
}

/// A record of the lab client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LabRecord {
    /// A client made a request.
    Request,
    /// A callback begins.
    CallbackBegin,
    /// A callback has ended.
    CallbackEnd,
    /// A task returned to user mode.
    Return,
    /// A cancellation begins.
    Cancel,
    /// A cancellation has ended.
    Cancelled,
}

/// A mark of a workload thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MarkKind {
    /// An iteration begins.
    Arm,
    /// It has ended.
    Done,
    /// Something waits for the page that `block-fault` blocks.
    Blocked,
}
