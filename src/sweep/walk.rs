//! From power-on to the request, and from there, step by step, to user mode.

use std::time::{Duration, Instant};

use unwindlab_vmm::{Checkpoint, Machine, Run};

use super::guest::{Guest, Happening, SweepError, THREAD, boot_limit};
use super::printk::Printed;
use crate::driver::session::Session;
use crate::driver::vcpu::{VcpuError, vcpu};
use crate::driver::watch;
use crate::plan::sweep::{Step, SweepPlan};
use crate::plan::{Place, TriggerPlan};
use unwindlab_oracle::trace::LabLog;
use unwindlab_oracle::trace::recording::Injection;
use unwindlab_oracle::trace::ring::RingReader;

/// Requests before the one whose path is swept. A kernel complains about the first ten NMIs in five
/// seconds that nobody claims (`pr_emerg_ratelimited` in `unknown_nmi_error`, arch/x86/kernel/nmi.c):
/// a trial that prints takes many times as long.
const WARM_UP: u64 = 24;
/// Iterations that are let pass because an interrupt is under way where the path would begin.
const UNQUIET: u64 = 32;
/// Boundaries in user mode at the end of a path: behind the first of them an NMI is in another entry
/// for certain.
const USER_STEPS: usize = 3;
/// Iterations whose path is looked at.
const ATTEMPTS: u32 = 16;

/// Where a path begins: behind its request.
#[derive(Clone)]
pub(super) struct Start {
    /// The vCPU of the path.
    pub(super) vcpu: u8,
    /// The task of the path.
    pub(super) task: u64,
    /// Where the request was made.
    pub(super) place: u64,
    /// The request, if one was made.
    pub(super) made: Vec<Injection>,
    /// The iteration of the path.
    pub(super) iteration: u64,
    /// Behind the instruction at the place, and the request's NMI that came before it.
    pub(super) behind: Checkpoint,
    /// What the kernel had printed.
    pub(super) printed: Option<Printed>,
    /// What the agent said so far.
    session: Session,
    /// The rings, all read up to the beginning of the request's iteration.
    pub(super) rings: Vec<RingReader>,
    /// Slots of the lab client's log that were finished just before the request.
    pub(super) slots: u64,
}

/// A guest that can be put back to where a path begins.
pub(super) struct Walk<'p> {
    pub(super) guest: Guest<'p>,
    pub(super) start: Start,
    /// The console's length when the machine was last put back, or just before the request.
    pub(super) console: u64,
}

impl<'p> Walk<'p> {
    /// Boots a machine and goes there.
    pub(super) fn new(plan: &'p SweepPlan, machine: Machine) -> Result<Self, SweepError> {
        let until = Instant::now() + boot_limit(&plan.trial);
        Self::begin(Guest::new(&plan.trial, machine), plan, 0, until)
    }

    /// The same, and the path from there; another iteration's where it leads through another task, for
    /// what the scheduler does is not what is meant, and depends on time.
    pub(super) fn with_path(
        plan: &'p SweepPlan,
        machine: Machine,
    ) -> Result<(Self, Vec<Step>), SweepError> {
        let mut walk = Self::new(plan, machine)?;
        for _ in 1..ATTEMPTS {
            let path = walk.path(plan.longest)?;
            if path.iter().all(|step| step.task == walk.start.task) {
                return Ok((walk, path));
            }
            walk = walk.again(plan)?;
        }
        let path = walk.path(plan.longest)?;
        Ok((walk, path))
    }

    /// The same on another machine, which has not run yet.
    pub(super) fn twin(
        plan: &'p SweepPlan,
        mut machine: Machine,
        start: Start,
    ) -> Result<Self, SweepError> {
        machine.adopt(&start.behind)?;
        Ok(Self {
            console: machine.console().len(),
            guest: Guest::with(&plan.trial, machine, start.session.clone()),
            start,
        })
    }

    /// The request of a later iteration.
    fn again(self, plan: &'p SweepPlan) -> Result<Self, SweepError> {
        let until = Instant::now() + LEG;
        Self::begin(self.guest, plan, self.start.iteration, until)
    }

