//! Where a path begins: from power-on to behind the request, or to wherever it is to begin.

use std::ops::Range;
use std::time::{Duration, Instant};

use unwindlab_oracle::trace::LabLog;
use unwindlab_oracle::trace::recording::{Injection, TrialEnd};
use unwindlab_oracle::trace::ring::RingReader;
use unwindlab_oracle::trace::tracefs::Position;
use unwindlab_oracle::trace::witness::Written;
use unwindlab_vmm::{Checkpoint, Run};

use unwindlab_abi::mark;

use super::entry::before_entry;
use super::error::{Phase, SweepError};
use super::follow::Followed;
use super::guest::{Injected, LEG, THREAD, checkpoint_behind, nmi, nmi_stack, pass, without_ticks};
use super::printk::Printed;
use super::progress::Progress;
use super::user::gate;
use crate::driver::session::AgentSession;
use crate::driver::{Driver, Happening};
use crate::plan::sweep::{Beginning, Made, SweepPlan};

/// Requests before the one whose path is swept. A kernel complains about the first ten NMIs in five
/// seconds that nobody claims (`pr_emerg_ratelimited` in `unknown_nmi_error`,
/// arch/x86/kernel/nmi.c): a trial that prints takes many times as long.
const WARM_UP: u64 = 24;
/// Iterations that are let pass because an interrupt is under way where the path would begin.
const UNQUIET: u64 = 32;

/// Iterations that may pass by the place where the path is to begin.
const PASSED: u32 = 64;
/// Vector of the NMI.
const NMI: u8 = 2;

/// Where a path begins.
#[derive(Clone)]
pub(super) struct PathStart {
    /// The vCPU of the path.
    pub(super) vcpu: u8,
    /// The task of the path.
    pub(super) task: u64,
    /// Whether another task may make the next request: the path's may be a child's.
    pub(super) any_task: bool,
    /// Where the next request is made. `None` until the path is known that begins at an entry: it
    /// is its first instruction in the kernel.
    pub(super) place: Option<u64>,
    /// The request, if one was made.
    pub(super) made: Vec<Injection>,
    /// The iteration of the path.
    pub(super) iteration: u64,
    /// Where the path begins; the request's NMI has come before it.
    pub(super) behind: Checkpoint,
    /// What the kernel had printed.
    pub(super) printed: Option<Printed>,
    /// The console's length just before the request.
    pub(super) console: u64,
    /// What the agent said so far.
    pub(super) session: AgentSession,
    /// The rings, all read up to the beginning of the request's iteration.
    pub(super) rings: Vec<RingReader>,
    /// How far the mapped buffers of tracefs were written there.
    pub(super) tracefs: Vec<Position>,
    /// What was written just before the request.
    pub(super) written: Written,
    /// Where the pid of a task is, if the witness knows.
    pub(super) task_pid: Option<u64>,
    /// Slots of the lab client's log that were finished just before the request.
    pub(super) slots: u64,
    /// The stack of the NMI in whose handler the path begins. Another NMI there is nested: the
    /// kernel handles it when the first returns, as one that came where the first did (`repeat_nmi`,
    /// arch/x86/entry/entry_64.S).
    pub(super) nmi_stack: Range<u64>,
}

/// A thread's iteration, and where it is under way.
struct Iteration {
    number: u64,
    vcpu: u8,
    task: u64,
}

impl Iteration {
    fn followed(&self) -> Followed {
        Followed {
            vcpu: self.vcpu,
            task: self.task,
        }
    }

    /// Whose the path's injections are.
    fn injected(&self, plan: &SweepPlan) -> Injected {
        Injected::of(plan, self.number)
    }
}

impl PathStart {
    /// Goes from power-on to where the path begins.
    pub(super) fn first(
        driver: &mut Driver,
        plan: &SweepPlan,
        progress: &mut Progress<'_>,
    ) -> Result<Self, SweepError> {
        let boot = Duration::from_millis(plan.trial.limits.boot_ms);
        Self::find(driver, plan, 0, Instant::now() + boot, progress)
    }

    /// Goes from here on to the beginning in a later iteration.
    pub(super) fn next(
        &self,
        driver: &mut Driver,
        plan: &SweepPlan,
        progress: &mut Progress<'_>,
    ) -> Result<Self, SweepError> {
        let until = Instant::now() + LEG;
        Self::find(driver, plan, self.iteration, until, progress)
    }

