//! The tables of `costs --user-mode`.

use std::fmt::Write as _;

use super::comparison::markdown;
use super::costs::NoCost;
use crate::judge::outcome::OutcomeClass;
use unwindlab_oracle::invariant::{Answers, Designs};

/// Both designs on one kernel.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// What came of the same samples.
    pub outcomes: Vec<OutcomeRow>,
    /// What a sample costs, the way without a stack first for each depth.
    pub instructions: Vec<InstructionRow>,
    /// How far the program gets, in the same order.
    pub storms: Vec<StormRow>,
    /// `uname -r` of the kernel.
    pub release: String,
    /// What the KVM host says of itself.
    pub kvm_host: String,
}

/// What came of one trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutcomeRow {
    /// The scenario.
    pub scenario: &'static str,
    /// What is special in it.
    pub situation: &'static str,
    /// What came of it.
    pub found: Result<Designs, NoCost>,
}

/// Instructions for one NMI.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Instructions {
    /// Up to the interrupted instruction.
    pub nmi: usize,
    /// Of the kernel from there until the thread is back in its code.
    pub kernel: usize,
    /// Of the signal's handler.
    pub user: usize,
}

/// Bytes of one sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bytes {
    /// Of perf's records.
    pub perf: u64,
    /// Of the BPF ring buffer's record.
    pub request: u64,
    /// Of the handler's result.
    pub result: u64,
}

/// What one sample costs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SampleCost {
    /// Instructions.
    pub instructions: Instructions,
    /// Bytes.
    pub bytes: Bytes,
    /// Frames that are those of the program, from the innermost on.
    pub right: usize,
    /// Frames of the program.
    pub of: u64,
}

/// One way to get a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row<T> {
    /// Depth that was asked for.
    pub frames: u32,
    /// The way.
    pub way: &'static str,
    /// The figures, or why there are none.
    pub found: Result<T, NoCost>,
}

/// One stack.
pub type InstructionRow = Row<SampleCost>;
/// Storms, turn by turn.
pub type StormRow = Row<Vec<Storm>>;

/// One storm.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Storm {
    /// NMIs.
    pub nmis: u64,
    /// Rounds of the program's loop from the first to the last of them.
    pub rounds: u64,
    /// Stacks that were written.
    pub stacks: u64,
}

/// Good where everything was measured that the kernel has.
#[must_use]
pub fn class(found: &Comparison) -> OutcomeClass {
    let outcomes = found.outcomes.iter().map(|it| it.found.as_ref().err());
    let costs = found.instructions.iter().map(|it| it.found.as_ref().err());
    let storms = found.storms.iter().map(|it| it.found.as_ref().err());
    let all: Vec<_> = outcomes.chain(costs).chain(storms).collect();
    let failed = all.iter().any(|it| matches!(it, Some(NoCost::Failed(_))));
    match all.iter().any(Option::is_none) && !failed {
        true => OutcomeClass::Good,
        false => OutcomeClass::Untested,
    }
}

/// All tables in Markdown.
#[must_use]
pub fn tables(found: &Comparison) -> String {
    let parts = [
        outcomes(&found.outcomes),
        instructions(&found.instructions),
        storms(&found.storms),
    ];
    parts.join("\n")
}

const NOT_MEASURED: &str = "not measured";

fn head(cells: &[&str]) -> Vec<Vec<String>> {
    vec![cells.iter().map(|&it| it.to_owned()).collect()]
}

fn outcomes(rows: &[OutcomeRow]) -> String {
    let mut cells = head(&[
        "scenario",
        "samples",
        "design",
        "asked",
        "exact",
        "wrong",
        "not known",
        "lost",
        "twice",
        "late",
    ]);
    for row in rows {
        let name = format!("{} ({})", row.scenario, row.situation);
        match &row.found {
            Err(_) => cells.push(vec![name, NOT_MEASURED.to_owned()]),
            Ok(found) => {
                for (design, answers) in [("kernel", &found.kernel), ("signal", &found.signals)] {
                    let start = [name.clone(), found.samples.to_string(), design.to_owned()];
                    cells.push([&start[..], &answered(answers)].concat());
                }
            }
        }
    }
    let reasons = rows.iter().filter_map(|row| {
        let reason = row.found.as_ref().err()?;
        Some(format!("{}: {reason}", row.scenario))
    });
    with_reasons(markdown(&cells), reasons)
}

fn answered(it: &Answers) -> Vec<String> {
    let late = match it.perhaps_late {
        0 => it.late.to_string(),
        more => format!("{} (not known: {more})", it.late),
    };
    let counts = [
        it.asked,
        it.exact,
        it.wrong,
        it.not_known,
        it.lost,
        it.twice,
    ];
    let counts = counts.iter().map(usize::to_string);
    counts.chain([late]).collect()
}

fn instructions(rows: &[InstructionRow]) -> String {
    let titles = [
        "frames",
        "stack by",
        "kernel instructions in the NMI",
        "behind it",
        "user instructions",
        "all, against no stack",
        "bytes: perf",
        "BPF ring",
        "result",
        "frames right",
    ];
    by_way(&titles, rows, costs)
}

