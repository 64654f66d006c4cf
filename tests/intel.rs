//! The KVM host with an Intel CPU: Bochs with `kvm_intel`.
//!
//! Needs the stock kernel and Bochs, both of which are downloaded, and minutes. So it is run by name only:
//! `cargo test --release --test intel -- --ignored`.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "an integration test is a test module as a whole"
)]

mod common;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{said, scratch, unwindlab};

const RUN: [&str; 3] = ["run", "--kvm-host", "emulated-intel"];

#[test]
#[ignore = "minutes on Bochs"]
fn scenarios_pass_on_kvm_intel() {
    let scenarios = ["nmi-in-syscall", "nmi-in-user-mode", "entry-2-vcpus"];
    let output = unwindlab(&[&RUN[..], &["--jobs", "1"], &scenarios].concat());
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("3 pass in "), "{said}");
    assert!(said.contains("KVM host emulated-intel (Bochs "), "{said}");
}

#[test]
#[ignore = "minutes on Bochs"]
fn synthetic_counters_are_those_of_intels_driver() {
    let scenarios = ["pmu-overflow-in-syscall", "pmu-overflow-when-rearmed"];
    let output = unwindlab(&[&RUN[..], &["--jobs", "1"], &scenarios].concat());
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("1 pass, 1 skip in "), "{said}");
    let other = "waits for MSR 0xc0010004, which is none of the counters of this KVM host's CPU";
    assert!(said.contains(other), "{said}");
}

/// The child of a process, whichever of its threads started it, that is Bochs.
fn bochs_of(parent: u32) -> Option<u32> {
    let threads = fs::read_dir(format!("/proc/{parent}/task")).ok()?;
    let children: String = threads
        .filter_map(|it| fs::read_to_string(it.ok()?.path().join("children")).ok())
        .collect();
    children.split_whitespace().find_map(|child| {
        let arguments = fs::read(Path::new("/proc").join(child).join("cmdline")).ok()?;
        let text = String::from_utf8_lossy(&arguments);
        text.contains("bochs-bin").then(|| child.parse().ok())?
    })
}

/// Waits until this is something.
fn wait<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(
            started.elapsed() < Duration::from_secs(300),
            "it never came"
        );
        sleep(Duration::from_millis(50));
    }
}

#[test]
#[ignore = "minutes on Bochs"]
fn bochs_ends_with_the_command() {
    let folder = scratch("intel");
    let start = || -> Child {
        Command::new(env!("CARGO_BIN_EXE_unwindlab"))
            .args(RUN)
            .arg("nmi-in-syscall")
            .current_dir(&folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    for signal in ["KILL", "INT"] {
        let mut command = start();
        let bochs = wait(|| bochs_of(command.id()));
        sleep(Duration::from_secs(2));
        let sent = Command::new("kill")
            .args(["-s", signal, &command.id().to_string()])
            .status();
        assert!(sent.unwrap().success());
        command.wait().unwrap();
        let process = Path::new("/proc").join(bochs.to_string());
        wait(|| (!process.exists()).then_some(()));
        assert_eq!(
            fs::read_dir(&folder).unwrap().count(),
            0,
            "it left files behind"
        );
    }
}