    /// Goes to the beginning in an iteration after number `done`. Skips those where an interrupt
    /// is under way there, if there are others.
    fn find(
        driver: &mut Driver,
        plan: &SweepPlan,
        done: u64,
        boot: Instant,
        progress: &mut Progress<'_>,
    ) -> Result<Self, SweepError> {
        let first = done.max(WARM_UP) + 1;
        let mut number = done;
        let mut until = boot;
        let mut passed = 0;
        loop {
            driver.start()?;
            let (vcpu, task) = next_iteration(driver, until)?;
            until = Instant::now() + LEG;
            number += 1;
            let outputs = Outputs::of(driver)?;
            let mut iteration = Iteration { number, vcpu, task };
            let begins = (number >= first).then_some(&mut *progress);
            if !arrive(driver, plan, &mut iteration, begins, until)? {
                passed += 1;
                if passed > PASSED {
                    let places = place(driver, plan)?.into_iter().collect();
                    let iterations = PASSED;
                    return Err(SweepError::IterationEnded { places, iterations });
                }
                continue;
            }
            number = iteration.number;
            let vcpu = iteration.vcpu;
            if number >= first && (!driver.vcpu(vcpu)?.irq_pending()? || number >= first + UNQUIET)
            {
                return Self::request(driver, plan, &iteration, outputs);
            }
            if number <= WARM_UP {
                nmi(driver, vcpu, plan.request, iteration.injected(plan))?;
            }
            driver.break_at(&[])?;
        }
    }

    /// Makes what is to be made on a guest that stands at the beginning's place.
    fn request(
        driver: &mut Driver,
        plan: &SweepPlan,
        iteration: &Iteration,
        outputs: Outputs,
    ) -> Result<Self, SweepError> {
        let &Iteration { number, vcpu, task } = iteration;
        without_ticks(driver)?;
        driver.session.read_lab(driver.machine.memory());
        let lab = driver.session.recording.lab.as_ref();
        let slots = lab.map_or(0, LabLog::finished);
        let console = driver.machine.console().len();
        if let Some(address) = plan.patience {
            let most = u64::MAX.to_le_bytes();
            driver.vcpu(vcpu)?.write_virt(address, &most)?;
        }
        let place = place(driver, plan)?;
        let behind = behind(driver, plan, vcpu)?;
        let mut made = Vec::new();
        let written = driver.written();
        match plan.made {
            Made::Nothing => {}
            Made::Nmi => made.push(nmi(driver, vcpu, plan.request, iteration.injected(plan))?),
            Made::Irq { vector } => driver.vcpu(vcpu)?.inject_irq(vector)?,
        }
        if !behind.is_empty() {
            driver.break_at(&behind)?;
            driver.start()?;
            let until = Instant::now() + LEG;
            let in_handler = plan.in_handler || matches!(plan.beginning, Beginning::User { .. });
            let arrived = wait_at(driver, iteration, &behind, in_handler, until)?;
            if !arrived {
                return Err(SweepError::IterationEnded {
                    places: behind,
                    iterations: 1,
                });
            }
        }
        driver.break_at(&[])?;
        let rsp = driver.vcpu(vcpu)?.regs()?.rsp;
        let nmi_stack = match plan.in_handler && plan.made == Made::Nmi {
            true => nmi_stack(rsp),
            false => 0..0,
        };
        Ok(Self {
            vcpu,
            nmi_stack,
            task,
            any_task: plan.any_task(),
            place,
            made,
            iteration: number,
            printed: Printed::of(driver, vcpu, plan.trial.symbols.printk)?,
            behind: checkpoint_behind(driver, plan.made)?,
            console,
            session: driver.session.clone(),
            rings: outputs.rings,
            tracefs: outputs.tracefs,
            written,
            task_pid: driver.task_pid(),
            slots,
        })
    }
}

/// Where the path begins once what is made at its place is made; nowhere else than at the place
/// where that is empty.
fn behind(driver: &mut Driver, plan: &SweepPlan, vcpu: u8) -> Result<Vec<u64>, SweepError> {
    if let Some(then) = plan.then {
        return Ok(vec![then]);
    }
    let vector = match plan.made {
        Made::Nmi => Some(NMI),
        Made::Irq { vector } => Some(vector),
        Made::Nothing => None,
    };
    let Beginning::Kernel { address, .. } = plan.beginning else {
        // What comes in user mode comes before the next user instruction.
        let handler = vector.map(|vector| gate(driver, vcpu, vector));
        return Ok(handler.transpose()?.into_iter().collect());
    };
    match vector {
        Some(vector) if plan.in_handler => Ok(vec![gate(driver, vcpu, vector)?]),
        _ => match driver.successors(vcpu, address)? {
            next if next.is_empty() => Err(SweepError::LeadsAnywhere { place: address }),
            next => Ok(next),
        },
    }
}

/// How far the guest's output is at the beginning of an iteration.
struct Outputs {
    rings: Vec<RingReader>,
    tracefs: Vec<Position>,
}

