//! `unwindlab sweep` hits a finding with a window of three instructions every time, catches broken
//! kernels without a scenario made for them, restores machines exactly, and resumes.
//!
//! Needs the stock kernel, a KVM host, native or emulated, and for some tests Debian's kernel
//! source and a compiler.

#![allow(
    clippy::tests_outside_test_module,
    clippy::expect_used,
    reason = "an integration test is a test module as a whole"
)]

mod common;

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use common::{said, unwindlab};

/// The replay file that a sweep's output names.
fn replay_file(told: &str) -> &str {
    let file = told.lines().find_map(|line| line.strip_prefix("replay: "));
    file.expect("a replay file is named")
}

#[test]
fn a_window_of_three_instructions_is_found_on_the_stock_kernel() {
    let output = unwindlab(&[
        "sweep",
        "nmi-in-syscall",
        "--function",
        "do_syscall_64",
        "--static",
    ]);
    let told = said(&output);
    println!("{told}");
    assert!(output.status.success(), "{told}");
    assert!(told.contains("expected-failure  C4 (F001)"), "{told}");
    assert!(!told.contains("FAIL"), "{told}");
    assert!(!told.contains("were not tried"), "{told}");

    let file = replay_file(&told);
    let again = unwindlab(&["replay", file, "--trace", "--instructions", "2"]);
    let shown = said(&again);
    assert_eq!(again.status.code(), Some(1), "{shown}");
    assert!(shown.contains("fails the same way"), "{shown}");
    let events = shown.lines().filter(|line| line.starts_with("    #"));
    assert!(events.count() > 3, "{shown}");
    let mut path = shown
        .lines()
        .skip_while(|line| !line.contains("the path around point"));
    assert_eq!(path.nth(3).map(|line| &line[..4]), Some("  > "), "{shown}");
    let mended = unwindlab(&["replay", file, "--source", "debian", "--patch", "fix:F001"]);
    assert!(mended.status.success(), "{}", said(&mended));
    assert!(said(&mended).contains("passes at"), "{}", said(&mended));
}

#[test]
fn the_window_is_the_same_finding_in_a_process_of_the_workload() {
    let sweep = ["sweep", "entry-exec", "--static"];
    let function = ["--function", "do_syscall_64", "--all"];
    let output = unwindlab(&[sweep.as_slice(), &function].concat());
    let told = said(&output);
    assert!(output.status.success(), "{told}");
    let known = "expected-failure  C4 (F001) C7 (F001) M3 (F001)  at 3 of the points";
    assert!(told.contains(known), "{told}");
}

/// The places at which a sweep's finding is, from its report.
fn places(told: &str) -> BTreeSet<&str> {
    let mut lines = told
        .lines()
        .skip_while(|line| !line.starts_with("expected-failure  "));
    let at = lines.find_map(|line| line.strip_prefix("  at "));
    at.expect("places").split(' ').collect()
}

#[test]
fn boundaries_that_the_next_one_stands_for_are_left_out() {
    let function = ["sweep", "nmi-in-syscall", "--function", "do_syscall_64"];
    let some = unwindlab(&function);
    let every = unwindlab(&[function.as_slice(), &["--all"]].concat());
    let (some, every) = (said(&some), said(&every));
    println!("{some}{every}");
    assert!(!some.contains("FAIL") && !every.contains("FAIL"));
    let (few, all) = (places(&some), places(&every));
    assert!(few.len() < all.len() && few.is_subset(&all), "{few:?}");
    let more = number_before(&some, " more boundaries have the next one tried");
    assert!(!every.contains(" more boundaries have"), "{every}");
    assert_eq!(tried(&some) + more, tried(&every));
}

#[test]
fn machines_are_put_back_as_they_were() {
    let output = unwindlab(&[
        "sweep",
        "nmi-in-syscall",
        "--function",
        "task_work_run",
        "--static",
        "--check-restores",
        "--jobs",
        "1",
    ]);
    let told = said(&output);
    println!("{told}");
    assert!(output.status.success(), "{told}");
    assert!(told.contains("0 distinct failures"), "{told}");
}

#[test]
fn a_mutant_is_told_without_a_scenario_of_its_own() {
    let output = unwindlab(&[
        "sweep",
        "nmi-in-syscall",
        "--source",
        "debian",
        "--patch",
        "mutant:nmi-without-self-ipi",
        "--no-request",
    ]);
    let told = said(&output);
    println!("{told}");
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("FAIL  "), "{told}");
    assert!(told.contains("P4 violated"), "{told}");
}

