//! A guest and its agent, driven from outside: what trials and sweeps have in common.
//!
//! A `Driver` owns the machine, the session with the agent, and the breakpoints. It says what
//! happens in the guest, one thing at a time, and answers the agent on its own; what an event calls
//! for is up to the caller. The vCPU to which something happened stands still until the caller
//! resumes it.

mod announced;
mod choice;
pub mod conversation;
mod error;
mod guest_memory;
mod held;
pub(crate) mod image;
mod look;
mod protocol;
pub(crate) mod session;
mod shared;
mod watch;
mod witness;

use std::time::Instant;

use unwindlab_abi::{MAILBOX_PORT, MARK_PORT, mark};
use unwindlab_oracle::trace::recording::{Recording, TrialEnd};
use unwindlab_vmm::{
    Access, AddressSpace, Checkpoint, DataBreakpoint, Machine, Pause, Run, Stop, VcpuEvent,
    VcpuHandle, Watched,
};

use self::choice::Choice;
pub(crate) use self::error::DriverError;
use self::error::SessionError;
use self::held::Held;
pub(crate) use self::look::{place, word};
use self::session::{AgentSession, Caller, Consequence};
use self::witness::WitnessState;
use crate::plan::{KernelAddresses, TrialPlan};

/// Bytes of what is written to the ports of the agent.
const WORD: u8 = 4;

/// What happened in a guest, and to which vCPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Happening {
    /// The agent calls for the first time: it asks for its plan. [`Driver::answer`] answers it.
    Hello(Call),
    /// The agent is about to start; it is answered.
    Ready { vcpu: u8 },
    /// A workload thread, or the agent's helper on its behalf, says where it is.
    Mark { vcpu: u8, what: u8, thread: u32 },
    /// The vCPU stands at a breakpoint.
    Breakpoint { vcpu: u8, pc: u64 },
    /// The vCPU stands behind an access that meets breakpoints on data.
    Data {
        vcpu: u8,
        pc: u64,
        met: Vec<DataBreakpoint>,
    },
    /// The vCPU is back at a breakpoint at which it stopped before: nothing new.
    BackAtBreakpoint { vcpu: u8 },
    /// The vCPU executed what it was to execute; the next instruction is at `pc`.
    Stepped { vcpu: u8, pc: u64 },
    /// The vCPU made an access that is waited for.
    Access { vcpu: u8, access: Access },
    /// The guest is over.
    Ended(TrialEnd),
    /// Nothing happened in time.
    Nothing,
}

/// A call of the agent's that waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call {
    /// The vCPU that rang.
    pub vcpu: u8,
    /// The frame of the mailbox.
    frame: u32,
}

/// A guest with its agent.
#[derive(Debug)]
pub(crate) struct Driver {
    /// The machine. Breakpoints are set, and vCPUs resumed, by the driver.
    pub machine: Machine,
    /// The session with the agent.
    pub session: AgentSession,
    symbols: KernelAddresses,
    breakpoints: Vec<u64>,
    data: Vec<DataBreakpoint>,
    held: Held,
    witness: WitnessState,
    choice: Choice,
    /// With this vCPU, all others run.
    leader: Option<u8>,
}

/// A guest that begins.
#[derive(Debug)]
pub(crate) struct Guest {
    /// It stands still.
    pub driver: Driver,
    /// Its agent's first call, which is not answered yet; `None`: it is about to boot.
    pub hello: Option<Call>,
}

impl Driver {
    /// Drives a machine whose agent was not answered yet. It must have no breakpoints.
    pub fn new(plan: &TrialPlan, machine: Machine) -> Self {
        let session = AgentSession::new(&plan.guest, plan.vcpus);
        Self::with_session(plan, machine, session)
    }

    /// Drives a machine whose agent has said so much. It must have no breakpoints.
    pub fn with_session(plan: &TrialPlan, machine: Machine, session: AgentSession) -> Self {
        Self {
            machine,
            session,
            symbols: plan.symbols,
            breakpoints: Vec::new(),
            data: Vec::new(),
            held: Held::default(),
            witness: WitnessState::new(plan.witness.as_ref()),
            choice: Choice::new(plan.choice),
            leader: None,
        }
    }

    /// Has all vCPUs run whenever this one is resumed; `None`: each runs when it is resumed.
    pub fn lead(&mut self, vcpu: Option<u8>) {
        self.leader = vcpu;
    }

    /// Starts all vCPUs that stand still and whose stops were seen.
    pub fn start(&mut self) -> Result<(), DriverError> {
        Ok(self.machine.start()?)
    }

    /// Resumes a vCPU. One that is held runs when it is released.
    pub fn resume(&mut self, index: u8, run: Run) -> Result<(), DriverError> {
        if self.held.keep(index, run) {
            return Ok(());
        }
        self.vcpu(index)?.resume(run)?;
        if self.leader == Some(index) {
            self.machine.start()?;
        }
        Ok(())
    }

