//! Mutants that somebody has argued to be equivalent: the blocks of `guest-kernel/mutation/argued.txt`.

use super::GeneratedMutant;

const TEXT: &str = include_str!("../../../mutation/argued.txt");

/// One argument.
#[derive(Debug, Default, PartialEq, Eq)]
struct Argument<'t> {
    function: &'t str,
    /// The line above the change, where the same change is elsewhere in the function; empty for any.
    below: &'t str,
    /// The changed lines, without the blanks around them.
    old: Vec<&'t str>,
    new: Vec<&'t str>,
    why: String,
}

/// Why nobody could see what a mutant changes, if that has been argued.
#[must_use]
pub fn argued(mutant: &GeneratedMutant) -> Option<String> {
    let (old, new) = changed_lines(&mutant.diff);
    let above = line_above(&mutant.diff);
    let is_it = |it: &Argument<'_>| {
        it.function == mutant.function
            && it.old == old
            && it.new == new
            && (it.below.is_empty() || Some(it.below) == above)
    };
    arguments(TEXT).find(is_it).map(|it| it.why)
}

fn arguments(text: &str) -> impl Iterator<Item = Argument<'_>> {
    text.split("\n\n")
        .map(Argument::parse)
        .filter(|it| !it.function.is_empty())
}

impl<'t> Argument<'t> {
    fn parse(block: &'t str) -> Self {
        let mut argument = Self::default();
        for line in block.lines() {
            if let Some(function) = line.strip_prefix("function:") {
                argument.function = function.trim();
            } else if let Some(below) = line.strip_prefix("below:") {
                argument.below = below.trim();
            } else if let Some(old) = line.strip_prefix('-') {
                argument.old.push(old.trim());
            } else if let Some(new) = line.strip_prefix('+') {
                argument.new.push(new.trim());
            } else if let Some(why) = line.strip_prefix("why:") {
                why.trim().clone_into(&mut argument.why);
            } else if let Some(more) = line.strip_prefix(' ') {
                argument.why.push(' ');
                argument.why.push_str(more.trim());
            }
        }
        argument
    }
}

/// The lines that a unified diff of one file takes away and adds, without blanks around them.
#[must_use]
pub fn changed_lines(diff: &str) -> (Vec<&str>, Vec<&str>) {
    // Above are the names of the file, which begin as changed lines do.
    let body = || diff.lines().skip_while(|line| !line.starts_with("@@"));
    let of = |sign: char| {
        body()
            .filter_map(move |line| line.strip_prefix(sign))
            .map(str::trim)
    };
    (of('-').collect(), of('+').collect())
}

/// The line above the first one that a unified diff changes, without blanks around it.
fn line_above(diff: &str) -> Option<&str> {
    let body = diff.lines().skip_while(|line| !line.starts_with("@@"));
    let same = body.skip(1).take_while(|line| line.starts_with(' '));
    same.last().map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::super::{ObjectCode, Operator};
    use super::*;

    #[test]
    fn each_argument_is_whole() {
        for argument in arguments(TEXT) {
            assert!(!argument.old.is_empty(), "{argument:?}");
            assert_eq!(argument.old.len(), argument.new.len(), "{argument:?}");
            assert!(argument.why.len() > 20, "{argument:?}");
        }
        let signs = TEXT.lines().filter(|line| line.starts_with('-')).count();
        let kept: usize = arguments(TEXT).map(|it| it.old.len()).sum();
        assert_eq!(kept, signs, "a block without a function");
    }

    #[test]
    fn an_argument_is_of_lines_and_a_function() {
        let text = "# x\n\nfunction: f\n-\ta = 1;\n+\ta = 2;\nwhy: nobody\n reads it\n";
        let found: Vec<Argument<'_>> = arguments(text).collect();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].why, "nobody reads it");
        let diff = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n f\n-  a = 1;\n+  a = 2;\n";
        assert_eq!(
            changed_lines(diff),
            (found[0].old.clone(), found[0].new.clone())
        );
        assert_eq!(line_above(diff), Some("f"));
    }

    #[test]
    fn of_two_equal_changes_the_line_above_says_which_is_argued() {
        let mutant = |above: &str| GeneratedMutant {
            name: String::new(),
            file: String::new(),
            function: "task_work_add".to_owned(),
            line: 1,
            operator: Operator::DeleteStatement,
            diff: format!("@@ -1,2 +1,2 @@\n \t\t{above}\n-\t\tbreak;\n+\t\t;\n"),
            object: ObjectCode::New,
            choice: None,
            place: None,
            difference: None,
        };
        assert!(argued(&mutant("set_notify_signal(task);")).is_some());
        assert_eq!(argued(&mutant("set_notify_resume(task);")), None);
    }
}
