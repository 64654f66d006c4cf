//! A machine to boot, whoever starts it.

use serde::{Deserialize, Serialize};

use super::TrialPlan;

/// A machine, as any VMM can start it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineSpec {
    /// Content hash of the kernel to boot, by which the KVM host finds its image.
    pub kernel: String,
    /// vCPUs.
    pub vcpus: u8,
    /// Guest RAM in MiB.
    pub memory_mib: u32,
    /// Words added to the harness's own kernel command line.
    pub cmdline: String,
}

impl MachineSpec {
    /// That of a trial.
    #[must_use]
    pub fn of(plan: &TrialPlan) -> Self {
        Self {
            kernel: plan.kernel.clone(),
            vcpus: plan.vcpus,
            memory_mib: plan.memory_mib,
            cmdline: plan.cmdline.clone(),
        }
    }
}
