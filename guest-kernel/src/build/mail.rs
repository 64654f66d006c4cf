//! Decodes one mail of a series: a patch, its cover letter, or a reply.

use std::fs;

use super::BuildError;
use super::git::Call;
use crate::cache::{At, Cache};

/// Trailers that a reply adds to a patch, as `b4 am` collects them
/// (Documentation/process/submitting-patches.rst).
const TRAILERS: [&str; 6] = [
    "Acked-by",
    "Reported-by",
    "Reviewed-and-tested-by",
    "Reviewed-by",
    "Suggested-by",
    "Tested-by",
];

/// A mail.
#[derive(Debug)]
pub(super) struct Mail {
    /// Without the `Re:` of a reply.
    pub subject: String,
    pub number: Option<Number>,
    /// Whether it answers another mail.
    pub is_reply: bool,
    /// From the first `---` of a diff on; `None` without a diff.
    pub diff: Option<Vec<u8>>,
    /// Lines such as `Reviewed-by: A <a@example.org>` that are not quoted.
    pub trailers: Vec<String>,
}

/// `v9 3/7` in a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Number {
    pub version: u32,
    /// 0 is the cover letter.
    pub number: u32,
    pub total: u32,
}

impl Mail {
    /// Decodes a mail (git-mailinfo(1): transfer encodings, character sets, folded lines).
    pub fn read(content: &[u8], cache: &Cache) -> Result<Self, BuildError> {
        let scratch = cache.scratch()?;
        let (message, diff) = (scratch.path().join("message"), scratch.path().join("diff"));
        let info = Call::new("mailinfo")
            .arg("-k")
            .args([&message, &diff])
            .input(content)
            .run()?;
        let subject = info
            .lines()
            .find_map(|line| line.strip_prefix("Subject: "))
            .unwrap_or("(no subject)");
        let diff = fs::read(&diff).at(&diff)?;
        let text = fs::read(&message).at(&message)?;
        Ok(Self::of(subject, &text, diff))
    }

    /// The parts of a decoded mail.
    pub fn of(subject: &str, text: &[u8], diff: Vec<u8>) -> Self {
        let answered = without_re(subject);
        Self {
            number: number(answered),
            subject: answered.to_owned(),
            is_reply: answered.len() != subject.len(),
            diff: has_diff(&diff).then_some(diff),
            trailers: trailers(&String::from_utf8_lossy(text)),
        }
    }
}

/// Whether a diff is in it; one of git's may have no lines (`new mode`).
pub(super) fn has_diff(content: &[u8]) -> bool {
    let begins = [b"--- ".as_slice(), b"diff --git "];
    let mut lines = content.split(|&it| it == b'\n');
    lines.any(|line| begins.iter().any(|it| line.starts_with(it)))
}

/// Whether it is a mail.
pub(super) fn has_subject(content: &[u8]) -> bool {
    content.starts_with(b"Subject: ") || memchr::memmem::find(content, b"\nSubject: ").is_some()
}

/// The subject without `Re:`, however often it stands there, and what mail programs write instead.
fn without_re(subject: &str) -> &str {
    let mut rest = subject.trim_start();
    while let Some((word, behind)) = rest.split_once(':')
        && ["re", "aw", "sv", "antw"].contains(&word.to_ascii_lowercase().as_str())
    {
        rest = behind.trim_start();
    }
    rest
}

fn trailers(text: &str) -> Vec<String> {
    let is_trailer = |line: &&str| {
        let name = line.split_once(": ").map(|(name, _)| name);
        name.is_some_and(|name| TRAILERS.iter().any(|it| it.eq_ignore_ascii_case(name)))
    };
    text.lines()
        .map(str::trim_end)
        .filter(is_trailer)
        .map(str::to_owned)
        .collect()
}

/// `v9 3/7` in `[PATCH v9 3/7] perf: ...`. The default version is 1.
fn number(subject: &str) -> Option<Number> {
    let (tag, _) = subject.strip_prefix('[')?.split_once(']')?;
    let mut version = 1;
    for word in tag.split_ascii_whitespace() {
        if let Some(digits) = word.strip_prefix(['v', 'V']) {
            version = digits.parse().unwrap_or(version);
        }
        let Some((number, total)) = word.split_once('/') else {
            continue;
        };
        if let (Ok(number), Ok(total)) = (number.parse(), total.parse()) {
            return Some(Number {
                version,
                number,
                total,
            });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_number_in_a_subject() {
        let of = |subject| number(subject).map(|it| (it.version, it.number, it.total));
        assert_eq!(of("[PATCH v9 03/7] perf: x"), Some((9, 3, 7)));
        assert_eq!(of("[RFC PATCH 1/2] x"), Some((1, 1, 2)));
        assert_eq!(of("[PATCH net/next v2 2/3] x"), Some((2, 2, 3)));
        assert_eq!(of("[PATCH] x"), None);
        assert_eq!(of("x 1/2"), None);
    }

    #[test]
    fn a_change_of_a_mode_alone_is_a_diff_and_a_quoted_one_is_none() {
        let mode = b"Subject: [PATCH] x\n\ndiff --git a/f b/f\nold mode 100644\nnew mode 100755\n";
        assert!(has_diff(mode));
        assert!(has_diff(b"--- a/f\n+++ b/f\n"));
        assert!(!has_diff(
            b"Subject: [PATCH 0/1] x\n\n> diff --git a/f b/f\n> --- a/f\n---\n f | 0\n"
        ));
    }

    #[test]
    fn knows_replies() {
        assert_eq!(without_re("Re: RE: [PATCH] x: y"), "[PATCH] x: y");
        assert_eq!(without_re("AW: x"), "x");
        assert_eq!(without_re("Reset: x"), "Reset: x");
    }

    #[test]
    fn takes_trailers_that_are_not_quoted() {
        let text = "> Reviewed-by: Q <q@example.org>\nGood.\n\nreviewed-by: A <a@example.org> \nfoo: bar\n";
        assert_eq!(trailers(text), ["reviewed-by: A <a@example.org>"]);
    }
}
