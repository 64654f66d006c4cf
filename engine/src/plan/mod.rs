//! What the command and the KVM host exchange: plans one way, messages the other. Both sides
//! are built from these types and neither knows the other.

pub mod executor;
pub mod exit;
pub mod machine;
pub mod measurement;
pub mod progress;
pub mod self_test;
pub mod shard;
pub mod sweep;
pub mod token;
pub mod trial;

pub use executor::{Executor, InfraError, Progress};
pub use exit::{ExitKind, ExitPlan};
pub use machine::MachineSpec;
pub use progress::{Stage, TrialProgress};
pub use shard::Shard;
pub use token::Token;
pub use trial::{
    ActionPlan, ArrivalPlan, ChoicePlan, CodePlace, Corruption, EventPlan, ExplorePlan,
    InjectionPlan, KernelAddresses, Limits, PmuPlan, PokePlan, Settle, TaskFilter, TrialPlan,
    TriggerPlan, WitnessPlan,
};
