//! The report of a sweep.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use unwindlab::judge::outcome::Outcome;
use unwindlab::judge::result::{JudgedViolation, ScenarioResult};
use unwindlab::judge::sweep::{Failure, SweepSymptom, Verdicts};
use unwindlab::judge::{Judge, JudgeLimit, MatchFinding};
use unwindlab::report::html::sweep::{SweepHeading, SweepReport};
use unwindlab::report::names::Names;
use unwindlab::report::sweep::Summary;
use unwindlab_engine::interrupt::Interrupt;
use unwindlab_engine::plan::sweep::{Point, Reach, Step, boundaries};
use unwindlab_guest_kernel::lines::LineError;
use unwindlab_oracle::invariant::{Evidence, Violation};
use unwindlab_oracle::trace::{Recording, Trace};
use unwindlab_scenario::{KernelSymbols, SourceLines};

use crate::common::scratch;
use crate::{browser, quiet};

const BASE: u64 = 0xffff_ffff_8100_0000;
/// Boundaries, and distinct instructions among them.
const LENGTH: u32 = 100_000;
const DISTINCT: u64 = 10_000;
/// Each instruction is a call: so long, and its text has a name.
const CALL: u64 = 5;

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
        let offset = address.checked_sub(BASE)?;
        let function = format!("function_number_{}", offset / 500);
        (offset < CALL * DISTINCT).then_some((function, offset % 500))
    }
    fn lines(&self) -> Option<&dyn SourceLines> {
        Some(self)
    }
    fn code(&self, _: u64, _: usize) -> Option<Vec<u8>> {
        Some(vec![0xe8, 0xfb, 0xff, 0xff, 0xff])
    }
}

impl SourceLines for Kernel {
    fn place(&self, file: &str, _: u32) -> Result<Vec<u64>, LineError> {
        Err(LineError::NoFile(file.to_owned()))
    }
    /// The first two functions are lines 1 and 2.
    fn at(&self, address: u64) -> Vec<(&str, u32)> {
        match (address - BASE) / 500 {
            0 => vec![("kernel/unwind/deferred.c", 1)],
            1 => vec![("kernel/unwind/deferred.c", 2)],
            _ => Vec::new(),
        }
    }
    fn with_code(&self, _: &str) -> BTreeSet<u32> {
        BTreeSet::from([1, 2, 3])
    }
    fn text(&self, _: &str) -> Option<String> {
        Some("one();\ntwo();\nthree();\n".to_owned())
    }
}

struct Unknown;

impl MatchFinding for Unknown {
    fn matching(&self, _: &Violation, _: &Evidence<'_>, _: &dyn KernelSymbols) -> Option<String> {
        None
    }
}

fn path() -> Vec<Step> {
    let step = |number: u32| Step {
        rip: BASE + CALL * (u64::from(number) * 7919 % DISTINCT),
        task: 1,
        user: false,
        reach: Reach::Stepped,
        local: false,
        clock: None,
    };
    (0..LENGTH).map(step).collect()
}

fn symptom(invariant: &str, finding: Option<&str>) -> SweepSymptom {
    SweepSymptom {
        died: None,
        fell: [(invariant.to_owned(), finding.map(str::to_owned))].into(),
    }
}

/// The first trial of a failure.
fn trial() -> ScenarioResult {
    let mut result = ScenarioResult::not_run("point", Outcome::Fail, String::new());
    result.trace = Some(Trace::default());
    result.violations.push(JudgedViolation {
        violation: Violation {
            invariant: "C4".to_owned(),
            message: "record 22 carries cookie 0x0".to_owned(),
            events: Vec::new(),
            log: Vec::new(),
            instruction: Some(BASE),
            receiver: None,
        },
        finding: None,
    });
    result
}

