//! `schedule`: points that the vCPUs pass in a given order, as written.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Place, TaskKind};
use crate::scenario::located::At;
use crate::scenario::units::Time;

/// Points and the order in which they are passed.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Schedule {
    /// The points, in order.
    pub points: At<Vec<At<SchedulePoint>>>,
    /// How often the whole schedule is gone through (default 1).
    #[schemars(range(min = 1))]
    pub repeat: Option<At<u64>>,
    /// Longest time that a vCPU stands still (default 2 s): then all is let go, the trial is wound
    /// up, and fails.
    pub limit: Option<At<Time>>,
}

/// A point of a schedule.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SchedulePoint {
    /// What it is called in messages.
    pub name: Option<At<String>>,
    /// Who passes it.
    pub vcpu: At<u8>,
    /// The instruction; passed when it has been executed.
    pub at: At<Place>,
    /// Which arrival since this vCPU's point before, from 1 (default 1).
    #[schemars(range(min = 1))]
    pub hit: Option<At<u64>>,
    /// Only arrivals of this workload thread count.
    pub thread: Option<At<u32>>,
    /// Whose arrivals count (default: those of workload threads in an iteration).
    pub task: Option<At<TaskKind>>,
}
