//! A finding as a kernel maintainer wants to be told of it: a mail, the changelog of its fix, the reproducer. The
//! facts are those of docs/findings and of the fix's header: nothing is written twice.

use std::fmt::Write as _;

use unwindlab_guest_kernel::build::application::Application;
use unwindlab_guest_kernel::build::header::Fix;
use unwindlab_guest_kernel::build::submission::{Message, Submission};
use unwindlab_guest_kernel::reproducer;

use crate::report::explain::page;
use crate::report::plain::{self, wrapped};

/// With a row for each C program that shows a finding.
const FINDINGS: &str = include_str!("../../../docs/findings/README.md");

/// The heading of the section that says what a user sees.
const SEEN: &str = "What a user of the tracer sees";

/// What a finding's documentation lacks. A test holds that none lacks anything.
#[derive(Debug, thiserror::Error)]
#[error("docs/findings/{id}.md has no {what}")]
#[expect(missing_docs, reason = "the message says what the fields are")]
pub struct FactsError {
    pub id: String,
    pub what: &'static str,
}

/// What is known of a finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// `F001`.
    pub id: String,
    /// What goes wrong, in a line.
    pub title: String,
    /// The fix's header.
    pub fix: Fix,
    /// The kernels in which it was seen.
    kernels: String,
    /// The commit that brought it.
    since: Option<Commit>,
    /// What it takes.
    needs: String,
    /// What a user sees.
    seen: String,
    /// Files whose maintainers are asked besides those of the files that the fix changes.
    pub concerns: Vec<String>,
    /// The C program, or why there is none.
    reproducer: Result<Reproducer, String>,
}

/// A commit of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Commit {
    /// Twelve digits.
    id: String,
    subject: String,
    /// What it does that is wrong.
    does: String,
}

impl Commit {
    /// `` `be3d526a5b34` ("subject"), which does something ``
    fn parse(text: &str) -> Option<Self> {
        let (id, rest) = text.strip_prefix('`')?.split_once("` (\"")?;
        let (subject, does) = rest.split_once("\"), ")?;
        let is_id = id.len() == 12 && id.bytes().all(|it| it.is_ascii_hexdigit());
        is_id.then(|| Self {
            id: id.to_owned(),
            subject: subject.to_owned(),
            does: plain::text(does),
        })
    }

    /// The tag, which is never wrapped.
    fn fixes(&self) -> String {
        format!("Fixes: {} (\"{}\")", self.id, self.subject)
    }
}

/// A C program that shows a finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reproducer {
    /// `f001`.
    pub name: String,
    /// The program.
    pub source: String,
    /// What it makes the finding show by.
    by: String,
    /// What it says on a kernel with the finding, and with the fixes.
    says: (String, String),
}

impl Reproducer {
    /// As docs/findings/README.md has it.
    fn of(id: &str) -> Option<Self> {
        let name = id.to_ascii_lowercase();
        let source = reproducer::source(&name)?;
        let begin = format!("| `{name}` | ");
        let row = FINDINGS.lines().find_map(|it| it.strip_prefix(&begin))?;
        let mut cells = row.trim_end_matches(" |").split(" | ").map(plain::text);
        Some(Self {
            name,
            source: source.to_owned(),
            by: cells.next()?,
            says: (cells.next()?, cells.next()?),
        })
    }

    fn needs_client(&self) -> bool {
        reproducer::needs_client(&self.name)
    }
}

impl Facts {
    /// The facts of the finding that this fixes.
    ///
    /// # Errors
    /// [`FactsError`].
    pub fn of(fix: Fix) -> Result<Self, FactsError> {
        let id = fix.name.clone();
        let id = id.as_str();
        let lacks = |what| {
            let id = id.to_owned();
            move || FactsError { id, what }
        };
        let text = page(id).ok_or_else(lacks("page"))?;
        let row = |key: &str| {
            let begin = format!("| {key} | ");
            let row = text.lines().find_map(|it| it.strip_prefix(&begin))?;
            row.strip_suffix(" |")
        };
        let heading = text.lines().next();
        let title = heading.and_then(|it| it.strip_prefix(&format!("# {id}: ")));
        let title = title.ok_or_else(lacks("heading"))?;
        let since = row("since").ok_or_else(lacks("row `since`"))?;
        let since = match since {
            "not known" => None,
            text => Some(Commit::parse(text).ok_or_else(lacks("commit in the row `since`"))?),
        };
        let without = row("without unwindlab").ok_or_else(lacks("row `without unwindlab`"))?;
        let reproducer = match without.strip_prefix("none: ") {
            Some(reason) => Err(reason.to_owned()),
            None => Ok(Reproducer::of(id).ok_or_else(lacks("reproducer"))?),
        };
        let concerns = row("concerns").unwrap_or_default();
        Ok(Self {
            id: id.to_owned(),
            title: flat(&plain::text(title)),
            kernels: plain::text(row("kernels").ok_or_else(lacks("row `kernels`"))?),
            needs: plain::text(row("needs").ok_or_else(lacks("row `needs`"))?),
            seen: plain::text(section(text, SEEN).ok_or_else(lacks("section of what is seen"))?),
            concerns: { concerns.split(", ") }
                .map(|it| it.trim_matches('`').to_owned())
                .filter(|it| !it.is_empty())
                .collect(),
            since,
            fix,
            reproducer,
        })
    }