/// KVM made an interrupt in all machines but the first, which hid this mutant.
#[test]
fn each_machine_of_a_sweep_tells_a_missing_self_ipi() {
    let sweep = [
        "sweep",
        "nmi-in-syscall",
        "--all",
        "--function",
        "do_syscall_64",
        "--source",
        "debian",
        "--patch",
        "mutant:nmi-without-self-ipi",
    ];
    let failing = |jobs| {
        let output = unwindlab(&[sweep.as_slice(), &["--jobs", jobs]].concat());
        let told = said(&output);
        println!("{told}");
        assert_eq!(output.status.code(), Some(1), "{told}");
        number_before(&told, " of the points, first do_syscall_64+")
    };
    let one = failing("1");
    assert!(one > 24, "more than a machine takes at a time");
    assert_eq!(failing("2"), one);
}

/// The number right before these words.
fn number_before(told: &str, words: &str) -> u64 {
    let line = told.lines().find(|line| line.contains(words));
    let line = line.expect("a line with these words");
    let before = line.split(words).next().unwrap_or_default().trim();
    let number = before.rsplit(' ').next().unwrap_or_default();
    number.parse().expect("a number")
}

/// How many points or pairs were tried.
fn tried(told: &str) -> u64 {
    let line = told.lines().find(|line| line.contains(" tried: "));
    let number = line.and_then(|line| line.split(' ').next());
    number.and_then(|it| it.parse().ok()).expect("a number")
}

#[test]
fn pairs_that_are_alike_are_left_out_and_no_others() {
    let pairs = [
        "sweep",
        "nmi-in-syscall",
        "--pairs",
        "--function",
        "do_syscall_64",
    ];
    let some = unwindlab(&pairs);
    let every = unwindlab(&[pairs.as_slice(), &["--all"]].concat());
    let (some, every) = (said(&some), said(&every));
    println!("{some}{every}");
    for told in [&some, &every] {
        assert!(told.contains("expected-failure  C4 (F001)"), "{told}");
        assert!(!told.contains("FAIL"), "{told}");
        assert!(!told.contains("were not tried"), "{told}");
    }
    // The symptoms are the same, whatever was left out.
    let symptoms = |told: &str| -> Vec<String> {
        let lines = told
            .lines()
            .filter(|line| line.starts_with("expected-failure"));
        let symptom = |line: &str| line.split("  at ").next().unwrap_or_default().to_owned();
        lines.map(symptom).collect()
    };
    assert_eq!(symptoms(&some), symptoms(&every));
    assert!(tried(&some) < tried(&every));
    assert_eq!(tried(&every), number_before(&every, " pairs so far"));
    assert_eq!(number_before(&some, " pairs so far"), tried(&every));

    let again = unwindlab(&["replay", replay_file(&some)]);
    assert_eq!(again.status.code(), Some(1), "{}", said(&again));
    assert!(said(&again).contains(" and then "), "{}", said(&again));
}

#[test]
fn an_interrupted_sweep_reports_what_it_tried() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unwindlab"))
        .args(["sweep", "nmi-in-syscall", "-v"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command can be started");
    let log = command.stderr.take().expect("it is piped");
    let mut log = BufReader::new(log).lines().map_while(Result::ok);
    let begun = log.any(|line| line.contains(" points, "));
    assert!(begun, "it ended before its first trials");
    let pid = command.id().to_string();
    let sent = Command::new("kill").args(["-TERM", &pid]).status();
    assert!(sent.expect("kill can be started").success());
    let output = command.wait_with_output().expect("it ends");
    let told = said(&output);
    assert_eq!(output.status.code(), Some(130), "{told}");
    assert!(told.contains("trials a second; interrupted"), "{told}");
    assert!(told.contains("exercised: "), "{told}");
}

#[test]
fn a_sweep_goes_on_where_it_was_stopped() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("sweep.json");
    let file = file.to_str().expect("a plain name");
    let sweep = ["sweep", "nmi-in-syscall", "--resume", file];
    let begun = unwindlab(&[sweep.as_slice(), &["--point", "3", "--point", "4"]].concat());
    assert!(said(&begun).contains("2 of "), "{}", said(&begun));
    let rest = ["--function", "do_syscall_64", "--function", "task_work_run"];
    let rest = unwindlab(&[sweep.as_slice(), &rest].concat());
    let told = said(&rest);
    println!("{told}");
    assert!(rest.status.success(), "{told}");
    assert!(told.contains("2 of them in earlier sweeps"), "{told}");
    let tried = tried(&told);
    assert!(tried > 20, "{told}");
    let again = unwindlab(&[sweep.as_slice(), &["--function", "do_syscall_64"]].concat());
    let told = said(&again);
    assert!(
        told.contains(&format!("{tried} of them in earlier sweeps")),
        "{told}"
    );
    assert!(told.contains("expected-failure  C4 (F001)"), "{told}");
    let other = unwindlab(&[sweep.as_slice(), &["--no-request"]].concat());
    assert!(
        said(&other).contains("another choice of --no-request"),
        "{}",
        said(&other)
    );
}