    /// Has a vCPU that is resumed from now on stand still until it is released. `run`: how it is to
    /// run then, unless it is resumed otherwise before; `None` for a vCPU whose stop is still to be
    /// dealt with.
    pub fn hold(&mut self, index: u8, run: Option<Run>) {
        self.held.hold(index, run);
    }

    /// Holds a vCPU no longer. Returns how it is to run, where it was resumed meanwhile: the caller
    /// resumes it.
    pub fn release(&mut self, index: u8) -> Option<Run> {
        self.held.release(index)
    }

    /// Waits until something happens. The vCPU to which it happened stands still then.
    pub fn next(&mut self, until: Instant) -> Result<Happening, DriverError> {
        loop {
            let wait = until.saturating_duration_since(Instant::now());
            let event = self.machine.next_event(wait);
            let Some(event) = event else {
                return Ok(Happening::Nothing);
            };
            if let Some(happening) = self.understand(event)? {
                return Ok(happening);
            }
            // A guest that calls without end does not keep the caller from its clock.
            if Instant::now() >= until {
                return Ok(Happening::Nothing);
            }
        }
    }

    /// What a stop means to the caller; nothing where it was the driver's to deal with.
    fn understand(&mut self, event: VcpuEvent) -> Result<Option<Happening>, DriverError> {
        let vcpu = event.vcpu;
        Ok(Some(match event.stop {
            Stop::Port { port, size, .. } if size != WORD => {
                let error = SessionError::Size(size, port);
                Happening::Ended(self.misbehaved(error.to_string())?)
            }
            Stop::Port {
                port: MAILBOX_PORT,
                value: frame,
                ..
            } => {
                let call = Call { vcpu, frame };
                if !self.session.has_begun() {
                    return Ok(Some(Happening::Hello(call)));
                }
                let happening = self.answer(call)?;
                if happening.is_none() {
                    // A vCPU that steps has made a step that nobody counts, and steps on.
                    self.resume(vcpu, Run::AsBefore)?;
                }
                return Ok(happening);
            }
            Stop::Port {
                port: MARK_PORT,
                value,
                ..
            } => {
                let (what, thread) = mark::unpack(value);
                if !self.session.has_thread(thread) {
                    let error = SessionError::Mark(thread);
                    let end = self.misbehaved(error.to_string())?;
                    return Ok(Some(Happening::Ended(end)));
                }
                if what == mark::ARM {
                    self.identify_tasks(vcpu, thread)?;
                }
                Happening::Mark { vcpu, what, thread }
            }
            Stop::Access(access) => Happening::Access { vcpu, access },
            Stop::Breakpoint { pc } => Happening::Breakpoint { vcpu, pc },
            Stop::Data { pc, met } => Happening::Data { vcpu, pc, met },
            Stop::BackAtBreakpoint { .. } => Happening::BackAtBreakpoint { vcpu },
            Stop::Stepped { pc } => Happening::Stepped { vcpu, pc },
            Stop::Paused => {
                self.resume(vcpu, Run::AsBefore)?;
                return Ok(None);
            }
            Stop::StrangeReturn { why, .. } => {
                self.end_witness(&why)?;
                self.resume(vcpu, Run::AsBefore)?;
                return Ok(None);
            }
            other => Happening::Ended(self.ended_by(vcpu, &other)?),
        }))
    }

    /// Lets the guest go on after something that the caller has no interest in; its end, if that is what it was.
    pub fn pass(&mut self, happening: Happening) -> Result<Option<TrialEnd>, DriverError> {
        let vcpu = match happening {
            Happening::Hello(call) => match self.answer(call)? {
                Some(happening) => return self.pass(happening),
                None => call.vcpu,
            },
            Happening::Ready { vcpu }
            | Happening::Mark { vcpu, .. }
            | Happening::Breakpoint { vcpu, .. }
            | Happening::Data { vcpu, .. }
            | Happening::BackAtBreakpoint { vcpu }
            | Happening::Stepped { vcpu, .. }
            | Happening::Access { vcpu, .. } => vcpu,
            Happening::Ended(end) => return Ok(Some(end)),
            Happening::Nothing => return Ok(None),
        };
        self.resume(vcpu, Run::Continue)?;
        Ok(None)
    }

    /// Answers a call of the agent's. The vCPU stands still afterwards. Returns what the call means
    /// beyond the answer.
    pub fn answer(&mut self, call: Call) -> Result<Option<Happening>, DriverError> {
        match self.try_answer(call) {
            Err(error) if error.is_the_guests() => {
                let end = self.misbehaved(error.to_string())?;
                Ok(Some(Happening::Ended(end)))
            }
            answered => answered,
        }
    }

    fn try_answer(&mut self, call: Call) -> Result<Option<Happening>, DriverError> {
        let Call { vcpu, frame } = call;
        if !self.session.has_begun() {
            self.choose(vcpu)?;
        }
        let caller = Caller {
            space: AddressSpace::of(&self.vcpu(vcpu)?.sregs()?),
            task: self.current_task(vcpu)?,
        };
        let memory = self.machine.memory();
        Ok(match self.session.answer(memory, &caller, frame)? {
            Consequence::None => None,
            Consequence::Ready => {
                self.mend_sysenter()?;
                self.begin_witness()?;
                Some(Happening::Ready { vcpu })
            }
            Consequence::Finished => {
                self.drain();
                None
            }
            Consequence::End(end) => Some(Happening::Ended(end)),
        })
    }

