//! A table that compares designs, in Markdown: a line for each figure, a column for each kernel.

use std::fmt::Write as _;

use super::figures::Figures;
use crate::judge::outcome::OutcomeClass;

/// The kernels, the unchanged one first.
#[derive(Debug, Clone, Default)]
pub struct DesignTable {
    /// In the order in which they are shown.
    pub columns: Vec<DesignColumn>,
}

/// One kernel.
#[derive(Debug, Clone, Default)]
pub struct DesignColumn {
    /// Its name.
    pub name: String,
    /// What was measured.
    pub figures: Figures,
    /// The invariants that fell, each with its scenarios.
    pub fallen: Vec<(String, Vec<String>)>,
    /// Scenarios in which it panicked or hung.
    pub died: Vec<String>,
    /// Why something could not be measured.
    pub error: Option<String>,
}

/// One line of the table.
struct Figure {
    title: &'static str,
    /// A column's cell; the second is the first column.
    cell: fn(&DesignColumn, &DesignColumn) -> String,
    /// What a plot shows; nothing for a figure that is no number.
    value: fn(&DesignColumn) -> Option<f64>,
}

#[expect(clippy::cast_precision_loss, reason = "for a plot")]
const fn number(value: u64) -> f64 {
    value as f64
}

const FIGURES: &[Figure] = &[
    Figure {
        title: "duplicate callbacks per request",
        cell: |it, _| two_digits(it.figures.duplicates_per_request()),
        value: |it| it.figures.duplicates_per_request(),
    },
    Figure {
        title: "unwinds per kernel entry with one",
        cell: |it, _| two_digits(it.figures.unwinds_per_entry()),
        value: |it| it.figures.unwinds_per_entry(),
    },
    Figure {
        title: "later answers, by the client's stack",
        cell: |it, _| it.figures.answers.cell(),
        value: |_| None,
    },
    Figure {
        title: "iterations under the storm, against the first",
        cell: |it, first| relative(it.figures.storm_progress, first.figures.storm_progress),
        value: |it| it.figures.storm_progress.map(number),
    },
    Figure {
        title: "cookies that two tasks had, of all",
        cell: |it, _| format!("{} of {}", it.figures.shared_cookies, it.figures.cookies),
        value: |it| Some(number(it.figures.shared_cookies)),
    },
    Figure {
        title: "instructions on entry, against the first",
        cell: |it, first| added(it.figures.way_in, first.figures.way_in),
        value: |it| it.figures.way_in.map(number),
    },
    Figure {
        title: "instructions on exit, against the first",
        cell: |it, first| added(it.figures.way_out, first.figures.way_out),
        value: |it| it.figures.way_out.map(number),
    },
    Figure {
        title: "invariants that fell",
        cell: |it, _| {
            let names: Vec<&str> = it.fallen.iter().map(|(id, _)| id.as_str()).collect();
            or_none(&names.join(" "))
        },
        value: |it| Some(number(it.fallen.len() as u64)),
    },
    Figure {
        title: "scenarios not survived",
        cell: |it, _| it.died.len().to_string(),
        value: |it| Some(number(it.died.len() as u64)),
    },
];

