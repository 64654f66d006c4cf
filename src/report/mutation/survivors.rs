//! The mutants that no test kills, with what they change.

use std::fmt::Write as _;

use unwindlab_engine::text::printable;

use super::{ChangedLines, MutationRow, MutationScore, Standing};

impl MutationScore {
    /// Those that survived or are not covered, and are not argued: each with its change, and how
    /// far it got. Empty if there are none.
    #[must_use]
    pub fn survivors(&self) -> String {
        let is_open = |row: &&MutationRow| {
            matches!(row.standing(), Standing::Survived | Standing::NotCovered)
        };
        let blocks = self.rows.iter().filter(is_open).map(block);
        blocks.collect::<Vec<_>>().join("\n")
    }
}

fn block(row: &MutationRow) -> String {
    let mutant = &row.mutant;
    let mut text = format!(
        "{} in {} of {}: {}\n",
        printable(&mutant.name),
        printable(&mutant.function),
        printable(&mutant.file),
        row.told()
    );
    let changed = ChangedLines::of(&mutant.diff);
    for line in &changed.old {
        let _ = writeln!(text, "    -{line}");
    }
    for line in &changed.new {
        let _ = writeln!(text, "    +{line}");
    }
    for remark in row.remarks() {
        let _ = writeln!(text, "  {remark}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::testkit::{killed, row, rows};
    use super::*;

    #[test]
    fn survivors_are_shown_with_their_change() {
        let score = MutationScore {
            control: None,
            rows: rows(),
        };
        insta::assert_snapshot!(score.survivors());
    }

    #[test]
    fn without_survivors_nothing_is_shown() {
        let score = MutationScore {
            control: None,
            rows: vec![row(1, killed(&["M1"]))],
        };
        assert_eq!(score.survivors(), "");
    }
}
