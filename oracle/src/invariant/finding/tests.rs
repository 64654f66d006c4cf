use super::image::fixture::Built;
use super::*;
use crate::invariant::testkit::lab::{C, LabKit, NEXT, STACK, client};
use crate::invariant::testkit::{Kit, kernel, violated};
use crate::trace::Trace;
use crate::trace::fixtures::RESET_PERF_DATA;
use crate::trace::lab::{LabClient, LabKind};
use crate::trace::perf_data::{Limits, PerfData};

const EXIT_PATH: u64 = 0xffff_ffff_8100_1234;

/// A bug made up for the test: a request in the exit path is answered for cookie 0.
const MADE_UP: &str = "
- id: F001
  title: a request behind the reset is answered for cookie 0
  invariants: [C4, C7]
  kernels:
    releases: ['7.2.*', '7.3-rc*']
    symbols: [exit_path]
  signature:
    instruction: [exit_path]
    events:
      - { kind: sample, task: t, cookie: c }
      - { kind: deferred, task: t, cookie: c }
      - { kind: sample, task: t, cookie: c, interrupted: [exit_path, user] }
      - { kind: deferred, task: t, cookie: 0, frames: 2 }
";

struct Names;

impl Resolver for Names {
    fn function(&self, address: u64) -> Option<String> {
        match address & !0xfff {
            0xffff_ffff_8100_1000 => Some("exit_path".into()),
            0xffff_ffff_8100_2000 => Some("elsewhere".into()),
            _ => None,
        }
    }

    fn has(&self, name: &str) -> bool {
        name == "exit_path"
    }
}

fn story(late: u64, other_task: bool) -> Kit {
    let mut kit = Kit::new(1);
    let tid = if other_task { 1002 } else { 1001 };
    kit.inject(0, 1001, C, kernel(0xffff_ffff_8100_2004));
    kit.deferred(0, 1001, C, &[0x40, 0x80]);
    kit.inject(0, tid, C, kernel(late));
    kit.deferred(0, tid, 0, &[0x40, 0x80]);
    kit
}

fn found(list: &Findings, kit: &Kit) -> Vec<Option<FindingId>> {
    let trace = kit.trace();
    let evidence = Evidence::new(&trace);
    let violations = ["C4", "C7"].into_iter().flat_map(|id| violated(id, &trace));
    violations
        .map(|v| list.match_finding(&v, &evidence, &Names))
        .collect()
}

#[test]
fn the_embedded_list_is_well_formed_and_written_up() {
    let list = Findings::embedded().expect("well-formed");
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/findings");
    for finding in list.iter() {
        let page = root.join(format!("{}.md", finding.id));
        assert!(page.is_file(), "{} is missing", page.display());
    }
    let pages = std::fs::read_dir(root).unwrap();
    let names = pages.map(|it| it.unwrap().file_name().into_string().unwrap());
    let written_up = names.filter(|it| it.starts_with('F')).count();
    assert_eq!(list.iter().count(), written_up);
}

#[test]
fn exactly_the_sequence_matches() {
    let list = Findings::parse(MADE_UP).expect("well-formed");
    let id = Some(FindingId("F001".into()));
    assert_eq!(found(&list, &story(EXIT_PATH, false)), [id.clone(), id]);
}

#[test]
fn anything_else_does_not() {
    let list = Findings::parse(MADE_UP).expect("well-formed");
    let none = |kit: &Kit| {
        let found = found(&list, kit);
        assert!(!found.is_empty() && found.iter().all(Option::is_none));
    };
    none(&story(0xffff_ffff_8100_2004, false));
    none(&story(0xffff_ffff_8100_9000, false));
    none(&story(EXIT_PATH, true));
    // Another number of events, another cookie of one of them, other frames.
    let mut kit = Kit::new(1);
    kit.inject(0, 1001, C, kernel(EXIT_PATH));
    kit.deferred(0, 1001, 0, &[0x40, 0x80]);
    none(&kit);
    let mut kit = story(EXIT_PATH, false);
    kit.drop_last();
    kit.deferred(0, 1001, 0, &[0x40]);
    none(&kit);
}

#[test]
fn another_kernel_does_not() {
    let list = Findings::parse(MADE_UP).expect("well-formed");
    let mut trace = story(EXIT_PATH, false).trace();
    trace.release = "7.4.1".into();
    let violations = violated("C7", &trace);
    let found = |list: &Findings, trace: &Trace| {
        list.match_finding(&violations[0], &Evidence::new(trace), &Names)
    };
    assert_eq!(found(&list, &trace), None);
    let probed = MADE_UP.replace("symbols: [exit_path]", "symbols: [other]");
    let list = Findings::parse(&probed).expect("well-formed");
    trace.release = "7.2.1".into();
    assert_eq!(found(&list, &trace), None);
}

