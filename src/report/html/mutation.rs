//! The report of `mutants --generate`: the score, and the source with its mutants beside the lines.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;

use super::page::page;
use crate::report::mutation::{
    ChangedLines, MutationRow, MutationScore, MutationTable, SourceFile, Standing,
};
use unwindlab_engine::text::printable;

/// Lines that are shown before and after one with a mutant.
const NEAR: usize = 6;

#[derive(Serialize)]
struct Page<'a> {
    seconds: f64,
    summary: Vec<String>,
    tables: Vec<Table>,
    mutants: Vec<Mutant<'a>>,
    files: Vec<File>,
}

#[derive(Serialize)]
struct Table {
    head: Vec<&'static str>,
    /// The name of each group and its numbers.
    rows: Vec<(String, Vec<usize>)>,
}

#[derive(Serialize)]
struct Mutant<'a> {
    name: String,
    kind: &'static str,
    function: String,
    operator: &'a str,
    old: Vec<String>,
    new: Vec<String>,
    /// What became of it.
    told: String,
    remarks: Vec<String>,
}

#[derive(Serialize)]
struct File {
    name: String,
    /// `None` for lines that are left out.
    rows: Vec<Option<Line>>,
}

/// Number, text, and the indexes of its mutants.
type Line = (usize, String, Vec<usize>);

/// The file. A source file that is missing is shown as the numbers of its lines with mutants.
///
/// # Errors
/// [`serde_json::Error`] if a value cannot be serialized, which no type here causes.
pub fn html(
    score: &MutationScore,
    sources: &[SourceFile],
    elapsed: Duration,
) -> Result<String, serde_json::Error> {
    let data = Page {
        seconds: elapsed.as_secs_f64(),
        summary: score.summary_lines(),
        tables: score.by().iter().map(table).collect(),
        mutants: score.rows.iter().map(mutant).collect(),
        files: files(&score.rows, sources),
    };
    page(
        "unwindlab mutants --generate",
        &[include_str!("assets/mutation.js")],
        &data,
    )
}

fn table(table: &MutationTable) -> Table {
    let rows = table.rows.iter().map(|(name, counts)| {
        let columns = Standing::ALL.iter().map(|it| counts.number(*it));
        let numbers = [counts.generated].into_iter().chain(columns);
        (name.clone(), numbers.collect())
    });
    Table {
        head: table.head(),
        rows: rows.collect(),
    }
}

fn mutant(row: &MutationRow) -> Mutant<'_> {
    let ChangedLines { old, new } = ChangedLines::of(&row.mutant.diff);
    Mutant {
        name: printable(&row.mutant.name),
        kind: kind(row),
        function: printable(&row.mutant.function),
        operator: row.mutant.operator.name(),
        old,
        new,
        told: row.told(),
        remarks: row.remarks(),
    }
}

/// What the script knows it by.
const fn kind(row: &MutationRow) -> &'static str {
    match row.standing() {
        Standing::Killed if row.is_refuted() => "refuted",
        Standing::Killed => "killed",
        Standing::Survived => "survived",
        Standing::NotCovered => "not-covered",
        Standing::Argued => "argued",
        Standing::NoCode => "no-code",
        Standing::Same => "same",
        Standing::Twin => "twin",
        Standing::Untested => "untested",
    }
}

/// Indexes of the mutants of each line.
type ByLine = BTreeMap<usize, Vec<usize>>;

/// The files with mutants.
fn files(rows: &[MutationRow], sources: &[SourceFile]) -> Vec<File> {
    let mut files: BTreeMap<&str, ByLine> = BTreeMap::new();
    for (index, row) in rows.iter().enumerate() {
        let lines = files.entry(&row.mutant.file).or_default();
        lines.entry(row.mutant.line).or_default().push(index);
    }
    let shown = files.into_iter().map(|(name, lines)| {
        let source = sources.iter().find(|it| it.file == name);
        File {
            name: printable(name),
            rows: shown(source.map_or("", |it| &it.text), lines),
        }
    });
    shown.collect()
}

