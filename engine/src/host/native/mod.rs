//! The native KVM host: a process on this kernel's /dev/kvm ([`process`]). What it does also runs inside the emulated one.

mod again;
mod builder;
mod idle_machines;
pub mod process;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use unwindlab_oracle::trace::Recording;
use unwindlab_oracle::trace::recording::TrialEnd;

pub use self::builder::MachineBuilder;
use self::builder::{MachineError, cmdline};
use self::idle_machines::IdleMachines;
use crate::driver::{Driver, Guest};
use crate::host::channel::FromHost;
use crate::host::timekeeping::Timekeeping;
use crate::measured::qemu::Peer;
use crate::measured::{VmmBench, VmmError};
use crate::plan::measurement::{MeasuredFigures, Measurement, NotMeasured};
use crate::plan::sweep::{Message, SweepPlan};
use crate::plan::{MachineSpec, TrialPlan, TrialProgress};
use crate::runner::boot::{Booted, MachineKind};
use crate::sweep::engine::{self, NoMachine};

/// Runs trials on this kernel's KVM.
#[derive(Debug)]
pub struct Native {
    builder: MachineBuilder,
    idle: IdleMachines,
    /// What measurements are compared with.
    peer: Option<Peer>,
}

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The KVM host was started for another kernel.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The VMM's process could not be measured.
    #[error(transparent)]
    Vmm(#[from] VmmError),
    /// The trial did not come to its end.
    #[error("the trial ended with {0:?}")]
    Trial(TrialEnd),
}

impl From<BenchError> for NotMeasured {
    fn from(error: BenchError) -> Self {
        Self(error.to_string())
    }
}

impl Native {
    /// A host that runs these machines, whose KVM is known to be fit (see
    /// [`unwindlab_vmm::probe`]); `peer` is the folder of the QEMU that measurements compare with.
    #[must_use]
    pub fn new(builder: MachineBuilder, peer: Option<&Path>) -> Self {
        Self {
            builder,
            idle: IdleMachines::default(),
            peer: peer.map(|dir| Peer {
                dir: dir.to_path_buf(),
            }),
        }
    }

    /// Another kernel whose machines it can run.
    pub fn add_kernel(&mut self, hash: String, image: PathBuf) {
        self.builder.add_kernel(hash, image);
    }

    /// What it says while it waits for orders.
    #[must_use]
    pub fn idle(&self) -> FromHost {
        FromHost::Idle {
            guests: self.idle.count(),
            timekeeping: Timekeeping::of_this_kernel(),
        }
    }

    /// Runs one trial, and once more where its guest dies and the host may have done it. All that can go wrong is an end
    /// of the recording.
    pub fn run(
        &mut self,
        plan: &TrialPlan,
        tell: &mut dyn FnMut(&TrialProgress) -> bool,
    ) -> Recording {
        let first = self.run_once(plan, tell);
        match first.end {
            TrialEnd::Silent { .. } => {
                // A machine of its own.
                self.idle.clear();
                let again = self.run_once(plan, tell);
                let cmdline = again::talkative(&plan.cmdline, &again);
                let settled = again::settle(first, again);
                let Some(cmdline) = cmdline else {
                    return settled;
                };
                let talkative = TrialPlan {
                    cmdline,
                    ..plan.clone()
                };
                again::with_place(settled, self.run_once(&talkative, tell))
            }
            _ => first,
        }
    }

    fn run_once(
        &mut self,
        plan: &TrialPlan,
        tell: &mut dyn FnMut(&TrialProgress) -> bool,
    ) -> Recording {
        let kind = MachineKind::of(plan);
        let machine = match self.idle.take(&kind) {
            Some(machine) => machine,
            None => {
                self.idle.make_room(&kind);
                match self.boot(plan, tell) {
                    Ok(machine) => machine,
                    Err(recording) => return *recording,
                }
            }
        };
        let (recording, machine) = machine.run(plan, tell);
        if let Some(machine) = machine {
            self.idle.add(kind, machine);
        }
        recording
    }

    fn boot(
        &self,
        plan: &TrialPlan,
        tell: &mut dyn FnMut(&TrialProgress) -> bool,
    ) -> Result<Booted, Box<Recording>> {
        let machine = self.builder.machine(plan).map_err(|error| Recording {
            end: error.into(),
            ..Recording::default()
        })?;
        Booted::boot(plan, machine, tell)
    }

    /// Carries out a sweep. `tell` gets its messages, several at a time, and says whether to go on.
    pub fn sweep(&mut self, plan: &SweepPlan, tell: &mut dyn FnMut(Vec<Message>) -> bool) {
        let idle = self.idle.take(&MachineKind::of(&plan.trial));
        // What it makes besides takes memory.
        self.idle.clear();
        let builder = &self.builder;
        let guest = || -> Result<Guest, NoMachine> {
            Ok(match idle {
                Some(booted) => booted.put_back(&plan.trial)?,
                None => Guest {
                    driver: Driver::new(&plan.trial, builder.machine(&plan.trial)?),
                    hello: None,
                },
            })
        };
        let twin = || builder.twin(&plan.trial).map_err(NoMachine::from);
        engine::run(plan, guest(), &twin, tell);
    }

    /// Makes one measurement; `go_on` is asked while something is waited for.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn bench(
        &mut self,
        measurement: &Measurement,
        go_on: &dyn Fn() -> bool,
    ) -> Result<MeasuredFigures, BenchError> {
        // Nothing else takes memory meanwhile.
        self.idle.clear();
        match measurement {
            Measurement::Start { vmm, machine } => {
                self.bench_vmm(machine, go_on, |bench| bench.start(*vmm))
            }
            Measurement::Restore {
                vmm,
                machine,
                times,
                run_ms,
            } => self.bench_vmm(machine, go_on, |bench| {
                bench.restore(*vmm, *times, Duration::from_millis(*run_ms))
            }),
            Measurement::Trial(plan) => {
                let begin = Instant::now();
                let recording = self.run(plan, &mut |_| go_on());
                self.idle.clear();
                let micros = u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX);
                match recording.end {
                    TrialEnd::Completed => Ok(MeasuredFigures::Tried { micros }),
                    end => Err(BenchError::Trial(end)),
                }
            }
        }
    }

    fn bench_vmm(
        &self,
        machine: &MachineSpec,
        go_on: &dyn Fn() -> bool,
        measure: impl FnOnce(&VmmBench<'_>) -> Result<MeasuredFigures, VmmError>,
    ) -> Result<MeasuredFigures, BenchError> {
        Ok(measure(&VmmBench {
            machine,
            kernel: self.builder.kernel(&machine.kernel)?,
            cmdline: &cmdline(&machine.cmdline),
            peer: self.peer.as_ref(),
            go_on,
        })?)
    }
}
