//! A finding as a kernel maintainer wants to be told of it: a mail, a fix, a reproducer. Nothing is sent.

use std::path::PathBuf;

use unwindlab_guest_kernel::build::header::{self, Fix};

use super::Context;
use super::error::CampaignError;
use super::kernel::KernelChoice;
use crate::report::bug_report::{self, Facts};

/// What to report.
#[derive(Debug, Clone)]
pub struct BugReportRequest {
    /// The finding: `F001`.
    pub finding: String,
    /// The source that the fix is for.
    pub source: KernelChoice,
    /// A file with the fix, instead of the built-in one.
    pub fix: Option<PathBuf>,
}

/// The report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BugReport {
    /// The mail, with headers.
    pub mail: String,
    /// The mail with the fix, as `git format-patch` writes it.
    pub patch: Vec<u8>,
    /// The name that `git format-patch` gives it.
    pub patch_name: String,
    /// The C program that shows the finding.
    pub reproducer: Option<String>,
    /// What the sender has to know.
    pub notes: String,
}

/// Writes the report of a finding.
///
/// # Errors
/// [`CampaignError`], also where the fix does not apply, or the tree's scripts object to it.
pub fn bug_report(
    request: &BugReportRequest,
    context: Context<'_>,
) -> Result<BugReport, CampaignError> {
    let mut source = request.source.clone();
    let file = request.fix.as_ref().map(|it| it.display().to_string());
    source.patch.extend(file);
    let mut spec = source.build_spec()?;
    let mut fix = find(&request.finding)?;
    if let Some(own) = spec.patches.pop() {
        fix.patch = own;
    }
    let facts = Facts::of(fix)?;
    let message = facts.message();
    let (patch, concerns) = (&facts.fix.patch, &facts.concerns);
    let progress = context.progress;
    let made = context
        .provider
        .submission(&spec.source, patch, &message, concerns, progress)?;
    Ok(BugReport {
        mail: facts.mail(&made, &spec.source.to_string()),
        patch_name: format!("0001-{}.patch", slug(&message.subject)),
        reproducer: facts.reproducer().map(|it| it.source.clone()),
        notes: bug_report::notes(&facts, &made),
        patch: made.patch,
    })
}

fn find(finding: &str) -> Result<Fix, CampaignError> {
    let mut fixes = header::fixes()?;
    let at = fixes
        .iter()
        .position(|it| it.name.eq_ignore_ascii_case(finding));
    match at {
        Some(at) => Ok(fixes.swap_remove(at)),
        None => Err(CampaignError::Unknown {
            kind: "finding",
            name: finding.to_owned(),
            known: { fixes.iter().map(|it| it.name.as_str()) }
                .collect::<Vec<_>>()
                .join(", "),
        }),
    }
}

/// Longest name of a file that git makes of a subject.
const LONGEST: usize = 52;

/// A subject as a name of a file.
fn slug(subject: &str) -> String {
    let words = subject.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.');
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    let mut name = words.join("-");
    name.truncate(LONGEST);
    name.trim_end_matches(['-', '.']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_named_after_the_subject() {
        assert_eq!(
            slug("unwind: Read a client's bit once in process_unwind_deferred()"),
            "unwind-Read-a-client-s-bit-once-in-process_unwind_de"
        );
    }

    #[test]
    fn an_unknown_finding_is_answered_with_those_that_are() {
        let error = find("F999").unwrap_err().to_string();
        assert!(
            error.starts_with("no finding \"F999\"; there are: F001, F002"),
            "{error}"
        );
        assert_eq!(find("f004").unwrap().name, "F004");
    }
}