#[test]
fn malformed_entries_are_refused() {
    const REPORT: &str = "  also:\n    - report: ['BUG: ', 'Read']\n";
    let reported = format!("{MADE_UP}{REPORT}");
    assert!(Findings::parse(&reported).is_ok());
    for to in [
        "report: []",
        "report: ['BUG: ', '']",
        "report: ['BUG: ']\n      instruction: [window]",
        "report: ['BUG: ']\n      log: [{ kind: cancel }]",
        "log: []",
        "log: [{ kind: cancel, cookie: c }]",
        "log: [{ kind: cancel, interrupted: [exit_path] }]",
    ] {
        let text = reported.replace("report: ['BUG: ', 'Read']", to);
        assert_ne!(text, reported);
        assert!(Findings::parse(&text).is_err(), "{to}");
    }
    for (from, to) in [
        ("id: F001", "id: one"),
        ("[C4, C7]", "[C4, C99]"),
        ("[C4, C7]", "[]"),
        ("title:", "headline:"),
        (
            "kind: deferred, task: t, cookie: c",
            "kind: deferred, task: t",
        ),
        (
            "kind: sample, task: t, cookie: c }",
            "kind: fork, frames: 2 }",
        ),
        ("frames: 2", "frame: 2"),
        ("['7.2.*', '7.3-rc*']", "[]"),
    ] {
        let text = MADE_UP.replacen(from, to, 1);
        assert_ne!(text, MADE_UP);
        assert!(Findings::parse(&text).is_err(), "{to}");
    }
    let twice = format!("{MADE_UP}{MADE_UP}");
    let error = Findings::parse(&twice).expect_err("a double id");
    assert_eq!(error.to_string(), "finding F001: the id is used twice");
}

/// F004 as listed: a thread asks with an inherited event where no way leads back, and exits.
#[test]
fn an_exit_with_an_inherited_event_is_f004_and_nothing_else_is() {
    const SYS_EXIT: u64 = 0xffff_ffff_8100_1000;
    struct Exits;
    impl Resolver for Exits {
        fn function(&self, address: u64) -> Option<String> {
            match address {
                SYS_EXIT => Some("__x64_sys_exit".into()),
                _ => Built::default().function(address),
            }
        }
        fn has(&self, _: &str) -> bool {
            true
        }
        fn address(&self, name: &str) -> Option<u64> {
            Built::default().address(name)
        }
        fn code(&self, function: &str) -> Option<(u64, Vec<u8>)> {
            Built::default().code(function)
        }
    }
    let list = Findings::embedded().expect("well-formed");
    let found = |at: u64, inherits: bool, exits: bool| {
        let mut kit = Kit::new(1);
        kit.inject(0, 1001, C, kernel(at));
        if exits {
            kit.exit(0, 1001);
        }
        let mut trace = kit.trace();
        trace.release = "7.3.4-test".into();
        for spec in { trace.tracing.as_mut() }
            .into_iter()
            .flat_map(|it| &mut it.events)
        {
            spec.inherit = inherits;
        }
        let evidence = Evidence::new(&trace);
        let violations = ["M1", "X1"].into_iter().flat_map(|id| violated(id, &trace));
        let ids = violations.map(|v| list.match_finding(&v, &evidence, &Exits));
        ids.map(|id| id.map_or_else(String::new, |id| id.to_string()))
            .collect::<Vec<_>>()
    };
    assert_eq!(found(SYS_EXIT, true, true), ["F004", "F004"]);
    // In the function that removes the events, as long as they are there.
    let before = Built::at("do_exit", 0xc);
    assert_eq!(found(before, true, true), ["F004", "F004"]);
    assert_eq!(found(before + 5, true, true), ["", ""]);
    assert_eq!(found(SYS_EXIT, false, true), ["", ""]);
    assert_eq!(found(SYS_EXIT + 0x1000, true, true), ["", ""]);
    assert_eq!(found(SYS_EXIT, true, false), [""]);
}

#[test]
fn patterns() {
    assert!(like("7.2.13-cloud", "7.2.13-cloud"));
    assert!(!like("7.2.1", "7.2.13"));
    assert!(like("7.2.*", "7.2.13+deb14-cloud-amd64"));
    assert!(!like("7.2.*", "7.20.1"));
    assert!(like("7.*-cloud-*", "7.2.13+deb14-cloud-amd64"));
    assert!(!like("7.*-cloud-*", "7.2.13+deb14-amd64"));
    assert!(like("*-amd64", "7.2-amd64") && like("*", "") && !like("", "7"));
}

