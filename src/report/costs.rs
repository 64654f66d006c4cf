//! The table of `costs`.

use std::fmt::Write as _;

use super::comparison::markdown;
use crate::judge::outcome::OutcomeClass;

/// Instructions from an NMI's handler to user mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instructions {
    /// Up to the interrupted instruction.
    pub nmi: usize,
    /// From there to user mode.
    pub later: usize,
}

/// What one sample cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// What the kernel executed.
    pub instructions: Instructions,
    /// Of the sample and of its record 22.
    pub bytes: u64,
    /// Frames that are those of the program, from the innermost on.
    pub right: usize,
    /// Frames of the program.
    pub of: u64,
    /// Frames behind these, which the program does not have there.
    pub wrong: usize,
}

/// One way to get one stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CostRow {
    /// Depth that was asked for.
    pub frames: u32,
    /// The way.
    pub way: &'static str,
    /// The figures, or why there are none.
    pub cost: Result<Cost, NoCost>,
}

/// Why there are no figures, in words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoCost {
    /// The kernel has not what it takes.
    #[error("{0}")]
    Lack(String),
    /// They were not obtained.
    #[error("{0}")]
    Failed(String),
}

/// Good where every way was measured that the kernel has.
#[must_use]
pub fn class(rows: &[CostRow]) -> OutcomeClass {
    let failed = |row: &CostRow| matches!(row.cost, Err(NoCost::Failed(_)));
    let any = rows.iter().any(|row| row.cost.is_ok());
    match any && !rows.iter().any(failed) {
        true => OutcomeClass::Good,
        false => OutcomeClass::Untested,
    }
}

/// The table in Markdown. Instructions are those more than without a stack, which is the first row of each
/// depth.
#[must_use]
pub fn table(rows: &[CostRow]) -> String {
    let head = [
        "frames",
        "stack by",
        "instructions in the NMI",
        "on the way to user mode",
        "bytes in the ring",
        "frames right",
        "wrong",
    ];
    let mut cells = vec![head.map(str::to_owned).to_vec()];
    let mut without: Option<&CostRow> = None;
    for row in rows {
        if without.is_none_or(|it| it.frames != row.frames) {
            without = Some(row);
        }
        let base = without.filter(|it| *it != row);
        cells.push(line(row, base.and_then(|it| it.cost.as_ref().ok())));
    }
    let mut text = markdown(&cells);
    for row in rows {
        if let Err(reason) = &row.cost {
            let _ = writeln!(text, "{} frames, {}: {reason}", row.frames, row.way);
        }
    }
    text
}

fn line(row: &CostRow, without: Option<&Cost>) -> Vec<String> {
    let mut cells = vec![row.frames.to_string(), row.way.to_owned()];
    match &row.cost {
        Ok(cost) => {
            let more = |of: fn(&Cost) -> usize| match without {
                Some(base) => format!("{:+}", of(cost) as i128 - of(base) as i128),
                None => of(cost).to_string(),
            };
            cells.extend([
                more(|it| it.instructions.nmi),
                more(|it| it.instructions.later),
                cost.bytes.to_string(),
                format!("{} of {}", cost.right, cost.of),
                cost.wrong.to_string(),
            ]);
        }
        Err(_) => cells.push("not measured".to_owned()),
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_stack_costs_is_what_it_costs_more() {
        let row = |way, nmi, later| CostRow {
            frames: 10,
            way,
            cost: Ok(Cost {
                instructions: Instructions { nmi, later },
                bytes: 40,
                right: 9,
                of: 10,
                wrong: 0,
            }),
        };
        let none = CostRow {
            frames: 10,
            way: "c",
            cost: Err(NoCost::Lack("why".to_owned())),
        };
        let failed = CostRow {
            cost: Err(NoCost::Failed("why".to_owned())),
            ..none.clone()
        };
        assert_eq!(class(&[row("a", 1, 1), none.clone()]), OutcomeClass::Good);
        assert_eq!(class(&[row("a", 1, 1), failed]), OutcomeClass::Untested);
        assert_eq!(class(std::slice::from_ref(&none)), OutcomeClass::Untested);
        let text = table(&[row("a", 100, 50), row("b", 90, 150), none]);
        insta::assert_snapshot!(text);
    }
}
