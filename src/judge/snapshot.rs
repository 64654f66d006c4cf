//! Snapshots at run time: the same files that `cargo test` compares with insta.
//!
//! Format of a file (insta's, since its 1.0): a line `---`, metadata in YAML that is of no use
//! here, a line `---`, and the contents. As in insta, empty lines at the start and white space
//! at the end of the contents do not count.

use serde::{Deserialize, Serialize};

/// Lines of a difference that are kept; more help nobody.
const MAX_DIFF_LINES: usize = 60;

/// What the comparison with a snapshot says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "is")]
pub enum Comparison {
    /// The same.
    Same,
    /// Another one.
    Different {
        /// Unified difference, from the snapshot to the trace.
        diff: String,
        /// The canonical form of the trace, whole.
        actual: String,
    },
    /// There is no snapshot to compare with.
    Missing {
        /// The canonical form of the trace.
        actual: String,
    },
    /// There is a file, but it is no snapshot.
    Unreadable {
        /// What is wrong with it.
        reason: String,
    },
    /// The user did not want it compared.
    Skipped,
}

/// Compares the text of a snapshot file with the canonical form of a trace.
#[must_use]
pub fn compare(file: Option<&str>, actual: &str) -> Comparison {
    let Some(file) = file else {
        return Comparison::Missing {
            actual: actual.to_owned(),
        };
    };
    let Some(expected) = contents(file) else {
        return Comparison::Unreadable {
            reason: "expected metadata between two lines `---`, then the contents".to_owned(),
        };
    };
    let (expected, actual) = (normalise(expected), normalise(actual));
    if expected == actual {
        Comparison::Same
    } else {
        Comparison::Different {
            diff: difference(&expected, &actual),
            actual,
        }
    }
}

/// What follows the metadata.
fn contents(file: &str) -> Option<&str> {
    let rest = file.strip_prefix("---")?;
    let rest = rest
        .strip_prefix("\r\n")
        .or_else(|| rest.strip_prefix('\n'))?;
    let mut at = 0;
    for line in rest.split_inclusive('\n') {
        at += line.len();
        if line.trim_end() == "---" {
            return rest.get(at..);
        }
    }
    None
}

fn normalise(text: &str) -> String {
    text.trim_start_matches(['\r', '\n'])
        .trim_end()
        .replace("\r\n", "\n")
}

fn difference(expected: &str, actual: &str) -> String {
    // A final newline on both, lest the difference speaks of its absence.
    let (expected, actual) = (format!("{expected}\n"), format!("{actual}\n"));
    let diff = similar::TextDiff::from_lines(&expected, &actual);
    let text = diff
        .unified_diff()
        .context_radius(2)
        .header("snapshot", "this run")
        .to_string();
    let lines: Vec<&str> = text.lines().collect();
    match lines.get(..MAX_DIFF_LINES) {
        None => lines.join("\n"),
        Some(first) => format!(
            "{}\n... and {} more lines",
            first.join("\n"),
            lines.len() - MAX_DIFF_LINES
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "---\nsource: tests/library.rs\nexpression: text\n---\nS c0\n---\nD c0\n";

    #[test]
    fn same() {
        assert_eq!(compare(Some(FILE), "S c0\n---\nD c0"), Comparison::Same);
        assert_eq!(
            compare(Some(FILE), "\nS c0\n---\nD c0\n\n"),
            Comparison::Same
        );
        let windows = FILE.replace('\n', "\r\n");
        assert_eq!(compare(Some(&windows), "S c0\n---\nD c0"), Comparison::Same);
    }

    #[test]
    fn different() {
        let Comparison::Different { diff, actual } = compare(Some(FILE), "S c0\n---\nD c1\n")
        else {
            panic!("they differ");
        };
        assert_eq!(
            diff,
            "--- snapshot\n+++ this run\n@@ -1,3 +1,3 @@\n S c0\n ---\n-D c0\n+D c1"
        );
        assert_eq!(actual, "S c0\n---\nD c1");
    }

    #[test]
    fn long_differences_are_cut() {
        let actual: String = (0..1000).map(|n| format!("{n}\n")).collect();
        let Comparison::Different { diff, .. } = compare(Some(FILE), &actual) else {
            panic!("they differ");
        };
        assert_eq!(diff.lines().count(), MAX_DIFF_LINES + 1);
        assert!(diff.ends_with(" more lines"), "{diff}");
    }

    #[test]
    fn missing_and_unreadable() {
        assert!(matches!(compare(None, "x"), Comparison::Missing { .. }));
        for file in ["", "x", "---", "---\nx: 1\n", "---\nx: 1\n--- \u{a0}y\n"] {
            assert!(
                matches!(compare(Some(file), "x"), Comparison::Unreadable { .. }),
                "{file:?}"
            );
        }
    }

    #[test]
    fn files_that_insta_wrote() {
        let file = "---\nsource: src/a.rs\nexpression: x\nsnapshot_kind: text\n---\nx\n";
        assert_eq!(compare(Some(file), "x"), Comparison::Same);
    }
}
