//! How many mutants count as what.

use std::fmt;

use super::{MutationFate, MutationRow, Standing};

/// How many of some mutants count as what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MutationCounts {
    /// All.
    pub generated: usize,
    /// They do not compile.
    pub no_code: usize,
    /// They have the objects of the kernel without them.
    pub same: usize,
    /// They have the objects of another mutant.
    pub twins: usize,
    /// A test tells them from the kernel without them.
    pub killed: usize,
    /// A test executes them, none kills them, and nobody has argued why.
    pub survived: usize,
    /// A test executes them, none kills them, and somebody has argued why none can.
    pub argued_survived: usize,
    /// No test executes them, and nobody has argued why.
    pub not_covered: usize,
    /// No test executes them, and somebody has argued why nobody could see them.
    pub argued_not_covered: usize,
    /// They could not be tested, or not by all tests.
    pub untested: usize,
    /// Killed although it was argued that no test can kill them; they are among the killed.
    pub refuted: usize,
}

impl MutationCounts {
    /// Counts mutants.
    #[must_use]
    pub fn of<'a>(rows: impl IntoIterator<Item = &'a MutationRow>) -> Self {
        let mut counts = Self::default();
        for row in rows {
            counts.add(row);
        }
        counts
    }

    /// Counts one more.
    pub(super) fn add(&mut self, row: &MutationRow) {
        self.generated += 1;
        let count = match row.standing() {
            Standing::NoCode => &mut self.no_code,
            Standing::Same => &mut self.same,
            Standing::Twin => &mut self.twins,
            Standing::Killed => &mut self.killed,
            Standing::Survived => &mut self.survived,
            Standing::Argued if row.fate == MutationFate::NotCovered => {
                &mut self.argued_not_covered
            }
            Standing::Argued => &mut self.argued_survived,
            Standing::NotCovered => &mut self.not_covered,
            Standing::Untested => &mut self.untested,
        };
        *count += 1;
        self.refuted += usize::from(row.is_refuted());
    }

    /// How many count as this.
    #[must_use]
    pub const fn number(&self, of: Standing) -> usize {
        match of {
            Standing::NoCode => self.no_code,
            Standing::Same => self.same,
            Standing::Twin => self.twins,
            Standing::Killed => self.killed,
            Standing::Survived => self.survived,
            Standing::Argued => self.argued(),
            Standing::NotCovered => self.not_covered,
            Standing::Untested => self.untested,
        }
    }

    /// No test kills them, and somebody has argued why none can.
    #[must_use]
    pub const fn argued(&self) -> usize {
        self.argued_survived + self.argued_not_covered
    }

    /// A test executes them.
    #[must_use]
    pub const fn covered(&self) -> usize {
        self.killed + self.survived + self.argued_survived
    }

    /// All tests that they need were made.
    #[must_use]
    pub const fn tested(&self) -> usize {
        self.covered() + self.not_covered + self.argued_not_covered
    }

    /// They compile to objects of their own, so they are to be tested.
    #[must_use]
    pub const fn own_objects(&self) -> usize {
        self.tested() + self.untested
    }

    /// How many of the tested ones are covered; nothing if none was tested.
    #[must_use]
    pub const fn coverage(&self) -> Option<Share> {
        Share::of(self.covered(), self.tested())
    }

    /// How many of those that are covered and not argued were killed; nothing if there are none.
    #[must_use]
    pub const fn score(&self) -> Option<Share> {
        Share::of(self.killed, self.killed + self.survived)
    }
}

/// Some of several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// The some.
    pub part: usize,
    /// The several; not zero.
    pub whole: usize,
}

impl Share {
    const fn of(part: usize, whole: usize) -> Option<Self> {
        match whole {
            0 => None,
            whole => Some(Self { part, whole }),
        }
    }

    /// The percentage, to a tenth. Only all are 100 %.
    #[must_use]
    pub fn percent(self) -> String {
        let (part, whole) = (self.part as u128, self.whole.max(1) as u128);
        let rounded = (2000 * part + whole) / (2 * whole);
        let tenths = match part < whole {
            true => rounded.min(999),
            false => rounded,
        };
        format!("{}.{} %", tenths / 10, tenths % 10)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} of {}", self.part, self.whole)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testkit;
    use super::*;

    #[test]
    fn each_mutant_counts_once() {
        let counts = MutationCounts::of(&testkit::rows());
        let wanted = MutationCounts {
            generated: 12,
            no_code: 1,
            same: 1,
            twins: 1,
            killed: 3,
            survived: 2,
            argued_survived: 1,
            not_covered: 1,
            argued_not_covered: 1,
            untested: 1,
            refuted: 0,
        };
        assert_eq!(counts, wanted);
        let sum: usize = Standing::ALL.iter().map(|it| counts.number(*it)).sum();
        assert_eq!(sum, counts.generated);
        assert_eq!((counts.own_objects(), counts.tested()), (9, 8));
        let share = |part, whole| Some(Share { part, whole });
        assert_eq!(counts.coverage(), share(6, 8));
        assert_eq!(counts.score(), share(3, 5));
    }

    #[test]
    fn of_nothing_there_is_no_share() {
        let none = MutationCounts::default();
        assert_eq!((none.coverage(), none.score()), (None, None));
        // All that is covered is argued.
        let argued = MutationCounts {
            argued_survived: 3,
            ..none
        };
        assert_eq!(argued.coverage(), Some(Share { part: 3, whole: 3 }));
        assert_eq!(argued.score(), None);
    }

    #[test]
    fn only_all_are_a_hundred_per_cent() {
        let percent = |part, whole| Share { part, whole }.percent();
        assert_eq!(percent(412, 431), "95.6 %");
        assert_eq!(percent(9_999, 10_000), "99.9 %");
        assert_eq!(percent(7, 7), "100.0 %");
        assert_eq!(percent(0, 7), "0.0 %");
        assert_eq!(percent(1, 3), "33.3 %");
    }
}
