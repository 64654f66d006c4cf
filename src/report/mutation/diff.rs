//! The lines that a mutant changes.

use unwindlab_engine::text::printable;
use unwindlab_guest_kernel::build::generate::changed_lines;

/// The changed lines of a diff, without the blanks around them, as one can show them. Empty ones
/// are left out: a change keeps the number of lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChangedLines {
    /// As they are in the kernel without the mutant.
    pub old: Vec<String>,
    /// As they are with it.
    pub new: Vec<String>,
}

impl ChangedLines {
    /// Those of a unified diff of one file.
    pub fn of(diff: &str) -> Self {
        let (old, new) = changed_lines(diff);
        let shown = |lines: Vec<&str>| {
            let lines = lines.into_iter().filter(|it| !it.is_empty());
            lines.map(printable).collect()
        };
        Self {
            old: shown(old),
            new: shown(new),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_and_the_context_are_no_changes() {
        let diff = "--- a/x.c\n+++ b/x.c\n@@ -1,4 +1,4 @@\n {\n--- left;\n-\tfoo(a,\n-\t    b);\n+\t;\n+\n }\n";
        let changed = ChangedLines::of(diff);
        assert_eq!(changed.old, ["-- left;", "foo(a,", "b);"]);
        assert_eq!(changed.new, [";"]);
        assert_eq!(ChangedLines::of("--- a\n+++ b\n"), ChangedLines::default());
    }

    #[test]
    fn what_is_not_seen_is_escaped() {
        let changed = ChangedLines::of("@@ @@\n-a\u{202e}\n+\x1b[31mb\n");
        assert_eq!(changed.old, ["a\\u{202e}"]);
        assert_eq!(changed.new, ["\\u{1b}[31mb"]);
    }
}
