//! Which passing of the place at which paths begin gets a request, behind a path that was swept.
//!
//! A path begins where an iteration comes to its place for the n-th time. The requests behind it are
//! made at the same passing of later iterations: at one before it, the trial would end in the middle
//! of the entry that has the request, which is not answered yet.

use crate::plan::sweep::Beginning;

/// Counts how often an iteration passes the place.
#[derive(Debug)]
pub(super) struct Passing {
    /// The passing of each iteration that counts, from 1; each does where there is none.
    hit: Option<u64>,
    /// How often this iteration passed. Unknown in the path's own, which does not count.
    passed: Option<u64>,
}

impl Passing {
    /// Behind a path that began there.
    pub(super) const fn behind(beginning: &Beginning) -> Self {
        let hit = match beginning {
            Beginning::Kernel {
                hit,
                any_task: false,
                ..
            } => Some(*hit),
            _ => None,
        };
        Self { hit, passed: None }
    }

    /// An iteration begins.
    pub(super) const fn begin_iteration(&mut self) {
        self.passed = Some(0);
    }

    /// The place is passed; whether it is the passing that counts.
    pub(super) fn pass(&mut self) -> bool {
        let Some(hit) = self.hit else {
            return true;
        };
        self.passed = self.passed.map(|passed| passed.saturating_add(1));
        self.passed == Some(hit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(hit: u64, any_task: bool) -> Beginning {
        Beginning::Kernel {
            address: 1,
            hit,
            any_task,
        }
    }

    /// Which passings count, of so many in the path's iteration and in each of two later ones.
    fn counted(beginning: &Beginning, passings: u32) -> Vec<bool> {
        let mut passing = Passing::behind(beginning);
        let mut counted = Vec::new();
        for iteration in 0..3 {
            if iteration > 0 {
                passing.begin_iteration();
            }
            counted.extend((0..passings).map(|_| passing.pass()));
        }
        counted
    }

    #[test]
    fn one_passing_of_each_later_iteration_counts() {
        assert_eq!(counted(&kernel(1, false), 1), [false, true, true]);
        assert_eq!(
            counted(&kernel(2, false), 2),
            [false, false, false, true, false, true]
        );
        assert_eq!(
            counted(&kernel(1, false), 2),
            [false, false, true, false, true, false]
        );
    }

    #[test]
    fn elsewhere_each_passing_counts() {
        assert_eq!(counted(&kernel(2, true), 1), [true; 3]);
        assert_eq!(counted(&Beginning::Entry { number: 1 }, 1), [true; 3]);
    }
}
