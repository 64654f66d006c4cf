//! The report of a run.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use unwindlab::judge::outcome::Outcome;
use unwindlab::judge::result::{JudgedViolation, ScenarioResult};
use unwindlab::report::html::run::RunReport;
use unwindlab::report::json::Setting;
use unwindlab::report::names::Names;
use unwindlab_oracle::invariant::Violation;
use unwindlab_oracle::trace::model::{
    CONTEXT_KERNEL, CONTEXT_USER_DEFERRED, CallchainDeferred, Sample,
};
use unwindlab_oracle::trace::{Event, EventKind, Trace};
use unwindlab_scenario::KernelSymbols;

use crate::browser::Browser;
use crate::common::{said, scratch, unwindlab};
use crate::{browser, quiet};

/// A kernel of one function.
struct Kernel;

impl KernelSymbols for Kernel {
    fn addresses(&self, _: &str) -> Vec<u64> {
        Vec::new()
    }
    fn size(&self, _: &str) -> Option<u64> {
        None
    }
    fn similar(&self, _: &str) -> Vec<String> {
        Vec::new()
    }
    fn current_task_offset(&self) -> Option<u64> {
        None
    }
    fn resolve(&self, address: u64) -> Option<(String, u64)> {
        let offset = address.checked_sub(PLACE - 4)?;
        (offset < 64).then(|| ("get_cookie".to_owned(), offset))
    }
    fn code(&self, _: u64, length: usize) -> Option<Vec<u8>> {
        Some(vec![0x90; length.min(64)])
    }
}

const PLACE: u64 = 0xffff_ffff_8100_0004;

fn event(index: usize, kind: EventKind) -> Event {
    Event {
        index,
        ring: 0,
        cpu: 0,
        ring_index: 0,
        position: index,
        start: 0,
        time: Some(1_000_000_000 + 1000 * index as u64),
        event: None,
        pid: Some(7),
        tid: Some(7),
        misc: 0,
        size: 0,
        kind,
    }
}

/// A sample that is answered, and one that is not.
fn failed(name: &str, message: &str) -> ScenarioResult {
    let sample = |cookie| {
        EventKind::Sample(Sample {
            chain: Some(vec![CONTEXT_KERNEL, PLACE, CONTEXT_USER_DEFERRED, cookie]),
            ..Sample::default()
        })
    };
    let answer = EventKind::CallchainDeferred(CallchainDeferred {
        cookie: 0x3_0000_0001,
        nr: 0,
        ips: Vec::new(),
    });
    let kinds = [sample(0x3_0000_0001), answer, sample(1)];
    let mut result = ScenarioResult::not_run(name, Outcome::Fail, String::new());
    result.trace = Some(Trace {
        events: kinds
            .into_iter()
            .enumerate()
            .map(|(at, kind)| event(at, kind))
            .collect(),
        ..Trace::default()
    });
    result.violations.push(JudgedViolation {
        violation: Violation {
            invariant: "M1".to_owned(),
            message: message.to_owned(),
            events: vec![2],
            log: Vec::new(),
            instruction: Some(PLACE),
            receiver: None,
        },
        finding: None,
    });
    result
}

fn page(results: &[ScenarioResult], file: &Path) {
    let mut report = RunReport::default();
    for result in results {
        report.add(result, Names::of(&Kernel, result.trace.as_ref()));
    }
    let setting = Setting {
        kernel_spec: "stock".to_owned(),
        kernel_release: "7.3".to_owned(),
        kernel_hash: "0".to_owned(),
        kvm_host: "none".to_owned(),
    };
    let html = report
        .html(&setting, results, Duration::from_secs(1))
        .unwrap();
    fs::write(file, html).unwrap();
}

