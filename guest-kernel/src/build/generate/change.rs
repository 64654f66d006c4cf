//! A change of a source file.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use similar::TextDiff;

/// What kind of change it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operator {
    /// A statement goes.
    DeleteStatement,
    /// Two neighbours change places.
    SwapStatements,
    /// A lock is neither taken nor released.
    DropLock,
    /// A condition is the opposite.
    NegateCondition,
    /// A condition is always or never met.
    FixCondition,
    /// One side of `&&` or `||` goes.
    DropCondition,
    /// An operator becomes another, or goes.
    ChangeOperator,
    /// A number becomes another.
    ChangeConstant,
    /// Another value is returned.
    ChangeReturn,
    /// An atomic operation becomes one that is none.
    WeakenAtomic,
    /// `READ_ONCE` or `WRITE_ONCE` goes.
    DropOnce,
    /// A flag, mode or context becomes another.
    ChangeFlag,
    /// A size becomes another.
    ChangeSize,
}

impl Operator {
    /// All, in the order of the table of results.
    pub const ALL: [Self; 13] = [
        Self::DeleteStatement,
        Self::SwapStatements,
        Self::DropLock,
        Self::NegateCondition,
        Self::FixCondition,
        Self::DropCondition,
        Self::ChangeOperator,
        Self::ChangeConstant,
        Self::ChangeReturn,
        Self::WeakenAtomic,
        Self::DropOnce,
        Self::ChangeFlag,
        Self::ChangeSize,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DeleteStatement => "delete-statement",
            Self::SwapStatements => "swap-statements",
            Self::DropLock => "drop-lock",
            Self::NegateCondition => "negate-condition",
            Self::FixCondition => "fix-condition",
            Self::DropCondition => "drop-condition",
            Self::ChangeOperator => "change-operator",
            Self::ChangeConstant => "change-constant",
            Self::ChangeReturn => "change-return",
            Self::WeakenAtomic => "weaken-atomic",
            Self::DropOnce => "drop-once",
            Self::ChangeFlag => "change-flag",
            Self::ChangeSize => "change-size",
        }
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// Texts that become others. The number of lines stays, so that no line number in the object changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    pub operator: Operator,
    /// In ascending order, without overlap.
    edits: Vec<(Range<usize>, String)>,
}

impl Change {
    /// One text of `source` becomes another.
    pub fn one(operator: Operator, source: &str, range: Range<usize>, with: &str) -> Self {
        Self::many(operator, source, vec![(range, with.to_owned())])
    }

    /// Several texts become others; they do not overlap.
    pub fn many(operator: Operator, source: &str, mut edits: Vec<(Range<usize>, String)>) -> Self {
        edits.sort_by_key(|(range, _)| range.start);
        for (range, with) in &mut edits {
            let lines = |text: &str| text.matches('\n').count();
            let old = source.get(range.clone()).map_or(0, lines);
            let lost = old.saturating_sub(lines(with));
            with.push_str(&"\n".repeat(lost));
        }
        Self { operator, edits }
    }

    /// Where it begins.
    pub fn start(&self) -> usize {
        self.edits.first().map_or(0, |(range, _)| range.start)
    }

    /// The texts that become others, in ascending order.
    pub fn edits(&self) -> &[(Range<usize>, String)] {
        &self.edits
    }

    /// Whether it is within a range, and no line ends in what it writes: a line of a macro ends with a backslash.
    pub fn is_in_a_line_of(&self, range: &Range<usize>) -> bool {
        let is_in = |(of, with): &(Range<usize>, String)| {
            range.start <= of.start && of.end <= range.end && !with.contains('\n')
        };
        self.edits.iter().all(is_in)
    }

    /// The changed source.
    pub fn apply(&self, source: &str) -> String {
        applied(source, 0..source.len(), &self.edits)
    }

    /// The change as a patch of `file`, for `git apply`.
    pub fn diff(&self, file: &str, source: &str) -> String {
        diff(file, source, &self.apply(source))
    }
}

/// A part of a source with edits that are in it.
pub(super) fn applied(
    source: &str,
    range: Range<usize>,
    edits: &[(Range<usize>, String)],
) -> String {
    let mut changed = String::with_capacity(range.len());
    let mut done = range.start;
    for (of, with) in edits {
        changed.push_str(source.get(done..of.start).unwrap_or_default());
        changed.push_str(with);
        done = of.end;
    }
    changed.push_str(source.get(done..range.end).unwrap_or_default());
    changed
}

/// The patch of `file`, for `git apply`, that makes `changed` of `source`.
pub(super) fn diff(file: &str, source: &str, changed: &str) -> String {
    TextDiff::from_lines(source, changed)
        .unified_diff()
        .context_radius(3)
        .header(&format!("a/{file}"), &format!("b/{file}"))
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_keeps_the_lines() {
        let source = "a(b,\n  c);\nd();\n";
        let change = Change::one(Operator::DeleteStatement, source, 0..10, ";");
        assert_eq!(change.apply(source), ";\n\nd();\n");
        let both = vec![(11..15, "e();".to_owned()), (0..10, "f();".to_owned())];
        let change = Change::many(Operator::DropLock, source, both);
        assert_eq!(change.apply(source), "f();\n\ne();\n");
        assert_eq!(change.start(), 0);
    }

    #[test]
    fn names_are_those_of_the_results() {
        for operator in Operator::ALL {
            let json = serde_json::to_string(&operator).unwrap();
            assert_eq!(json, format!("\"{operator}\""));
        }
    }
}
