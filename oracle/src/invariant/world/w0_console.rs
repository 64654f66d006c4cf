//! W0: the kernel reports nothing wrong.

use std::collections::BTreeSet;

use crate::invariant::evidence::Evidence;
use crate::invariant::evidence::lab::Lab;
use crate::invariant::{Tally, Violation};
use crate::trace::Trace;
use crate::trace::lab::LabKind;

/// What makes a line a report: at its start, or after a prefix that ends in ": " (`rcu: INFO:`,
/// `watchdog: BUG:`). Literals of kernel/panic.c, kernel/locking/lockdep.c,
/// kernel/rcu/tree_stall.h, kernel/hung_task.c, lib/ubsan.c, mm/kasan, arch/x86/mm/extable.c and
/// others, 7.2.
const REPORTS: [&str; 17] = [
    "WARNING: ",
    "BUG: ",
    "[ BUG: ",
    "INFO: ",
    "kernel BUG at ",
    "Kernel panic - not syncing",
    "Oops: ",
    "Oops - ",
    "UBSAN: ",
    "KASAN: ",
    "general protection fault, ",
    "unchecked MSR access error",
    "PANIC: ",
    "refcount_t: ",
    "Watchdog detected hard LOCKUP",
    "list_add corruption",
    "list_del corruption",
];

/// Lines that look like a report but are none, by a part of their text that nothing else has.
const HARMLESS: [&str; 4] = [
    // arch/x86/kernel/nmi.c, `nmi_check_duration`: longer than 1 ms, as on an emulated host.
    "took too long to run",
    // arch/x86/kernel/cpu/bugs.c: what mitigations the host's CPU model leaves out.
    "data leaks possible",
    "mitigation is only effective on AMD/Hygon",
    // init/main.c and drivers: what the command line asked for.
    "Unknown kernel command line parameters",
];

/// A back trace without a report's head line above it.
const CALL_TRACE: &str = "Call Trace:";
/// The head line of a back trace that somebody asked for (lib/nmi_backtrace.c). What asks for one,
/// a stall for example, writes a report line of its own.
const BACKTRACE: &str = "NMI backtrace for cpu";
/// Lines within which the parts of a report follow each other.
const REACH: usize = 80;
/// What a violation puts before the line.
const SAYS: &str = "the kernel says: ";

/// W0. No line of the kernel log or console is a report: WARNING, BUG, INFO, an oops, a sanitizer
/// or lock checker, a stall. The first telling line names a report, once, even if both the log and
/// the console have it.
///
/// Not reports: what the harness itself causes ("Uhhuh. NMI received for unknown reason", "Dazed
/// and confused": nobody claims an injected NMI), and what says that the machine is slow or old
/// rather than that the kernel is wrong ([`HARMLESS`]).
///
/// Excused is one warning of `unwind_deferred_request()` for a task that, by the lab client's log,
/// made a request as a cancelled client and was refused. That is the client's mistake, and not the
/// kernel's: "Do not allow cancelled works to request again" (`WARN_ON_ONCE` in that function,
/// kernel/unwind/deferred.c, 7.3).
///
/// Evidence is a line of a log without gaps: had the kernel reported something, the line were in
/// it. Where lines were lost before they were read, each line is undecided.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    let mut seen = BTreeSet::new();
    let mut explained: Option<usize> = None;
    let mut mistake_of_client = false;
    let gap = trace.log_has_gap();
    for (number, line) in trace.log.iter().enumerate() {
        let text = message(line);
        if text.is_empty() {
            continue;
        }
        if gap {
            tally.undecided("the kernel's log has a gap");
        } else {
            tally.holds();
        }
        let near = explained.is_some_and(|at| number - at <= REACH);
        let report = is_report(text);
        if report || text.starts_with(BACKTRACE) {
            explained = Some(number);
        }
        let alone = text.starts_with(CALL_TRACE) && !near;
        if (report || alone) && seen.insert(text) {
            if !mistake_of_client && warns_of_cancelled(text, evidence) {
                mistake_of_client = true;
                tally.excuse(format!("a cancelled client made a request: {text}"));
                continue;
            }
            tally.violated(format!("{SAYS}{text}"), [], None);
        }
    }
}

/// Whether a report is a warning of `unwind_deferred_request()` in a task that was refused there for
/// a cancelled client: "WARNING: FILE:LINE at FUNCTION+OFFSET/SIZE, CPU#N: COMM/PID".
fn warns_of_cancelled(text: &str, evidence: &Evidence<'_>) -> bool {
    let place = text.split_once(" at ").map_or("", |(_, place)| place);
    let pid = text.rsplit_once('/').and_then(|(_, pid)| pid.parse().ok());
    let (Some(lab), Some(pid)) = (evidence.lab(), pid) else {
        return false;
    };
    text.starts_with("WARNING: ")
        && place.starts_with("unwind_deferred_request+")
        && was_refused(lab, pid)
}

