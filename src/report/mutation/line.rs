//! What became of a generated mutant, in words.

use anstyle::{AnsiColor, Style};
use unwindlab_engine::text::printable;

use super::{Kill, MutationFate, MutationRow, Survival};

/// Width of the names; longer ones are rare.
const NAME_WIDTH: usize = 40;

impl MutationRow {
    /// The row in one line.
    #[must_use]
    pub fn line(&self) -> String {
        let style = self.style();
        let name = printable(&self.mutant.name);
        format!("{style}{name:<NAME_WIDTH$}{style:#}  {}", self.told())
    }

    /// Green where it is as it should be, yellow where it is not known, faint where there is nothing to test.
    fn style(&self) -> Style {
        let colour = match (&self.fate, &self.argued) {
            (
                MutationFate::DoesNotCompile | MutationFate::Equivalent | MutationFate::Twin(_),
                _,
            ) => {
                return Style::new().dimmed();
            }
            (MutationFate::Untested(_), _) => AnsiColor::Yellow,
            (MutationFate::Killed(_), None)
            | (MutationFate::Survived(_) | MutationFate::NotCovered, Some(_)) => AnsiColor::Green,
            (MutationFate::Killed(_), Some(_))
            | (MutationFate::Survived(_) | MutationFate::NotCovered, None) => AnsiColor::Red,
        };
        colour.on_default().bold()
    }

    /// What became of it.
    pub(in crate::report) fn told(&self) -> String {
        let text = match (&self.fate, &self.argued) {
            (MutationFate::DoesNotCompile, _) => "does not compile".to_owned(),
            (MutationFate::Equivalent, _) => "changes no object".to_owned(),
            (MutationFate::Twin(other), _) => format!("has the objects of {other}"),
            (MutationFate::Killed(kill), None) => self.killed(kill),
            (MutationFate::Killed(kill), Some(reason)) => format!(
                "{}, BUT ARGUED, so the argument is wrong: {reason}",
                self.killed(kill)
            ),
            (MutationFate::Survived(survival), None) => survived("SURVIVED", survival),
            (MutationFate::Survived(_), Some(reason)) => format!("survived, argued: {reason}"),
            (MutationFate::NotCovered, None) => "NOT COVERED".to_owned(),
            (MutationFate::NotCovered, Some(reason)) => format!("not covered, argued: {reason}"),
            (MutationFate::Untested(reason), _) => format!("not tested: {reason}"),
        };
        printable(&text)
    }

    fn killed(&self, kill: &Kill) -> String {
        format!(
            "killed by {} in {} (test {}, {:.1} s)",
            kill.by.join(" "),
            kill.test,
            kill.tests,
            self.seconds
        )
    }

    /// Of a survivor: what came of its tests that is no kill.
    pub(in crate::report) fn remarks(&self) -> Vec<String> {
        let MutationFate::Survived(survival) = &self.fate else {
            return Vec::new();
        };
        let mut remarks = Vec::new();
        if !survival.excused.is_empty() {
            remarks.push(format!(
                "excused: what fell was taken for {}, which the kernel without a mutant does not show",
                survival.excused.join(", ")
            ));
        }
        if !survival.unsteady.is_empty() {
            remarks.push(format!(
                "unsteady: {} did not pass once, and then did",
                survival.unsteady.join(", ")
            ));
        }
        remarks.iter().map(|it| printable(it)).collect()
    }
}

/// `SURVIVED 12 tests, nearest nmi-in-syscall`.
fn survived(word: &str, survival: &Survival) -> String {
    let tests = match survival.tests {
        1 => "1 test".to_owned(),
        number => format!("{number} tests"),
    };
    let nearest = survival.nearest.as_deref();
    let nearest = nearest
        .map(|it| format!(", nearest {it}"))
        .unwrap_or_default();
    let left = match survival.left {
        0 => String::new(),
        left => format!(", no time for {left} more"),
    };
    let same = match survival.same {
        true => ", no scenario gives it another value",
        false => "",
    };
    format!("{word} {tests}{left}{same}{nearest}")
}

#[cfg(test)]
mod tests {
    use super::super::testkit::{argued, killed, row, survived};
    use super::*;

    fn shown(row: &MutationRow) -> (Style, String) {
        let line = anstream::adapter::strip_str(&row.line()).to_string();
        (
            row.style(),
            line.split_once("  ").unwrap().1.trim().to_owned(),
        )
    }

    #[test]
    fn a_line_says_what_became_of_it() {
        let [green, red, yellow] =
            [AnsiColor::Green, AnsiColor::Red, AnsiColor::Yellow].map(|it| it.on_default().bold());
        let faint = Style::new().dimmed();
        let kill = killed(&["M1", "W0"]);
        for (fate, reason, style, text) in [
            (
                kill.clone(),
                None,
                green,
                "killed by M1 W0 in nmi-in-syscall (test 3, 4.1 s)",
            ),
            (
                kill,
                Some("why"),
                red,
                "killed by M1 W0 in nmi-in-syscall (test 3, 4.1 s), BUT ARGUED, so the argument is wrong: why",
            ),
            (
                survived(61),
                None,
                red,
                "SURVIVED 61 tests, nearest nmi-in-idle",
            ),
            (
                survived(1),
                None,
                red,
                "SURVIVED 1 test, nearest nmi-in-idle",
            ),
            (survived(61), Some("why"), green, "survived, argued: why"),
            (MutationFate::NotCovered, None, red, "NOT COVERED"),
            (
                MutationFate::NotCovered,
                Some("why"),
                green,
                "not covered, argued: why",
            ),
            (
                MutationFate::Untested("timeout\n\u{202e}".to_owned()),
                None,
                yellow,
                "not tested: timeout \\u{202e}",
            ),
            (MutationFate::Equivalent, None, faint, "changes no object"),
            (
                MutationFate::Twin("b".to_owned()),
                None,
                faint,
                "has the objects of b",
            ),
            (
                MutationFate::DoesNotCompile,
                None,
                faint,
                "does not compile",
            ),
        ] {
            let row = match reason {
                Some(reason) => argued(row(7, fate), reason),
                None => row(7, fate),
            };
            assert_eq!(shown(&row), (style, text.to_owned()));
        }
    }
}
