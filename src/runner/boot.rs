//! A machine that is booted once and then runs one trial after the other, each from the moment at which
//! its agent says hello.

use unwindlab_vmm::{Checkpoint, Machine};

use super::error::TrialError;
use super::exits;
use super::trial::Trial;
use crate::driver::vcpu::set_breakpoints;
use crate::plan::TrialProgress;
use crate::plan::{MachineSpec, PmuPlan, TrialPlan};
use unwindlab_oracle::trace::recording::{Recording, TrialEnd};

/// What a machine is made from: trials that have all of it in common can run on one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineKind {
    machine: MachineSpec,
    pmu: PmuPlan,
    perf_tool: bool,
}

impl MachineKind {
    /// Of a trial.
    #[must_use]
    pub fn of(plan: &TrialPlan) -> Self {
        Self {
            machine: MachineSpec::of(plan),
            pmu: plan.pmu.clone(),
            perf_tool: plan.guest.perf_tool.is_some(),
        }
    }

    /// MiB of this process's memory that a machine takes: the guest's RAM, and its checkpoint.
    #[must_use]
    pub const fn weight_mib(&self) -> u32 {
        self.machine.memory_mib.saturating_mul(2)
    }
}

/// A machine whose agent has said hello and waits for its plan.
#[derive(Debug)]
pub struct Booted {
    machine: Machine,
    hello: Checkpoint,
    /// The vCPU that rang.
    vcpu: u8,
    /// The frame of the mailbox.
    frame: u32,
    /// How much the console had by then.
    console: u64,
}

impl Booted {
    /// Boots a machine that is built but not started.
    ///
    /// # Errors
    /// The recording of a trial that did not come so far.
    pub fn boot(
        plan: &TrialPlan,
        machine: Machine,
        tell: &mut dyn FnMut(&TrialProgress) -> bool,
    ) -> Result<Self, Box<Recording>> {
        let mut trial = Trial::new(plan, machine);
        match trial.boot(tell) {
            Ok((vcpu, frame)) => match trial.machine.checkpoint() {
                Ok(hello) => Ok(Self {
                    console: trial.machine.console().len(),
                    machine: trial.machine,
                    hello,
                    vcpu,
                    frame,
                }),
                Err(error) => {
                    let reason = error.to_string();
                    Err(Box::new(trial.close(TrialEnd::Infra { reason }).0))
                }
            },
            Err(end) => Err(Box::new(trial.close(end).0)),
        }
    }

    /// Runs a trial, and gives the machine back for the next one unless it is of no more use. `tell` is
    /// told of the progress and says whether to go on.
    pub fn run(
        mut self,
        plan: &TrialPlan,
        tell: &mut dyn FnMut(&TrialProgress) -> bool,
    ) -> (Recording, Option<Self>) {
        if let Err(error) = self.restore() {
            let end = TrialEnd::Infra {
                reason: error.to_string(),
            };
            return (Trial::new(plan, self.machine).close(end).0, None);
        }
        let mut trial = Trial::new(plan, self.machine);
        let end = trial.go_on((self.vcpu, self.frame), tell);
        let usable = !matches!(end, TrialEnd::Infra { .. });
        let (recording, machine) = trial.close(end);
        let again = usable.then_some(Self { machine, ..self });
        (recording, again)
    }

    fn restore(&mut self) -> Result<(), TrialError> {
        self.machine.restore(&self.hello)?;
        self.machine.console().cut(self.console);
        exits::watch(&mut self.machine, &[])?;
        set_breakpoints(&mut self.machine, &[]).map_err(TrialError::from)
    }
}
