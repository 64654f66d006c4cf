//! The kill matrix: mutants by scenarios.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use serde::{Deserialize, Serialize};

use crate::judge::outcome::{Outcome, OutcomeClass};
use unwindlab_engine::text::printable;

/// A row for each mutant, a column for each scenario.
#[derive(Debug, Clone)]
pub struct Matrix {
    scenarios: Vec<String>,
    /// The kernel without a mutant first.
    pub rows: Vec<MutantRow>,
}

/// One mutant, or none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct MutantRow {
    /// Its name.
    pub name: String,
    /// The invariants of which one must fall.
    pub falls: Vec<String>,
    /// The result of each scenario that was run.
    pub cells: Vec<(String, Cell)>,
    /// What became of it.
    pub fate: Fate,
}

/// The result of one scenario on one mutant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cell {
    /// The scenario passed: it does not catch the mutant.
    Pass,
    /// These invariants fell.
    Fell(Vec<String>),
    /// Not a pass, but no invariant fell.
    Unexplained(Outcome),
    /// The scenario could not be tested.
    Untested(Outcome),
}

/// What became of a mutant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// The kernel without a mutant passes, as it must.
    Clean,
    /// The kernel without a mutant does not pass.
    Unclean(String),
    /// An invariant that it names fell.
    Killed,
    /// Only others fell.
    Misjudged(Vec<String>),
    /// All that was violated matches these findings: the mutant counts as an expected failure.
    Excused(Vec<String>),
    /// All scenarios passed, or failed without an invariant.
    Survived,
    /// It could not be tested.
    Untested(String),
}

impl Matrix {
    /// A matrix without rows, with these columns.
    #[must_use]
    pub fn new(scenarios: Vec<String>) -> Self {
        Self {
            scenarios,
            rows: Vec::new(),
        }
    }

    /// The table: a numbered column for each scenario that was run, their names below.
    #[must_use]
    pub fn table(&self) -> String {
        let used: Vec<&String> = self
            .scenarios
            .iter()
            .filter(|name| self.rows.iter().any(|row| row.cell(name).is_some()))
            .collect();
        let cells: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|row| used.iter().map(|name| row.text(name)).collect())
            .collect();
        let width = |column: usize| {
            let texts = cells.iter().filter_map(|row| row.get(column));
            texts.map(String::len).max().unwrap_or(0).max(2)
        };
        let names = self.rows.iter().map(|row| row.name.len());
        let first = names.max().unwrap_or(0);
        let mut text = format!("{:first$}", "");
        for column in 0..used.len() {
            let _ = write!(text, "  {:<1$}", column + 1, width(column));
        }
        for (row, cells) in self.rows.iter().zip(&cells) {
            let _ = write!(text, "\n{:first$}", row.name);
            for (column, cell) in cells.iter().enumerate() {
                let _ = write!(text, "  {cell:<0$}", width(column));
            }
        }
        for (column, name) in used.iter().enumerate() {
            let _ = write!(text, "\n{:>4}  {}", column + 1, printable(name));
        }
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        lines.join("\n")
    }

    /// What the mutants say of the tests: good where each is killed by an invariant of its own. No row says nothing.
    #[must_use]
    pub fn class(&self) -> OutcomeClass {
        OutcomeClass::of_all(self.rows.iter().map(|row| row.fate.class()))
    }

    /// How many met which fate, in one line.
    #[must_use]
    pub fn summary(&self) -> String {
        let count = |test: fn(&Fate) -> bool| {
            let rows = self.rows.iter().filter(|row| test(&row.fate));
            rows.count()
        };
        let mut parts = vec![format!("{} killed", count(|it| *it == Fate::Killed))];
        for (number, word) in [
            (count(|it| *it == Fate::Survived), "survived"),
            (
                count(|it| matches!(it, Fate::Misjudged(_))),
                "killed by another invariant",
            ),
            (
                count(|it| matches!(it, Fate::Excused(_))),
                "excused by findings",
            ),
            (count(|it| matches!(it, Fate::Untested(_))), "not tested"),
        ] {
            if number > 0 {
                parts.push(format!("{number} {word}"));
            }
        }
        if count(|it| matches!(it, Fate::Unclean(_))) > 0 {
            parts.push("the kernel without a mutant does not pass".to_owned());
        }
        parts.join(", ")
    }
}

impl Fate {
    /// What it says of the tests.
    #[must_use]
    pub const fn class(&self) -> OutcomeClass {
        match self {
            Self::Clean | Self::Killed => OutcomeClass::Good,
            Self::Survived | Self::Misjudged(_) | Self::Excused(_) | Self::Unclean(_) => {
                OutcomeClass::Bad
            }
            Self::Untested(_) => OutcomeClass::Untested,
        }
    }
}

impl MutantRow {
    /// The row in one line.
    #[must_use]
    pub fn line(&self) -> String {
        let (colour, text) = self.told();
        let style: Style = colour.on_default().bold();
        format!("{style}{:<24}{style:#}  {}", self.name, printable(&text))
    }

