//! A BPF client of user stacks: how its programs get them. What they write is that of unwinding in user mode
//! ([`crate::user_mode`]): requests in a BPF ring buffer, results in slots.

use serde::{Deserialize, Serialize};

/// What the agent sets up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BpfPlan {
    /// How the programs get a stack.
    pub stack: BpfStack,
    /// The id of `bpf_task_work_schedule_resume` in the kernel's BTF, if the programs call it.
    pub schedule: Option<u32>,
}

/// How a BPF client gets a thread's user stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum BpfStack {
    /// `bpf_get_stack` where the event is.
    AtOnce,
    /// `bpf_get_task_stack` in task work, which the program schedules.
    TaskWork,
    /// A walk of its own in that task work, by frame pointers, with `bpf_copy_from_user`.
    OwnWalk,
}