/// Whether a task was refused as a client that had been cancelled by the end of its request.
fn was_refused(lab: &Lab<'_>, tid: u32) -> bool {
    lab.log.events.iter().any(|event| {
        let refused = matches!(event.kind, LabKind::Request { ret: ..0, .. });
        let cancel = event.client.and_then(|client| lab.cancel(client));
        event.tid == tid && refused && cancel.is_some_and(|slot| slot < event.slot)
    })
}

/// Whether a violation is a report whose lines begin like these: the line that the violation names,
/// and those right after it in the log.
pub fn is_of(violation: &Violation, lines: &[String], trace: &Trace) -> bool {
    if violation.invariant != "W0" {
        return false;
    }
    let Some(head) = violation.message.strip_prefix(SAYS) else {
        return false;
    };
    trace.log.windows(lines.len().max(1)).any(|window| {
        let told: Vec<&str> = window.iter().map(|line| message(line)).collect();
        let mut pairs = told.iter().zip(lines);
        told.first() == Some(&head) && pairs.all(|(text, begin)| text.starts_with(begin.as_str()))
    })
}

/// Whether a message is the head line of a report.
fn is_report(text: &str) -> bool {
    let after_prefix = text
        .match_indices(": ")
        .map(|(at, prefix)| at + prefix.len());
    let mut parts = std::iter::once(0)
        .chain(after_prefix)
        .filter_map(|at| text.get(at..));
    parts.any(|part| REPORTS.iter().any(|report| part.starts_with(report)))
        && !HARMLESS.iter().any(|known| text.contains(known))
}

/// The message of a log line: without the priority and sequence of /dev/kmsg, without the
/// console's priority, time stamp and caller.
fn message(line: &str) -> &str {
    let mut text = line.trim();
    // "6,339,5140900,-;text"
    if let Some((head, rest)) = text.split_once(';')
        && head.split(',').count() >= 3
        && head.starts_with(|c: char| c.is_ascii_digit())
        && !head.contains(' ')
    {
        text = rest;
    }
    // "<6>[    0.123456][    T1] text"
    loop {
        let rest = text.trim_start();
        let cut = match rest.chars().next() {
            Some('<') => rest.split_once('>'),
            Some('[') => rest.split_once(']'),
            _ => None,
        };
        match cut {
            Some((head, tail)) if is_stamp(head) => text = tail,
            _ => return rest,
        }
    }
}

/// Whether a bracket holds a priority, a time or a caller, and not text.
fn is_stamp(head: &str) -> bool {
    let body = head.get(1..).unwrap_or_default().trim();
    let body = body.strip_prefix(['T', 'C']).unwrap_or(body);
    !body.is_empty() && body.chars().all(|c| c.is_ascii_digit() || c == '.')
}

#[cfg(test)]
mod tests {
    use crate::invariant::testkit::lab::{self, C, LabKit, client};
    use crate::invariant::testkit::{Kit, holds, not_exercised, violations};

    fn log(lines: &[&str]) -> Kit {
        let mut kit = Kit::new(1);
        for line in lines {
            kit.log(line);
        }
        kit
    }

    #[test]
    fn every_report_is_found_once() {
        for line in [
            "[   12.345678] WARNING: kernel/unwind/deferred.c:161 at process_unwind_deferred+0x1/0x2, CPU#0: spin/71",
            "4,400,12345678,-;WARNING: possible circular locking dependency detected",
            "<2>[   12.345678][   T71] kernel BUG at kernel/unwind/deferred.c:1!",
            "[   12.345678] BUG: KASAN: slab-use-after-free in unwind_user+0x1/0x2",
            "[   12.345678] BUG: sleeping function called from invalid context at mm/fault.c:1",
            "[   12.345678][  C0] watchdog: BUG: soft lockup - CPU#0 stuck for 22s! [spin:71]",
            "[   12.345678] rcu: INFO: rcu_preempt self-detected stall on CPU",
            "[   12.345678] INFO: task init:1 blocked for more than 122 seconds.",
            "[   12.345678] UBSAN: array-index-out-of-bounds in kernel/unwind/user.c:1:2",
            "[   12.345678] Oops: general protection fault, probably for non-canonical address",
            "[   12.345678] Oops: 0000 [#1] SMP NOPTI",
            "[   12.345678] [ BUG: Invalid wait context ]",
            "[   12.345678] NMI watchdog: Watchdog detected hard LOCKUP on cpu 0",
            "Kernel panic - not syncing: Attempted to kill init! exitcode=0x0000000b",
        ] {
            let found = violations("W0", &log(&[line, "[    1.0] fine", line]));
            assert_eq!(found.len(), 1, "{line}");
        }
    }

