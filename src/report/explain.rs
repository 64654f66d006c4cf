//! What an invariant, a finding or an outcome means: its page of the documentation, which is built in.

use std::collections::BTreeSet;

use include_dir::{Dir, include_dir};

/// The write-ups of findings.
static FINDINGS: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/docs/findings");
/// A section for each invariant, whose heading begins with its ID.
const INVARIANTS: &str = include_str!("../../docs/invariants.md");
/// A row of a table for each outcome.
const OUTCOMES: &str = include_str!("../../docs/outcomes.md");
/// The heading of an invariant's section.
const HEADING: &str = "### ";

/// Short words in the text of invariants; excuses have a table there.
const WORDS: [(&str, &str); 4] = [
    (
        "S",
        "a sample whose user stack is deferred: its chain ends in a cookie",
    ),
    ("D", "a deferred chain with a cookie: a record 22"),
    ("R", "a request in the log of the lab client"),
    ("CB", "a callback in the log of the lab client"),
];

/// All that can be explained, a line each.
#[must_use]
pub fn contents() -> String {
    let mut text = "invariants:\n".to_owned();
    let headings = INVARIANTS.lines().filter_map(|it| it.strip_prefix(HEADING));
    for (id, title) in headings.filter_map(|it| it.split_once(' ')) {
        text.push_str(&format!("  {id:<4}  {title}\n"));
    }
    text.push_str("findings:\n");
    for id in findings() {
        let title = page(&id).and_then(|it| it.lines().next()?.split_once(": "));
        text.push_str(&format!("  {id}  {}\n", title.map_or("", |it| it.1)));
    }
    text.push_str("outcomes:\n");
    for outcome in outcomes() {
        text.push_str(&format!("  {}\n", outcome.name));
    }
    text
}

/// The page of an invariant (`C7`), a finding (`F001`) or an outcome (`hang`).
///
/// # Errors
/// The names that are most like this one, where there is no such page.
pub fn explain(name: &str) -> Result<String, Vec<String>> {
    let page = finding(name)
        .or_else(|| invariant(name))
        .or_else(|| outcome(name));
    page.ok_or_else(|| alike(name))
}

fn finding(name: &str) -> Option<String> {
    page(&name.to_ascii_uppercase()).map(str::to_owned)
}

/// The page of a finding.
pub(super) fn page(id: &str) -> Option<&'static str> {
    let file = FINDINGS.get_file(format!("{id}.md"))?;
    id.starts_with('F').then(|| file.contents_utf8())?
}

fn invariant(name: &str) -> Option<String> {
    let id = |heading: &str| heading.split_whitespace().next().map(str::to_owned);
    let mut lines = INVARIANTS.lines().skip_while(|line| {
        let heading = line.strip_prefix(HEADING).and_then(id);
        heading.is_none_or(|id| !id.eq_ignore_ascii_case(name))
    });
    let heading = lines.next()?.strip_prefix(HEADING)?;
    let body = lines.take_while(|line| !line.starts_with('#'));
    let body: String = body.flat_map(|line| [line, "\n"]).collect();
    Some(format!("{heading}\n\n{}\n{}", body.trim(), legend(&body)))
}

/// What the short words in a text stand for, a line each.
fn legend(text: &str) -> String {
    let words: BTreeSet<&str> = text.split(|c: char| !c.is_alphanumeric()).collect();
    let all = WORDS.into_iter().chain(excuses());
    let used = all.filter(|(word, _)| words.contains(word));
    let lines: String = used
        .map(|(word, meaning)| format!("{word:<4}{meaning}\n"))
        .collect();
    match lines.as_str() {
        "" => lines,
        _ => format!("\n{lines}"),
    }
}

/// Each excuse and what it means, from the table of them.
fn excuses() -> impl Iterator<Item = (&'static str, &'static str)> {
    INVARIANTS.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        let id = cells.next().filter(|id| id.starts_with('X'))?;
        Some((id, cells.next()?))
    })
}

fn outcome(name: &str) -> Option<String> {
    let row = outcomes().find(|row| row.name.eq_ignore_ascii_case(name))?;
    let Outcome {
        name,
        code,
        meaning,
    } = row;
    Some(format!("{name}, exit code {code}\n\n{meaning}\n"))
}

