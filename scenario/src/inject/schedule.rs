//! `schedule` as written: points that the vCPUs pass in a given order.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{TaskKind, TriggerPlace};
use crate::located::At;
use crate::units::Time;

/// Points in the order in which the vCPUs pass them.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Schedule {
    /// The points, in order.
    pub points: At<Vec<At<SchedulePoint>>>,
    /// How often the whole schedule is passed (default 1).
    #[schemars(range(min = 1))]
    pub repeat: Option<At<u64>>,
    /// Longest time that a vCPU waits (default 10 s). After it all vCPUs go on, and the trial ends
    /// as a failure.
    pub limit: Option<At<Time>>,
}

/// A point of a schedule.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SchedulePoint {
    /// A name for messages.
    pub name: Option<At<String>>,
    /// The vCPU that passes it.
    pub vcpu: At<u8>,
    /// The instruction. The point is passed when the instruction has been executed.
    pub at: At<TriggerPlace>,
    /// The number of the arrival since this vCPU's previous point, from 1 (default 1).
    #[schemars(range(min = 1))]
    pub hit: Option<At<u64>>,
    /// Count only arrivals of this workload thread.
    pub thread: Option<At<u32>>,
    /// The tasks whose arrivals count (default: workload threads in an iteration).
    pub task: Option<At<TaskKind>>,
}
