//! What is in the file; `tests/html/` looks at it in a browser.

use std::time::Duration;

use base64::Engine as _;
use serde_json::Value;
use sha2::Digest as _;

use super::records::Record;
use super::run::RunReport;
use super::timeline::{Missing, Timeline};
use crate::judge::outcome::Outcome;
use crate::judge::result::ScenarioResult;
use crate::judge::tests::{Kernel, Trial, VIOLATED};
use crate::report::json::Setting;
use crate::report::names::Names;
use unwindlab_oracle::trace::model::{CONTEXT_USER_DEFERRED, CallchainDeferred, Sample};
use unwindlab_oracle::trace::{Event, EventKind};

/// The report of these results.
fn report(results: &[ScenarioResult], release: &str) -> String {
    let mut report = RunReport::default();
    for result in results {
        report.add(result, Names::of(&Kernel, result.trace.as_ref()));
    }
    let setting = Setting {
        kernel_spec: "stock".to_owned(),
        kernel_release: release.to_owned(),
        kernel_hash: "0".to_owned(),
        kvm_host: "none".to_owned(),
    };
    report
        .html(&setting, results, Duration::from_secs(1))
        .unwrap()
}

/// The text of the only element that begins so.
fn element<'a>(page: &'a str, begin: &str, end: &str) -> &'a str {
    assert_eq!(page.matches(begin).count(), 1, "{begin}");
    let (_, rest) = page.split_once(begin).unwrap();
    rest.split_once(end).unwrap().0
}

pub(super) fn data(page: &str) -> Value {
    let json = element(
        page,
        "<script type=\"application/json\" id=\"data\">",
        "</script>",
    );
    serde_json::from_str(json).unwrap()
}

#[test]
fn only_the_script_and_the_style_of_the_file_may_run() {
    let page = report(&[], "7.3");
    for (policy, begin, end) in [
        ("script-src", "<script>", "</script>"),
        ("style-src", "<style>", "</style>"),
    ] {
        let hash = sha2::Sha256::digest(element(&page, begin, end));
        let hash = base64::engine::general_purpose::STANDARD.encode(hash);
        let policy = format!("{policy} 'sha256-{hash}';");
        assert!(page.contains(&policy), "{policy}");
    }
    assert!(page.contains("content=\"default-src 'none'; "));
    assert!(!page.contains("unsafe-"));
    // Nothing is fetched, and no text becomes markup.
    for word in [
        "src=",
        "href",
        "url(",
        "@import",
        "fetch(",
        "XMLHttp",
        "innerHTML",
        "outerHTML",
        "insertAdjacent",
        "document.write",
        "eval(",
        "Function(",
    ] {
        assert!(!page.contains(word), "{word}");
    }
    let addresses: Vec<&str> = page.split("://").skip(1).collect();
    assert!(
        addresses
            .iter()
            .all(|it| it.starts_with("www.w3.org/2000/svg\"")),
        "{addresses:?}"
    );
}

/// Ends scripts and comments, draws from right to left, and is a control character.
const HOSTILE: &str = "</script><script>alert(1)</script><!--<b>&\u{202e}\u{1b}[31m\u{2028}";

#[test]
fn what_is_hostile_is_text() {
    let mut trial = Trial::good("");
    trial.invariants.push(VIOLATED);
    trial.trace.user_symbols[0].name = HOSTILE.to_owned();
    let mut failed = trial.judged();
    for violation in &mut failed.violations {
        violation.violation.message = HOSTILE.to_owned();
        violation.finding = Some(HOSTILE.to_owned());
    }
    failed.outcome = Outcome::Fail;
    let skipped = ScenarioResult::not_run(HOSTILE, Outcome::Skip, HOSTILE.to_owned());
    let page = report(&[failed, skipped], HOSTILE);
    // Two of ours, and nothing of theirs.
    assert_eq!(page.matches("<script").count(), 2);
    assert_eq!(page.matches("</script>").count(), 2);
    assert!(!page.contains("<!--") && !page.contains("<b>"));
    for seen in ['\u{202e}', '\u{2028}', '\u{1b}'] {
        assert!(!page.contains(seen), "{seen:?}");
    }
    let data = data(&page);
    let name = data["results"][1]["name"].as_str().unwrap();
    assert!(
        name.starts_with("</script><script>alert(1)</script><!--<b>&\\u{202e}"),
        "{name}"
    );
    let line = data["results"][0]["violations"][0]["timeline"]["records"][1]["line"].as_str();
    assert!(line.unwrap().contains("alert(1)"), "{line:?}");
    let seen = data.to_string().replace("\\\\u001b", "");
    assert!(!seen.contains("\\u001b"), "a control character: {seen}");
}

#[test]
fn a_failure_shows_the_nmis_place_and_the_broken_cookie() {
    let mut trial = Trial::good("");
    trial.invariants.push(VIOLATED);
    let page = report(&[trial.judged()], "7.3");
    let data = data(&page);
    let result = &data["results"][0];
    assert_eq!(
        (result["outcome"].as_str(), result["class"].as_str()),
        (Some("fail"), Some("bad"))
    );
    let violation = &result["violations"][0];
    assert_eq!(violation["invariant"], "V1");
    assert_eq!(violation["place"], "work+0x10");
    let records = violation["timeline"]["records"].as_array().unwrap();
    let bad: Vec<&Value> = records.iter().filter(|it| it["bad"] == true).collect();
    assert_eq!((records.len(), bad.len()), (4, 1));
    assert_eq!(bad[0]["cookie"], "0x500000001");
    let arcs = violation["timeline"]["arcs"].as_array().unwrap();
    let broken: Vec<&str> = { arcs.iter() }
        .filter(|it| it["broken"] == true)
        .map(|it| it["cookie"].as_str().unwrap())
        .collect();
    assert_eq!((arcs.len(), broken), (2, vec!["0x500000001"]));
    assert_eq!(data["summary"], "1 fail in 1.0 s");
}

