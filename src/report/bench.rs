//! The output of `unwindlab bench`: text, and JSON Lines.

use std::fmt::Write as _;

use serde::Serialize;

use super::json::Setting;
use crate::bench::SCHEMA;
use crate::bench::against::{CHANCE, Change, Compared, Earlier, Figure, LEAST, LineChange, Side};
use crate::bench::machine::Machine;
use crate::bench::rows::{Line, Promise};
use crate::bench::series::{Series, Spread};
use unwindlab_engine::text::printable;

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
    for note in line.notes.iter().chain(&line.parameters) {
        let _ = writeln!(text, "  {:<WHO$}  {}", "", printable(note));
    }
    text
}

/// What was measured, and where: the last lines.
#[must_use]
pub fn setting(setting: &Setting, machine: &Machine) -> String {
    let (release, host) = (&setting.kernel_release, &setting.kvm_host);
    format!("kernel {release}, KVM host {host}\n{}\n", beside(machine))
}

/// A machine, its load and the program, in words.
fn beside(machine: &Machine) -> String {
    let Machine {
        cpu,
        cores,
        load: [first, last],
        program,
    } = machine;
    let program = program.get(..12).unwrap_or(program);
    format!(
        "{}, {cores} cores, load {first:.2} to {last:.2}, program {}",
        printable(cpu),
        printable(program)
    )
}

/// What became of earlier figures: a heading, then lines for each figure.
#[must_use]
pub fn changes(file: &str, earlier: &[Earlier], changes: &[LineChange]) -> String {
    let machine = earlier.iter().find_map(|it| it.machine.as_ref());
    let machine = machine.map_or_else(|| "on an unknown machine".to_owned(), beside);
    let mut text = format!("\nagainst {}: {machine}\n", printable(file));
    for change in changes {
        let _ = writeln!(
            text,
            "{}: {}",
            printable(&change.row),
            printable(&change.what)
        );
        let missing = change.missing.map(|side| match side {
            Side::Earlier => "not compared: the file does not have it",
            Side::Today => "not measured today",
        });
        if let Some(missing) = missing {
            let _ = writeln!(text, "  {missing}");
        }
        for figure in &change.figures {
            changed(&mut text, figure);
        }
    }
    let worse = changes.iter().filter(|it| it.is_worse()).count();
    let open = changes.iter().filter(|it| !it.is_compared()).count();
    let _ = writeln!(
        text,
        "{worse} worse, {open} not compared (worse: chance below {CHANCE}, median {:.0} % off)",
        100.0 * LEAST
    );
    text
}

fn changed(text: &mut String, figure: &Figure) {
    let sides = [("before", figure.earlier), ("today", figure.today)];
    for (side, numbers) in sides {
        if let Some((spread, rounds)) = numbers {
            let who = format!("{} {side}", figure.name);
            let row = figures(&who, spread, &printable(&figure.unit));
            let _ = writeln!(text, "{row}, {rounds} rounds");
        }
    }
    let verdict = match &figure.verdict {
        Err(why) => format!("not compared: {}", printable(&why.to_string())),
        Ok(Compared {
            change,
            ratio,
            chance,
        }) => {
            let change = match change {
                Change::Worse => "WORSE",
                Change::Better => "better",
                Change::WithinNoise => "within noise",
            };
            format!("{change}: {} x, chance {}", short(*ratio), short(*chance))
        }
    };
    let _ = writeln!(text, "  {:<WHO$}  {verdict}", "");
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
    let _ = writeln!(text, "{}", figures(who, spread, unit));
}

fn figures(who: &str, Spread { median, min, max }: Spread, unit: &str) -> String {
    format!(
        "  {who:<WHO$}  {:>9} {unit}  ({} to {})",
        short(median),
        short(min),
        short(max)
    )
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
    machine: &'a Machine,
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
pub fn record(
    setting: &Setting,
    machine: &Machine,
    line: &Line,
) -> Result<String, serde_json::Error> {
    let peer = line.peer.as_ref().map(|peer| &peer.series);
    let mut text = serde_json::to_string(&Record {
        schema: SCHEMA,
        setting,
        machine,
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
    use crate::bench::against::{NotComparable, Today, compare, read};
    use crate::bench::rows::{Better, PeerSeries, QEMU, Row};

    fn line(peer: Series) -> Line {
        Line {
            row: Row::Boot,
            what: "a start",
            unit: "s",
            better: Better::Less,
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
            parameters: Vec::new(),
        }
    }

    fn machine() -> Machine {
        Machine {
            cpu: "a CPU".to_owned(),
            cores: 2,
            load: [0.5, 1.25],
            program: "0123456789abcdef".to_owned(),
        }
    }

    fn setting() -> Setting {
        Setting {
            kernel_spec: "stock".to_owned(),
            kernel_release: "7.3".to_owned(),
            kernel_hash: "abc".to_owned(),
            kvm_host: "emulated".to_owned(),
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
        let record = record(&setting(), &machine(), &line).unwrap();
        let record: serde_json::Value = serde_json::from_str(&record).unwrap();
        assert_eq!(record["machine"]["cpu"], "a CPU");
        assert_eq!(record["measured"], false);
        assert_eq!(record["peer"]["failed"], "it does not\u{1b}start");
        assert_eq!(record["spread"]["median"], 2.5);
        assert_eq!(record["ratio"], serde_json::Value::Null);
    }

    /// What is written can be read, and figures are as good as themselves.
    #[test]
    fn a_record_is_compared_with_itself() {
        let mut line = line(Series {
            values: vec![4.0, 5.0, 10.0, 4.5, 4.75],
            failed: None,
        });
        line.ours.values = vec![2.0, 2.5, 3.0, 2.25, 2.75];
        let (setting, machine) = (setting(), machine());
        let earlier = read(&record(&setting, &machine, &line).unwrap()).unwrap();
        let lines = [line];
        let today = Today {
            lines: &lines,
            machine: &machine,
            kernel: &setting.kernel_hash,
            kvm_host: &setting.kvm_host,
        };
        let mut compared = compare(today, &earlier);
        compared[0].figures[1].verdict = Err(NotComparable::UnknownMachine);
        let text = changes("old.jsonl", &earlier, &compared);
        let expected = "
against old.jsonl: a CPU, 2 cores, load 0.50 to 1.25, program 0123456789ab
boot: a start
  ours before          2.50 s  (2.00 to 3.00), 5 rounds
  ours today           2.50 s  (2.00 to 3.00), 5 rounds
                  within noise: 1.00 x, chance 1.00
  ratio before        0.500 x  (0.300 to 0.579), 5 rounds
  ratio today         0.500 x  (0.300 to 0.579), 5 rounds
                  not compared: the file does not say on which machine it was measured
0 worse, 0 not compared (worse: chance below 0.02, median 10 % off)
";
        assert_eq!(text, expected);
    }
}
