//! The report of `variants`: a plot of each figure, and the table.

use std::time::Duration;

use serde::Serialize;

use super::page::page;
use crate::report::comparison::{DesignTable, FigureRow};
use unwindlab_engine::text::printable;

#[derive(Serialize)]
struct Page {
    seconds: f64,
    columns: Vec<String>,
    figures: Vec<FigureRow>,
    notes: Vec<String>,
}

/// The file.
///
/// # Errors
/// [`serde_json::Error`] if a value cannot be serialized, which no type here causes.
pub fn html(table: &DesignTable, elapsed: Duration) -> Result<String, serde_json::Error> {
    let data = Page {
        seconds: elapsed.as_secs_f64(),
        columns: table.columns.iter().map(|it| printable(&it.name)).collect(),
        figures: table.figures(),
        notes: table.notes().iter().map(|it| printable(it)).collect(),
    };
    let scripts = [
        include_str!("assets/grid.js"),
        include_str!("assets/variants.js"),
    ];
    page("unwindlab variants", &scripts, &data)
}
