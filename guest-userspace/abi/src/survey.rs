//! A survey: what the workload's tasks pass in the kernel, by the kernel's own tracers.

use serde::{Deserialize, Serialize};

/// Most places that a survey reports; a kernel has fewer functions on any path.
pub const MAX_PLACES: usize = 16_384;

/// What a survey looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum SurveyPlan {
    /// Functions, by the tracer `function`: each is in the kernel's `available_filter_functions`.
    Functions,
    /// Tracepoints: all events of tracefs.
    Tracepoints,
}

/// A place that a task of the workload passed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SurveyedPlace {
    /// The system of a tracepoint; none for a function.
    pub system: Option<String>,
    /// The tracepoint or function.
    pub name: String,
    /// How often it was passed.
    pub hits: u64,
    /// The contexts in which it was passed, as bits of [`context`].
    pub contexts: u8,
}

/// Contexts, as ftrace shows them beside each event. A place may be passed in several of them.
pub mod context {
    /// Interrupts are off.
    pub const IRQS_OFF: u8 = 1 << 0;
    /// Preemption is off, or softirqs are.
    pub const PREEMPTION_OFF: u8 = 1 << 1;
    /// In a softirq.
    pub const SOFTIRQ: u8 = 1 << 2;
    /// In a hard interrupt.
    pub const HARDIRQ: u8 = 1 << 3;
    /// In an NMI.
    pub const NMI: u8 = 1 << 4;
    /// None of these: a task that can be preempted.
    pub const TASK: u8 = 1 << 5;

    /// The names, by bit.
    pub const NAMES: [(u8, &str); 6] = [
        (TASK, "task"),
        (PREEMPTION_OFF, "preemption off"),
        (IRQS_OFF, "interrupts off"),
        (SOFTIRQ, "softirq"),
        (HARDIRQ, "hard interrupt"),
        (NMI, "NMI"),
    ];
}
