//! QEMU, which a guest may break out to: a hostile program in its place, and the real one.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "an integration test is a test module as a whole"
)]

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use unwindlab_guest_kernel::confine::means;

const SECRET: &str = "the secret of the home folder";

/// A home folder with a secret, a port on which nobody should call, and a program that is taken for QEMU.
struct Victim {
    folder: tempfile::TempDir,
    port: TcpListener,
}

impl Victim {
    fn new() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap();
        port.set_nonblocking(true).unwrap();
        let victim = Self { folder, port };
        fs::create_dir(victim.home()).unwrap();
        fs::write(victim.home().join("secret"), SECRET).unwrap();
        fs::create_dir(victim.program().parent().unwrap()).unwrap();
        fs::write(victim.program(), victim.script()).unwrap();
        fs::set_permissions(victim.program(), fs::Permissions::from_mode(0o755)).unwrap();
        victim
    }

    fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    fn program(&self) -> PathBuf {
        self.folder.path().join("bin/qemu-system-x86_64")
    }

    /// It says that it is QEMU, and then each attempt is by itself.
    fn script(&self) -> String {
        let home = self.home().display().to_string();
        let port = self.port.local_addr().unwrap().port();
        let call = "use IO::Socket::INET; exit !IO::Socket::INET->new(shift)";
        format!(
            "#!/bin/sh\n\
             case \"$*\" in *--version*) echo QEMU emulator version 10.9.9; exit;; esac\n\
             echo \"ran $(cat {home}/secret)\" >&2\n\
             echo new > {home}/new\n\
             perl -e '{call}' 127.0.0.1:{port}\n\
             exit 1\n"
        )
    }

    fn run(&self, option: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_unwindlab"))
            .env("UNWINDLAB_QEMU", self.program())
            .current_dir(self.folder.path())
            .args(["run", "--kvm-host", "emulated", "nmi-in-syscall"])
            .args(option)
            .output()
            .unwrap()
    }

    fn files_at_home(&self) -> usize {
        fs::read_dir(self.home()).unwrap().count()
    }
}

fn said(output: &Output) -> String {
    let told = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8_lossy(&told).into_owned()
}

#[test]
fn what_runs_in_its_place_gets_neither_the_home_folder_nor_the_network() {
    let victim = Victim::new();
    let output = victim.run(&["--require-sandbox"]);
    let said = said(&output);
    if let Some(lacking) = means().lacking() {
        println!("THIS SYSTEM CANNOT CONFINE QEMU: {lacking}. Only the refusal is tested.");
        assert!(said.contains(&lacking) && !said.contains("ran "), "{said}");
        return;
    }
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("ran ") && !said.contains(SECRET), "{said}");
    assert_eq!(victim.files_at_home(), 1);
    assert!(victim.port.accept().is_err(), "{said}");
}

#[test]
fn without_the_sandbox_it_gets_both() {
    let victim = Victim::new();
    let said = said(&victim.run(&["--no-sandbox"]));
    assert!(said.contains(&format!("ran {SECRET}")), "{said}");
    assert_eq!(victim.files_at_home(), 2);
    assert!(victim.port.accept().is_ok(), "{said}");
}

/// The lines of `/proc/PID/status`, and the network namespace, of the child of a process that is QEMU.
fn qemu_of(parent: u32) -> Option<(String, PathBuf)> {
    let children = format!("/proc/{parent}/task/{parent}/children");
    let children = fs::read_to_string(children).ok()?;
    children.split_whitespace().find_map(|child| {
        let folder = Path::new("/proc").join(child);
        let arguments = fs::read(folder.join("cmdline")).ok()?;
        let is_qemu = arguments.split(|byte| *byte == 0).any(|it| it == b"-accel");
        let status = fs::read_to_string(folder.join("status")).ok()?;
        let network = fs::read_link(folder.join("ns/net")).ok()?;
        is_qemu.then_some((status, network))
    })
}

#[test]
fn the_real_one_has_no_capability_and_no_network() {
    let lacks = |state: &Result<(), String>| state.is_err();
    if lacks(&means().calls) || lacks(&means().namespaces) {
        println!("THIS SYSTEM HAS NO SECCOMP OR NO NAMESPACES: nothing is tested.");
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_unwindlab"))
        .current_dir(folder.path())
        .args(["run", "--kvm-host", "emulated", "nmi-in-syscall"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    let mut found = None;
    while found.is_none() && run.try_wait().unwrap().is_none() {
        assert!(begin.elapsed() < Duration::from_secs(300));
        thread::sleep(Duration::from_millis(20));
        found = qemu_of(run.id());
    }
    let code = run.wait().unwrap().code();
    let (status, network) = found.expect("QEMU was not seen");
    for line in [
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
    ] {
        assert!(status.contains(line), "{line}: {status}");
    }
    assert_ne!(network, fs::read_link("/proc/self/ns/net").unwrap());
    assert_eq!(code, Some(0));
}
