//! F013 is that report of the unwinder, at these instructions, on a kernel that says the wrong thing
//! to it.

use super::Findings;
use super::image::fixture::Built;
use crate::invariant::evidence::Evidence;
use crate::invariant::testkit::lab::LabKit;
use crate::invariant::testkit::violated;

const REPORT: &str =
    "<4>[    2.070006] WARNING: can't access registers at sysret32_from_system_call+0x5/0x5";

/// The finding that the only violation of a log with this line is.
fn found(line: &str, kernel: &Built) -> Option<String> {
    let mut kit = LabKit::new();
    kit.perf.log(line);
    let mut trace = kit.trace();
    trace.release = "7.3.4-unwindlab".into();
    let violations = violated("W0", &trace);
    let findings = Findings::embedded().expect("well-formed");
    let found = findings.match_finding(&violations[0], &Evidence::new(&trace), kernel);
    found.map(|id| id.to_string())
}

#[test]
fn f013_is_that_report_of_the_unwinder_and_no_other() {
    let with = |from: &str, to: &str| {
        let line = REPORT.replace(from, to);
        assert!(from == to || line != REPORT);
        found(&line, &Built::default())
    };
    let place = "sysret32_from_system_call+0x5/0x5";
    let window = "entry_SYSRETL_compat_unsafe_stack";
    // The first instruction is told by the symbol before it; the last is `sysretl`.
    assert_eq!(with(place, place).as_deref(), Some("F013"));
    for offset in ["0x3", "0x6", "0x9", "0xc"] {
        let to = format!("{window}+{offset}/0xe");
        assert_eq!(with(place, &to).as_deref(), Some("F013"), "{to}");
    }
    for to in [
        // Before the user's stack pointer is loaded, and behind `sysretl`.
        "sysret32_from_system_call+0x0/0x5",
        "sysret32_from_system_call+0x4/0x5",
        "entry_SYSRETL_compat_unsafe_stack+0xe/0xe",
        "entry_SYSRETL_compat_end+0x0/0x1",
        // Elsewhere, and at no place.
        "asm_exc_nmi+0x0/0x1",
        "do_syscall_64+0x5/0x4d",
        "entry_SYSRETQ_unsafe_stack+0x3/0x7",
        "sysret32_from_system_call",
        "0xffffffff81000605",
    ] {
        assert_eq!(with(place, to), None, "{to}");
    }
    for (from, to) in [
        ("access registers", "access iret registers"),
        ("can't access registers", "can't dereference registers"),
        ("WARNING: ", "WARNING: WARNING: "),
    ] {
        assert_eq!(with(from, to), None, "{to}");
    }
}

#[test]
fn f013_is_not_on_a_kernel_with_its_fix() {
    let end = vec![
        ("__start_orc_unwind_ip", 8, &[0xdd][..]),
        ("__start_orc_unwind", 17, &[0x01][..]),
    ];
    assert_eq!(found(REPORT, &Built(end)), None);
}
