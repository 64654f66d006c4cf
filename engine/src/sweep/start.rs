//! Where a path begins: from power-on to behind the request.

use std::time::{Duration, Instant};

use unwindlab_oracle::trace::LabLog;
use unwindlab_oracle::trace::recording::Injection;
use unwindlab_oracle::trace::ring::RingReader;
use unwindlab_vmm::{Checkpoint, Run};

use unwindlab_abi::mark;

use super::error::{Phase, SweepError};
use super::guest::{LEG, THREAD, checkpoint, nmi, pass, stands, without_ticks};
use super::printk::Printed;
use crate::driver::session::AgentSession;
use crate::driver::{Driver, Happening};
use crate::plan::sweep::SweepPlan;
use crate::plan::{CodePlace, TriggerPlan};

/// Requests before the one whose path is swept. A kernel complains about the first ten NMIs in five
/// seconds that nobody claims (`pr_emerg_ratelimited` in `unknown_nmi_error`,
/// arch/x86/kernel/nmi.c): a trial that prints takes many times as long.
const WARM_UP: u64 = 24;
/// Iterations that are let pass because an interrupt is under way where the path would begin.
const UNQUIET: u64 = 32;

/// Where a path begins: behind its request.
#[derive(Clone)]
pub(super) struct PathStart {
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
    /// The console's length just before the request.
    pub(super) console: u64,
    /// What the agent said so far.
    pub(super) session: AgentSession,
    /// The rings, all read up to the beginning of the request's iteration.
    pub(super) rings: Vec<RingReader>,
    /// Slots of the lab client's log that were finished just before the request.
    pub(super) slots: u64,
}

/// A thread's iteration, and where it is under way.
struct Iteration {
    number: u64,
    vcpu: u8,
    task: u64,
}

impl PathStart {
    /// Goes from power-on behind the request.
    pub(super) fn first(driver: &mut Driver, plan: &SweepPlan) -> Result<Self, SweepError> {
        let boot = Duration::from_millis(plan.trial.limits.boot_ms);
        Self::find(driver, plan, 0, Instant::now() + boot)
    }

    /// Goes from here on behind the request of a later iteration.
    pub(super) fn next(&self, driver: &mut Driver, plan: &SweepPlan) -> Result<Self, SweepError> {
        Self::find(driver, plan, self.iteration, Instant::now() + LEG)
    }

    /// Goes behind the request of an iteration after number `done`. Skips those where an interrupt
    /// is under way at the request, if there are others.
    fn find(
        driver: &mut Driver,
        plan: &SweepPlan,
        done: u64,
        until: Instant,
    ) -> Result<Self, SweepError> {
        let (place, hit) = place(plan)?;
        let first = done.max(WARM_UP) + 1;
        let mut number = done;
        loop {
            driver.start()?;
            let (vcpu, task) = next_iteration(driver, until)?;
            number += 1;
            let rings = rings(driver);
            arrive(driver, vcpu, task, place, hit, until)?;
            if number >= first && (!driver.vcpu(vcpu)?.irq_pending()? || number >= first + UNQUIET)
            {
                let iteration = Iteration { number, vcpu, task };
                return Self::request(driver, plan, &iteration, place, rings);
            }
            if number <= WARM_UP {
                nmi(driver, vcpu, plan.request, number)?;
            }
            driver.break_at(&[])?;
        }
    }

    /// Makes the request, if there is to be one, on a guest that stands at its place.
    fn request(
        driver: &mut Driver,
        plan: &SweepPlan,
        iteration: &Iteration,
        place: u64,
        rings: Vec<RingReader>,
    ) -> Result<Self, SweepError> {
        let &Iteration { number, vcpu, task } = iteration;
        without_ticks(driver)?;
        driver.session.read_lab(driver.machine.memory());
        let lab = driver.session.recording.lab.as_ref();
        let slots = lab.map_or(0, LabLog::finished);
        let console = driver.machine.console().len();
        let next = driver.successors(vcpu, place)?;
        if next.is_empty() {
            return Err(SweepError::LeadsAnywhere { place });
        }
        let made = match plan.asks {
            true => vec![nmi(driver, vcpu, plan.request, number)?],
            false => Vec::new(),
        };
        driver.break_at(&next)?;
        driver.start()?;
        wait_at(driver, vcpu, task, &next, Instant::now() + LEG)?;
        driver.break_at(&[])?;
        Ok(Self {
            vcpu,
            task,
            place,
            made,
            iteration: number,
            printed: Printed::of(driver, vcpu, plan.trial.symbols.printk)?,
            behind: checkpoint(driver)?,
            console,
            session: driver.session.clone(),
            rings,
            slots,
        })
    }
}

/// The rings, read so far.
fn rings(driver: &mut Driver) -> Vec<RingReader> {
    driver.drain();
    let rings = driver.session.rings.iter().map(RingReader::from_here);
    rings.collect()
}

/// The request's place, and which hit of it counts.
fn place(plan: &SweepPlan) -> Result<(u64, u64), SweepError> {
    if let Some(from) = plan.from {
        return Ok((from, 1));
    }
    let injection = plan.trial.injections.get(plan.request as usize);
    match injection.map(|injection| &injection.trigger) {
        Some(TriggerPlan::Arrival(arrival)) => match arrival.place {
            CodePlace::Kernel { address } => Ok((address, arrival.hit)),
            CodePlace::User { .. } => Err(SweepError::BeginsInUserMode),
        },
        _ => Err(SweepError::NoBeginning),
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

/// Goes on to the place, as that task and outside of NMIs, for the `hit`-th time.
fn arrive(
    driver: &mut Driver,
    vcpu: u8,
    task: u64,
    place: u64,
    hit: u64,
    until: Instant,
) -> Result<(), SweepError> {
    without_ticks(driver)?;
    driver.break_at(&[place])?;
    driver.start()?;
    for _ in 1..hit {
        wait_at(driver, vcpu, task, &[place], until)?;
        driver.resume(vcpu, Run::Continue)?;
    }
    wait_at(driver, vcpu, task, &[place], until)
}

/// Waits until the task stands at one of these places, outside of NMIs.
fn wait_at(
    driver: &mut Driver,
    on: u8,
    task: u64,
    places: &[u64],
    until: Instant,
) -> Result<(), SweepError> {
    loop {
        match driver.next(until)? {
            Happening::Breakpoint { vcpu, pc }
                if places.contains(&pc) && stands(driver, vcpu, task)? =>
            {
                return match vcpu == on {
                    true => Ok(()),
                    false => Err(SweepError::OtherVcpu),
                };
            }
            Happening::Mark {
                what: mark::DONE,
                thread: THREAD,
                ..
            } => {
                let places = places.to_vec();
                return Err(SweepError::IterationEnded { places });
            }
            happening => pass(driver, happening, Phase::ToPath)?,
        }
    }
}
