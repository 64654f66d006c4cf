//! A guest under the control of a sweep: its stops, one at a time, with the agent answered meanwhile.

use std::time::{Duration, Instant};

use unwindlab_abi::{MAILBOX_PORT, MARK_PORT, mark};
use unwindlab_vmm::{AddressSpace, CheckpointError, Machine, Run, Stop, VcpuEvent};

use crate::driver::session::{Session, Turn};
use crate::driver::vcpu::{VcpuError, nmi_state, set_breakpoints, vcpu};
use crate::driver::watch;
use crate::plan::TrialPlan;
use unwindlab_oracle::trace::recording::{Injection, TrialEnd};

/// Why a sweep cannot go on: the harness's fault or the KVM host's.
#[derive(Debug, thiserror::Error)]
pub(super) enum SweepError {
    /// A vCPU does not do what KVM promises.
    #[error(transparent)]
    Vcpu(#[from] VcpuError),
    /// The machine cannot be saved or put back.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A path does not come to user mode.
    #[error("{0}")]
    NoPath(String),
    /// Anything else, in one line.
    #[error("{0}")]
    Other(String),
}

/// What a vCPU stopped for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Happening {
    /// A workload thread begins an iteration.
    Arm { vcpu: u8, thread: u32 },
    /// It has ended it.
    Done { vcpu: u8, thread: u32 },
    /// A vCPU stands at a breakpoint.
    Breakpoint { vcpu: u8, pc: u64 },
    /// A vCPU has executed what it was to.
    Stepped { vcpu: u8, pc: u64 },
    /// The guest is over.
    End(TrialEnd),
    /// Nothing happened in time.
    Nothing,
}

/// A machine with its agent.
pub(super) struct Guest<'p> {
    pub(super) plan: &'p TrialPlan,
    pub(super) machine: Machine,
    pub(super) session: Session,
    breakpoints: Vec<u64>,
    /// How the only vCPU is to go on, with the next look at what happens.
    alone: Option<Run>,
}

impl<'p> Guest<'p> {
    /// Of a machine that is built but not started.
    pub(super) fn new(plan: &'p TrialPlan, machine: Machine) -> Self {
        Self::with(plan, machine, Session::new(&plan.guest, plan.vcpus))
    }

    /// Of a machine whose agent has said something.
    pub(super) fn with(plan: &'p TrialPlan, machine: Machine, session: Session) -> Self {
        Self {
            session,
            plan,
            machine,
            breakpoints: Vec::new(),
            alone: None,
        }
    }

    /// Lets all vCPUs run that stand still.
    pub(super) fn start(&mut self) -> Result<(), SweepError> {
        if self.is_alone() {
            self.alone = Some(Run::Continue);
            return Ok(());
        }
        Ok(self.machine.start().map_err(VcpuError::from)?)
    }

    /// Lets one vCPU go on.
    pub(super) fn resume(&mut self, index: u8, run: Run) -> Result<(), SweepError> {
        if self.is_alone() {
            self.alone = Some(run);
            return Ok(());
        }
        let mut handle = vcpu(&mut self.machine, index)?;
        Ok(handle.resume(run).map_err(VcpuError::from)?)
    }

    /// A machine with one vCPU runs while somebody waits for what happens, and on that thread.
    fn is_alone(&self) -> bool {
        self.plan.vcpus == 1
    }

    /// Waits for a vCPU to stop of its own.
    fn next_stop(&mut self, wait: Duration) -> Result<Option<VcpuEvent>, SweepError> {
        let Some(run) = self.alone.take() else {
            return Ok(self.machine.next_event(wait));
        };
        let event = self.machine.run_here(0, run, wait);
        let event = event.map_err(VcpuError::from)?;
        if event.is_none() {
            self.alone = Some(run);
        }
        Ok(event)
    }