    /// Where `sysenter` leads, if the workload executes that.
    pub const fn sysenter(&self) -> Option<u64> {
        self.symbols.sysenter
    }

    /// From now on `sysenter` works on a host that breaks it, if the workload executes that.
    pub fn mend_sysenter(&mut self) -> Result<(), DriverError> {
        Ok(self.machine.mend_sysenter(self.symbols.sysenter)?)
    }

    /// The vCPU of this number.
    pub fn vcpu(&mut self, index: u8) -> Result<VcpuHandle<'_>, DriverError> {
        self.machine.vcpu(index).ok_or(DriverError::Missing(index))
    }

    /// Does something to a vCPU while it stands still. One that runs is stopped for that, and runs
    /// on afterwards.
    pub fn while_stopped<T>(
        &mut self,
        index: u8,
        what: impl FnOnce(&mut VcpuHandle<'_>) -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        self.with_stopped(index, |driver| what(&mut driver.vcpu(index)?))
    }

    /// The same with all of the machine.
    pub fn with_stopped<T>(
        &mut self,
        index: u8,
        what: impl FnOnce(&mut Self) -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        let paused = self.vcpu(index)?.pause()?;
        let done = what(self);
        if paused == Pause::Paused {
            self.vcpu(index)?.resume(Run::AsBefore)?;
        }
        done
    }

    /// Does something while all vCPUs stand still. Those that run are stopped for that, and run on
    /// afterwards.
    pub fn while_all_stopped<T, E: From<DriverError>>(
        &mut self,
        what: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        let paused = self.machine.pause_all().map_err(DriverError::from)?;
        let done = what(self);
        for (index, paused) in (0..).zip(paused) {
            if paused == Pause::Paused {
                let resumed = self.vcpu(index)?.resume(Run::AsBefore);
                resumed.map_err(DriverError::from)?;
            }
        }
        done
    }

    /// Sets the breakpoints of all vCPUs.
    pub fn break_at(&mut self, places: &[u64]) -> Result<(), DriverError> {
        self.break_at_all(places, &[])
    }

    /// The same with breakpoints on data.
    pub fn break_at_all(
        &mut self,
        places: &[u64],
        data: &[DataBreakpoint],
    ) -> Result<(), DriverError> {
        if places == self.breakpoints && data == self.data {
            return Ok(());
        }
        // The kernel's addresses are those of the upper half.
        let (kernel, user): (Vec<u64>, Vec<u64>) =
            places.iter().partition(|place| **place >> 63 == 1);
        self.machine
            .set_breakpoints_and_data(&kernel, &user, data)?;
        self.breakpoints = places.to_vec();
        self.data = data.to_vec();
        Ok(())
    }

    /// Has all vCPUs stop at these accesses.
    pub fn stop_at(&mut self, accesses: &[Watched]) -> Result<(), DriverError> {
        (0..self.machine.vcpu_count())
            .try_for_each(|index| self.while_stopped(index, |vcpu| Ok(vcpu.watch(accesses)?)))
    }

    /// Puts the machine back to a checkpoint, with so much of its console and nothing to stop at.
    pub fn begin_at(&mut self, checkpoint: &Checkpoint, console: u64) -> Result<(), DriverError> {
        if let Err(error) = self.take_all_out() {
            // The guest has written over it. A restore puts it there again, and it can be taken out then.
            tracing::debug!(%error, "put back twice");
            self.machine.restore(checkpoint)?;
            self.take_all_out()?;
        }
        // What was taken out has left the bytes that the guest had there, which need not be the checkpoint's.
        self.machine.restore(checkpoint)?;
        self.machine.console().cut(console);
        self.stop_at(&[])?;
        self.breakpoints.clear();
        self.data.clear();
        Ok(())
    }

    /// Takes out of the guest's code all that was put into it.
    fn take_all_out(&mut self) -> Result<(), DriverError> {
        self.machine.end_returns()?;
        self.machine.mend_sysenter(None)?;
        Ok(self.machine.set_breakpoints(&[], &[])?)
    }

    /// Reads what is new in every ring.
    pub fn drain(&mut self) {
        self.session.drain(self.machine.memory());
    }

    /// The progress counters of all workload threads.
    pub fn progress(&self) -> Vec<u64> {
        self.session.progress(self.machine.memory())
    }

    /// The recording of all that the agent announced and the guest has put out, and the machine as
    /// it is now.
    pub fn close(mut self) -> (Recording, Machine) {
        let witness = self.close_witness();
        let mut recording = self.session.into_recording();
        recording.witness = witness;
        let memory = self.machine.memory();
        (recording.reached, recording.reached_before) = self.choice.read(memory);
        recording.console = watch::console_text(&self.machine);
        (recording, self.machine)
    }
}
