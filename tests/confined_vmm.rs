//! The VMM's process, which a guest of a native KVM host may break out to: a hostile program in its place, and the real one with
//! a hostile guest.
//!
//! Needs /dev/kvm; the guest has no kernel, so any will do.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "an integration test is a test module as a whole"
)]

#[path = "../engine/tests/hostile/guest.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod guest;
#[path = "../engine/tests/hostile/plan.rs"]
mod plan;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use unwindlab_engine::host::native::process::{self, Given};
use unwindlab_engine::host::process::HostProcess;
use unwindlab_engine::interrupt::Interrupt;
use unwindlab_engine::plan::{Executor as _, InfraError};
use unwindlab_guest_kernel::Silent;
use unwindlab_guest_kernel::confine::means;
use unwindlab_oracle::trace::recording::TrialEnd;

use guest::{Script, honest};
use plan::{HOSTILE, plan};

fn start(program: &Path, guest: Option<&Path>) -> Result<HostProcess, InfraError> {
    let kvm =
        unwindlab_vmm::open_kvm().unwrap_or_else(|error| panic!("this test needs KVM: {error}"));
    let given = Given {
        kernels: guest
            .iter()
            .map(|it| (HOSTILE.to_owned(), it.into()))
            .collect(),
        ..Given::default()
    };
    process::start(program, &kvm, &given, "a test", &Interrupt::default())
}

/// The real process, and this guest.
fn with_guest(folder: &Path, script: &Script) -> HostProcess {
    let file = folder.join("guest");
    script.store(&file);
    start(Path::new(env!("CARGO_BIN_EXE_unwindlab")), Some(&file)).unwrap()
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[test]
fn what_runs_in_its_place_gets_no_files_of_others() {
    let folder = folder();
    let home = folder.path().join("home");
    fs::create_dir(&home).unwrap();
    fs::write(home.join("secret"), "the secret").unwrap();
    let program = folder.path().join("program");
    let shown = home.display();
    let script =
        format!("#!/bin/sh\necho \"ran $(cat {shown}/secret)\" >&2; echo new > {shown}/new\n");
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let failed = start(&program, None).unwrap_err();
    assert!(failed.console.contains("ran "), "{failed:?}");
    if let Some(lacking) = means().lacking() {
        println!("THIS SYSTEM CANNOT CONFINE IT: {lacking}");
        return;
    }
    assert!(!failed.console.contains("the secret"), "{failed:?}");
    assert_eq!(fs::read_dir(&home).unwrap().count(), 1);
}

#[test]
fn its_trials_come_across_and_a_guest_that_dies_leaves_it_alive() {
    let folder = folder();
    let set_up = honest::set_up(1);
    let ready = set_up
        .iter()
        .fold(Script::new().say(&honest::hello(1)), Script::say);
    let whole = ready
        .say(&unwindlab_abi::message::AgentMessage::Ready)
        .say(&honest::finished());
    let mut host = with_guest(
        folder.path(),
        &whole.say(&unwindlab_abi::message::AgentMessage::Bye).spin(),
    );
    for _ in 0..2 {
        let recording = host.run(&plan(1), &Silent).unwrap();
        assert_eq!(recording.end, TrialEnd::Completed);
    }
    drop(host);
    let mut host = with_guest(folder.path(), &Script::new().triple_fault());
    for _ in 0..2 {
        let recording = host.run(&plan(1), &Silent).unwrap();
        assert_ne!(recording.end, TrialEnd::Completed);
        assert!(
            !matches!(recording.end, TrialEnd::Infra { .. }),
            "{:?}",
            recording.end
        );
    }
}

/// What `/proc` says of a process or thread under this name.
fn says(folder: &Path, name: &str) -> String {
    let status = fs::read_to_string(folder.join("status")).unwrap();
    let value = { status.lines() }.find_map(|it| it.strip_prefix(name)?.strip_prefix(':'));
    value
        .unwrap_or_else(|| panic!("no {name}: {status}"))
        .trim()
        .to_owned()
}

/// The thread of its first vCPU, once there is one.
fn vcpu_of(process: &Path) -> PathBuf {
    for _ in 0..200 {
        for thread in fs::read_dir(process.join("task")).unwrap() {
            let thread = thread.unwrap().path();
            if fs::read_to_string(thread.join("comm")).is_ok_and(|it| it == "vcpu0\n") {
                return thread;
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("no vCPU");
}

#[test]
fn proc_says_that_it_is_confined_and_its_vcpu_more_so() {
    let folder = folder();
    let mut host = with_guest(folder.path(), &Script::new().spin());
    let pid = host.id().to_string();
    let process = Path::new("/proc").join(&pid);
    let mut trial = plan(1);
    trial.limits.boot_ms = 3_000;
    let running = std::thread::spawn(move || host.run(&trial, &Silent).map(|it| it.end));
    let vcpu = vcpu_of(&process);
    // It is named before it is confined.
    let filters = |of: &Path| says(of, "Seccomp_filters").parse::<u32>().unwrap();
    for _ in 0..100 {
        if filters(&vcpu) > filters(&process) {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let told = ["NoNewPrivs", "Seccomp", "CapEff", "CapBnd"].map(|it| says(&process, it));
    println!(
        "{told:?}, filters: {}, {} of the vCPU",
        filters(&process),
        filters(&vcpu)
    );
    assert_eq!(filters(&vcpu), filters(&process) + 1);
    let network = |of: &str| fs::read_link(format!("/proc/{of}/ns/net")).unwrap();
    let own_network = network(&pid) != network("self");
    let lacking = means().lacking();
    let end = running.join().unwrap().unwrap();
    assert!(matches!(end, TrialEnd::BootError { .. }), "{end:?}");
    if let Some(lacking) = lacking {
        println!("THIS SYSTEM CANNOT CONFINE IT: {lacking}");
        return;
    }
    assert_eq!(&told[..2], ["1", "2"]);
    if means().namespaces.is_ok() {
        assert_eq!(&told[2..], ["0000000000000000"; 2]);
        assert!(own_network);
    }
}