    /// The program that shows it, if there is one.
    #[must_use]
    pub fn reproducer(&self) -> Option<&Reproducer> {
        self.reproducer.as_ref().ok()
    }

    /// What the mail with the fix says.
    #[must_use]
    pub fn message(&self) -> Message {
        let mut changelog = String::new();
        for paragraph in [&self.fix.problem, &self.fix.what, &self.fix.why] {
            let _ = write!(changelog, "{}\n\n", wrapped(paragraph));
        }
        let mut found =
            "Found with unwindlab, which runs a kernel in a virtual machine, injects NMIs at \
             chosen instructions and checks what tracers record."
                .to_owned();
        if let Ok(reproducer) = &self.reproducer {
            let _ = write!(
                found,
                " The program {}.c of the report fails without this patch, and passes with it and the fixes of the other \
                 findings, in QEMU on x86-64.",
                reproducer.name
            );
        }
        let _ = write!(changelog, "{}\n\n", wrapped(&found));
        let tags = [self.since.as_ref().map(Commit::fixes), self.link()];
        for tag in tags.into_iter().flatten() {
            let _ = writeln!(changelog, "{tag}");
        }
        Message {
            subject: self.fix.subject.clone(),
            changelog,
        }
    }

    fn link(&self) -> Option<String> {
        Some(format!("Link: {}", self.fix.link.as_ref()?))
    }

    /// The mail that tells of it, with headers.
    #[must_use]
    pub fn mail(&self, made: &Submission, source: &str) -> String {
        let component = self.fix.subject.split(": ").next().unwrap_or_default();
        let subject = format!("[BUG] {component}: {}", self.title);
        let mut mail = format!(
            "From {} Mon Sep 17 00:00:00 2001\nFrom: {}\n",
            "0".repeat(40),
            made.sender
        );
        let _ = writeln!(mail, "{}", folded("Subject: ", &[subject], " "));
        let _ = writeln!(mail, "{}", folded("To: ", &made.recipients.to, ",\n "));
        if !made.recipients.cc.is_empty() {
            let _ = writeln!(mail, "{}", folded("Cc: ", &made.recipients.cc, ",\n "));
        }
        mail.push_str(
            "MIME-Version: 1.0\nContent-Type: text/plain; charset=UTF-8\nContent-Transfer-Encoding: 8bit\n\n",
        );
        for part in self.parts(made, source) {
            let _ = write!(mail, "{part}\n\n");
        }
        if let Ok(reproducer) = &self.reproducer {
            let _ = write!(
                mail,
                "-- >8 -- {}.c -- >8 --\n{}",
                reproducer.name, reproducer.source
            );
        }
        mail
    }

    /// The body's parts, an empty line between two.
    fn parts(&self, made: &Submission, source: &str) -> Vec<String> {
        let seen = match self.seen.contains("record 22") || self.seen.contains("records 22") {
            true => "What a user of the tracer sees (record 22 is PERF_RECORD_CALLCHAIN_DEFERRED):",
            false => "What a user of the tracer sees:",
        };
        let mut parts = vec![
            wrapped(&self.fix.problem),
            wrapped(seen),
            self.seen.clone(),
            wrapped(&format!("It takes: {}.", flat(&self.needs))),
            wrapped(&format!("Kernels: {}.", flat(&self.kernels))),
        ];
        match &self.since {
            Some(commit) => {
                let since = format!(
                    "By its diff, the commit below brought it: it {}. That was not bisected.",
                    flat(commit.does.trim_start_matches("which "))
                );
                parts.push(wrapped(&since));
                parts.push(commit.fixes());
            }
            None => parts.push("The commit that brought it is not known.".to_owned()),
        }
        parts.push(wrapped(&format!(
            "The patch \"{}\" is a fix for it. It is for Linux {} ({}), and applies there{}. scripts/checkpatch.pl says: {}.",
            self.fix.subject,
            made.release,
            made.base.as_deref().unwrap_or(source),
            applies(&made.application),
            made.checked,
        )));
        parts.push(wrapped(&self.reproduced()));
        parts
    }

