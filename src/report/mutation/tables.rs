//! The mutants by file, by function and by operator.

use std::collections::BTreeMap;

use unwindlab_engine::text::printable;
use unwindlab_guest_kernel::build::generate::Operator;

use super::{MutationCounts, MutationRow, MutationScore, Standing};
use crate::report::comparison::markdown;

/// The mutants in groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MutationTable {
    /// What makes a group.
    pub by: &'static str,
    /// The groups, and last all together.
    pub rows: Vec<(String, MutationCounts)>,
}

impl MutationScore {
    /// The three tables, for a terminal; empty if there are no mutants.
    #[must_use]
    pub fn tables(&self) -> String {
        let texts = self.by().map(|table| table.text());
        match self.rows.is_empty() {
            true => String::new(),
            false => texts.join("\n"),
        }
    }

    /// By file, by function and by operator.
    pub(in crate::report) fn by(&self) -> [MutationTable; 3] {
        let rows = &self.rows;
        [
            table("file", by_file(rows), rows),
            table("function", by_function(rows), rows),
            table("operator", by_operator(rows), rows),
        ]
    }
}

impl MutationTable {
    /// The headings of the columns.
    pub fn head(&self) -> Vec<&'static str> {
        let columns = Standing::ALL.iter().map(|it| it.name());
        [self.by, "all"].into_iter().chain(columns).collect()
    }

    fn text(&self) -> String {
        let head = self.head().into_iter().map(str::to_owned).collect();
        let rows = self.rows.iter().map(|(name, counts)| {
            let mut cells = vec![name.clone(), counts.generated.to_string()];
            cells.extend(Standing::ALL.map(|it| counts.number(it).to_string()));
            cells
        });
        let all: Vec<Vec<String>> = [head].into_iter().chain(rows).collect();
        markdown(&all)
    }
}

fn table(
    by: &'static str,
    mut groups: Vec<(String, MutationCounts)>,
    rows: &[MutationRow],
) -> MutationTable {
    groups.push(("all".to_owned(), MutationCounts::of(rows)));
    MutationTable { by, rows: groups }
}

fn by_file(rows: &[MutationRow]) -> Vec<(String, MutationCounts)> {
    let mut files: BTreeMap<&str, MutationCounts> = BTreeMap::new();
    for row in rows {
        files.entry(&row.mutant.file).or_default().add(row);
    }
    let shown = files.into_iter();
    shown.map(|(file, it)| (printable(file), it)).collect()
}

/// In the order of the files and lines.
fn by_function(rows: &[MutationRow]) -> Vec<(String, MutationCounts)> {
    let mut functions: BTreeMap<(&str, &str), (usize, MutationCounts)> = BTreeMap::new();
    for row in rows {
        let mutant = &row.mutant;
        let (first, counts) = functions
            .entry((&mutant.file, &mutant.function))
            .or_insert_with(|| (mutant.line, MutationCounts::default()));
        *first = mutant.line.min(*first);
        counts.add(row);
    }
    let mut functions: Vec<_> = functions.into_iter().collect();
    functions.sort_by_key(|((file, _), (first, _))| (*file, *first));
    let shown = functions
        .into_iter()
        .map(|((file, function), (_, counts))| {
            let base = file.rsplit('/').next().unwrap_or(file);
            (printable(&format!("{base}: {function}")), counts)
        });
    shown.collect()
}

/// Those operators that made any.
fn by_operator(rows: &[MutationRow]) -> Vec<(String, MutationCounts)> {
    let of = |operator: Operator| {
        let made = rows.iter().filter(|row| row.mutant.operator == operator);
        (operator.name().to_owned(), MutationCounts::of(made))
    };
    let groups = Operator::ALL.into_iter().map(of);
    groups.filter(|(_, it)| it.generated > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testkit::rows;
    use super::*;

    #[test]
    fn mutants_are_counted_in_groups() {
        let score = MutationScore {
            control: None,
            rows: rows(),
        };
        insta::assert_snapshot!(score.tables());
    }

    #[test]
    fn functions_stand_in_the_order_of_their_lines() {
        let score = MutationScore {
            control: None,
            rows: rows().into_iter().rev().collect(),
        };
        let [_, functions, _] = score.by();
        let names: Vec<&str> = functions
            .rows
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(
            names,
            [
                "deferred.c: z_first",
                "deferred.c: a_second",
                "user.c: walk",
                "all"
            ]
        );
    }
}
