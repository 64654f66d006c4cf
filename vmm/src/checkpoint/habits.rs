//! What pages do from one restore to the next: which of them are copied without a comparison, and which leave KVM's log.
//!
//! A page that leaves the log is write-protected, and its next write costs a fault, as much as some thirty comparisons on an emulated
//! host. A page that is written each time without being changed would cost that again and again. The guest's page tables are such pages: "table walks for guest page
//! tables are always treated as user writes at the nested page table level" (AMD64 Architecture Programmer's Manual vol. 2, nested paging).

use std::collections::HashMap;

/// Restores in a row that must find a page unchanged before it leaves the log, at first.
const PATIENCE: u16 = 8;
/// The same of a page that always came back.
const MOST: u16 = 4096;
/// A page that comes back after so many restores at most had better have stayed.
const SOON: u64 = 32;
/// A page that is copied without a comparison is compared again after a restore whose number is a
/// multiple of this.
const LOOK: u64 = 16;

/// The pages that were in the log, and the restores so far.
#[derive(Debug, Default)]
pub(super) struct Habits {
    pages: HashMap<u64, Habit>,
    restores: u64,
}

/// What is known of a page.
#[derive(Debug, Clone, Copy)]
struct Habit {
    /// How often in a row it was found unchanged; none where it changed.
    unchanged: Option<u16>,
    /// How often that has to be for it to leave.
    patience: u16,
    /// The number of the restore in which it left.
    left: Option<u64>,
}

impl Habits {
    /// Whether a page is to be compared. One that changed the last time most likely did again, and so did one that
    /// was never seen.
    pub(super) fn compares(&self, page: u64) -> bool {
        let habit = self.pages.get(&page);
        habit.is_some_and(|it| it.unchanged.is_some())
    }

    /// A page was found unchanged. Whether it is to leave the log.
    pub(super) fn unchanged(&mut self, page: u64) -> bool {
        let restores = self.restores;
        let habit = self.seen(page);
        let times = habit.unchanged.unwrap_or(0).saturating_add(1);
        let leaves = times > habit.patience;
        habit.unchanged = Some(if leaves { 0 } else { times });
        habit.left = leaves.then_some(restores);
        leaves
    }

    /// A page was copied.
    pub(super) fn copied(&mut self, page: u64) {
        let look = self.restores.is_multiple_of(LOOK);
        self.seen(page).unchanged = look.then_some(0);
    }

    /// A restore is done.
    pub(super) fn restored(&mut self) {
        self.restores += 1;
    }

    /// A page that is in the log.
    fn seen(&mut self, page: u64) -> &mut Habit {
        let restores = self.restores;
        let habit = self.pages.entry(page).or_insert(Habit {
            unchanged: None,
            patience: PATIENCE,
            left: None,
        });
        if let Some(left) = habit.left.take() {
            habit.patience = match restores.saturating_sub(left) <= SOON {
                true => habit.patience.saturating_mul(2).min(MOST),
                false => PATIENCE,
            };
        }
        habit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 0x1000;

    /// How often the page of a guest left the log in so many restores, and how often it was compared and copied.
    fn after(restores: u64, touched: impl Fn(u64) -> bool, changes: bool) -> (u32, u32, u32) {
        let (mut left, mut compared, mut copied) = (0, 0, 0);
        let mut habits = Habits::default();
        let mut is_in = false;
        for round in 0..restores {
            let is_touched = touched(round);
            is_in |= is_touched;
            if is_in {
                let compares = habits.compares(PAGE);
                compared += u32::from(compares);
                if compares && !(is_touched && changes) {
                    if habits.unchanged(PAGE) {
                        (is_in, left) = (false, left + 1);
                    }
                } else {
                    copied += 1;
                    habits.copied(PAGE);
                }
            }
            habits.restored();
        }
        (left, compared, copied)
    }

    #[test]
    fn a_page_that_is_touched_each_time_learns_to_stay() {
        let (left, compared, copied) = after(20_000, |_| true, false);
        // 9 + 17 + 33 + ... + 4097, and then each 4097th.
        assert!((10..=13).contains(&left), "{left}");
        assert_eq!((compared, copied), (19_999, 1));
    }

    #[test]
    fn one_that_changes_each_time_is_hardly_compared_and_never_leaves() {
        assert_eq!(after(16_000, |_| true, true), (0, 1000, 16_000));
    }

    #[test]
    fn one_that_is_touched_now_and_then_leaves_each_time() {
        let (left, compared, _) = after(10_000, |round| round % 1000 == 0, true);
        assert_eq!(left, 10);
        // It is compared once when it comes back, and then until it leaves.
        assert!(compared <= 10 * (u32::from(PATIENCE) + 2), "{compared}");
    }

    #[test]
    fn one_that_stayed_away_for_long_is_as_new() {
        let busy = 10_000;
        let (before, ..) = after(busy, |round| round < busy, false);
        let (left, ..) = after(
            busy + 20_000,
            |round| round < busy || round % 5000 == 0,
            false,
        );
        assert!(left >= before + 3, "{left} of {before}");
    }
}