/// A table with a line for each way; `figures` gets its figures, and those of the first way of the same depth.
fn by_way<T>(
    titles: &[&str],
    rows: &[Row<T>],
    figures: fn(&T, Option<&T>) -> Vec<String>,
) -> String {
    let mut cells = head(titles);
    let mut first: Option<&Row<T>> = None;
    for row in rows {
        if first.is_none_or(|it| it.frames != row.frames) {
            first = Some(row);
        }
        let mut line = vec![row.frames.to_string(), row.way.to_owned()];
        match &row.found {
            Err(_) => line.push(NOT_MEASURED.to_owned()),
            Ok(found) => {
                let base = first.and_then(|it| it.found.as_ref().ok());
                line.extend(figures(found, base));
            }
        }
        cells.push(line);
    }
    let reasons = rows.iter().filter_map(|row| {
        let reason = row.found.as_ref().err()?;
        Some(format!("{} frames, {}: {reason}", row.frames, row.way))
    });
    with_reasons(markdown(&cells), reasons)
}

fn costs(cost: &SampleCost, base: Option<&SampleCost>) -> Vec<String> {
    let all = |it: &SampleCost| {
        let Instructions { nmi, kernel, user } = it.instructions;
        nmi + kernel + user
    };
    let Instructions { nmi, kernel, user } = cost.instructions;
    let against = base.map(|base| format!("{:+}", all(cost) as i128 - all(base) as i128));
    let Bytes {
        perf,
        request,
        result,
    } = cost.bytes;
    let mut cells: Vec<String> = [nmi, kernel, user].iter().map(usize::to_string).collect();
    cells.push(against.unwrap_or_default());
    cells.extend([perf, request, result].iter().map(u64::to_string));
    cells.push(format!("{} of {}", cost.right, cost.of));
    cells
}

fn storms(rows: &[StormRow]) -> String {
    let titles = [
        "frames",
        "stack by",
        "NMIs",
        "stacks",
        "rounds of the loop per NMI",
        "against no stack: median, least, most",
    ];
    by_way(&titles, rows, |turns, base| {
        vec![
            listed(turns.iter().map(|it| it.nmis.to_string())),
            listed(turns.iter().map(|it| it.stacks.to_string())),
            listed(turns.iter().map(|it| format!("{:.0}", per_nmi(it)))),
            base.map_or_else(String::new, |base| against(turns, base)),
        ]
    })
}

fn listed(turns: impl Iterator<Item = String>) -> String {
    turns.collect::<Vec<_>>().join(", ")
}

#[expect(clippy::cast_precision_loss, reason = "they are far below 2^52")]
fn per_nmi(storm: &Storm) -> f64 {
    storm.rounds as f64 / storm.nmis.max(1) as f64
}

/// Turn by turn, each with the same turn without a stack.
fn against(turns: &[Storm], base: &[Storm]) -> String {
    let both = turns.iter().zip(base);
    let ratios = both.map(|(it, base)| per_nmi(it) / per_nmi(base));
    let mut ratios: Vec<f64> = ratios.filter(|it| it.is_finite()).collect();
    ratios.sort_by(f64::total_cmp);
    let middle = ratios.get(ratios.len() / 2);
    let three = [middle, ratios.first(), ratios.last()];
    listed(
        three
            .iter()
            .map(|it| it.map_or_else(|| "-".to_owned(), |it| format!("{it:.2}"))),
    )
}

fn with_reasons(mut table: String, reasons: impl Iterator<Item = String>) -> String {
    for reason in reasons {
        let _ = writeln!(table, "{reason}");
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison() -> Comparison {
        let kernel = Answers {
            asked: 10,
            exact: 10,
            ..Answers::default()
        };
        let signals = Answers {
            asked: 10,
            wrong: 9,
            late: 9,
            perhaps_late: 1,
            lost: 1,
            ..Answers::default()
        };
        let cost = |nmi, user| {
            Ok(SampleCost {
                instructions: Instructions {
                    nmi,
                    kernel: 50,
                    user,
                },
                bytes: Bytes {
                    perf: 120,
                    request: 0,
                    result: 8,
                },
                right: 3,
                of: 10,
            })
        };
        let storm = |rounds| Storm {
            nmis: 4,
            rounds,
            stacks: 3,
        };
        let lack = NoCost::Lack("why".to_owned());
        fn row<T>(way: &'static str, found: Result<T, NoCost>) -> Row<T> {
            Row {
                frames: 10,
                way,
                found,
            }
        }
        let outcome = |found| OutcomeRow {
            scenario: "a",
            situation: "b",
            found,
        };
        Comparison {
            outcomes: vec![
                outcome(Ok(Designs {
                    samples: 10,
                    kernel,
                    signals,
                })),
                outcome(Err(lack.clone())),
            ],
            instructions: vec![
                row("none", cost(100, 0)),
                row("signal", cost(90, 300)),
                row("other", Err(lack.clone())),
            ],
            storms: vec![
                row("none", Ok(vec![storm(400), storm(200)])),
                row("signal", Ok(vec![storm(100), storm(0)])),
                row("other", Err(lack)),
            ],
            release: String::new(),
            kvm_host: String::new(),
        }
    }

    #[test]
    fn both_designs_are_shown_side_by_side() {
        insta::assert_snapshot!(tables(&comparison()));
    }

    #[test]
    fn what_failed_is_not_good_and_what_lacks_is() {
        let mut found = comparison();
        assert_eq!(class(&found), OutcomeClass::Good);
        found.storms[2].found = Err(NoCost::Failed("why".to_owned()));
        assert_eq!(class(&found), OutcomeClass::Untested);
    }
}