    /// Goes to the request of an iteration behind this one; not to one where an interrupt is under way, if there are others.
    fn begin(
        mut guest: Guest<'p>,
        plan: &'p SweepPlan,
        mut iteration: u64,
        until: Instant,
    ) -> Result<Self, SweepError> {
        let (place, hit) = place(plan)?;
        let first = iteration.max(WARM_UP) + 1;
        loop {
            guest.start()?;
            let (vcpu, task) = next_iteration(&mut guest, until)?;
            iteration += 1;
            let rings = rings(&mut guest);
            arrive(&mut guest, vcpu, task, place, hit, until)?;
            if iteration >= first && (quiet(&mut guest, vcpu)? || iteration >= first + UNQUIET) {
                return Self::request(guest, plan, vcpu, task, iteration, rings);
            }
            if iteration <= WARM_UP {
                guest.nmi(vcpu, plan.request, iteration)?;
            }
            guest.break_at(&[])?;
        }
    }

    /// Makes the request, if there is to be one, on a guest that stands at its place.
    fn request(
        mut guest: Guest<'p>,
        plan: &'p SweepPlan,
        vcpu: u8,
        task: u64,
        iteration: u64,
        rings: Vec<RingReader>,
    ) -> Result<Self, SweepError> {
        let (place, _) = place(plan)?;
        without_ticks(&mut guest.machine)?;
        guest.session.read_lab(guest.machine.memory());
        let lab = guest.session.recording.lab.as_ref();
        let slots = lab.map_or(0, LabLog::finished);
        let console = guest.machine.console().len();
        let next = watch::successors(&mut guest.machine, vcpu, place)?;
        if next.is_empty() {
            return Err(SweepError::Other(format!(
                "the instruction at {place:#x} can lead anywhere: begin the sweep at another"
            )));
        }
        let made = match plan.asks {
            true => vec![guest.nmi(vcpu, plan.request, iteration)?],
            false => Vec::new(),
        };
        guest.break_at(&next)?;
        guest.start()?;
        let until = Instant::now() + LEG;
        stand(&mut guest, vcpu, task, &next, until)?;
        guest.break_at(&[])?;
        let printed = Printed::of(&mut guest, vcpu)?;
        let behind = checkpoint(&mut guest.machine)?;
        let start = Start {
            vcpu,
            task,
            place,
            made,
            iteration,
            behind,
            printed,
            session: guest.session.clone(),
            rings,
            slots,
        };
        Ok(Self {
            guest,
            start,
            console,
        })
    }

    /// Records the path, from behind the request to the first instructions in user mode; the machine
    /// stands behind them afterwards.
    pub(super) fn path(&mut self, longest: u32) -> Result<Vec<Step>, SweepError> {
        self.guest.machine.restore(&self.start.behind)?;
        self.path_from_here(longest)
    }

    /// The same from where the machine stands.
    pub(super) fn path_from_here(&mut self, longest: u32) -> Result<Vec<Step>, SweepError> {
        let mut path = Vec::new();
        loop {
            let step = self.here()?;
            let in_user = path.iter().rev().take_while(|it: &&Step| it.user).count();
            if in_user == USER_STEPS || in_user > 0 && !step.user {
                return Ok(path);
            }
            path.push(step);
            if path.len() > longest as usize {
                return Err(SweepError::NoPath(format!(
                    "more than {longest} instructions from the request, and still in the kernel"
                )));
            }
            if !self.steps(1)? {
                let what = "the emulated KVM host lost the machine in the middle of the path";
                return Err(SweepError::NoPath(what.to_owned()));
            }
        }
    }

    pub(super) fn here(&mut self) -> Result<Step, SweepError> {
        let handle = vcpu(&mut self.guest.machine, self.start.vcpu)?;
        let (rip, cpl) = watch::place(&handle).map_err(VcpuError::from)?;
        let task = self.guest.task(self.start.vcpu)?;
        Ok(Step {
            rip,
            task,
            user: cpl == 3,
        })
    }