    /// Waits for the next thing to happen. The vCPU that it happened to stands still then.
    pub(super) fn next(&mut self, until: Instant) -> Result<Happening, SweepError> {
        loop {
            let wait = until.saturating_duration_since(Instant::now());
            let Some(event) = self.next_stop(wait)? else {
                return Ok(Happening::Nothing);
            };
            let index = event.vcpu;
            match event.stop {
                Stop::Port {
                    port: MAILBOX_PORT,
                    value,
                    ..
                } => {
                    if let Some(end) = self.mailbox(index, value)? {
                        return Ok(Happening::End(end));
                    }
                    self.resume(index, Run::Continue)?;
                }
                Stop::Port {
                    port: MARK_PORT,
                    value,
                    ..
                } => match mark::unpack(value) {
                    (mark::ARM, thread) => {
                        return Ok(Happening::Arm {
                            vcpu: index,
                            thread,
                        });
                    }
                    (mark::DONE, thread) => {
                        return Ok(Happening::Done {
                            vcpu: index,
                            thread,
                        });
                    }
                    _ => self.resume(index, Run::Continue)?,
                },
                Stop::Breakpoint { pc } => {
                    return Ok(Happening::Breakpoint { vcpu: index, pc });
                }
                Stop::Stepped { pc } => return Ok(Happening::Stepped { vcpu: index, pc }),
                Stop::Paused => self.resume(index, Run::Continue)?,
                other => {
                    let end = watch::ended_by(&mut self.machine, index, &other);
                    return Ok(Happening::End(end?));
                }
            }
        }
    }

    fn mailbox(&mut self, index: u8, frame: u32) -> Result<Option<TrialEnd>, SweepError> {
        let sregs = vcpu(&mut self.machine, index)?.sregs();
        let space = AddressSpace::of(&sregs.map_err(VcpuError::from)?);
        match self.session.mailbox(self.machine.memory(), &space, frame) {
            Ok(Turn::Go | Turn::Ready | Turn::Finished) => Ok(None),
            Ok(Turn::End(end)) => Ok(Some(end)),
            Err(error) => Err(SweepError::Other(error.to_string())),
        }
    }

    /// Sets the breakpoints of all vCPUs.
    pub(super) fn break_at(&mut self, places: &[u64]) -> Result<(), SweepError> {
        if places == self.breakpoints {
            return Ok(());
        }
        set_breakpoints(&mut self.machine, places)?;
        self.breakpoints = places.to_vec();
        Ok(())
    }

    /// The task that is current on a vCPU that stands still.
    pub(super) fn task(&mut self, index: u8) -> Result<u64, SweepError> {
        let symbols = &self.plan.symbols;
        Ok(watch::current_task(&mut self.machine, index, symbols)?)
    }

    /// Whether a vCPU that stands still handles an NMI.
    pub(super) fn in_nmi(&mut self, index: u8) -> Result<bool, SweepError> {
        Ok(nmi_state(&mut self.machine, index)?.masked)
    }

    /// Injects an NMI into a vCPU that stands still.
    pub(super) fn nmi(
        &mut self,
        index: u8,
        spec: u32,
        iteration: u64,
    ) -> Result<Injection, SweepError> {
        let mut handle = vcpu(&mut self.machine, index)?;
        let (rip, cpl) = watch::place(&handle).map_err(VcpuError::from)?;
        let state = handle.inject_nmi().map_err(VcpuError::from)?.before;
        Ok(Injection {
            spec,
            vcpu: u32::from(index),
            rip,
            cpl,
            thread: Some(THREAD),
            iteration: Some(iteration),
            exact: cpl == 0 && state.takes_one_here(),
        })
    }

    /// The end that means the guest stands still.
    pub(super) fn hang(&mut self) -> Result<TrialEnd, SweepError> {
        if let Some(panic) = watch::panicked(&self.machine) {
            return Ok(panic);
        }
        if let Some(lost) = watch::lost(&mut self.machine)? {
            return Ok(lost);
        }
        Ok(TrialEnd::Hang {
            places: watch::places(&mut self.machine)?,
        })
    }
}

/// The workload thread whose path is swept.
pub(super) const THREAD: u32 = 0;

/// How long the boot may take.
pub(super) fn boot_limit(plan: &TrialPlan) -> Duration {
    Duration::from_millis(plan.limits.boot_ms)
}