    fn reproduced(&self) -> String {
        let reproducer = match &self.reproducer {
            Ok(reproducer) => reproducer,
            Err(reason) => return format!("There is no reproducer in C: {}.", plain::text(reason)),
        };
        let Reproducer { name, by, says, .. } = reproducer;
        let kernel = match reproducer.needs_client() {
            true => {
                "The program below needs a client of unwind_deferred_request() that does what it is told. perf never \
                 does this; the client is a patch to the kernel, guest-kernel/client of unwindlab."
            }
            false => "The program below shows it.",
        };
        let include = match reproducer.needs_client() {
            true => "-I guest-kernel/client/files/include ",
            false => "",
        };
        format!(
            "{kernel} gcc -O2 -static {include}-o {name} {name}.c; it runs as root, and exits with 0 where the kernel is right, 1 \
             where it is not, and 2 where that could not be tried. It uses {}. In QEMU (TCG, x86-64, two CPUs): {}. \
             With the fix, and those of unwindlab's other findings: {}. It was not run on a machine without emulation.",
            flat(by),
            flat(&says.0),
            flat(&says.1),
        )
    }
}

/// How a patch applies, for the end of a sentence.
fn applies(application: &Application) -> String {
    match application {
        Application::WithOffset(lines) => {
            format!(" (made anew: the lines had moved by up to {lines})")
        }
        Application::WithFuzz(files) => {
            format!(
                " (made anew: with less context in {}, so look at the place)",
                files.join(", ")
            )
        }
        _ => String::new(),
    }
}

/// What the sender is told beside the files. Nothing of it is in them.
#[must_use]
pub fn notes(facts: &Facts, made: &Submission) -> String {
    let mut notes = Vec::new();
    if !made.sender.is_known() {
        notes.push(
            "git knows no name and address of yours (user.name, user.email): put them into `From:` of both mails."
                .to_owned(),
        );
    }
    if let Application::WithFuzz(files) = &made.application {
        notes.push(format!(
            "the fix applied with less context in {}: look at the place.",
            files.join(", ")
        ));
    }
    if made.base.is_none() {
        notes.push(
            "maintainers take reports of mainline or of a stable release, not of a distribution's kernel: try it there, with --tree.".to_owned(),
        );
    }
    match &facts.since {
        None => notes
            .push("the commit that brought it is not known, so there is no `Fixes:`.".to_owned()),
        Some(_) if !made.fixes_confirmed => notes.push(
            "this tree has no history in which the commit of `Fixes:` could be looked up: `git log -1 ID` in a clone."
                .to_owned(),
        ),
        Some(_) => {}
    }
    notes.extend(
        [
            "search the lists' archives for it first; check that each `Link:` works.",
            "read the fix and the text until they are yours: you answer for them. `Signed-off-by:` is yours alone to add.",
            "Documentation/process/generated-content.rst and coding-assistants.rst say what else must be told: which \
             tools had a part in finding, fixing and writing, by an `Assisted-by:` tag where they ask for one.",
            "decide by Documentation/process/threat-model.rst whether this is a security bug. If it is, \
             security-bugs.rst says who gets the mail instead of public lists, without the reproducer.",
            "send both as plain text (email-clients.rst), the patch by `git am`, `git commit --amend --signoff` and \
             `git send-email`.",
        ]
        .map(str::to_owned),
    );
    let mut text = "Nothing was sent. Before you send anything:\n".to_owned();
    for note in notes {
        let lines = wrapped(&note).replace('\n', "\n  ");
        let _ = writeln!(text, "- {lines}");
    }
    text
}

/// The text under a heading of the second level, up to the next one.
fn section<'a>(page: &'a str, heading: &str) -> Option<&'a str> {
    let begin = format!("\n## {heading}\n");
    let (_, text) = page.split_once(&begin)?;
    Some(text.split("\n## ").next().unwrap_or(text).trim())
}

/// On one line, to be wrapped again, without a full stop.
fn flat(text: &str) -> String {
    text.replace('\n', " ").trim_end_matches('.').to_owned()
}

/// A header of several values, one on each line; a single long one is folded.
fn folded(name: &str, values: &[String], between: &str) -> String {
    let options = textwrap::Options::new(plain::WIDTH)
        .subsequent_indent(" ")
        .break_words(false)
        .word_splitter(textwrap::WordSplitter::NoHyphenation)
        .word_separator(textwrap::WordSeparator::AsciiSpace);
    match values {
        [one] => textwrap::fill(&format!("{name}{one}"), options),
        many => format!("{name}{}", many.join(between)),
    }
}

#[cfg(test)]
mod tests;
