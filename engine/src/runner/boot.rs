//! A machine that is booted once and then runs one trial after the other, each from the moment at
//! which its agent says hello.

use unwindlab_oracle::trace::recording::{Recording, TrialEnd};
use unwindlab_vmm::{Checkpoint, Machine};

use super::trial::Trial;
use crate::driver::{Call, Driver, DriverError, Guest};
use crate::plan::{MachineSpec, PmuPlan, TrialPlan, TrialProgress};

/// What a machine is made from. Trials of the same kind can run on one machine.
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

    /// Whether a machine has several vCPUs.
    #[must_use]
    pub const fn has_several_vcpus(&self) -> bool {
        self.machine.vcpus > 1
    }

    /// MiB of this process's memory that a machine takes: the guest's RAM and its checkpoint.
    #[must_use]
    pub const fn weight_mib(&self) -> u32 {
        self.machine.memory_mib.saturating_mul(2)
    }
}

/// A machine whose agent has said hello and waits for its plan.
#[derive(Debug)]
pub struct Booted {
    machine: Machine,
    /// The machine as it was then.
    checkpoint: Checkpoint,
    /// The agent's first call.
    hello: Call,
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
        let trial = Trial::new(plan, Driver::new(plan, machine));
        let (mut driver, hello) = trial.boot(tell)?;
        match driver.machine.checkpoint() {
            Ok(checkpoint) => Ok(Self {
                console: driver.machine.console().len(),
                machine: driver.machine,
                checkpoint,
                hello,
            }),
            Err(error) => {
                let reason = error.to_string();
                let trial = Trial::new(plan, driver);
                Err(Box::new(trial.close(TrialEnd::Infra { reason }).0))
            }
        }
    }

    /// Runs a trial, and gives the machine back for the next one unless it is of no more use.
    /// `tell` is told of the progress and says whether to go on.
    pub fn run(
        self,
        plan: &TrialPlan,
        tell: &mut dyn FnMut(&TrialProgress) -> bool,
    ) -> (Recording, Option<Self>) {
        let mut driver = Driver::new(plan, self.machine);
        let restored = driver.begin_at(&self.checkpoint, self.console);
        let trial = Trial::new(plan, driver);
        if let Err(error) = restored {
            let reason = error.to_string();
            return (trial.close(TrialEnd::Infra { reason }).0, None);
        }
        let (recording, mut machine) = trial.run(self.hello, tell);
        let lost = matches!(
            recording.end,
            TrialEnd::Infra { .. } | TrialEnd::Silent { .. }
        );
        // Only the vCPU that told of the end has stopped. Another one may spin, and would take a CPU from all trials that follow.
        let usable = !lost && machine.pause_all().is_ok();
        let again = usable.then_some(Self { machine, ..self });
        (recording, again)
    }

    /// Puts the machine back to the agent's first call, which is not answered yet.
    ///
    /// # Errors
    /// The machine cannot be put back.
    pub(crate) fn put_back(self, plan: &TrialPlan) -> Result<Guest, DriverError> {
        let mut driver = Driver::new(plan, self.machine);
        driver.begin_at(&self.checkpoint, self.console)?;
        Ok(Guest {
            driver,
            hello: Some(self.hello),
        })
    }
}
