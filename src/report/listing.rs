//! A sweep's coverage of each line of the source, as one HTML file that needs no other.

use std::fmt::Write as _;

use crate::report::coverage::{FileCoverage, LineCoverage};
use crate::scenario::SourceLines;
use unwindlab_engine::text::printable;

/// The text above the files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heading {
    /// The scenario's name.
    pub scenario: String,
    /// `uname -r` of the kernel.
    pub release: String,
    /// How many boundaries of the path were tried, and how many it has.
    pub points: (usize, usize),
}

/// A longer file is shown only near executed lines: perf's files have many thousand lines.
const WHOLE: usize = 1000;
/// So many lines before and after an executed one are near.
const NEAR: u32 = 20;

const STYLE: &str = "\
body { font: 14px sans-serif; margin: 1em 2em; background: #fff; color: #111 }
table { border-collapse: collapse; font: 13px monospace }
td { padding: 0 .6em; white-space: pre; vertical-align: top }
td.n { text-align: right; color: #555 }
tr.tried td { background: #cfeecf }
tr.executed td { background: #ffe2a8 }
tr.code td { background: #f8d0d0 }
summary { cursor: pointer; margin: .6em 0; font-weight: bold }
.key span { padding: .1em .5em }
.tried { background: #cfeecf } .executed { background: #ffe2a8 } .code { background: #f8d0d0 }
";

/// The whole file.
#[must_use]
pub fn html(heading: &Heading, files: &[FileCoverage], lines: &dyn SourceLines) -> String {
    let (scenario, release) = (escaped(&heading.scenario), escaped(&heading.release));
    let (tried, all) = heading.points;
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <title>{scenario}: sweep by line</title>\n<style>\n{STYLE}</style></head><body>\n\
         <h1>{scenario} on {release}</h1>\n<p>An NMI was tried at {tried} of the {all} instruction \
         boundaries of the path.</p>\n\
         <p class=\"key\"><span class=\"tried\">executed on the path, and an NMI tried there</span> \
         <span class=\"executed\">executed, not tried</span> \
         <span class=\"code\">has code, not executed</span></p>\n\
         <p>Columns: how often the path executes the line; instructions at which an NMI was tried, of \
         those executed; line number.</p>\n"
    );
    for file in files {
        let _ = write!(out, "{}", one_file(file, lines));
    }
    out.push_str("</body></html>\n");
    out
}

fn one_file(file: &FileCoverage, lines: &dyn SourceLines) -> String {
    let [code, executed, tried] = file.counts();
    let mut out = format!(
        "<details open><summary>{}: {code} lines with code, {executed} executed, {tried} \
         tried</summary>\n<table>\n",
        escaped(&file.file)
    );
    let text = lines.text(&file.file);
    match &text {
        Some(text) => {
            let whole = text.lines().count() <= WHOLE;
            let mut gap = false;
            for (number, line) in (1_u32..).zip(text.lines()) {
                if whole || is_near(file, number) {
                    let _ = write!(out, "{}", row(number, file.lines.get(&number), line));
                    gap = false;
                } else if !gap {
                    out.push_str(GAP);
                    gap = true;
                }
            }
        }
        None => {
            for (number, covered) in &file.lines {
                let _ = write!(
                    out,
                    "{}",
                    row(*number, Some(covered), "(source not available)")
                );
            }
        }
    }
    out.push_str("</table></details>\n");
    out
}

const GAP: &str = "<tr class=\"none\"><td></td><td></td><td></td><td>...</td></tr>\n";

/// Whether a line near this one was executed.
fn is_near(file: &FileCoverage, number: u32) -> bool {
    let near = number.saturating_sub(NEAR)..=number.saturating_add(NEAR);
    let mut lines = file.lines.range(near);
    lines.any(|(_, line)| !line.executed.is_empty())
}

fn row(number: u32, covered: Option<&LineCoverage>, text: &str) -> String {
    let (class, times, share) = match covered {
        None => ("none", String::new(), String::new()),
        Some(line) => {
            let class = match (line.executed.is_empty(), line.tried.is_empty()) {
                (true, _) => "code",
                (false, true) => "executed",
                (false, false) => "tried",
            };
            let share = format!("{}/{}", line.tried.len(), line.executed.len());
            (class, line.times.to_string(), share)
        }
    };
    // Tabs are 8 wide, as in the kernel's source.
    let text = escaped(&text.replace('\t', "        "));
    format!(
        "<tr class=\"{class}\"><td class=\"n\">{times}</td><td class=\"n\">{share}</td>\
         <td class=\"n\">{number}</td><td>{text}</td></tr>\n"
    )
}

/// Text as HTML shows it, on one line.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use unwindlab_guest_kernel::lines::LineError;

    use super::*;

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

    fn page(text: Option<&str>) -> String {
        let line = |executed: &[u64], tried: &[u64]| LineCoverage {
            executed: executed.iter().copied().collect(),
            tried: tried.iter().copied().collect(),
            times: executed.len() * 2,
        };
        let lines = BTreeMap::from([
            (1, line(&[1, 2], &[2])),
            (2, line(&[3], &[])),
            (4, line(&[], &[])),
        ]);
        let heading = Heading {
            scenario: "x".to_owned(),
            release: "7.3<script>".to_owned(),
            points: (1, 3),
        };
        let file = FileCoverage {
            file: "kernel/unwind/a&b.c".to_owned(),
            lines,
        };
        html(&heading, &[file], &Source(text))
    }

    fn rows(page: &str) -> Vec<&str> {
        page.lines()
            .filter(|line| line.starts_with("<tr"))
            .collect()
    }

    #[test]
    fn lines_are_marked() {
        let page = page(Some("if (a < b)\n\tgo();\n}\n\"x\"\n"));
        let row = |class: &str, times: &str, share: &str, number: u32, text: &str| {
            format!(
                "<tr class=\"{class}\"><td class=\"n\">{times}</td><td class=\"n\">{share}</td>\
                 <td class=\"n\">{number}</td><td>{text}</td></tr>"
            )
        };
        assert_eq!(
            rows(&page),
            [
                row("tried", "4", "1/2", 1, "if (a &lt; b)"),
                row("executed", "2", "0/1", 2, "        go();"),
                row("none", "", "", 3, "}"),
                row("code", "0", "0/0", 4, "&quot;x&quot;"),
            ]
        );
        assert!(page.contains("kernel/unwind/a&amp;b.c: 3 lines with code, 2 executed, 1 tried"));
        assert!(page.contains("7.3&lt;script&gt;") && !page.contains("<script"));
        // Nothing is fetched from anywhere.
        assert!(!page.contains("http") && !page.contains("src="));
    }

    #[test]
    fn of_a_long_file_what_is_far_from_the_path_is_left_out() {
        let page = page(Some(&"x\n".repeat(WHOLE + 1)));
        let rows = rows(&page);
        // Lines 1 and 2 were executed.
        assert_eq!(rows.len(), 23);
        assert!(
            rows[21].contains(">22<") && rows[22].contains("..."),
            "{rows:?}"
        );
    }

    #[test]
    fn without_the_source_there_are_the_numbers() {
        let page = page(None);
        assert_eq!(rows(&page).len(), 3);
        assert!(
            rows(&page)
                .iter()
                .all(|row| row.contains("(source not available)"))
        );
    }
}