#[test]
fn violations_of_one_kind_are_counted_and_what_no_finding_explains_comes_first() {
    let mut trial = Trial::good("");
    trial.invariants.push(VIOLATED);
    let mut result = trial.judged();
    let first = result.violations[0].clone();
    result.violations[0].finding = Some("F001".to_owned());
    result.violations.extend(vec![first; 3]);
    let data = data(&report(&[result], "7.3"));
    let shown = data["results"][0]["violations"].as_array().unwrap();
    let findings: Vec<Option<&str>> = shown.iter().map(|it| it["finding"].as_str()).collect();
    assert_eq!(findings, [None, Some("F001")]);
    assert_eq!(data["results"][0]["more"]["V1"], 2);
    assert!(
        data["findings"]["F001"]
            .as_str()
            .unwrap()
            .contains("answered with cookie 0")
    );
}

fn event(index: usize, kind: EventKind) -> Event {
    Event {
        index,
        ring: 0,
        cpu: u32::try_from(index % 2).unwrap(),
        ring_index: 0,
        position: index,
        start: 0,
        time: Some(index as u64),
        event: None,
        pid: Some(1),
        tid: Some(7),
        misc: 0,
        size: 0,
        kind,
    }
}

/// `r5`: a request with cookie 5; `a5`: its answer; `-`: a record of another kind.
fn events(text: &str) -> Vec<Event> {
    let kind = |word: &str| match word.split_at(1) {
        ("r", cookie) => EventKind::Sample(Sample {
            chain: Some(vec![CONTEXT_USER_DEFERRED, cookie.parse().unwrap()]),
            ..Sample::default()
        }),
        ("a", cookie) => EventKind::CallchainDeferred(CallchainDeferred {
            cookie: cookie.parse().unwrap(),
            ..CallchainDeferred::default()
        }),
        _ => EventKind::Other { record_type: 0 },
    };
    let words = text.split_whitespace();
    words
        .enumerate()
        .map(|(at, word)| event(at, kind(word)))
        .collect()
}

fn timeline(text: &str, bad: &[usize], message: &str) -> Timeline {
    let events = events(text);
    let all: Vec<Record<'_>> = events.iter().map(Record::Perf).collect();
    let is_bad =
        |record: &Record<'_>| matches!(record, Record::Perf(it) if bad.contains(&it.index));
    let names = Names {
        kernel: &Kernel,
        user: &[],
    };
    Timeline::of(&all, is_bad, message, &|_| None, names)
}

/// From, to, what is missing, and whether the cookie is broken.
type Drawn = (Option<usize>, Option<usize>, Option<Missing>, bool);

fn arcs(text: &str, bad: &[usize], message: &str) -> Vec<Drawn> {
    let timeline = timeline(text, bad, message);
    let arcs = timeline.arcs.iter();
    arcs.map(|it| (it.from, it.to, it.missing, it.broken))
        .collect()
}

#[test]
fn an_arc_goes_from_each_request_to_its_answer() {
    let whole = |from, to| (Some(from), Some(to), None, false);
    assert_eq!(
        arcs("r1 r1 a1 r2 a2", &[], ""),
        [whole(0, 2), whole(1, 2), whole(3, 4)]
    );
    // A sample that was written after its answer.
    assert_eq!(arcs("r1 a1 r1", &[], ""), [whole(0, 1), whole(2, 1)]);
    let of_bad = arcs("r1 a1 r2 a3", &[2, 3], "");
    assert_eq!(
        of_bad,
        [
            whole(0, 1),
            (Some(2), None, Some(Missing::Answer), true),
            (None, Some(3), Some(Missing::Request), true),
        ]
    );
}

#[test]
fn a_message_says_which_cookie_is_broken() {
    let broken = |message| {
        arcs("r1 a1 r2 a2", &[0, 2], message)
            .iter()
            .map(|it| it.3)
            .collect::<Vec<_>>()
    };
    assert_eq!(broken("two cookies"), [true, true]);
    assert_eq!(
        broken("no record 22 for cookie 0x2 of task 7"),
        [false, true]
    );
    assert_eq!(broken("cookie 0x21"), [true, true]);
}

#[test]
fn what_is_far_from_the_violation_is_left_out_but_not_its_cookie() {
    let others = "- ".repeat(50);
    let shown = timeline(
        &format!("r9 {others} r1 a1 - {others} a9"),
        &[51],
        "cookie 0x1",
    );
    let ids: Vec<&str> = shown.records.iter().map(|it| it.id.as_str()).collect();
    assert_eq!(ids, ["#48", "#49", "#50", "#51", "#52", "#53", "#54"]);
    assert_eq!(shown.records[0].gap, 48);
    assert_eq!(
        (shown.cpus.as_slice(), shown.tasks.len()),
        ([0, 1].as_slice(), 1)
    );
    let shown = timeline(&format!("r9 {others} r1 {others} a9"), &[0], "cookie 0x9");
    let last = shown.records.last().unwrap();
    assert_eq!((last.id.as_str(), last.gap), ("#102", 98));
    assert_eq!(arcs(&format!("- - - - r9 a9 {others}"), &[0], ""), []);
    // Its answer is behind what is shown.
    let behind = arcs(&format!("r9 - - r1 {others} a9"), &[3], "");
    assert_eq!(behind[0], (Some(0), None, Some(Missing::NotShown), false));
}
