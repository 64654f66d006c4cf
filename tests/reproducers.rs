//! The C programs that show findings without unwindlab: each as the only program of a plain QEMU, on the stock kernel (those
//! that need the lab client: on one with it), and on one with every fix.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "an integration test is a test module as a whole"
)]

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::{said, scratch, unwindlab};
use cpio::newc::{self, ModeFileType};
use unwindlab_guest_kernel::qemu::Qemu;
use unwindlab_guest_kernel::{Cache, Silent, qemu};

/// How long a machine may take. On an idle CPU most take some 3 s, f005 half a minute.
const LIMIT: Duration = Duration::from_secs(180);

/// The header of the lab client.
const CLIENT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/guest-kernel/client/files/include"
);

/// Their sources, by name.
fn reproducers() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("reproducers");
    let files = fs::read_dir(folder).unwrap();
    let mut files: Vec<PathBuf> = files.map(|it| it.unwrap().path()).collect();
    files.retain(|it| it.extension().is_some_and(|it| it == "c"));
    files.sort();
    files
}

/// The finding that a source shows.
fn finding(source: &Path) -> String {
    source.file_stem().unwrap().to_str().unwrap().to_uppercase()
}

/// An initial file system in which the program is all there is.
fn initramfs(source: &Path, folder: &Path) -> PathBuf {
    let program = folder.join(source.file_stem().unwrap());
    let gcc = Command::new("gcc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-static", "-I"])
        .args([CLIENT, "-o"])
        .args([&program, source])
        .output()
        .unwrap();
    assert!(gcc.status.success(), "{}", said(&gcc));
    let mut archive = Vec::new();
    let content = fs::read(&program).unwrap();
    let entry = |name, kind| {
        newc::Builder::new(name)
            .mode(0o755)
            .set_mode_file_type(kind)
    };
    let directory = entry("dev", ModeFileType::Directory);
    let console = entry("dev/console", ModeFileType::Char);
    let console = console.rdev_major(5).rdev_minor(1);
    let init = entry("init", ModeFileType::Regular);
    let entries = [(directory, &[][..]), (console, &[]), (init, &content)];
    for (inode, (entry, content)) in (1..).zip(entries) {
        let entry = entry.ino(inode);
        let length = u32::try_from(content.len()).unwrap();
        let mut writer = entry.write(archive, length);
        std::io::Write::write_all(&mut writer, content).unwrap();
        archive = writer.finish().unwrap();
    }
    let file = program.with_extension("cpio");
    fs::write(&file, newc::trailer(archive).unwrap()).unwrap();
    file
}

/// The line of the verdict that the program prints in a machine with this kernel.
fn verdict(qemu: &Qemu, vmlinux: &str, source: &Path, folder: &Path) -> String {
    let mut command = qemu.command();
    command
        .args(["-accel", "tcg", "-cpu", "max", "-m", "1024", "-nodefaults"])
        .args(["-smp", "2,sockets=2"])
        .args(["-no-user-config", "-display", "none", "-no-reboot"])
        .args(["-serial", "stdio", "-kernel", vmlinux, "-initrd"])
        .arg(initramfs(source, folder))
        .args(["-append", "console=ttyS0 panic=-1 reboot=t"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let console = BufReader::new(child.stdout.take().unwrap());
    let begins = format!("{}: ", finding(source));
    let reader = thread::spawn(move || {
        let mut all = String::new();
        for line in console.lines() {
            let line = line.unwrap_or_default();
            if line.starts_with(&begins) {
                return line.trim_end().to_owned();
            }
            all.push_str(&line);
            all.push('\n');
        }
        all
    });
    let begin = Instant::now();
    while !reader.is_finished() && begin.elapsed() < LIMIT {
        thread::sleep(Duration::from_millis(50));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap()
}

/// Whether a program tells perf alone what to do.
fn needs_no_client(source: &Path) -> bool {
    !fs::read_to_string(source)
        .unwrap()
        .contains("<linux/unwindlab.h>")
}

/// Runs these programs on a kernel, each of which is to say this.
fn each_says(kernel: &[&str], sources: &[PathBuf], word: &str) {
    let fetched = unwindlab(kernel);
    assert!(fetched.status.success(), "{}", said(&fetched));
    // Its release, and its path.
    let told = String::from_utf8(fetched.stdout).unwrap();
    let vmlinux = told.split_whitespace().nth(1).unwrap();
    let qemu = qemu::qemu(&Cache::open(None).unwrap(), &Silent).unwrap();
    let names = [&["reproducers"], kernel].concat().join("-");
    let folder = scratch(&names.replace(':', "-"));
    assert!(!sources.is_empty());
    for source in sources {
        let line = verdict(&qemu, vmlinux, source, &folder);
        println!("{line}");
        let wanted = format!("{}: {word}: ", finding(source));
        assert!(line.starts_with(&wanted), "{wanted}{line}");
    }
}

#[test]
fn each_fails_on_a_kernel_with_its_finding() {
    let (perf, client): (Vec<_>, Vec<_>) = reproducers()
        .into_iter()
        .partition(|it| needs_no_client(it));
    each_says(&["kernel", "fetch", "stock"], &perf, "not ok");
    each_says(
        &["kernel", "build", "--source", "debian"],
        &client,
        "not ok",
    );
}

#[test]
fn each_passes_with_the_fixes() {
    let kernel = [
        "kernel", "build", "--source", "debian", "--patch", "fix:all",
    ];
    each_says(&kernel, &reproducers(), "ok");
}

#[test]
fn each_is_short() {
    for source in reproducers() {
        let lines = fs::read_to_string(&source).unwrap().lines().count();
        assert!(lines < 200, "{}: {lines} lines", source.display());
    }
}