    /// The instruction that the vCPU of the path is about to execute.
    pub(super) fn rip(&mut self) -> Result<u64, SweepError> {
        let handle = vcpu(&mut self.guest.machine, self.start.vcpu)?;
        Ok(handle.regs().map_err(VcpuError::from)?.rip)
    }

    /// Executes so many instructions; false where the KVM host lost the machine.
    pub(super) fn steps(&mut self, count: u32) -> Result<bool, SweepError> {
        let Some(count) = std::num::NonZeroU32::new(count) else {
            return Ok(true);
        };
        self.guest.resume(self.start.vcpu, Run::Steps(count))?;
        match self.guest.next(Instant::now() + LEG)? {
            Happening::Stepped { .. } => Ok(true),
            other => self.stray(&other, "in the middle of the path"),
        }
    }

    /// Goes on from inside an NMI's handler to this instruction behind it, with interrupts held back; whether it
    /// came there.
    pub(super) fn leave_handler(&mut self, to: u64) -> Result<bool, SweepError> {
        let vcpu = self.start.vcpu;
        let until = Instant::now() + LEG;
        // What the handler calls may come by there too, and a guest that the host lost may do so for ever.
        while Instant::now() < until {
            self.guest.resume(vcpu, Run::To(to))?;
            match self.guest.next(until)? {
                Happening::Stepped { .. } if !self.guest.in_nmi(vcpu)? => return Ok(true),
                Happening::Stepped { .. } => {
                    if !self.steps(1)? {
                        return Ok(false);
                    }
                }
                Happening::Arm { .. } | Happening::Done { .. } => return Ok(false),
                Happening::Nothing => {
                    self.guest.machine.pause_all().map_err(VcpuError::from)?;
                }
                other => return self.stray(&other, &format!("on the way to {to:#x}")),
            }
        }
        Ok(false)
    }

    /// False where the guest came to another end on a way that was gone before, which is the KVM host's doing.
    fn stray(&mut self, happening: &Happening, when: &str) -> Result<bool, SweepError> {
        if matches!(happening, Happening::End(_)) {
            return Ok(false);
        }
        match watch::lost(&mut self.guest.machine)? {
            Some(_) => Ok(false),
            None => Err(SweepError::Other(format!("{happening:?} {when}"))),
        }
    }