#[test]
fn a_run_is_read_by_keys() {
    let Some(mut browser) = browser() else { return };
    let file = scratch("html-keys").join("run.html");
    let pass = |name| ScenarioResult::not_run(name, Outcome::Pass, String::new());
    let results = [
        pass("a-pass"),
        failed("b-fail", "no record 22 for cookie 0x1"),
        pass("c-pass"),
        failed("d-fail", "no record 22 for cookie 0x1"),
    ];
    page(&results, &file);
    browser.open(&file);
    let heading = "document.querySelector('main h2').textContent";
    let visible = "[...document.querySelectorAll('[role=option]')].filter(it => !it.hidden).length";
    // The first failure is shown at once: its place, its cookie, and the arc that nothing answers.
    assert_eq!(browser.eval(heading), "b-fail");
    let text = browser.eval("document.querySelector('.timeline').textContent");
    let text = text.as_str().unwrap();
    assert!(text.contains("✗ cookie 0x1: never answered"), "{text}");
    let alarms = "[...document.querySelectorAll('.arc.broken')].length";
    assert_eq!(browser.eval(alarms), 1);
    let nmi = browser.eval("document.querySelector('tr.nmi').nextSibling.textContent");
    assert!(nmi.as_str().unwrap().contains("+0x4"), "{nmi}");
    // From failure to failure, and along the list.
    for (key, name) in [
        ("n", "d-fail"),
        ("n", "b-fail"),
        ("ArrowDown", "c-pass"),
        ("Home", "a-pass"),
        ("End", "d-fail"),
        ("ArrowUp", "c-pass"),
        ("p", "b-fail"),
    ] {
        browser.press(key);
        assert_eq!(browser.eval(heading), name, "{key}");
    }
    // Tab comes to the timeline; there arrows go along the records.
    for _ in 0..20 {
        browser.press("Tab");
        if browser.eval("document.activeElement.matches('.item')") == json!(true) {
            break;
        }
    }
    let says = "document.querySelector('.says').textContent";
    assert!(browser.eval(says).as_str().unwrap().starts_with("#2 "));
    browser.press("ArrowLeft");
    assert!(browser.eval(says).as_str().unwrap().starts_with("#1 "));
    // The search, and a filter by outcome.
    browser.press("/");
    browser.press("a");
    browser.press("-");
    assert_eq!(browser.eval(visible), 1);
    browser.press("Escape");
    assert_eq!(browser.eval(visible), 4);
    browser.eval("document.querySelector('header button').focus()");
    browser.press("Enter");
    assert_eq!(browser.eval(visible), 2);
    quiet(&browser);
}

/// How far two colours of the page are apart: black and white are 765.
fn contrast(browser: &mut Browser) -> i64 {
    let sum = |browser: &mut Browser, what: &str| {
        let sum = format!(
            "getComputedStyle(document.body).{what}.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0)"
        );
        browser.eval(&sum).as_i64().unwrap()
    };
    sum(browser, "backgroundColor") - sum(browser, "color")
}

#[test]
fn it_is_light_and_dark() {
    let Some(mut browser) = browser() else { return };
    let file = scratch("html-dark").join("run.html");
    page(&[failed("x", "cookie 0x1")], &file);
    browser.prefer("light");
    browser.open(&file);
    assert!(contrast(&mut browser) > 500);
    browser.prefer("dark");
    assert!(contrast(&mut browser) < -500);
    quiet(&browser);
}

#[test]
fn hostile_text_is_shown_and_not_obeyed() {
    let Some(mut browser) = browser() else { return };
    let file = scratch("html-hostile").join("run.html");
    let hostile =
        "</script><script>window.obeyed = 1</script><img src=x onerror='window.obeyed = 1'>";
    page(&[failed(hostile, hostile)], &file);
    browser.open(&file);
    assert_eq!(
        browser.eval("document.querySelector('main h2').textContent"),
        hostile
    );
    assert_eq!(
        browser.eval("window.obeyed === undefined && document.querySelector('img') === null"),
        true
    );
    quiet(&browser);
    // Its policy stops what the page itself would not do.
    browser.eval("document.body.append(Object.assign(document.createElement('script'), { textContent: 'window.obeyed = 1' }))");
    browser.eval("fetch('https://example.invalid/').catch(() => 0)");
    assert_eq!(browser.eval("window.obeyed === undefined"), true);
    let denied = |what: &str| browser.complaints.iter().any(|it| it.contains(what));
    assert!(
        denied("script-src") && denied("default-src"),
        "{:?}",
        browser.complaints
    );
}

#[test]
fn the_report_of_a_run_is_drawn() {
    let Some(mut browser) = browser() else { return };
    let folder = scratch("html-run");
    let file = folder.join("run.html");
    let output = unwindlab(&[
        "run",
        "nmi-in-syscall",
        "deferred-without-side-band",
        "tests/scenarios/panics.yaml",
        "--artifacts",
        folder.join("guests").to_str().unwrap(),
        "--html",
        file.to_str().unwrap(),
    ]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    browser.open(&file);
    let names = "[...document.querySelectorAll('[role=option]')].map(it => it.textContent).join()";
    assert_eq!(
        browser.eval(names),
        "✓nmi-in-syscall,≈deferred-without-side-bandexpected-failure,✗panicsguest-panic"
    );
    assert_eq!(
        browser.eval("document.querySelector('main h2').textContent"),
        "panics"
    );
    let commands = browser.eval("document.querySelector('pre.command').textContent");
    assert!(
        commands.as_str().unwrap().starts_with("unwindlab replay "),
        "{commands}"
    );
    browser.press("n");
    let card = browser.eval("document.querySelector('.card').textContent");
    let card = card.as_str().unwrap();
    assert!(
        card.contains("is violated") && card.contains("F007: "),
        "{card}"
    );
    quiet(&browser);
}