#[test]
fn the_start_of_a_task_is_swept() {
    let output = unwindlab(&["sweep", "entry-thread-start", "--function", "ret_from_fork"]);
    let told = said(&output);
    println!("{told}");
    assert!(output.status.success(), "{told}");
    assert!(
        told.contains("expected-failure  C4 (F001) C7 (F001)"),
        "{told}"
    );
    assert!(
        told.contains("  at ret_from_fork+") && !told.contains("FAIL"),
        "{told}"
    );
}

#[test]
fn a_path_is_swept_while_another_vcpu_runs() {
    let output = unwindlab(&[
        "sweep",
        "entry-2-vcpus",
        "--from",
        "user",
        "--free",
        "--function",
        "__x64_sys_getppid",
        "--function",
        "entry_SYSCALL_64_after_hwframe",
    ]);
    let told = said(&output);
    println!("{told}");
    assert!(output.status.success(), "{told}");
    assert!(told.contains("0 distinct failures"), "{told}");
    assert!(!told.contains("were not tried"), "{told}");
}

#[test]
fn clients_of_the_kernel_are_swept() {
    let output = unwindlab(&[
        "sweep",
        "lab-nmi-request",
        "--source",
        "debian",
        "--function",
        "do_syscall_64",
    ]);
    let told = said(&output);
    println!("{told}");
    assert!(output.status.success(), "{told}");
    assert!(
        told.contains("expected-failure  C4 (F001) C7 (F001) R1 (F001)"),
        "{told}"
    );
    // What only the lab client's log tells.
    assert!(told.contains(" D2 "), "{told}");
}

#[test]
fn what_cannot_be_swept_is_said() {
    for (arguments, words) in [
        (
            vec!["sweep", "nmi-storm-300-frames"],
            "the scenario has none",
        ),
        (
            vec!["sweep", "nmi-in-syscall", "--function", "no_such_function"],
            "the kernel has no function `no_such_function`",
        ),
        (
            vec!["sweep", "nmi-in-syscall", "--from", "do_syscall_64+0x1"],
            "--from: found do_syscall_64+0x1, which is inside an instruction",
        ),
        (
            vec!["sweep", "nmi-in-syscall", "--point", "3:4"],
            "add --pairs",
        ),
        (
            vec!["sweep", "no-such-scenario"],
            "no file, folder or library scenario",
        ),
    ] {
        let output = unwindlab(&arguments);
        let told = said(&output);
        assert!(!output.status.success(), "{told}");
        assert!(told.contains(words), "{arguments:?}: {told}");
    }
}

#[test]
fn a_warning_from_an_nmi_is_told_of_the_points_that_have_it() {
    let output = unwindlab(&[
        "sweep",
        "nmi-in-syscall",
        "--source",
        "debian",
        "--patch",
        "mutant:no-early-return",
        "--function",
        "exit_to_user_mode_loop",
        "--function",
        "__x64_sys_getppid",
        "--static",
    ]);
    let told = said(&output);
    println!("{told}");
    assert_eq!(output.status.code(), Some(1), "{told}");
    let failure = told.lines().find(|line| line.starts_with("FAIL  "));
    assert!(failure.is_some_and(|line| line.contains("W0")), "{told}");
    assert!(
        told.contains("W0 violated: the kernel says: WARNING: "),
        "{told}"
    );
    // Points where the request still waits pass, though others ran before on the same machine.
    let passed = number_before(&told, " pass, ");
    assert!(passed > 0 && passed < tried(&told), "{told}");
}

#[test]
fn a_request_that_is_lost_with_interrupts_off_is_told() {
    let tick = [
        "sweep",
        "--requests",
        "tick-in-user-mode",
        "--function",
        "irq_exit_rcu",
        "--source",
        "debian",
    ];
    let right = unwindlab(&tick);
    let told = said(&right);
    println!("{told}");
    assert!(right.status.success(), "{told}");
    assert!(told.contains("4 of 4 places tried"), "{told}");
    assert!(told.contains(": 4 pass,"), "{told}");

    let mutant = ["--patch", "mutant:irqs-off-not-queued"];
    let wrong = unwindlab(&[tick.as_slice(), &mutant].concat());
    let told = said(&wrong);
    println!("{told}");
    assert_eq!(wrong.status.code(), Some(1), "{told}");
    assert!(told.contains("M1 violated"), "{told}");
    assert!(told.contains(" 0 pass,"), "{told}");
}

#[test]
fn nmis_come_behind_the_request_of_a_tracer() {
    let output = unwindlab(&[
        "sweep",
        "--requests",
        "--nmi",
        "--static",
        "nmi-in-syscall",
        "--function",
        "__x64_sys_getppid",
    ]);
    let told = said(&output);
    println!("{told}");
    assert!(output.status.success(), "{told}");
    assert!(told.contains("sys_getppid (beside): "), "{told}");
    assert!(
        told.contains("1 sweeps behind requests, 0 not tested"),
        "{told}"
    );
    // The path leads over the window of F001, in the way out.
    assert!(told.contains("(F001)"), "{told}");
    assert!(!told.contains("FAIL"), "{told}");
}