    /// Goes on to an instruction, and so many times in all; whether it came there.
    pub(super) fn run_to_hit(&mut self, rip: u64, hits: usize) -> Result<bool, SweepError> {
        for _ in 0..hits {
            if !self.run_to(rip)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Goes on to an instruction; whether it came there. (An interrupt on the way may return to it past
    /// the breakpoint: TCG pushes RF with one.)
    pub(super) fn run_to(&mut self, rip: u64) -> Result<bool, SweepError> {
        self.guest.break_at(&[rip])?;
        self.guest.resume(self.start.vcpu, Run::Continue)?;
        match self.guest.next(Instant::now() + LEG)? {
            Happening::Breakpoint { .. } => Ok(true),
            Happening::Arm { .. } | Happening::Done { .. } => Ok(false),
            other => self.stray(&other, &format!("on the way to {rip:#x}")),
        }
    }
}

/// How late a tick is in a trial.
const TICKS_LATE: Duration = Duration::from_millis(100);

/// Makes the ticks of a guest that stands still late, for what is done with it next. A trial takes about as long as it is
/// from one tick to the next: one or two would come in each, which took a third of its time, and would do in its stead
/// what a self-interrupt that is missing should. What waits for a timer waits so much longer.
fn without_ticks(machine: &mut Machine) -> Result<(), SweepError> {
    machine.pause_all().map_err(VcpuError::from)?;
    machine
        .postpone_timers(TICKS_LATE)
        .map_err(VcpuError::from)?;
    Ok(())
}

/// Whether no interrupt is under way to a vCPU that stands still: one would come in each trial.
fn quiet(guest: &mut Guest<'_>, index: u8) -> Result<bool, SweepError> {
    let handle = vcpu(&mut guest.machine, index)?;
    Ok(!handle.irq_pending().map_err(VcpuError::from)?)
}

/// A checkpoint to make trials from.
pub(super) fn checkpoint(machine: &mut Machine) -> Result<Checkpoint, SweepError> {
    without_ticks(machine)?;
    Ok(machine.checkpoint()?)
}

/// The rings, read so far.
fn rings(guest: &mut Guest<'_>) -> Vec<RingReader> {
    guest.session.drain(guest.machine.memory());
    let rings = guest.session.rings.iter().map(RingReader::from_here);
    rings.collect()
}

/// Longest time between two stops of a guest that is well.
pub(super) const LEG: Duration = Duration::from_secs(10);

/// The request's place, and which hit of it counts.
fn place(plan: &SweepPlan) -> Result<(u64, u64), SweepError> {
    if let Some(from) = plan.from {
        return Ok((from, 1));
    }
    let injection = plan.trial.injections.get(plan.request as usize);
    match injection.map(|injection| &injection.trigger) {
        Some(TriggerPlan::Arrival(arrival)) => match arrival.place {
            Place::Kernel { address } => Ok((address, arrival.hit)),
            Place::User { .. } => Err(SweepError::Other(
                "a sweep begins at an instruction of the kernel".to_owned(),
            )),
        },
        _ => Err(SweepError::Other(
            "the scenario has no NMI at an instruction to begin at".to_owned(),
        )),
    }
}

/// Waits for the thread to begin its next iteration: the vCPU and the task. Both stand still.
fn next_iteration(guest: &mut Guest<'_>, until: Instant) -> Result<(u8, u64), SweepError> {
    loop {
        match guest.next(until)? {
            Happening::Arm { vcpu, thread } if thread == THREAD => {
                let task = guest.task(vcpu)?;
                return Ok((vcpu, task));
            }
            happening => pass(guest, &happening, "before the path begins")?,
        }
    }
}

/// Goes on to the place, as that task and outside of NMIs, for the `hit`-th time.
fn arrive(
    guest: &mut Guest<'_>,
    vcpu: u8,
    task: u64,
    place: u64,
    hit: u64,
    until: Instant,
) -> Result<(), SweepError> {
    without_ticks(&mut guest.machine)?;
    guest.break_at(&[place])?;
    guest.start()?;
    for _ in 1..hit {
        stand(guest, vcpu, task, &[place], until)?;
        guest.resume(vcpu, Run::Continue)?;
    }
    stand(guest, vcpu, task, &[place], until)
}

/// Waits until the task stands at one of these places, outside of NMIs.
fn stand(
    guest: &mut Guest<'_>,
    on: u8,
    task: u64,
    places: &[u64],
    until: Instant,
) -> Result<(), SweepError> {
    loop {
        let happening = guest.next(until)?;
        if let Happening::Breakpoint { vcpu, pc } = happening
            && places.contains(&pc)
            && guest.task(vcpu)? == task
            && !guest.in_nmi(vcpu)?
        {
            if vcpu == on {
                return Ok(());
            }
            return Err(SweepError::Other(
                "the thread went to another vCPU: give it one of its own".to_owned(),
            ));
        }
        if matches!(happening, Happening::Done { thread: THREAD, .. }) {
            return Err(SweepError::Other(format!(
                "the thread's iteration ended before it came to {places:#x?}"
            )));
        }
        pass(guest, &happening, "on the way to the path")?;
    }
}

/// Lets go on what the sweep has no interest in.
pub(super) fn pass(
    guest: &mut Guest<'_>,
    happening: &Happening,
    when: &str,
) -> Result<(), SweepError> {
    match *happening {
        Happening::Arm { vcpu, .. }
        | Happening::Done { vcpu, .. }
        | Happening::Breakpoint { vcpu, .. }
        | Happening::Stepped { vcpu, .. } => guest.resume(vcpu, Run::Continue),
        Happening::End(ref end) => Err(SweepError::Other(format!(
            "the guest ended {when}: {end:?}"
        ))),
        Happening::Nothing => Err(SweepError::Other(format!("the guest is silent {when}"))),
    }
}
