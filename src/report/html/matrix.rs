//! The report of `mutants`: the kill matrix.

use std::collections::BTreeMap;
use std::time::Duration;

use anstyle::AnsiColor;
use serde::Serialize;

use super::page::page;
use crate::report::matrix::{Cell, Fate, Matrix, MutantRow};
use unwindlab_engine::text::printable;
use unwindlab_oracle::invariant::INVARIANTS;

#[derive(Serialize)]
struct Page {
    seconds: f64,
    summary: String,
    rows: Vec<Row>,
    invariants: BTreeMap<&'static str, &'static str>,
}

#[derive(Serialize)]
struct Row {
    name: String,
    /// The invariants of which one must fall.
    falls: Vec<String>,
    class: &'static str,
    /// What became of it.
    told: String,
    cells: Vec<Shown>,
}

#[derive(Serialize)]
struct Shown {
    scenario: String,
    /// `pass`, `fell`, or the outcome of what fell without an invariant or was not tested.
    what: &'static str,
    fell: Vec<String>,
}

/// The file.
///
/// # Errors
/// [`serde_json::Error`] if a value cannot be serialized, which no type here causes.
pub fn html(matrix: &Matrix, elapsed: Duration) -> Result<String, serde_json::Error> {
    let data = Page {
        seconds: elapsed.as_secs_f64(),
        summary: matrix.summary(),
        rows: matrix.rows.iter().map(row).collect(),
        invariants: INVARIANTS.iter().map(|it| (it.id, it.title)).collect(),
    };
    let scripts = [
        include_str!("assets/grid.js"),
        include_str!("assets/matrix.js"),
    ];
    page("unwindlab mutants", &scripts, &data)
}

fn row(row: &MutantRow) -> Row {
    let (colour, told) = row.told();
    let cells = row.cells.iter().map(|(scenario, cell)| {
        let (what, fell) = match cell {
            Cell::Pass => ("pass", Vec::new()),
            Cell::Fell(fell) => ("fell", fell.clone()),
            Cell::Unexplained(outcome) | Cell::Untested(outcome) => (outcome.name(), Vec::new()),
        };
        Shown {
            scenario: printable(scenario),
            what,
            fell,
        }
    });
    Row {
        name: printable(&row.name),
        falls: row.falls.clone(),
        class: match (&row.fate, colour) {
            (Fate::Untested(_), _) => "untested",
            (_, AnsiColor::Green) => "good",
            _ => "bad",
        },
        told: printable(&told),
        cells: cells.collect(),
    }
}
