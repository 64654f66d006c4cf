//! The source as a sweep saw it: which lines the path executes, at which an NMI was tried, and where one failed.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::judge::sweep::Verdicts;
use crate::report::coverage::{FileCoverage, by_line};
use unwindlab_engine::text::printable;
use unwindlab_scenario::SourceLines;

/// A longer file is shown only near executed lines: perf's files have many thousand lines.
const WHOLE: usize = 1000;
/// So many lines before and after an executed one are near.
const NEAR: u32 = 20;

/// A source file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct SourceFile {
    name: String,
    /// Lines with code, executed, and tried.
    counts: [usize; 3],
    /// `None` for lines that are left out.
    rows: Vec<Option<SourceLine>>,
}

/// Number, times that the path executes it, instructions of it on the path, those at which an NMI was tried, and those
/// where one failed; text. The counts are missing for a line without code.
type SourceLine = (u32, Option<[usize; 4]>, String);

/// The files on the path; none for a kernel without lines.
pub(super) fn files(
    verdicts: &Verdicts<'_>,
    failing: &BTreeSet<u64>,
    lines: Option<&dyn SourceLines>,
) -> Vec<SourceFile> {
    let Some(lines) = lines else {
        return Vec::new();
    };
    let covered = by_line(verdicts.path(), &verdicts.covered(), lines);
    let files = covered.iter().map(|file| shown(file, failing, lines));
    files.collect()
}

fn shown(file: &FileCoverage, failing: &BTreeSet<u64>, lines: &dyn SourceLines) -> SourceFile {
    let row = |number: u32, text: &str| {
        let counts = file.lines.get(&number).map(|line| {
            let failed = line.executed.intersection(failing).count();
            [line.times, line.executed.len(), line.tried.len(), failed]
        });
        // Tabs are 8 wide, as in the kernel's source.
        Some((number, counts, printable(&text.replace('\t', "        "))))
    };
    let rows = match lines.text(&file.file) {
        Some(text) => {
            let whole = text.lines().count() <= WHOLE;
            let mut rows = Vec::new();
            for (number, line) in (1_u32..).zip(text.lines()) {
                if whole || is_near(file, number) {
                    rows.push(row(number, line));
                } else if rows.last().is_none_or(Option::is_some) {
                    rows.push(None);
                }
            }
            rows
        }
        None => { file.lines.keys() }
            .map(|&number| row(number, "(source not available)"))
            .collect(),
    };
    SourceFile {
        name: printable(&file.file),
        counts: file.counts(),
        rows,
    }
}

/// Whether a line near this one was executed.
fn is_near(file: &FileCoverage, number: u32) -> bool {
    let near = number.saturating_sub(NEAR)..=number.saturating_add(NEAR);
    let mut lines = file.lines.range(near);
    lines.any(|(_, line)| !line.executed.is_empty())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use unwindlab_guest_kernel::lines::LineError;

    use super::*;
    use crate::report::coverage::LineCoverage;

    struct Source<'a>(Option<&'a str>);

    impl SourceLines for Source<'_> {
        fn place(&self, file: &str, _: u32) -> Result<Vec<u64>, LineError> {
            Err(LineError::NoFile(file.to_owned()))
        }

        fn at(&self, _: u64) -> Vec<(&str, u32)> {
            Vec::new()
        }

        fn with_code(&self, _: &str) -> BTreeSet<u32> {
            BTreeSet::new()
        }

        fn text(&self, _: &str) -> Option<String> {
            self.0.map(str::to_owned)
        }
    }

    fn file(text: Option<&str>) -> SourceFile {
        let line = |executed: &[u64], tried: &[u64]| LineCoverage {
            executed: executed.iter().copied().collect(),
            tried: tried.iter().copied().collect(),
            times: executed.len() * 2,
        };
        let file = FileCoverage {
            file: "kernel/unwind/a.c".to_owned(),
            lines: BTreeMap::from([
                (1, line(&[1, 2], &[2])),
                (2, line(&[3], &[])),
                (4, line(&[], &[])),
            ]),
        };
        shown(&file, &BTreeSet::from([2, 9]), &Source(text))
    }

    #[test]
    fn lines_have_their_counts() {
        let file = file(Some("if (a < b)\n\tgo();\n}\n\u{202e}x\n"));
        assert_eq!(file.counts, [3, 2, 1]);
        let rows: Vec<SourceLine> = file.rows.into_iter().flatten().collect();
        let row = |number, counts, text: &str| (number, counts, text.to_owned());
        assert_eq!(
            rows,
            [
                row(1, Some([4, 2, 1, 1]), "if (a < b)"),
                row(2, Some([2, 1, 0, 0]), "        go();"),
                row(3, None, "}"),
                row(4, Some([0, 0, 0, 0]), "\\u{202e}x"),
            ]
        );
    }

    #[test]
    fn of_a_long_file_what_is_far_from_the_path_is_left_out() {
        let rows = file(Some(&"x\n".repeat(WHOLE + 1))).rows;
        // Lines 1 and 2 were executed.
        assert_eq!(rows.len(), 23);
        assert!(rows[21].as_ref().is_some_and(|row| row.0 == 22) && rows[22].is_none());
    }

    #[test]
    fn without_the_source_there_are_the_numbers() {
        let rows = file(None).rows;
        let none = |row: &Option<SourceLine>| {
            row.as_ref()
                .is_some_and(|it| it.2 == "(source not available)")
        };
        assert_eq!(rows.len(), 3);
        assert!(rows.iter().all(none));
    }
}
