//! An emulated host that is up: it carries out orders, and can be saved between them.

use std::fmt::Display;
use std::sync::Once;

use unwindlab_guest_kernel::AboutMachine;
use unwindlab_oracle::trace::Recording;

use super::saved::{SaveError, Saving};
use super::{GivenKernel, LOAD_LIMIT, Names};
use crate::host::channel::ToHost;
use crate::host::conversation::HostError;
use crate::host::process::HostProcess;
use crate::plan::measurement::{MeasuredFigures, Measurement, NotMeasured};
use crate::plan::self_test::SelfTestMessage;
use crate::plan::sweep::{Message, SweepPlan};
use crate::plan::{Executor, InfraError, Progress, TrialPlan};
use crate::qmp::QmpError;

/// Says why the next command starts no faster. Once: the outer machines of a command share one cache.
fn not_saved(error: &dyn Display) {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        tracing::warn!(
            "the outer machine is not saved, so the next command starts no faster: {error}"
        );
    });
}

/// An emulated host that is up.
#[derive(Debug)]
pub struct Emulated {
    pub(super) process: HostProcess,
    /// What it can be saved with, unless it is not to be saved.
    pub(super) saving: Option<Saving>,
    pub(super) about: AboutMachine,
    /// Of its states.
    pub(super) names: Names,
}

impl Emulated {
    /// Sends the kernel under test.
    pub(super) fn give(&mut self, kernel: GivenKernel<'_>) -> Result<(), InfraError> {
        let given = self.process.give_kernel(kernel.hash, kernel.path);
        given.map_err(|error| self.process.failed(&error))
    }

    /// Saves a machine that has just booted.
    pub(super) fn save_bare(&mut self) -> Result<(), InfraError> {
        let id = self.names.bare.clone();
        let about = self.about.clone();
        self.save(id, about).map(drop)
    }

    /// How many guests it has, by its answer to `order`.
    fn guests(&mut self, order: &ToHost) -> Result<u32, InfraError> {
        self.process
            .idle(order, LOAD_LIMIT)
            .map(|(guests, _)| guests)
            .map_err(|error| {
                // What it went on from would bring the next command to the same end.
                if !matches!(error, HostError::Interrupted) {
                    self.distrust();
                }
                self.process.failed(&error)
            })
    }

    /// Saves it, and has it go on. That it cannot be saved is no error.
    fn save(&mut self, id: String, about: AboutMachine) -> Result<bool, InfraError> {
        let Some(saving) = &mut self.saving else {
            return Ok(false);
        };
        let saved = saving.save(id, about);
        let was_stopped = !matches!(saved, Err(SaveError::NoRoom(_) | SaveError::Often));
        // One that was stopped and does not go on is lost.
        if was_stopped && let Err(error) = saving.go_on() {
            return Err(self.process.failed(&HostError::Monitor(error)));
        }
        match saved {
            Ok(()) => return Ok(true),
            Err(SaveError::Often | SaveError::Qemu(QmpError::Interrupted)) => {}
            Err(error) => not_saved(&error),
        }
        Ok(false)
    }
}

impl Executor for Emulated {
    fn host(&self) -> String {
        self.process.host()
    }

    fn deaths(&self) -> usize {
        self.process.deaths()
    }

    fn run(&mut self, plan: &TrialPlan, progress: &dyn Progress) -> Result<Recording, InfraError> {
        self.process.run(plan, progress)
    }

    fn sweep(
        &mut self,
        plan: &SweepPlan,
        take: &mut dyn FnMut(Message) -> bool,
    ) -> Result<(), InfraError> {
        self.process.sweep(plan, take)
    }

    fn bench(
        &mut self,
        measurement: &Measurement,
    ) -> Result<Result<MeasuredFigures, NotMeasured>, InfraError> {
        self.process.bench(measurement)
    }

    fn self_test(
        &mut self,
        take: &mut dyn FnMut(SelfTestMessage) -> bool,
    ) -> Result<(), InfraError> {
        self.process.self_test(take)
    }

    fn distrust(&mut self) -> bool {
        if let Some(saving) = &mut self.saving {
            saving.forget(&self.names);
        }
        self.saving = None;
        true
    }

    fn keep(&mut self, progress: &dyn Progress) -> Result<(), InfraError> {
        let (Some(saving), Some(id)) = (&self.saving, self.names.with_guests.clone()) else {
            return Ok(());
        };
        // What is used once is not worth its room.
        if !saving.asked_before(&id) {
            return Ok(());
        }
        // To rest takes longer than to say how many guests there are.
        let guests = self.guests(&ToHost::Ping)?;
        if guests <= self.about.guests {
            return Ok(());
        }
        self.guests(&ToHost::Rest)?;
        progress.step("saving the outer machine with its guests, for the next command");
        let about = AboutMachine {
            guests,
            ..self.about.clone()
        };
        if self.save(id, about.clone())? {
            self.about = about;
        }
        Ok(())
    }
}

impl Drop for Emulated {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.saving.as_mut().map(Saving::wait) {
            not_saved(&error);
        }
    }
}