/// A row of the table of outcomes.
struct Outcome {
    name: &'static str,
    code: &'static str,
    meaning: &'static str,
}

fn outcomes() -> impl Iterator<Item = Outcome> {
    let rows = OUTCOMES.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.splitn(3, " | ");
        Some(Outcome {
            name: cells.next()?.strip_suffix('`')?,
            code: cells.next()?,
            meaning: cells.next()?.strip_suffix(" |")?,
        })
    });
    // The table of commands has other rows.
    rows.filter(|it| it.code.parse::<u8>().is_ok())
}

/// The IDs of all findings, in order.
fn findings() -> BTreeSet<String> {
    let files = FINDINGS.files();
    let stems = files.filter_map(|file| file.path().file_stem()?.to_str().map(str::to_owned));
    stems.filter(|stem| stem.starts_with('F')).collect()
}

/// All names that have a page.
fn names() -> impl Iterator<Item = String> {
    let headings = INVARIANTS.lines().filter_map(|it| it.strip_prefix(HEADING));
    let invariants = headings.filter_map(|it| it.split_whitespace().next());
    findings()
        .into_iter()
        .chain(invariants.map(str::to_owned))
        .chain(outcomes().map(|it| it.name.to_owned()))
}

/// Up to three names that are not far from this one.
fn alike(name: &str) -> Vec<String> {
    let name = name.to_lowercase();
    let distance = |it: &String| strsim::damerau_levenshtein(&it.to_lowercase(), &name);
    let mut near: Vec<(usize, String)> = names()
        .map(|it| (distance(&it), it))
        .filter(|(far, it)| far * 2 <= it.len().max(2))
        .collect();
    near.sort();
    near.into_iter().take(3).map(|(_, it)| it).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::Outcome as Judged;
    use unwindlab_oracle::invariant::INVARIANTS as ALL;
    use unwindlab_oracle::invariant::finding::Findings;

    #[test]
    fn every_invariant_finding_and_outcome_has_a_page() {
        for invariant in ALL {
            let page = explain(invariant.id).unwrap();
            let title = page.lines().next().unwrap();
            assert!(
                title.starts_with(invariant.id) && page.lines().count() > 2,
                "{page}"
            );
        }
        for finding in Findings::embedded().unwrap().iter() {
            let page = explain(finding.id.as_str()).unwrap();
            assert!(page.starts_with(&format!("# {}: ", finding.id)), "{page}");
        }
        for outcome in Judged::ALL {
            let page = explain(outcome.name()).unwrap();
            assert!(
                page.starts_with(&format!("{}, exit code ", outcome.name())),
                "{page}"
            );
        }
    }

    #[test]
    fn the_contents_have_all_names() {
        let contents = contents();
        for name in names() {
            let has = |line: &str| line.split_whitespace().next() == Some(name.as_str());
            assert!(contents.lines().any(has), "{name}\n{contents}");
        }
        assert!(contents.contains("  C1    stability\n"), "{contents}");
        let finding = "  F001  a request in the middle of the reset is answered with cookie 0\n";
        assert!(contents.contains(finding), "{contents}");
        assert!(!contents.contains("mutants"), "{contents}");
        assert!(explain("mutants").is_err());
    }

    #[test]
    fn short_words_are_told_where_they_are_used() {
        let page = explain("C7").unwrap();
        for line in [
            "\nS   a sample whose",
            "\nD   a deferred chain",
            "\nCB  a callback",
            "\nXA  data was lost in a buffer\n",
        ] {
            assert!(page.contains(line), "{page}");
        }
        assert!(!page.contains("\nXC"), "{page}");
        assert!(!explain("C4").unwrap().contains("\nCB"));
    }

    #[test]
    fn an_unknown_name_is_answered_with_those_like_it() {
        assert_eq!(explain("c7"), explain("C7"));
        assert_eq!(explain("F0001").unwrap_err()[0], "F001");
        assert_eq!(explain("guest-panik").unwrap_err()[0], "guest-panic");
        assert!(explain("README").is_err());
        assert_eq!(explain("").unwrap_err(), Vec::<String>::new());
        assert_eq!(
            explain("nothing at all like one").unwrap_err(),
            Vec::<String>::new()
        );
    }
}
