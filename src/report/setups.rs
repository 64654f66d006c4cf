//! The output of `unwindlab setups`: text, and JSON Lines.

use std::fmt::Write as _;

use serde::Serialize;

use super::json::Setting;
use crate::setup::summary::{Distinct, Said, SetupsSummary, TriedSetup};
use unwindlab_engine::text::printable;

/// Names the shape of a record.
pub const SCHEMA: &str = "unwindlab.setup/1";

/// Numbers that are listed of a failure.
const MAX_NUMBERS: usize = 8;

/// One set-up in some lines.
#[must_use]
pub fn line(tried: &TriedSetup) -> String {
    let (number, said) = (tried.number, name(tried.said));
    let mut text = format!("{said:<10} {number}: {}\n", tried.levels);
    for reason in &tried.reasons {
        let _ = writeln!(
            text,
            "  {}",
            printable(&with_detail(&reason.what, &reason.detail))
        );
    }
    text
}

/// What came of all: a line for each distinct failure, and the counts. `command` is the one that
/// has the same numbers.
#[must_use]
pub fn report(summary: &SetupsSummary, setting: &Setting, command: &str) -> String {
    let mut text = String::new();
    for distinct in summary.distinct() {
        failure(&mut text, &distinct, command);
    }
    if !summary.left_out.is_empty() {
        let levels = summary.left_out.join(" ");
        let _ = writeln!(
            text,
            "left out   {levels}: the kernel has no cgroups for perf (CGROUP_PERF)"
        );
    }
    let undecided = summary.undecided();
    if !undecided.is_empty() {
        let all = undecided.iter().map(|(id, count)| format!("{id} {count}"));
        let all: Vec<String> = all.collect();
        let _ = writeln!(text, "undecided  by invariants: {}", all.join(", "));
    }
    let counts = [
        (Said::Held, "held"),
        (Said::Refused, "refused as specified"),
        (Said::Finding, "with listed findings only"),
        (Said::Violated, "violated"),
        (Said::Undecided, "undecided"),
        (Said::Untested, "untested"),
    ];
    let counts = counts.iter().filter_map(|(said, words)| {
        let count = summary.count(*said);
        (count > 0).then(|| format!("{count} {words}"))
    });
    let counts: Vec<String> = counts.collect();
    let records: usize = summary.tried.iter().map(|tried| tried.held).sum();
    let _ = writeln!(
        text,
        "{} set-ups: {} ({records} records as expected) in {:.1} s on {}, KVM host {}",
        summary.tried.len(),
        counts.join(", "),
        summary.elapsed.as_secs_f64(),
        setting.kernel_release,
        setting.kvm_host
    );
    text
}

fn failure(text: &mut String, distinct: &Distinct<'_>, command: &str) {
    let count = distinct.setups.len();
    let first: Vec<String> = { distinct.setups.iter().take(MAX_NUMBERS) }
        .map(ToString::to_string)
        .collect();
    let more = if count > MAX_NUMBERS { ", ..." } else { "" };
    let said = name(distinct.said);
    let what = with_detail(distinct.what, distinct.detail);
    let _ = writeln!(text, "{said:<10} {}", printable(&what));
    let _ = writeln!(
        text,
        "           {count} set-ups: {}{more}",
        first.join(", ")
    );
    if count > 1 && !distinct.in_common.is_empty() {
        let common = distinct.in_common.join(" ");
        let _ = writeln!(text, "           all of them have {common}");
    }
    if let Some(first) = distinct.setups.first() {
        let _ = writeln!(text, "           replay: {command} --setup {first}");
    }
}

fn with_detail(what: &str, detail: &str) -> String {
    match detail.is_empty() || what == detail {
        true => what.to_owned(),
        false => format!("{what} ({detail})"),
    }
}

const fn name(said: Said) -> &'static str {
    match said {
        Said::Held => "held",
        Said::Refused => "refused",
        Said::Finding => "finding",
        Said::Violated => "violated",
        Said::Undecided => "undecided",
        Said::Untested => "untested",
    }
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Record<'a> {
    schema: &'static str,
    #[serde(flatten)]
    setting: &'a Setting,
    #[serde(flatten)]
    tried: &'a TriedSetup,
}

/// The line of one set-up, newline included.
///
/// # Errors
/// [`serde_json::Error`] if a value cannot be serialized, which no type here causes.
pub fn record(setting: &Setting, tried: &TriedSetup) -> Result<String, serde_json::Error> {
    let mut text = serde_json::to_string(&Record {
        schema: SCHEMA,
        setting,
        tried,
    })?;
    text.push('\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::setup::summary::Reason;

    fn tried(number: usize, levels: &str, said: Said, what: &str) -> TriedSetup {
        let reason = Reason {
            what: what.to_owned(),
            detail: format!("{number} of 9"),
        };
        TriedSetup {
            number,
            levels: levels.to_owned(),
            said,
            held: 3,
            undecided: [("S4".to_owned(), number)].into(),
            reasons: if what.is_empty() {
                Vec::new()
            } else {
                vec![reason]
            },
        }
    }

    #[test]
    fn a_failure_is_told_once_with_what_its_set_ups_share() {
        let summary = SetupsSummary {
            tried: vec![
                tried(0, "ip=yes", Said::Held, ""),
                tried(4, "ip=yes tid=no", Said::Violated, "too few"),
                tried(7, "tid=no raw=yes", Said::Violated, "too few"),
                tried(9, "to refuse: x", Said::Refused, ""),
            ],
            elapsed: Duration::from_secs(2),
            left_out: vec!["cgroup-id=yes".to_owned()],
        };
        let setting = Setting {
            kernel_spec: "stock".to_owned(),
            kernel_release: "7.3".to_owned(),
            kernel_hash: "abc".to_owned(),
            kvm_host: "emulated".to_owned(),
        };
        let expected = "\
violated   too few (4 of 9)
           2 set-ups: 4, 7
           all of them have tid=no
           replay: unwindlab setups --seed 1 --setup 4
left out   cgroup-id=yes: the kernel has no cgroups for perf (CGROUP_PERF)
undecided  by invariants: S4 20
4 set-ups: 1 held, 1 refused as specified, 2 violated (12 records as expected) in 2.0 s on 7.3, \
KVM host emulated
";
        assert_eq!(
            report(&summary, &setting, "unwindlab setups --seed 1"),
            expected
        );
        let json: serde_json::Value =
            serde_json::from_str(&record(&setting, &summary.tried[1]).unwrap()).unwrap();
        assert_eq!(
            (&json["said"], &json["number"]),
            (&"violated".into(), &4.into())
        );
        assert_eq!(json["reasons"][0]["what"], "too few");
    }
}
