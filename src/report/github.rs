//! `--format github`: the text, and an annotation for each result that is no plain pass.
//!
//! Annotations are workflow commands: lines of GitHub Actions' own on standard output
//! (docs.github.com, "Workflow commands for GitHub Actions"). What a guest says stands on standard output too, and could be such
//! a line. So commands are off (`stop-commands`) but for the annotations, until a line comes that the guest cannot know.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use unwindlab_engine::text::printable;

use crate::judge::flaky::FlakyIs;
use crate::judge::outcome::{Outcome, OutcomeClass};
use crate::judge::result::ScenarioResult;

/// Reasons that an annotation shows.
const MAX_REASONS: usize = 10;

/// Switches commands off and on.
#[derive(Debug)]
pub struct Commands {
    token: String,
}

impl Commands {
    /// A token that nobody knows.
    #[must_use]
    pub fn new() -> Self {
        // Keyed at random by the standard library.
        let random = || RandomState::new().build_hasher().finish();
        Self {
            token: format!("unwindlab-{:016x}{:016x}", random(), random()),
        }
    }

    /// From here on, no line is a command.
    #[must_use]
    pub fn off(&self) -> String {
        format!("::stop-commands::{}\n", self.token)
    }

    /// Lines are commands again.
    #[must_use]
    pub fn on(&self) -> String {
        format!("::{}::\n", self.token)
    }

    /// The annotation of a result, while commands are off; nothing for a plain pass and for a skip. `file` is the
    /// scenario's, in the repository.
    #[must_use]
    pub fn annotation(
        &self,
        result: &ScenarioResult,
        file: Option<&str>,
        flaky_is: FlakyIs,
    ) -> String {
        match annotation(result, file, flaky_is) {
            Some(line) => format!("{}{line}\n{}", self.on(), self.off()),
            None => String::new(),
        }
    }
}

impl Default for Commands {
    fn default() -> Self {
        Self::new()
    }
}

fn annotation(result: &ScenarioResult, file: Option<&str>, flaky_is: FlakyIs) -> Option<String> {
    let command = match (result.outcome, result.counted(flaky_is)) {
        (Outcome::Pass | Outcome::Skip, _) => return None,
        (Outcome::ExpectedFailure, _) => "notice",
        (_, OutcomeClass::Bad) => "error",
        (_, OutcomeClass::Untested | OutcomeClass::Good) => "warning",
    };
    let file = file.map(|file| format!("file={},", property(file)));
    let title = format!("{}: {}", result.name, result.outcome.name());
    let reasons = { result.reasons.iter() }.take(MAX_REASONS);
    let reasons = reasons.map(|reason| {
        let lines = reason.lines().map(printable);
        lines.collect::<Vec<_>>().join("\n")
    });
    let mut message = reasons.collect::<Vec<_>>().join("\n");
    if message.is_empty() {
        message = result.outcome.name().to_owned();
    }
    Some(format!(
        "::{command} {}title={}::{}",
        file.unwrap_or_default(),
        property(&title),
        data(&message)
    ))
}

/// As a command's text: it ends with the line.
fn data(text: &str) -> String {
    text.replace('%', "%25")
        .replace('\r', "%0D")
        .replace('\n', "%0A")
}

/// As a value of one of its properties.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::flaky::Attempt;

    fn of(outcome: Outcome, reason: &str) -> ScenarioResult {
        ScenarioResult::not_run("a", outcome, reason.to_owned())
    }

    fn line(result: &ScenarioResult) -> Option<String> {
        annotation(result, Some("s/a,b:c.yaml"), FlakyIs::Fail)
    }

    #[test]
    fn an_annotation_is_one_line_and_escaped_as_documented() {
        let line = line(&of(Outcome::Fail, "50 % of\r\n::error::x")).unwrap();
        let place = "::error file=s/a%2Cb%3Ac.yaml,title=a%3A fail::";
        assert_eq!(line, format!("{place}50 %25 of%0A::error::x"));
    }

    #[test]
    fn each_outcome_has_its_level() {
        for outcome in Outcome::ALL {
            let line = line(&of(outcome, "why"));
            let level = line.as_deref().map(|it| it.split(' ').next().unwrap());
            let expected = match outcome {
                Outcome::Pass | Outcome::Skip => None,
                Outcome::ExpectedFailure => Some("::notice"),
                _ if outcome.class() == OutcomeClass::Untested => Some("::warning"),
                // Without an attempt that says something.
                Outcome::Flaky => Some("::warning"),
                _ => Some("::error"),
            };
            assert_eq!(level, expected, "{outcome:?}");
        }
        let flaky = of(Outcome::Pass, "why").after(vec![Attempt::of(&of(Outcome::Hang, "stuck"))]);
        assert!(line(&flaky).unwrap().starts_with("::error "));
        let good = annotation(&flaky, None, FlakyIs::Pass).unwrap();
        assert!(
            good.starts_with("::warning title=a%3A flaky::attempt 1: hang: stuck%0A"),
            "{good}"
        );
    }

    #[test]
    fn commands_are_off_but_for_annotations() {
        let commands = Commands::new();
        let text = commands.annotation(&of(Outcome::Hang, "why"), None, FlakyIs::Fail);
        let lines: Vec<&str> = text.lines().collect();
        let [on, annotation, off] = lines.as_slice() else {
            panic!("{text}")
        };
        let token = off.strip_prefix("::stop-commands::").unwrap();
        assert_eq!(*on, format!("::{token}::"));
        assert_eq!(*annotation, "::error title=a%3A hang::why");
        assert_ne!(Commands::new().token, commands.token);
        let pass = commands.annotation(&of(Outcome::Pass, ""), None, FlakyIs::Fail);
        assert_eq!(pass, "");
    }
}