impl Outputs {
    fn of(driver: &mut Driver) -> Result<Self, SweepError> {
        driver.drain();
        let session = &driver.session;
        if let Some(what) = session.over_budget() {
            let (end, phase) = (TrialEnd::Misbehaved { what }, Phase::BeforePath);
            return Err(SweepError::GuestEnded { end, phase });
        }
        Ok(Self {
            rings: session.rings.iter().map(RingReader::from_here).collect(),
            tracefs: session.tracefs_positions(driver.machine.memory()),
        })
    }
}

/// The address of the place where the path begins, if it is one.
fn place(driver: &Driver, plan: &SweepPlan) -> Result<Option<u64>, SweepError> {
    match &plan.beginning {
        Beginning::Kernel { address, .. } => Ok(Some(*address)),
        Beginning::User { symbol, offset } => match driver.session.user_symbol(symbol) {
            Some(found) => Ok(Some(found.start.wrapping_add(*offset))),
            None => Err(SweepError::NoSymbol {
                symbol: symbol.clone(),
            }),
        },
        Beginning::Entry { .. } => Ok(None),
    }
}

/// Waits for the thread to begin its next iteration: the vCPU and the task. Both stand still.
fn next_iteration(driver: &mut Driver, until: Instant) -> Result<(u8, u64), SweepError> {
    loop {
        match driver.next(until)? {
            Happening::Mark {
                vcpu,
                what: mark::ARM,
                thread: THREAD,
            } => return Ok((vcpu, driver.current_task(vcpu)?)),
            happening => pass(driver, happening, Phase::BeforePath)?,
        }
    }
}

/// Goes on to the beginning's place, outside of NMIs; whether the iteration comes by it. Where the
/// path does not begin yet, an iteration that is to be followed step by step is left where it is.
/// `begins`: the path begins here.
fn arrive(
    driver: &mut Driver,
    plan: &SweepPlan,
    iteration: &mut Iteration,
    begins: Option<&mut Progress<'_>>,
    until: Instant,
) -> Result<bool, SweepError> {
    without_ticks(driver)?;
    let (place, hit, any_task) = match (&plan.beginning, place(driver, plan)?) {
        (Beginning::Entry { number }, _) => {
            return match begins {
                Some(progress) => {
                    let followed = iteration.followed();
                    before_entry(driver, followed, *number, plan.longest, progress)
                }
                None => Ok(true),
            };
        }
        (Beginning::Kernel { hit, any_task, .. }, Some(place)) => (place, *hit, *any_task),
        (_, Some(place)) => (place, 1, false),
        (_, None) => return Ok(false),
    };
    driver.break_at(&[place])?;
    driver.start()?;
    for passing in 1..=hit {
        let arrived = match any_task {
            true => wait_for_any(driver, iteration, place, until)?,
            false => wait_at(driver, iteration, &[place], false, until)?,
        };
        if !arrived {
            driver.break_at(&[])?;
            return Ok(false);
        }
        if passing < hit {
            driver.resume(iteration.vcpu, Run::Continue)?;
        }
    }
    Ok(true)
}

/// Waits until the iteration's task stands at one of these places, outside of NMIs unless in the
/// handler of one; false where the iteration is over.
fn wait_at(
    driver: &mut Driver,
    iteration: &Iteration,
    places: &[u64],
    in_handler: bool,
    until: Instant,
) -> Result<bool, SweepError> {
    loop {
        match driver.next(until)? {
            Happening::Breakpoint { vcpu, pc } if places.contains(&pc) => {
                let is_task = driver.current_task(vcpu)? == iteration.task;
                if is_task && (in_handler || !driver.nmi_state(vcpu)?.masked) {
                    return match vcpu == iteration.vcpu {
                        true => Ok(true),
                        false => Err(SweepError::OtherVcpu),
                    };
                }
                driver.resume(vcpu, Run::Continue)?;
            }
            Happening::Mark {
                what: mark::ARM | mark::DONE,
                thread: THREAD,
                ..
            } => return Ok(false),
            happening => pass(driver, happening, Phase::ToPath)?,
        }
    }
}

/// Waits until any task stands at a place, outside of NMIs: it is the path's.
fn wait_for_any(
    driver: &mut Driver,
    iteration: &mut Iteration,
    place: u64,
    until: Instant,
) -> Result<bool, SweepError> {
    loop {
        match driver.next(until)? {
            Happening::Breakpoint { vcpu, pc }
                if pc == place && !driver.nmi_state(vcpu)?.masked =>
            {
                iteration.vcpu = vcpu;
                iteration.task = driver.current_task(vcpu)?;
                return Ok(true);
            }
            Happening::Mark {
                vcpu,
                what: mark::ARM,
                thread: THREAD,
            } => {
                iteration.number += 1;
                driver.resume(vcpu, Run::Continue)?;
            }
            happening => pass(driver, happening, Phase::ToPath)?,
        }
    }
}
