//! Entries of the list that say what no trace and no kernel can show are refused, and told why.

use super::*;

/// An entry with this signature, and what it says of the code.
fn entry(signature: &str, code: &str) -> String {
    format!(
        "
- id: F001
  title: a bug made up for the test
  invariants: [C4]
  kernels:
    releases: ['7.2.*']
    symbols: []
{code}
  signature:
{signature}
"
    )
}

#[track_caller]
fn flaw(signature: &str) -> String {
    let window = "  window: { in: [f], through: { clear: id } }";
    match Findings::parse(&entry(signature, window)) {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    }
}

/// What is wrong with an event of a signature.
#[track_caller]
fn of_event(event: &str) -> String {
    flaw(&format!("    events: [{{ {event} }}]"))
}

#[test]
fn an_event_says_only_what_its_kind_shows() {
    for (event, wrong) in [
        ("kind: sample, cookie: c", "must name its task"),
        ("kind: plain-sample", "must name its task"),
        ("kind: deferred, cookie: c", "must name its task"),
        ("kind: sample, task: t", "must name its cookie"),
        ("kind: deferred, task: t", "must name its cookie"),
        ("kind: exit, task: t, cookie: c", "has no cookie"),
        (
            "kind: sample, task: t, cookie: 7",
            "has a number other than 0",
        ),
        ("kind: exit, interrupted: [f]", "interrupts nothing"),
        (
            "kind: deferred, task: t, cookie: c, interrupted: [f]",
            "interrupts nothing",
        ),
        (
            "kind: sample, task: t, cookie: c, frames: 2",
            "has no frames",
        ),
        ("kind: exit, made: [f]", "is made nowhere"),
        ("kind: fork, behind: true", "is made nowhere"),
        (
            "kind: sample, task: t, cookie: c, trampoline: true",
            "has no frames",
        ),
        ("kind: exit, stepped: true", "has no frames"),
        ("kind: exit, next: 0", "has no answer beside it"),
        (
            "kind: plain-sample, task: t, previous: 0",
            "has no answer beside it",
        ),
        (
            "kind: deferred, task: t, cookie: c, since: [f]",
            "has no answer beside it",
        ),
        (
            "kind: sample, task: t, cookie: c, cut: true",
            "has no marker",
        ),
        ("kind: exit, cut: false", "has no marker"),
    ] {
        let found = of_event(event);
        assert!(found.contains(wrong), "{event}: {found}");
    }
    for event in [
        "kind: sample, task: t, cookie: c, interrupted: [f], made: [f], behind: false, next: 0",
        "kind: sample, task: t, cookie: c, previous: 0, since: [f]",
        "kind: deferred, task: t, cookie: 0, frames: 2, trampoline: true, stepped: false",
        "kind: plain-sample, task: t, interrupted: [f], made: [f]",
        "kind: plain-sample, cut: true",
        "kind: exit",
    ] {
        assert_eq!(of_event(event), "", "{event}");
    }
}

#[test]
fn a_record_of_the_log_says_only_what_its_kind_shows() {
    for (record, wrong) in [
        ("kind: cancel, cookie: c", "has no cookie"),
        ("kind: refused, cookie: c", "has no cookie"),
        ("kind: callback, interrupted: [f]", "interrupts nothing"),
        ("kind: return, around: true", "interrupts nothing"),
        ("kind: callback, returned: 0", "returns nothing"),
    ] {
        let found = flaw(&format!("    log: [{{ {record} }}]"));
        assert!(found.contains(wrong), "{record}: {found}");
    }
    for record in [
        "kind: request, cookie: c, interrupted: [f], around: true, returned: 0",
        "kind: refused, interrupted: [f], returned: -22",
        "kind: callback, cookie: c",
    ] {
        assert_eq!(flaw(&format!("    log: [{{ {record} }}]")), "", "{record}");
    }
}

#[test]
fn what_stands_for_all_of_a_signature_stands_alone() {
    let alone = "an event that lacks a record is all of a signature";
    let receiver = "    receiver: { side-band: true }";
    assert_eq!(flaw(receiver), "");
    for more in [
        "    events: [{ kind: exit }]",
        "    log: [{ kind: cancel }]",
        "    report: ['BUG: ']",
        "    instruction: [f]",
    ] {
        let found = flaw(&format!("{receiver}\n{more}"));
        assert!(found.contains(alone), "{more}: {found}");
    }
    assert!(flaw("    receiver: {}").contains("says nothing of the event"));
    assert!(flaw("    instruction: [f]").contains("has no events"));
    let report = "    report: ['BUG: ']";
    assert_eq!(flaw(report), "");
    for more in [
        "    events: [{ kind: exit }]",
        "    log: [{ kind: cancel }]",
    ] {
        let found = flaw(&format!("{report}\n{more}"));
        assert!(found.contains("a report has no events"), "{more}: {found}");
    }
    for report in ["    report: []", "    report: ['BUG: ', '']"] {
        assert!(flaw(report).contains("says nothing"), "{report}");
    }
}

#[test]
fn one_event_at_most_may_come_again() {
    let again = "{ kind: exit, again: true }";
    assert_eq!(flaw(&format!("    events: [{again}]")), "");
    let twice = flaw(&format!("    events: [{again}, {again}]"));
    assert!(twice.contains("two of its events may come again"));
}

#[test]
fn what_is_said_of_the_code_names_functions_and_instructions() {
    let of_code = |code: &str| match Findings::parse(&entry("    events: [{ kind: exit }]", code)) {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    };
    let window = |functions: &str| {
        of_code(&format!(
            "  window: {{ in: [{functions}], through: {{ clear: id }} }}"
        ))
    };
    assert_eq!(window("f"), "");
    assert!(window("").contains("its window names no function"));
    let path = "path: [{ clear: id }]";
    let lacks = "lacks: [{ clear: id }]";
    let nothing = "names no instruction";
    let code = |what: &str| of_code(&format!("  code: [{{ {what} }}]"));
    assert_eq!(code(&format!("in: f, {path}")), "");
    assert_eq!(code(&format!("in: f, {path}, {lacks}")), "");
    assert!(code("in: f").contains(nothing));
    assert!(code(&format!("in: f, {lacks}")).contains(nothing));
    assert!(code(&format!("in: '', {path}")).contains(nothing));
}