/// The finding that the first violation of a log is.
fn finding(id: &str, kit: &LabKit) -> Option<String> {
    finding_in(id, kit, &Built::default())
}

fn finding_in(id: &str, kit: &LabKit, kernel: &Built) -> Option<String> {
    let mut trace = kit.trace();
    trace.release = "7.3.4-unwindlab".into();
    let violations = violated(id, &trace);
    let findings = Findings::embedded().expect("well-formed");
    let found = findings.match_finding(&violations[0], &Evidence::new(&trace), kernel);
    found.map(|id| id.to_string())
}

#[test]
fn f005_is_a_call_in_the_middle_of_the_cancellation_and_nothing_else() {
    let found = |kit: &LabKit| finding("R5", kit);
    for task in [0, 1] {
        let kit = LabKit::unasked(task, &[LabKind::Cancel]);
        assert_eq!(found(&kit).as_deref(), Some("F005"));
        // Not cancelled, cancelled later, already cancelled.
        assert_eq!(found(&LabKit::unasked(task, &[])), None);
        let mut later = LabKit::unasked(task, &[]);
        later.cancel(client(1));
        assert_eq!(found(&later), None);
        let over = LabKit::unasked(task, &[LabKind::Cancel, LabKind::Cancelled]);
        assert_eq!(found(&over), None);
    }
    // Another client is being cancelled.
    let mut kit = LabKit::new();
    kit.ask(1, client(0), 0, C);
    kit.mark(client(0), LabKind::Cancel);
    kit.call(1, client(1), C, &STACK);
    assert_eq!(found(&kit), None);
    // For a cookie that is none.
    let mut kit = LabKit::new();
    kit.mark(client(1), LabKind::Cancel);
    kit.call(1, client(1), 0, &STACK);
    assert_eq!(found(&kit), None);
    assert_eq!(found(&LabKit::taken_place(0, C)).as_deref(), Some("F003"));
}

#[test]
fn f005_is_that_report_of_kasan_and_no_other() {
    const HEAD: &str =
        "<3>[    2.984907] BUG: KASAN: wild-memory-access in process_unwind_deferred+0x43/0x460";
    const READ: &str =
        "<3>[    2.985290] Read of size 8 at addr 1fff888004697d88 by task syscalls-0/41";
    let found = |lines: &[&str]| {
        let mut kit = LabKit::new();
        for line in lines {
            kit.perf.log(line);
        }
        finding("W0", &kit)
    };
    assert_eq!(found(&["Linux", HEAD, READ]).as_deref(), Some("F005"));
    let other = |from: &str, to: &str| {
        let lines = [HEAD, READ].map(|line| line.replace(from, to));
        found(&lines.each_ref().map(String::as_str))
    };
    for (from, to) in [
        ("process_unwind_deferred", "unwind_deferred_cancel"),
        ("process_unwind_deferred", "process_unwind_deferred_late"),
        ("in process", "in __process"),
        ("wild-memory-access", "slab-use-after-free"),
        ("KASAN", "KCSAN"),
        ("BUG", "WARNING: BUG"),
        // Before the bit is loaded, after it is tested, at an unknown place.
        ("+0x43/", "+0x3a/"),
        ("+0x43/", "+0x4d/"),
        ("+0x43/", "/"),
        ("Read", "Write"),
        ("1fff888004697d88", "dead000000000122"),
    ] {
        assert_eq!(other(from, to), None, "{to}");
    }
    // The address is not known.
    assert_eq!(found(&[HEAD]), None);
    assert_eq!(found(&[HEAD, "other", READ]), None);
    assert_eq!(found(&[READ, HEAD]), None);
}

