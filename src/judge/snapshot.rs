//! Compares a trace with its snapshot: the same files that `cargo test` compares with insta.
//!
//! A file has insta's format (since its 1.0): a line `---`, metadata in YAML, which is ignored
//! here, a line `---`, and the contents. As in insta, empty lines at the start and white space
//! at the end of the contents do not count.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Longest difference that is shown, in lines.
const MAX_DIFF_LINES: usize = 60;
/// How long a short difference is looked for; a guest decides how long its trace is.
const MAX_DIFF_TIME: Duration = Duration::from_secs(5);

/// The result of the comparison with a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "is")]
pub enum SnapshotComparison {
    /// The same.
    Same,
    /// They differ.
    Different {
        /// Unified difference, from the snapshot to the trace.
        diff: String,
        /// The whole canonical form of the trace.
        actual: String,
    },
    /// There is no snapshot.
    Missing {
        /// The canonical form of the trace.
        actual: String,
    },
    /// The file is not a snapshot.
    Unreadable {
        /// What is wrong with it.
        reason: String,
    },
    /// The user turned the comparison off.
    Skipped,
}

/// Compares the text of a snapshot file with the canonical form of a trace.
#[must_use]
pub fn compare(file: Option<&str>, actual: &str) -> SnapshotComparison {
    let Some(file) = file else {
        return SnapshotComparison::Missing {
            actual: actual.to_owned(),
        };
    };
    let Some(expected) = contents(file) else {
        return SnapshotComparison::Unreadable {
            reason: "expected metadata between two lines `---`, then the contents".to_owned(),
        };
    };
    let (expected, actual) = (normalise(expected), normalise(actual));
    if expected == actual {
        SnapshotComparison::Same
    } else {
        SnapshotComparison::Different {
            diff: difference(&expected, &actual, MAX_DIFF_TIME),
            actual,
        }
    }
}

/// The snapshot file that has this canonical form of a trace.
#[must_use]
pub fn file(actual: &str) -> String {
    format!("---\nsource: unwindlab run --accept-snapshots\n---\n{actual}\n")
}

/// The part behind the metadata.
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

fn difference(expected: &str, actual: &str, time: Duration) -> String {
    // With a final newline on both, the difference does not mention its absence.
    let (expected, actual) = (format!("{expected}\n"), format!("{actual}\n"));
    let mut diff = similar::TextDiff::configure();
    let diff = diff.timeout(time).diff_lines(&expected, &actual);
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
        assert_eq!(
            compare(Some(FILE), "S c0\n---\nD c0"),
            SnapshotComparison::Same
        );
        assert_eq!(
            compare(Some(FILE), "\nS c0\n---\nD c0\n\n"),
            SnapshotComparison::Same
        );
        let windows = FILE.replace('\n', "\r\n");
        assert_eq!(
            compare(Some(&windows), "S c0\n---\nD c0"),
            SnapshotComparison::Same
        );
    }

    #[test]
    fn what_is_accepted_is_the_same_then() {
        for actual in ["S c0\n---\nD c0\n", "---\n---\n", ""] {
            let file = file(actual);
            assert_eq!(
                compare(Some(&file), actual),
                SnapshotComparison::Same,
                "{file}"
            );
        }
    }

    #[test]
    fn different() {
        let SnapshotComparison::Different { diff, actual } =
            compare(Some(FILE), "S c0\n---\nD c1\n")
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
        let SnapshotComparison::Different { diff, .. } = compare(Some(FILE), &actual) else {
            panic!("they differ");
        };
        assert_eq!(diff.lines().count(), MAX_DIFF_LINES + 1);
        assert!(diff.ends_with(" more lines"), "{diff}");
    }

    /// Without time it has more lines than it needs, and is right.
    #[test]
    fn a_difference_is_shown_however_little_time_there_is() {
        let lines = |of: std::ops::Range<u32>| of.map(|n| format!("{n}\n")).collect::<String>();
        let (expected, actual) = (lines(0..20), lines(10..30));
        let diff = difference(&expected, &actual, Duration::ZERO);
        assert!(diff.contains("\n-0\n") && diff.contains("\n+29"), "{diff}");
        let (moved, same) = ("\n-15\n", "\n 10\n");
        assert!(diff.contains(moved) && !diff.contains(same), "{diff}");
        let diff = difference(&expected, &actual, MAX_DIFF_TIME);
        assert!(!diff.contains(moved) && diff.contains(same), "{diff}");
    }

    #[test]
    fn missing_and_unreadable() {
        assert!(matches!(
            compare(None, "x"),
            SnapshotComparison::Missing { .. }
        ));
        for file in ["", "x", "---", "---\nx: 1\n", "---\nx: 1\n--- \u{a0}y\n"] {
            assert!(
                matches!(
                    compare(Some(file), "x"),
                    SnapshotComparison::Unreadable { .. }
                ),
                "{file:?}"
            );
        }
    }

    #[test]
    fn files_that_insta_wrote() {
        let file = "---\nsource: src/a.rs\nexpression: x\nsnapshot_kind: text\n---\nx\n";
        assert_eq!(compare(Some(file), "x"), SnapshotComparison::Same);
    }
}