    #[test]
    fn one_report_of_many_lines_is_one_violation() {
        let kit = log(&[
            "[    1.000000] ------------[ cut here ]------------",
            "[    1.000000] WARNING: kernel/fork.c:1 at f+0x1/0x2, CPU#0: init/1",
            "[    1.000000] Modules linked in:",
            "[    1.000000] Call Trace:",
            "[    1.000000]  <TASK>",
            "WARNING: kernel/fork.c:1 at f+0x1/0x2, CPU#0: init/1",
        ]);
        assert_eq!(violations("W0", &kit).len(), 1);
    }

    #[test]
    fn one_warning_of_a_cancelled_client_is_the_clients() {
        let warning = |line: u32, pid: u32| {
            format!(
                "[ 1.0] WARNING: kernel/unwind/deferred.c:{line} at unwind_deferred_request+0x14d/0x170, CPU#0: syscalls-0/{pid}"
            )
        };
        let refused = |lines: &[String]| {
            let mut kit = LabKit::new();
            kit.cancel(client(1));
            kit.ask(2, client(1), -22, 0);
            for line in ["[ 1.0] fine".to_owned()].iter().chain(lines) {
                kit.perf.log(line);
            }
            kit
        };
        assert_eq!(lab::holds("W0", &refused(&[warning(252, 1002)])).0, 2);
        // A second such warning, and one of another task.
        lab::violated("W0", &refused(&[warning(252, 1002), warning(284, 1002)]));
        lab::violated("W0", &refused(&[warning(252, 1001)]));
        // Nothing was refused.
        let mut kit = LabKit::new();
        kit.ask(2, client(1), 0, C);
        kit.perf.log(&warning(252, 1002));
        lab::violated("W0", &kit);
    }

    #[test]
    fn a_call_trace_of_its_own_is_a_report_unless_asked_for() {
        violations("W0", &log(&["[    1.000000] Call Trace:"]));
        holds(
            "W0",
            &log(&["[ 1.0] NMI backtrace for cpu 0", "[ 1.0] Call Trace:"]),
        );
    }

    #[test]
    fn what_the_harness_and_a_slow_machine_cause_is_none() {
        let kit = log(&[
            "[    1.000000] Uhhuh. NMI received for unknown reason 20 on CPU 0.",
            "[    1.000000] Dazed and confused, but trying to continue",
            "[    1.000000] INFO: NMI handler (arch_trigger_cpumask_backtrace_handler) took too long to run: 1.203 msecs",
            "[    1.000000] perf: interrupt took too long (2510 > 2500), lowering kernel.perf_event_max_sample_rate to 79000",
            "[    0.000000] Spectre V2 : WARNING: Unprivileged eBPF is enabled with eIBRS on, data leaks possible via Spectre v2 BHB attacks!",
            "[    0.000000] ACPI BIOS Warning (bug): Incorrect checksum in table",
            "[    0.000000] kasan: KernelAddressSanitizer initialized",
            "[    0.000000] UBSAN initialised",
            "[    0.000000] clocksource: timekeeping watchdog on CPU0: Marking clocksource 'tsc' as unstable",
            "[    0.000000] Debugging for BUG: off",
        ]);
        assert_eq!(holds("W0", &kit).0, 10);
    }

    #[test]
    fn a_log_with_a_gap_does_not_exercise_it() {
        let kit = log(&["[    1.0] fine", unwindlab_abi::LOG_GAP.trim_end()]);
        assert!(not_exercised("W0", &kit).contains("2 undecided"));
    }

    #[test]
    fn an_empty_log_does_not_exercise_it() {
        not_exercised("W0", &log(&["", "[    1.000000]"]));
    }

    /// Of its warnings the client is told; another report of a task that it was refused for is the kernel's.
    #[test]
    fn another_report_beside_a_cancelled_client_is_the_kernels() {
        let report = |line: &str| {
            let mut kit = LabKit::new();
            kit.cancel(client(1));
            kit.ask(1, client(1), -22, 0);
            kit.perf.log(line);
            crate::invariant::testkit::violated("W0", &kit.trace()).len()
        };
        for line in [
            "[ 1.0] BUG: KASAN: null-ptr-deref at unwind_deferred_request+0x14d/0x170, CPU#0: syscalls-0/1001",
            "[ 1.0] WARNING: kernel/fork.c:1 at copy_process+0x14d/0x170, CPU#0: syscalls-0/1001",
        ] {
            assert_eq!(report(line), 1, "{line}");
        }
    }
}