#[test]
fn f003_is_a_place_taken_within_the_entry_and_nothing_else() {
    let next = LabClient {
        generation: 2,
        ..client(0)
    };
    let found = |kit: &LabKit| finding("R5", kit);
    assert_eq!(found(&LabKit::taken_place(0, C)).as_deref(), Some("F003"));
    // The registration is in the log when it is over: behind the callback.
    let mut kit = LabKit::new();
    kit.ask(1, client(0), 0, C);
    kit.cancel(client(0));
    kit.call(1, next, C, &STACK);
    kit.registered(next, 0);
    assert_eq!(found(&kit).as_deref(), Some("F003"));
    // Another place, another cookie.
    assert_eq!(found(&LabKit::taken_place(1, C)), None);
    assert_eq!(found(&LabKit::taken_place(0, NEXT)), None);
    // Registered before the cancellation ended, never cancelled, asked for after it, asked for
    // in an entry before.
    let mut kit = LabKit::new();
    kit.ask(1, client(0), 0, C);
    kit.registered(next, 0);
    kit.cancel(client(0));
    kit.call(1, next, C, &STACK);
    assert_eq!(found(&kit), None);
    let mut kit = LabKit::new();
    kit.ask(1, client(0), 0, C);
    kit.registered(next, 0);
    kit.call(1, next, C, &STACK);
    assert_eq!(found(&kit), None);
    let mut kit = LabKit::new();
    kit.cancel(client(0));
    kit.ask(1, client(0), 0, C);
    kit.registered(next, 0);
    kit.call(1, next, C, &STACK);
    assert_eq!(found(&kit), None);
    let mut kit = LabKit::new();
    kit.ask(1, client(0), 0, C);
    kit.leave(1);
    kit.cancel(client(0));
    kit.registered(next, 0);
    kit.call(1, next, C, &STACK);
    assert_eq!(found(&kit), None);
}

#[test]
fn f015_is_a_request_that_the_cancellation_did_not_wait_for_and_nothing_else() {
    let next = LabClient {
        generation: 2,
        ..client(0)
    };
    let f015 = Some("F015".to_owned());
    // A kernel with the fix of F003: mov rcx,qword [rbp+0x900]
    let again: &[u8] = &[0x48, 0x8b, 0x8d, 0x00, 0x09, 0x00, 0x00, 0x90];
    let walks = ("process_unwind_deferred", 0x2b, again);
    let found = |kit: &LabKit| finding_in("R5", kit, &Built(vec![walks]));
    for over in 0..3 {
        let asking = |next, begin, cookie| LabKit::asking_meanwhile(over, next, begin, cookie);
        assert_eq!(found(&asking(next, 0, C)), f015, "{over}");
        // Begun when the cancellation had, too.
        assert_eq!(found(&asking(next, 3, C)), f015, "{over}");
        // Another cookie, another place.
        assert_eq!(found(&asking(next, 0, NEXT)), None, "{over}");
        assert_eq!(found(&asking(client(1), 0, C)), None, "{over}");
        // Where the code has both, F003 is one that was over when the cancellation was.
        let both = if over == 0 { "F003" } else { "F015" };
        let stock = finding("R5", &asking(next, 0, C));
        assert_eq!(stock.as_deref(), Some(both), "{over}");
        // A cancellation that waits, and a request that it waits for: call synchronize_rcu, call __srcu_read_lock
        let wait: &[u8] = &[0xe8, 0x14, 0x04, 0x00, 0x00, 0x90, 0x90];
        let lock: &[u8] = &[0xe8, 0x4a, 0xfd, 0xff, 0xff];
        for fix in [
            ("unwind_deferred_cancel", 0x31, wait),
            ("unwind_deferred_request", 0x11, lock),
        ] {
            let fixed = Built(vec![walks, fix]);
            assert_eq!(finding_in("R5", &asking(next, 0, C), &fixed), None);
        }
    }
    // The registration is in the log when it is over: behind the callback.
    for over in 0..2 {
        let late = |cancelled: bool| {
            let mut kit = LabKit::new();
            kit.mark(client(0), LabKind::Cancel);
            for step in 0..2 {
                if step == over {
                    kit.ask_since(1, client(0), 0, C, 0);
                }
                if step == 0 && cancelled {
                    kit.mark(client(0), LabKind::Cancelled);
                }
            }
            kit.call(1, next, C, &STACK);
            kit.registered(next, 0);
            found(&kit)
        };
        assert_eq!(late(true), f015, "{over}");
        assert_eq!(late(false), None, "{over}");
    }
    // Begun when the cancellation had ended.
    for over in [1, 2] {
        assert_eq!(found(&LabKit::asking_meanwhile(over, next, 4, C)), None);
    }
    // Over when the cancellation began: F003's.
    assert_eq!(found(&LabKit::taken_place(0, C)), None);
    // By another task; not ended, so that it would be F005's; refused.
    let mut kit = LabKit::new();
    kit.cancel(client(0));
    kit.registered(next, 0);
    kit.ask_since(2, client(0), 0, C, 0);
    kit.call(1, next, C, &STACK);
    assert_eq!(found(&kit), None);
    let mut kit = LabKit::new();
    kit.mark(client(0), LabKind::Cancel);
    kit.registered(next, 0);
    kit.ask_since(1, client(0), 0, C, 0);
    kit.call(1, next, C, &STACK);
    assert_eq!(found(&kit), None);
    let mut kit = LabKit::new();
    kit.cancel(client(0));
    kit.registered(next, 0);
    kit.ask_since(1, client(0), -22, 0, 0);
    kit.call(1, next, C, &STACK);
    assert_eq!(found(&kit), None);
    // In an entry before.
    let mut kit = LabKit::new();
    kit.cancel(client(0));
    kit.registered(next, 0);
    kit.ask_since(1, client(0), 0, C, 0);
    kit.leave(1);
    kit.call(1, next, C, &STACK);
    assert_eq!(found(&kit), None);
}

