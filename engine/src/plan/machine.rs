//! A machine to boot, independent of the VMM that starts it.

use serde::{Deserialize, Serialize};

use super::TrialPlan;

/// A machine that any VMM can start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineSpec {
    /// Content hash of the kernel to boot; the KVM host finds the image by it.
    pub kernel: String,
    /// vCPUs.
    pub vcpus: u8,
    /// Guest RAM in MiB.
    pub memory_mib: u32,
    /// Words appended to the harness's own kernel command line.
    pub cmdline: String,
}

impl MachineSpec {
    /// The machine of a trial.
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
