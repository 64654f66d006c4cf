//! Today's figures against those of an earlier `bench --json`: which are worse beyond noise.
//!
//! Of each line, two numbers are compared: ours, and its ratio to the peer's, where there is a peer. A ratio is of two
//! measurements right after each other in one run, so it can be compared with that of another machine. A time cannot.

mod file;
mod rule;

pub use file::{Earlier, FileError, read};
pub use rule::{CHANCE, Change, Compared, LEAST};

use super::machine::Machine;
use super::rows::{Better, Line};
use super::series::{Series, Spread};

/// Today's figures, and what they were measured with.
#[derive(Debug, Clone, Copy)]
pub struct Today<'a> {
    /// The figures.
    pub lines: &'a [Line],
    /// The machine.
    pub machine: &'a Machine,
    /// Content hash of the kernel that was booted.
    pub kernel: &'a str,
    /// The KVM host.
    pub kvm_host: &'a str,
}

/// What became of one line.
#[derive(Debug, Clone, PartialEq)]
pub struct LineChange {
    /// The row's name.
    pub row: String,
    /// What is measured.
    pub what: String,
    /// Ours, and the ratio; nothing where a side lacks the line.
    pub figures: Vec<Figure>,
    /// The side that lacks the line, if one does.
    pub missing: Option<Side>,
}

/// Where a line is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The earlier file has none.
    Earlier,
    /// It was not measured today.
    Today,
}

/// One number of a line on both sides.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// `ours` or `ratio`.
    pub name: &'static str,
    /// Its unit.
    pub unit: String,
    /// What the file has, with the number of rounds.
    pub earlier: Option<(Spread, usize)>,
    /// What was measured today.
    pub today: Option<(Spread, usize)>,
    /// What that says.
    pub verdict: Result<Compared, NotComparable>,
}

/// Why two numbers say nothing about each other.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what the fields are")]
pub enum NotComparable {
    /// One could not be measured.
    #[error("it could not be measured {when}")]
    NotMeasured { when: &'static str },
    /// The rounds are too few for any difference to be more than chance.
    #[error("too few rounds: no difference of {earlier} and {today} could be told from chance")]
    TooFewRounds { earlier: usize, today: usize },
    /// They are of different machines.
    #[error("another machine: {cpu}, {cores} cores")]
    OtherMachine { cpu: String, cores: usize },
    /// The file does not say which machine it is of.
    #[error("the file does not say on which machine it was measured")]
    UnknownMachine,
    /// Something else differs that the number depends on.
    #[error("another {what}: {earlier}")]
    Other { what: &'static str, earlier: String },
}

impl LineChange {
    /// Whether it says that something is worse.
    #[must_use]
    pub fn is_worse(&self) -> bool {
        self.has(|change| change == Change::Worse)
    }

    /// Whether something of it could be compared. What is not in today's figures need not be.
    #[must_use]
    pub fn is_compared(&self) -> bool {
        self.missing == Some(Side::Today) || self.has(|_| true)
    }

    fn has(&self, wanted: impl Fn(Change) -> bool) -> bool {
        let changes = self
            .figures
            .iter()
            .filter_map(|it| it.verdict.as_ref().ok());
        changes.map(|it| it.change).any(wanted)
    }
}

/// Compares each line of either side.
#[must_use]
pub fn compare(today: Today<'_>, file: &[Earlier]) -> Vec<LineChange> {
    let mut changes = Vec::new();
    for line in today.lines {
        let earlier = file.iter().find(|it| it.is_of(line));
        changes.push(LineChange {
            row: line.row.name().to_owned(),
            what: line.what.to_owned(),
            figures: earlier.map_or_else(Vec::new, |it| figures(line, it, today)),
            missing: earlier.is_none().then_some(Side::Earlier),
        });
    }
    for earlier in file {
        if !today.lines.iter().any(|line| earlier.is_of(line)) {
            changes.push(LineChange {
                row: earlier.row.clone(),
                what: earlier.what.clone(),
                figures: Vec::new(),
                missing: Some(Side::Today),
            });
        }
    }
    changes
}

fn figures(line: &Line, earlier: &Earlier, today: Today<'_>) -> Vec<Figure> {
    let other = other(line, earlier, today);
    let time = { other.clone() }.or_else(|| other_machine(earlier, today.machine));
    let ours = |series: &Series| series.spread().map(|_| series.values.clone());
    let mut figures = vec![figure(
        ("ours", line.unit),
        ours(&earlier.ours),
        ours(&line.ours),
        (line.better, time),
    )];
    if let Some(peer) = &line.peer {
        let before = { earlier.peer.as_ref() }.and_then(|it| earlier.ours.ratios(&it.series));
        figures.push(figure(
            ("ratio", "x"),
            before,
            line.ours.ratios(&peer.series),
            (line.better, other),
        ));
    }
    figures
}

fn figure(
    (name, unit): (&'static str, &str),
    earlier: Option<Vec<f64>>,
    today: Option<Vec<f64>>,
    (better, prevented): (Better, Option<NotComparable>),
) -> Figure {
    let of = |values: &Option<Vec<f64>>| {
        let values = values.as_ref()?;
        Some((Spread::of(values)?, values.len()))
    };
    let verdict = match (prevented, &earlier, &today) {
        (Some(why), ..) => Err(why),
        (None, None, _) => Err(NotComparable::NotMeasured { when: "earlier" }),
        (None, _, None) => Err(NotComparable::NotMeasured { when: "today" }),
        (None, Some(earlier), Some(today)) => {
            let compared = rule::compare(earlier, today, better);
            compared.ok_or(NotComparable::TooFewRounds {
                earlier: earlier.len(),
                today: today.len(),
            })
        }
    };
    Figure {
        name,
        unit: unit.to_owned(),
        earlier: of(&earlier),
        today: of(&today),
        verdict,
    }
}

/// What else differs that a line depends on.
fn other(line: &Line, earlier: &Earlier, today: Today<'_>) -> Option<NotComparable> {
    let peer = line.peer.as_ref().map_or("none", |it| it.name);
    let before = earlier.peer.as_ref().map_or("none", |it| &it.name);
    let with = |parameters: &[String]| parameters.join("; ");
    let mut all = vec![
        ("unit", line.unit.to_owned(), earlier.unit.clone()),
        ("peer", peer.to_owned(), before.to_owned()),
        (
            "way to measure",
            with(&line.parameters),
            with(&earlier.parameters),
        ),
    ];
    // A command line names its kernel and host.
    if !line.row.is_command() {
        all.push((
            "kernel",
            today.kernel.to_owned(),
            earlier.kernel_hash.clone(),
        ));
        all.push((
            "KVM host",
            host_kind(today.kvm_host),
            host_kind(&earlier.kvm_host),
        ));
    }
    let differs = all.into_iter().find(|(_, today, before)| today != before);
    differs.map(|(what, _, earlier)| NotComparable::Other { what, earlier })
}

/// What a KVM host is, without how it came up this time.
#[must_use]
pub fn host_kind(host: &str) -> String {
    let kind = host.split([',', ';']).next().unwrap_or(host);
    kind.trim_end_matches(')').replace(" (", ", ")
}

fn other_machine(earlier: &Earlier, today: &Machine) -> Option<NotComparable> {
    match &earlier.machine {
        None => Some(NotComparable::UnknownMachine),
        Some(machine) if machine.is_like(today) => None,
        Some(Machine { cpu, cores, .. }) => Some(NotComparable::OtherMachine {
            cpu: cpu.clone(),
            cores: *cores,
        }),
    }
}

#[cfg(test)]
mod tests;