/// A line of the table: its title, and each column's cell with its value.
pub(super) type FigureRow = (&'static str, Vec<(String, Option<f64>)>);

impl DesignTable {
    /// Good where every figure could be measured, whatever the designs do wrong.
    #[must_use]
    pub fn class(&self) -> OutcomeClass {
        match self.columns.iter().all(|it| it.error.is_none()) {
            true => OutcomeClass::Good,
            false => OutcomeClass::Untested,
        }
    }

    /// Every line.
    pub(super) fn figures(&self) -> Vec<FigureRow> {
        let Some(first) = self.columns.first() else {
            return Vec::new();
        };
        let cell = |figure: &Figure, it: &DesignColumn| match it.error {
            Some(_) if it.figures == Figures::default() => ("not measured".to_owned(), None),
            _ => ((figure.cell)(it, first), (figure.value)(it)),
        };
        let row = |figure: &Figure| {
            let cells = self.columns.iter().map(|it| cell(figure, it));
            (figure.title, cells.collect())
        };
        FIGURES.iter().map(row).collect()
    }

    /// Where each invariant fell, what was not survived, and what could not be measured.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for column in &self.columns {
            let name = &column.name;
            for (invariant, scenarios) in &column.fallen {
                notes.push(format!(
                    "{name}: {invariant} fell in {}",
                    scenarios.join(", ")
                ));
            }
            let died = column.died.iter();
            notes.extend(died.map(|died| format!("{name}: did not survive {died}")));
            notes.extend({ column.error.iter() }.map(|error| format!("{name}: {error}")));
        }
        notes
    }

    /// The table, then where each invariant fell.
    #[must_use]
    pub fn table(&self) -> String {
        if self.columns.is_empty() {
            return String::new();
        }
        let mut rows = vec![vec![String::new()]];
        if let Some(head) = rows.first_mut() {
            head.extend(self.columns.iter().map(|it| it.name.clone()));
        }
        for (title, cells) in self.figures() {
            let mut row = vec![title.to_owned()];
            row.extend(cells.into_iter().map(|(text, _)| text));
            rows.push(row);
        }
        let mut text = markdown(&rows);
        for line in self.notes() {
            let _ = write!(text, "\n{line}");
        }
        text
    }
}

pub(super) fn markdown(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(String::len).max().unwrap_or(0).max(3)
    };
    let mut text = String::new();
    for (at, row) in rows.iter().enumerate() {
        for column in 0..columns {
            let cell = row.get(column).map_or("", String::as_str);
            let _ = write!(text, "| {cell:<0$} ", width(column));
        }
        text.push_str("|\n");
        if at == 0 {
            for column in 0..columns {
                let _ = write!(text, "|{:-<1$}", "", width(column) + 2);
            }
            text.push_str("|\n");
        }
    }
    text
}

fn two_digits(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
}

#[expect(clippy::cast_precision_loss, reason = "shown with two digits")]
fn relative(value: Option<u64>, first: Option<u64>) -> String {
    match (value, first) {
        (Some(value), Some(first)) if first > 0 => {
            format!("{:.2} ({value})", value as f64 / first as f64)
        }
        (Some(value), _) => format!("({value})"),
        _ => "-".to_owned(),
    }
}

fn added(value: Option<u64>, first: Option<u64>) -> String {
    match (value, first) {
        (Some(value), Some(first)) => {
            let more = i128::from(value) - i128::from(first);
            format!("{more:+} ({value})")
        }
        _ => "-".to_owned(),
    }
}

fn or_none(text: &str) -> String {
    if text.is_empty() { "none" } else { text }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_a_table_of_differences() {
        let column = |name: &str, way_out, progress| DesignColumn {
            name: name.to_owned(),
            figures: Figures {
                way_out: Some(way_out),
                storm_progress: Some(progress),
                ..Figures::default()
            },
            ..DesignColumn::default()
        };
        let mut bad = column("A", 105, 10);
        bad.fallen.push(("D1".to_owned(), vec!["x".to_owned()]));
        let comparison = DesignTable {
            columns: vec![column("(as it is)", 100, 40), bad],
        };
        let table = comparison.table();
        let line = |title: &str| -> Vec<&str> {
            let line = table.lines().find(|line| line.contains(title)).unwrap();
            line.split('|').map(str::trim).collect()
        };
        assert_eq!(line("on exit")[2..4], ["+0 (100)", "+5 (105)"]);
        assert_eq!(line("storm")[2..4], ["1.00 (40)", "0.25 (10)"]);
        assert_eq!(line("on entry")[2..4], ["-", "-"]);
        assert_eq!(line("fell")[2..4], ["none", "D1"]);
        assert!(table.ends_with("A: D1 fell in x"), "{table}");
    }
}
