//! To the last user instruction before a task enters the kernel.

use super::error::SweepError;
use super::follow::Followed;
use super::guest::checkpoint;
use super::progress::Progress;
use crate::driver::Driver;
use crate::plan::sweep::{Reach, Step};

/// Goes on to the last user instruction before the iteration's n-th entry; whether there is one
/// within so many instructions. Which one it is shows only behind it: the machine is put back to
/// where it came to user mode, and takes the same way once more.
pub(super) fn before_entry(
    driver: &mut Driver,
    followed: Followed,
    number: u32,
    longest: u32,
    progress: &mut Progress<'_>,
) -> Result<bool, SweepError> {
    let mut at = followed.here(driver, Reach::Stepped)?;
    let (mut back, mut steps, mut entries) = (checkpoint(driver)?, 0, 0);
    for _ in 0..longest {
        progress.step()?;
        let Some(next) = followed.next(driver, at)? else {
            return Err(SweepError::NoEntry { number });
        };
        match (at.user, next.user) {
            (true, true) => steps += 1,
            (false, true) => (back, steps) = (checkpoint(driver)?, 0),
            (true, false) => {
                entries += 1;
                if entries == number {
                    driver.machine.restore(&back)?;
                    return again(driver, followed, steps, at);
                }
            }
            (false, false) => {}
        }
        at = next;
    }
    Ok(false)
}

/// Takes so many steps in user mode; whether they lead to this boundary.
fn again(
    driver: &mut Driver,
    followed: Followed,
    steps: u32,
    to: Step,
) -> Result<bool, SweepError> {
    let mut at = followed.here(driver, Reach::Stepped)?;
    for _ in 0..steps {
        match followed.next(driver, at)? {
            Some(next) if next.user => at = next,
            _ => return Ok(false),
        }
    }
    Ok(at.rip == to.rip)
}
