//! Has vCPUs stop at the exits that injections wait for.

use unwindlab_vmm::{Machine, Watched};

use crate::driver::vcpu::{VcpuError, while_stopped};
use crate::plan::{EventPlan, InjectionPlan, TriggerPlan};

/// Has all vCPUs stop at the exits that these injections wait for.
pub fn watch(machine: &mut Machine, injections: &[InjectionPlan]) -> Result<(), VcpuError> {
    let watched: Vec<Watched> = { injections.iter() }
        .filter_map(|it| match it.trigger {
            TriggerPlan::Event {
                event: EventPlan::Exit(exit),
                ..
            } => exit.watched(),
            _ => None,
        })
        .collect();
    for index in 0..machine.vcpu_count() {
        while_stopped(machine, index, |handle| Ok(handle.watch(&watched)?))?;
    }
    Ok(())
}