/// Every boundary was tried but the last; three fail.
fn page(file: &Path) -> usize {
    let interrupt = Interrupt::default();
    let judge = Judge {
        invariants: &[],
        findings: &Unknown,
        symbols: &Kernel,
        compare_snapshots: false,
        limit: JudgeLimit {
            interrupt: &interrupt,
            time: Duration::MAX,
        },
    };
    let path = path();
    let all = boundaries(&path);
    let points: Vec<Point> = (0..)
        .zip(all)
        .map(|(number, at)| Point::single(number, at))
        .collect();
    let mut verdicts = Verdicts::new(judge, Recording::default(), path);
    let failure = |numbers: &[usize]| Failure {
        points: numbers.iter().map(|&at| points[at]).collect(),
        messages: vec!["C4 violated </script>".to_owned()],
    };
    verdicts
        .failures
        .insert(symptom("C4", None), failure(&[70_000, 70_001]));
    verdicts
        .failures
        .insert(symptom("M1", Some("F001")), failure(&[90_000]));
    verdicts.tried = points[..points.len() - 1]
        .iter()
        .copied()
        .collect::<BTreeSet<_>>();
    verdicts.passed = LENGTH - 4;
    let summary = Summary {
        verdicts: &verdicts,
        chosen: points.len(),
        effort: None,
        elapsed: Duration::from_secs(900),
        cut: None,
    };
    let heading = SweepHeading {
        scenario: "nmi-in-syscall".to_owned(),
        kernel_spec: "stock".to_owned(),
        kernel_release: "7.3".to_owned(),
        kvm_host: "none".to_owned(),
    };
    let names = Names::of(&Kernel, None);
    let mut report = SweepReport::default();
    report.first(points[70_000], &trial(), names);
    let html = report.html(&heading, &summary, names).unwrap();
    fs::write(file, &html).unwrap();
    html.len()
}

#[test]
fn a_hundred_thousand_points_are_read_by_keys() {
    let file = scratch("html-sweep").join("sweep.html");
    let size = page(&file);
    assert!(size < 5_000_000, "{size}");
    let Some(mut browser) = browser() else { return };
    let begin = Instant::now();
    browser.open(&file);
    eprintln!(
        "{size} bytes, drawn after {} ms",
        begin.elapsed().as_millis()
    );
    // The first that fails is chosen, and in sight; only what is in sight is drawn.
    let chosen = "document.querySelector('.line[aria-selected=true]').textContent";
    let rows = "document.querySelectorAll('.line').length";
    assert!(
        browser
            .eval(chosen)
            .as_str()
            .unwrap()
            .starts_with("70000✗1/1function_number_")
    );
    assert!(browser.eval(rows).as_u64().unwrap() < 100);
    let buttons = "[...document.querySelectorAll('main > .row button')].slice(0, 2).map(it => it.textContent[0]).join('')";
    assert_eq!(browser.eval(buttons), "✗≈");
    let card = browser.eval("document.querySelector('.card').textContent");
    assert!(card.as_str().unwrap().contains("C4 at 2 points"), "{card}");
    assert!(
        card.as_str()
            .unwrap()
            .contains("NMI at function_number_0+0x0"),
        "{card}"
    );
    for (key, begin) in [
        ("n", "70001✗"),
        ("n", "90000≈"),
        ("n", "70000✗"),
        ("p", "90000≈"),
    ] {
        browser.press(key);
        let now = browser.eval(chosen);
        assert!(now.as_str().unwrap().starts_with(begin), "{key}: {now}");
    }
    browser.eval("document.querySelector('.rows').focus()");
    for (key, begin) in [
        ("End", "99999·"),
        ("ArrowUp", "99998✓"),
        ("Home", "0✓"),
        ("ArrowDown", "1✓"),
    ] {
        browser.press(key);
        let now = browser.eval(chosen);
        assert!(now.as_str().unwrap().starts_with(begin), "{key}: {now}");
    }
    // By instruction: a row for each, with the trials of all its boundaries.
    browser.eval("document.querySelector('[data-view=instructions]').focus()");
    browser.press("Enter");
    let distinct = browser
        .eval("data.path.instructions.length")
        .as_u64()
        .unwrap();
    let listed = "Number(document.querySelector('.line').getAttribute('aria-setsize'))";
    assert_eq!(browser.eval(listed), json!(distinct));
    browser.press("n");
    let now = browser.eval(chosen);
    assert!(now.as_str().unwrap().contains("call"), "{now}");
    assert!(
        browser.eval(
            "document.querySelector('.line[aria-selected=true]').classList.contains('is-bad')"
        ) == json!(true)
    );
    // By line: 70,000 is in the first function.
    browser.eval("document.querySelector('[data-view=source]').focus()");
    browser.press("Enter");
    let lines =
        "[...document.querySelectorAll('.source tr')].map(it => it.textContent).join(' / ')";
    assert_eq!(
        browser.eval(lines),
        "✗×1000 100/1001one(); / ✓×1000 100/1002two(); / –×0 0/03three();"
    );
    // The picture has the colours of what failed and of what passed.
    let colours = "(() => { const it = document.querySelector('canvas'); const all = it.getContext('2d').getImageData(0, 0, it.width, it.height).data; \
                   const seen = new Set(); for (let i = 0; i < all.length; i += 4) seen.add(all.slice(i, i + 4).join()); return seen.size })()";
    assert!(browser.eval(colours).as_u64().unwrap() >= 4);
    quiet(&browser);
}