/// F001 as listed: the same events, at instructions inside and outside of the window.
#[test]
fn f001_is_a_request_between_the_exchange_and_the_id_and_nothing_else() {
    let list = Findings::embedded().expect("well-formed");
    let found = |at: u64, kernel: &Built| {
        let mut trace = story(at, false).trace();
        trace.release = "7.3.4-test".into();
        let evidence = Evidence::new(&trace);
        let violations = ["C4", "C7"].into_iter().flat_map(|id| violated(id, &trace));
        let ids = violations.map(|v| {
            let id = list.match_finding(&v, &evidence, kernel);
            let near = list.match_but_for_code(&v, &evidence, kernel);
            // What is not the finding is still told apart from what is not alike.
            assert_eq!(near.map(|it| it.0).as_deref(), Some("F001"));
            id.map_or_else(String::new, |id| id.0)
        });
        ids.collect::<Vec<_>>()
    };
    let kernel = Built::default();
    for inside in [0x2c, 0x2e, 0x35] {
        let at = Built::at("do_syscall_64", inside);
        assert_eq!(found(at, &kernel), ["F001", "F001"]);
    }
    for outside in [0, 0x1e, 0x27, 0x40, 0x4c] {
        let at = Built::at("do_syscall_64", outside);
        assert_eq!(found(at, &kernel), ["", ""], "{outside:#x}");
    }
    // The same place in a kernel whose reset does not store to the id.
    let fixed = Built(vec![("do_syscall_64", 0x35, &[0x90; 11])]);
    let at = Built::at("do_syscall_64", 0x2c);
    assert_eq!(found(at, &fixed), ["", ""]);
}

#[test]
fn f002_is_an_accepted_request_of_a_kernel_that_does_not_look_at_the_sign() {
    let mut kit = LabKit::new();
    kit.cancel(client(0));
    kit.ask(1, client(0), 0, C);
    let mut trace = kit.trace();
    trace.release = "7.3.4-unwindlab".into();
    let violations = violated("R2", &trace);
    let list = Findings::embedded().expect("well-formed");
    let found = |kernel: &Built| {
        let found = list.match_finding(&violations[0], &Evidence::new(&trace), kernel);
        found.map(|id| id.to_string())
    };
    assert_eq!(found(&Built::default()).as_deref(), Some("F002"));
    let sign: &[u8] = &[0x85, 0xc9, 0x90, 0x90, 0x90];
    assert_eq!(
        found(&Built(vec![("unwind_deferred_request", 0x11, sign)])),
        None
    );
    // Cancelling leaves the client as it is: neither mark nor sign are why.
    let unmarked = Built(vec![("unwind_deferred_cancel", 0xb, &[0x90; 7])]);
    assert_eq!(found(&unmarked), None);
}

/// A kernel of which nothing is known.
struct Unknown;

impl Resolver for Unknown {
    fn function(&self, _: u64) -> Option<String> {
        None
    }

    fn has(&self, _: &str) -> bool {
        false
    }

    fn is_unknown(&self) -> bool {
        true
    }
}

#[test]
fn of_a_kernel_that_is_not_known_a_finding_is_possible_and_never_matched() {
    let list = Findings::embedded().expect("well-formed");
    let data = PerfData::read(RESET_PERF_DATA, Limits::default()).unwrap();
    let evidence = Evidence::new(&data.trace);
    let violations = ["C4", "C7", "M3"].map(|id| violated(id, &data.trace));
    for violation in violations.iter().flatten() {
        assert_eq!(list.match_finding(violation, &evidence, &Unknown), None);
        let possible = list.match_but_for_code(violation, &evidence, &Unknown);
        assert_eq!(possible, Some(FindingId("F001".into())));
        // A kernel without the functions that the finding names.
        let other = list.match_but_for_code(violation, &evidence, &Names);
        assert_eq!(other, None);
    }
    // Another release.
    let mut other = data.trace.clone();
    other.release = "6.12.1".into();
    let evidence = Evidence::new(&other);
    for violation in violations.iter().flatten() {
        assert_eq!(
            list.match_but_for_code(violation, &evidence, &Unknown),
            None
        );
    }
}
