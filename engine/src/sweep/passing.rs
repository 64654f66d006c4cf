//! What becomes of the passings of the place at which paths begin, behind a path that was swept: one
//! gets a request, and a later one ends the trial.
//!
//! A path may begin where an entry comes to its place for the n-th time. An entry that has the request
//! comes by n times, so that the trial must not end before the n-th passing behind it: its request may
//! not be answered yet.

use crate::plan::sweep::Beginning;

/// What a passing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Passing {
    /// The request is made here.
    Request,
    /// The entry of the request may go on here.
    Between,
    /// The entry of the request is over.
    Behind,
}

/// Counts passings.
#[derive(Debug)]
pub(super) struct Passings {
    /// How often an entry passes.
    an_entry: u64,
    /// How often the place was passed since the request was made there.
    since: Option<u64>,
}

impl Passings {
    /// Behind a path that began there.
    pub(super) fn behind(beginning: &Beginning) -> Self {
        let an_entry = match beginning {
            Beginning::Kernel { hit, .. } => *hit,
            Beginning::User { .. } | Beginning::Entry { .. } => 1,
        };
        Self {
            an_entry,
            since: None,
        }
    }

    /// Whether the request is made.
    pub(super) const fn has_request(&self) -> bool {
        self.since.is_some()
    }

    /// The place is passed.
    pub(super) fn pass(&mut self) -> Passing {
        let since = self.since.map_or(0, |since| since.saturating_add(1));
        self.since = Some(since);
        match since {
            0 => Passing::Request,
            since if since < self.an_entry => Passing::Between,
            _ => Passing::Behind,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Passing::{Behind, Between, Request};
    use super::*;

    fn passings(beginning: &Beginning) -> [Passing; 4] {
        let mut passings = Passings::behind(beginning);
        assert!(!passings.has_request());
        let passed = std::array::from_fn(|_| passings.pass());
        assert!(passings.has_request());
        passed
    }

    fn kernel(hit: u64) -> Beginning {
        Beginning::Kernel {
            address: 1,
            hit,
            any_task: false,
        }
    }

    #[test]
    fn the_trial_ends_behind_the_entry_of_the_request() {
        assert_eq!(passings(&kernel(1)), [Request, Behind, Behind, Behind]);
        assert_eq!(passings(&kernel(2)), [Request, Between, Behind, Behind]);
        assert_eq!(passings(&kernel(3)), [Request, Between, Between, Behind]);
        let entry = Beginning::Entry { number: 2 };
        assert_eq!(passings(&entry), [Request, Behind, Behind, Behind]);
    }
}
