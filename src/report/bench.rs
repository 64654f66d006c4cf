//! The output of `unwindlab bench`: text, and JSON Lines.

use std::fmt::Write as _;

use serde::Serialize;

use super::json::Setting;
use crate::bench::rows::{Line, Promise};
use crate::bench::series::{Series, Spread};
use unwindlab_engine::text::printable;

/// Names the shape of a record.
pub const SCHEMA: &str = "unwindlab.bench/1";

/// Width of the column that names whose number it is.
const WHO: usize = 14;

/// The text of one figure: a heading, then a line each for the numbers, the ratio, the promises and
/// the notes.
#[must_use]
pub fn block(line: &Line) -> String {
    let mut text = format!("{}: {}\n", line.row.name(), line.what);
    numbers(&mut text, "ours", &line.ours, line.unit);
    let ratio = line.peer.as_ref().and_then(|peer| {
        numbers(&mut text, peer.name, &peer.series, line.unit);
        line.ours.ratio_to(&peer.series)
    });
    if let Some(ratio) = ratio {
        row(&mut text, "ratio", ratio, "x");
    }
    for promise in &line.promises {
        let (said, kept) = promised(*promise, line.unit, line.ours.spread(), ratio);
        let kept = match kept {
            Some(true) => "kept",
            Some(false) => "not kept",
            None => "not measured",
        };
        let _ = writeln!(text, "  {:<WHO$}  {said}: {kept}", "promise");
    }
    for note in &line.notes {
        let _ = writeln!(text, "  {:<WHO$}  {note}", "");
    }
    text
}

fn numbers(text: &mut String, who: &str, series: &Series, unit: &str) {
    match (&series.failed, series.spread()) {
        (None, Some(spread)) => row(text, who, spread, unit),
        (why, _) => {
            let why = why.as_deref().unwrap_or("no round");
            let _ = writeln!(text, "  {who:<WHO$}  not measured: {}", printable(why));
        }
    }
}

fn row(text: &mut String, who: &str, spread: Spread, unit: &str) {
    let Spread { median, min, max } = spread;
    let _ = writeln!(
        text,
        "  {who:<WHO$}  {:>9} {unit}  ({} to {})",
        short(median),
        short(min),
        short(max)
    );
}

/// Three significant digits, and all digits before the point.
fn short(value: f64) -> String {
    match value {
        _ if value >= 100.0 => format!("{value:.0}"),
        _ if value >= 10.0 => format!("{value:.1}"),
        _ if value >= 1.0 => format!("{value:.2}"),
        _ if value >= 0.1 => format!("{value:.3}"),
        _ if value >= 0.01 => format!("{value:.4}"),
        _ => format!("{value:.5}"),
    }
}

/// The promise in words, and whether the median keeps it.
fn promised(
    promise: Promise,
    unit: &str,
    ours: Option<Spread>,
    ratio: Option<Spread>,
) -> (String, Option<bool>) {
    let median = |spread: Option<Spread>| spread.map(|it| it.median);
    match promise {
        Promise::AtMost(most) => {
            let kept = median(ours).map(|it| it <= most);
            (format!("at most {most} {unit}"), kept)
        }
        Promise::AtLeast(least) => {
            let kept = median(ours).map(|it| it >= least);
            (format!("at least {least} {unit}"), kept)
        }
        Promise::RatioAtMost(most) => {
            let kept = median(ratio).map(|it| it <= most);
            (format!("at most {most} x"), kept)
        }
        Promise::RatioAtLeast(least) => {
            let kept = median(ratio).map(|it| it >= least);
            (format!("at least {least} x"), kept)
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Record<'a> {
    schema: &'static str,
    #[serde(flatten)]
    setting: &'a Setting,
    measured: bool,
    #[serde(flatten)]
    line: &'a Line,
    spread: Option<Spread>,
    peer_spread: Option<Spread>,
    ratio: Option<Spread>,
}

/// The record of one figure, newline included.
///
/// # Errors
/// [`serde_json::Error`] if a value cannot be serialized, which no type here causes.
pub fn record(setting: &Setting, line: &Line) -> Result<String, serde_json::Error> {
    let peer = line.peer.as_ref().map(|peer| &peer.series);
    let mut text = serde_json::to_string(&Record {
        schema: SCHEMA,
        setting,
        measured: line.is_measured(),
        line,
        spread: line.ours.spread(),
        peer_spread: peer.and_then(Series::spread),
        ratio: peer.and_then(|peer| line.ours.ratio_to(peer)),
    })?;
    text.push('\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::rows::{PeerSeries, QEMU, Row};

    fn line(peer: Series) -> Line {
        Line {
            row: Row::Boot,
            what: "a start",
            unit: "s",
            ours: Series {
                values: vec![2.0, 2.5, 3.0],
                failed: None,
            },
            peer: Some(PeerSeries {
                name: QEMU,
                series: peer,
            }),
            promises: vec![Promise::RatioAtMost(0.5), Promise::AtMost(2.0)],
            notes: vec!["a note".to_owned()],
        }
    }

    #[test]
    fn numbers_have_their_spread_and_promises_their_state() {
        let text = block(&line(Series {
            values: vec![4.0, 5.0, 10.0],
            failed: None,
        }));
        let expected = "\
boot: a start
  ours                 2.50 s  (2.00 to 3.00)
  QEMU microvm         5.00 s  (4.00 to 10.0)
  ratio               0.500 x  (0.300 to 0.500)
  promise         at most 0.5 x: kept
  promise         at most 2 s: not kept
                  a note
";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_peer_that_could_not_be_measured_is_told_and_makes_no_ratio() {
        let line = line(Series::impossible("it does not\u{1b}start"));
        assert!(!line.is_measured());
        let text = block(&line);
        assert!(
            text.contains("QEMU microvm    not measured: it does not\\u{1b}start\n"),
            "{text}"
        );
        assert!(text.contains("at most 0.5 x: not measured"), "{text}");
        assert!(!text.contains("ratio "), "{text}");
        let setting = Setting {
            kernel_spec: "stock".to_owned(),
            kernel_release: "7.3".to_owned(),
            kernel_hash: "abc".to_owned(),
            kvm_host: "emulated".to_owned(),
        };
        let record: serde_json::Value =
            serde_json::from_str(&record(&setting, &line).unwrap()).unwrap();
        assert_eq!(record["measured"], false);
        assert_eq!(record["peer"]["failed"], "it does not\u{1b}start");
        assert_eq!(record["spread"]["median"], 2.5);
        assert_eq!(record["ratio"], serde_json::Value::Null);
    }
}
