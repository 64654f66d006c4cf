//! Follows a task from one instruction boundary to the next, into the kernel and out of it, and
//! over the time in which other tasks run on its vCPU.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use unwindlab_abi::mark;
use unwindlab_vmm::Run;

use super::clock;
use super::error::{NoPath, Phase, SweepError};
use super::guest::{LEG, THREAD, stands, without_ticks};
use super::user;
use crate::driver::{Driver, Happening};
use crate::plan::sweep::{Reach, Step};

/// How long a task may be away from its vCPU.
const AWAY: Duration = Duration::from_secs(3);

/// The task of a path, and its vCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Followed {
    pub(super) vcpu: u8,
    pub(super) task: u64,
}

impl Followed {
    /// The boundary at which the vCPU stands.
    pub(super) fn here(self, driver: &mut Driver, reach: Reach) -> Result<Step, SweepError> {
        let place = driver.place(self.vcpu)?;
        Ok(Step {
            rip: place.rip,
            task: driver.current_task(self.vcpu)?,
            user: place.cpl == 3,
            reach,
            local: false,
            clock: None,
        })
    }

    /// Goes to the task's next boundary. Nothing where it has none: it is gone, or the iteration is
    /// over.
    pub(super) fn next(self, driver: &mut Driver, from: Step) -> Result<Option<Step>, SweepError> {
        if from.user {
            return self.leave_user(driver);
        }
        let reads = clock::read_at(&driver.vcpu(self.vcpu)?, from.rip);
        driver.resume(self.vcpu, Run::Step)?;
        let until = Instant::now() + LEG;
        match unmarked(driver, self.vcpu, until)? {
            Happening::Stepped { .. } => {}
            Happening::Ended(_) | Happening::BackAtBreakpoint { .. } => {
                return Err(NoPath::Lost.into());
            }
            happening => return Err(stray(driver, happening, Phase::OnPath)?),
        }
        let mut step = self.here(driver, Reach::Stepped)?;
        if step.task == self.task {
            if reads.is_some_and(|length| from.rip.wrapping_add(length) == step.rip) {
                step.clock = Some(clock::stamp(&driver.vcpu(self.vcpu)?)?);
            }
            return Ok(Some(step));
        }
        match self.come_back(driver, step.rip)? {
            true => self.here(driver, Reach::Returned).map(Some),
            false => Ok(None),
        }
    }

    /// Lets others run until the task stands at the instruction at which it was found to be no
    /// longer current: behind the write to `current_task` in `__switch_to()`, where each task comes
    /// by on its way out and on its way back. False where it does not come back.
    /// A tick that waits by then, since single steps take long, would run others that do not run when the
    /// same way is gone again.
    pub(super) fn come_back(self, driver: &mut Driver, rip: u64) -> Result<bool, SweepError> {
        without_ticks(driver)?;
        driver.break_at(&[rip])?;
        driver.start()?;
        let until = Instant::now() + AWAY;
        let back = loop {
            match driver.next(until)? {
                Happening::Breakpoint { vcpu, .. }
                    if vcpu == self.vcpu && stands(driver, vcpu, self.task)? =>
                {
                    break true;
                }
                Happening::Mark {
                    what: mark::ARM | mark::DONE,
                    thread: THREAD,
                    ..
                } => break false,
                Happening::Breakpoint { vcpu, .. }
                | Happening::BackAtBreakpoint { vcpu }
                | Happening::Mark { vcpu, .. } => driver.resume(vcpu, Run::Continue)?,
                happening => return Err(stray(driver, happening, Phase::Away)?),
            }
        };
        driver.machine.pause_all()?;
        driver.break_at(&[])?;
        Ok(back)
    }

    /// As [`Followed::next`], in a signal handler: by single steps, except for system calls. `plain` are instructions that
    /// are known to be none.
    pub(super) fn in_handler(
        self,
        driver: &mut Driver,
        from: Step,
        plain: &mut BTreeSet<u64>,
    ) -> Result<Option<Step>, SweepError> {
        if !plain.contains(&from.rip) {
            if user::enters_kernel(&driver.vcpu(self.vcpu)?, from.rip) {
                return self.leave_user(driver);
            }
            plain.insert(from.rip);
        }
        driver.resume(self.vcpu, Run::Step)?;
        match unmarked(driver, self.vcpu, Instant::now() + LEG)? {
            Happening::Stepped { .. } => {}
            happening => return Err(stray(driver, happening, Phase::OnPath)?),
        }
        let step = self.here(driver, Reach::Stepped)?;
        match step.user && step.task == self.task {
            true => Ok(Some(step)),
            false => Err(NoPath::Raised { place: from.rip }.into()),
        }
    }

    /// From a boundary in user mode to the next one. Nothing where that is behind a mark.
    fn leave_user(self, driver: &mut Driver) -> Result<Option<Step>, SweepError> {
        let targets = user::targets(driver, self.vcpu)?;
        driver.break_at(&targets)?;
        driver.resume(self.vcpu, Run::Continue)?;
        let until = Instant::now() + LEG;
        loop {
            match unmarked(driver, self.vcpu, until)? {
                Happening::Breakpoint { vcpu, .. } if driver.current_task(vcpu)? == self.task => {
                    break;
                }
                Happening::Breakpoint { vcpu, .. } | Happening::BackAtBreakpoint { vcpu } => {
                    driver.resume(vcpu, Run::Continue)?;
                }
                Happening::Mark { .. } => return Ok(None),
                happening => return Err(stray(driver, happening, Phase::OnPath)?),
            }
        }
        driver.break_at(&[])?;
        self.here(driver, Reach::Ran).map(Some)
    }
}

/// Waits for what happens on the path of a vCPU, of which the marks of the helper and of other
/// threads, and the breakpoints of other vCPUs, are no part.
pub(super) fn unmarked(
    driver: &mut Driver,
    of: u8,
    until: Instant,
) -> Result<Happening, SweepError> {
    loop {
        match driver.next(until)? {
            Happening::Mark { vcpu, what, thread }
                if thread != THREAD || !matches!(what, mark::ARM | mark::DONE) =>
            {
                driver.resume(vcpu, Run::Continue)?;
            }
            Happening::Breakpoint { vcpu, .. } | Happening::BackAtBreakpoint { vcpu }
                if vcpu != of =>
            {
                driver.resume(vcpu, Run::Continue)?;
            }
            happening => return Ok(happening),
        }
    }
}

/// What a happening means that has no place on a path.
fn stray(
    driver: &mut Driver,
    happening: Happening,
    phase: Phase,
) -> Result<SweepError, SweepError> {
    if driver.lost()?.is_some() {
        return Ok(NoPath::Lost.into());
    }
    Ok(match happening {
        Happening::Ended(end) => SweepError::GuestEnded { end, phase },
        Happening::Nothing => SweepError::Silent { phase },
        happening => SweepError::Stray {
            happening: Box::new(happening),
            phase,
        },
    })
}