/// The lines near a mutant. A mutant of a line that the text lacks is shown all the same.
fn shown(text: &str, mut mutants: ByLine) -> Vec<Option<Line>> {
    let of: BTreeSet<usize> = mutants.keys().copied().collect();
    let mut rows = Vec::new();
    for (number, line) in (1_usize..).zip(text.lines()) {
        let near = number.saturating_sub(NEAR)..=number.saturating_add(NEAR);
        if of.range(near).next().is_some() {
            // Tabs are 8 wide, as in the kernel's source.
            let line = printable(&line.replace('\t', "        "));
            let here = mutants.remove(&number).unwrap_or_default();
            rows.push(Some((number, line, here)));
        } else if rows.last().is_none_or(Option::is_some) {
            rows.push(None);
        }
    }
    let without = "(source not available)";
    rows.extend(
        mutants
            .into_iter()
            .map(|(number, here)| Some((number, without.to_owned(), here))),
    );
    rows
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::tests::data;
    use super::*;
    use crate::report::mutation::testkit::{argued, killed, row, rows};
    use crate::report::mutation::{Control, MutationFate};

    fn drawn(rows: Vec<MutationRow>, text: &str) -> (String, Value) {
        let score = MutationScore {
            control: Some(Control::Clean),
            rows,
        };
        let source = SourceFile {
            file: "kernel/unwind/deferred.c".to_owned(),
            text: text.to_owned(),
        };
        let page = html(&score, &[source], Duration::from_secs(9)).unwrap();
        let data = data(&page);
        (page, data)
    }

    /// The numbers of the lines of a file with how many mutants each has; `..` for what is left out.
    fn numbers(file: &Value) -> Vec<String> {
        let rows = file["rows"].as_array().unwrap().iter();
        let number = |row: &Value| match row.as_array() {
            Some(row) => format!("{}:{}", row[0], row[2].as_array().unwrap().len()),
            None => "..".to_owned(),
        };
        rows.map(number).collect()
    }

    #[test]
    fn mutants_stand_beside_their_lines() {
        let (_, data) = drawn(rows(), &"\tx;\n".repeat(60));
        let files = data["files"].as_array().unwrap();
        assert_eq!(files[0]["name"], "kernel/unwind/deferred.c");
        let lines = numbers(&files[0]);
        // Line 10 has two; 4 and 31 are six lines from the first and the last.
        assert_eq!(lines[..3], ["..", "4:0", "5:0"]);
        assert_eq!(lines[7..10], ["10:2", "11:1", "12:1"]);
        assert_eq!(lines[lines.len() - 2..], ["31:0", ".."]);
        assert!(
            !lines.contains(&"..".to_owned()) || lines.iter().filter(|it| *it == "..").count() == 2
        );
        assert_eq!(files[0]["rows"][7][1], "        x;");
        let mutant = &data["mutants"][0];
        assert_eq!(mutant["kind"], "killed");
        assert_eq!(
            (&mutant["old"][0], &mutant["new"][0]),
            (&"return 10;".into(), &"return 0;".into())
        );
        let kinds = data["mutants"].as_array().unwrap().iter();
        let kinds: BTreeSet<&str> = kinds.map(|it| it["kind"].as_str().unwrap()).collect();
        assert_eq!(kinds.len(), 8, "{kinds:?}");
        // Nobody gave the text of the other.
        assert_eq!(numbers(&files[1]), ["40:1", "41:1"]);
        assert_eq!(files[1]["rows"][0][1], "(source not available)");
    }

    #[test]
    fn the_tables_are_those_of_the_text() {
        let (_, data) = drawn(rows(), "");
        let [file, function, operator] = [0, 1, 2].map(|at| &data["tables"][at]);
        assert_eq!(file["head"][0], "file");
        assert_eq!(function["rows"].as_array().unwrap().len(), 4);
        let all = operator["rows"].as_array().unwrap().last().unwrap();
        assert_eq!(
            *all,
            serde_json::json!(["all", [12, 1, 1, 1, 3, 2, 2, 1, 1]])
        );
    }

    #[test]
    fn no_mutant_is_lost() {
        let (_, data) = drawn(
            vec![row(3, killed(&["M1"])), row(usize::MAX, killed(&["M1"]))],
            "x\n",
        );
        let wanted = [
            "1:0".to_owned(),
            "3:1".to_owned(),
            format!("{}:1", usize::MAX),
        ];
        assert_eq!(numbers(&data["files"][0]), wanted);
        let (_, nothing) = drawn(Vec::new(), "x\n");
        assert_eq!(nothing["files"], serde_json::json!([]));
    }

    #[test]
    fn an_argument_that_is_wrong_has_a_kind_of_its_own() {
        let (_, data) = drawn(vec![argued(row(1, killed(&["M1"])), "why")], "x\n");
        assert_eq!(data["mutants"][0]["kind"], "refuted");
    }

    #[test]
    fn what_is_hostile_is_text() {
        let hostile = "</script><!--<b>\u{202e}\u{1b}[31m";
        let mut mutant = row(1, MutationFate::Untested(hostile.to_owned()));
        mutant.mutant.name = hostile.to_owned();
        mutant.mutant.function = hostile.to_owned();
        mutant.mutant.diff = format!("@@ @@\n-{hostile}\n+{hostile}\n");
        let mut other = mutant.clone();
        other.mutant.file = hostile.to_owned();
        let (page, data) = drawn(vec![mutant, other], hostile);
        assert_eq!(page.matches("</script>").count(), 2);
        assert!(!page.contains("<!--") && !page.contains("<b>"));
        for seen in ['\u{202e}', '\u{1b}'] {
            assert!(
                !page.contains(seen) && !data.to_string().contains(seen),
                "{seen:?}"
            );
        }
        let seen = data.to_string();
        assert!(!seen.replace("\\\\u001b", "").contains("\\u001b"), "{seen}");
        assert_eq!(
            data["files"][1]["rows"][0][1],
            "</script><!--<b>\\u{202e}\\u{1b}[31m"
        );
    }
}