    /// What became of it, in words; green where that is as it should be, and yellow where it is not known.
    pub(super) fn told(&self) -> (AnsiColor, String) {
        match &self.fate {
            Fate::Clean => (AnsiColor::Green, "passes".to_owned()),
            Fate::Unclean(reason) => (AnsiColor::Red, format!("does not pass: {reason}")),
            Fate::Killed => (AnsiColor::Green, format!("killed by {}", self.killers())),
            Fate::Misjudged(others) => (
                AnsiColor::Red,
                format!(
                    "killed by {}, not by {}",
                    others.join(", "),
                    self.falls.join(" or ")
                ),
            ),
            Fate::Excused(findings) => (
                AnsiColor::Red,
                format!(
                    "EXCUSED by {}: whatever was violated matches a finding, so it counts as an \
                     expected failure; {} did not fall otherwise",
                    findings.join(", "),
                    self.falls.join(" or ")
                ),
            ),
            Fate::Survived => (
                AnsiColor::Red,
                format!("SURVIVED: {} did not fall", self.falls.join(" or ")),
            ),
            Fate::Untested(reason) => (AnsiColor::Yellow, format!("not tested: {reason}")),
        }
    }

    /// The invariants that killed it, with their scenarios.
    fn killers(&self) -> String {
        let killers: Vec<String> = self
            .cells
            .iter()
            .filter_map(|(scenario, cell)| {
                let Cell::Fell(fallen) = cell else {
                    return None;
                };
                let named: Vec<&str> = fallen
                    .iter()
                    .filter(|it| self.falls.contains(it))
                    .map(String::as_str)
                    .collect();
                let killer = || format!("{} in {scenario}", named.join(" "));
                (!named.is_empty()).then(|| printable(&killer()))
            })
            .collect();
        killers.join(", ")
    }

    fn cell(&self, scenario: &str) -> Option<&Cell> {
        let mut cells = self.cells.iter();
        cells.find(|(name, _)| name == scenario).map(|(_, it)| it)
    }

    /// The text of a cell: the named invariants that fell, then `+N` others; `.` for a pass;
    /// nothing if the scenario was not run.
    fn text(&self, scenario: &str) -> String {
        match self.cell(scenario) {
            None => String::new(),
            Some(Cell::Pass) => ".".to_owned(),
            Some(Cell::Unexplained(outcome) | Cell::Untested(outcome)) => outcome.name().to_owned(),
            Some(Cell::Fell(fallen)) => {
                let (named, others): (Vec<&String>, Vec<&String>) =
                    fallen.iter().partition(|it| self.falls.contains(it));
                let mut parts: Vec<String> = named.into_iter().map(|it| printable(it)).collect();
                if !others.is_empty() {
                    parts.push(format!("+{}", others.len()));
                }
                parts.join(" ")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fell(names: &[&str]) -> Cell {
        Cell::Fell(names.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_matrix_without_rows_says_nothing() {
        assert_eq!(Matrix::new(Vec::new()).class(), OutcomeClass::Untested);
    }

    #[test]
    fn a_mutant_that_findings_excuse_is_no_success() {
        let mut matrix = Matrix::new(vec!["a".to_owned()]);
        matrix.rows.push(MutantRow {
            name: "x".to_owned(),
            falls: vec!["M1".to_owned()],
            cells: vec![("a".to_owned(), Cell::Pass)],
            fate: Fate::Excused(vec!["F001".to_owned()]),
        });
        assert_eq!(matrix.class(), OutcomeClass::Bad);
        assert_eq!(matrix.summary(), "0 killed, 1 excused by findings");
        assert!(matrix.rows[0].line().contains("EXCUSED by F001"));
    }

    /// They may be of the file of a part.
    #[test]
    fn names_are_shown_as_text() {
        let (name, shown) = ("\u{1b}]0;x\u{7}".to_owned(), "\\u{1b}]0;x\\u{7}");
        let mut matrix = Matrix::new(vec![name.clone()]);
        matrix.rows.push(MutantRow {
            name: "x".to_owned(),
            falls: vec![name.clone()],
            cells: vec![(name.clone(), fell(&[&name]))],
            fate: Fate::Killed,
        });
        let table = matrix.table();
        let line = anstream::adapter::strip_str(&matrix.rows[0].line()).to_string();
        assert_eq!(table.matches(shown).count(), 2, "{table}");
        assert!(
            line.ends_with(&format!("killed by {shown} in {shown}")),
            "{line}"
        );
        assert!(!table.contains('\u{1b}'), "{table}");
    }

    #[test]
    fn shows_who_killed_whom() {
        let mut matrix = Matrix::new(["a", "b", "unused"].map(str::to_owned).to_vec());
        matrix.rows.push(MutantRow {
            name: "torn-id".to_owned(),
            falls: vec!["C4".to_owned(), "M1".to_owned()],
            cells: vec![
                ("a".to_owned(), fell(&["C4", "C7"])),
                ("b".to_owned(), Cell::Pass),
            ],
            fate: Fate::Killed,
        });
        matrix.rows.push(MutantRow {
            name: "x".to_owned(),
            falls: vec!["U4".to_owned()],
            cells: vec![("b".to_owned(), Cell::Unexplained(Outcome::Hang))],
            fate: Fate::Survived,
        });
        assert_eq!(
            matrix.table(),
            "         1      2\ntorn-id  C4 +1  .\nx               hang\n   1  a\n   2  b"
        );
        assert_eq!(matrix.summary(), "1 killed, 1 survived");
        let line = anstream::adapter::strip_str(&matrix.rows[0].line()).to_string();
        assert_eq!(line, "torn-id                   killed by C4 in a");
    }
}
