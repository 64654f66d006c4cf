//! Outer machines that are saved: the next command goes on from one, and only from one that is what was written.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "an integration test is a test module as a whole"
)]

mod common;

use std::fs;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Once;
use std::thread;
use std::time::Duration;

use common::{said, scratch, unwindlab};
use unwindlab_guest_kernel::{AboutMachine, Cache, SavedMachines};

const SCENARIO: &str = "nmi-in-syscall";
const WITH_GUESTS: &str = ", saved with guests; ";
const BARE: &str = ", saved; ";

/// A cache of this test's own, with what the user's has: the files are the same ones.
struct OwnCache(PathBuf);

impl OwnCache {
    fn new(name: &str) -> Self {
        static FETCHED: Once = Once::new();
        FETCHED.call_once(|| {
            let fetched = unwindlab(&["--fresh", "run", SCENARIO, "--kvm-host", "emulated"]);
            assert!(fetched.status.success(), "{}", said(&fetched));
        });
        let own = Self(scratch(name));
        let cache = Cache::open(None).unwrap();
        for folder in ["entries", "notes"] {
            link(&cache.root().join(folder), &own.0.join(folder));
        }
        own.machines().prune(0, None).unwrap();
        own
    }

    fn machines(&self) -> SavedMachines {
        SavedMachines::new(Cache::open(Some(self.0.clone())).unwrap())
    }

    /// The files of the saved machines with so many guests.
    fn states(&self, guests: u32) -> Vec<PathBuf> {
        let all = self.machines().all().unwrap().into_iter();
        all.filter(|(_, about, _)| about.guests == guests)
            .map(|(dir, ..)| dir.join("state"))
            .collect()
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_unwindlab"));
        command
            .args(["run", SCENARIO, "--kvm-host", "emulated"])
            .env("UNWINDLAB_CACHE", &self.0)
            .current_dir(env!("CARGO_MANIFEST_DIR"));
        command
    }

    fn run(&self, options: &[&str]) -> String {
        let output = self.command().args(options).output();
        let output = output.expect("the command can be started");
        let text = said(&output);
        assert!(text.contains("\npass "), "{text}");
        assert!(output.status.success(), "{text}");
        text
    }

    /// Runs until the machine is saved with its guests.
    fn saved(&self) {
        self.run(&[]);
        let second = self.run(&[]);
        assert_eq!(self.states(1).len(), 1, "{second}");
    }
}

impl Drop for OwnCache {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Makes the folders below `from` again, with links to its files. What is saved there, and what another command removes
/// meanwhile, is left out.
fn link(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for item in fs::read_dir(from).unwrap().flatten() {
        let (source, target) = (item.path(), to.join(item.file_name()));
        if item.file_name().to_string_lossy().starts_with("machine") {
            continue;
        }
        let kind = item.file_type().unwrap();
        if kind.is_dir() {
            link(&source, &target);
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&source).unwrap(), &target).unwrap();
        } else if fs::hard_link(&source, &target).is_err() {
            let _ = fs::copy(&source, &target);
        }
    }
}

#[test]
fn the_third_command_boots_nothing() {
    let cache = OwnCache::new("saved-third");
    cache.run(&["--fresh"]);
    assert!(cache.machines().all().unwrap().is_empty());
    let first = cache.run(&[]);
    assert!(!first.contains("saved"), "{first}");
    assert_eq!(cache.states(0).len(), 1, "{first}");
    // A kernel that is seen once may never come again: a machine that has booted, and no guests.
    assert_eq!(cache.states(1).len(), 0, "{first}");
    let second = cache.run(&[]);
    assert!(second.contains(BARE), "{second}");
    let third = cache.run(&[]);
    assert!(third.contains(WITH_GUESTS), "{third}");
    let fresh = cache.run(&["--fresh"]);
    assert!(!fresh.contains("saved"), "{fresh}");
}

/// The mappings of the file of a state, private and writable, by QEMU, which this process has started.
fn mapped_by_qemu(process: u32) -> usize {
    let children = format!("/proc/{process}/task/{process}/children");
    let children = fs::read_to_string(children).unwrap_or_default();
    let maps = children
        .split_whitespace()
        .filter_map(|child| fs::read_to_string(format!("/proc/{child}/maps")).ok());
    let is_state = |line: &&str| line.ends_with("/state") && line.contains(" rw-p ");
    maps.map(|maps| maps.lines().filter(is_state).count()).sum()
}

#[test]
fn a_state_with_guests_is_mapped_and_a_bare_one_is_read() {
    let cache = OwnCache::new("saved-mapped");
    let mapped = || {
        let mut command = cache.command();
        let mut run = command.stdout(Stdio::null()).spawn().unwrap();
        let mut mapped = 0;
        while run.try_wait().unwrap().is_none() {
            mapped = mapped.max(mapped_by_qemu(run.id()));
            thread::sleep(Duration::from_millis(5));
        }
        assert!(run.wait().unwrap().success());
        mapped
    };
    cache.run(&[]);
    assert_eq!(mapped(), 0, "of a bare state");
    assert_eq!(cache.states(1).len(), 1);
    assert!(mapped() > 0, "of one with guests");
}

/// The bytes that are changed are no state's that QEMU would stumble over: they are guest memory.
#[test]
fn a_changed_state_is_named_and_not_used() {
    let cache = OwnCache::new("saved-changed");
    cache.saved();
    for state in cache.states(1) {
        let file = fs::File::options().write(true).open(&state).unwrap();
        file.write_all_at(b"changed", file.metadata().unwrap().len() / 2)
            .unwrap();
    }
    let text = cache.run(&[]);
    assert!(text.contains("is damaged: state has the SHA-256"), "{text}");
    assert!(text.contains(BARE), "{text}");
    // It was made again.
    let text = cache.run(&[]);
    assert!(text.contains(WITH_GUESTS), "{text}");
}

/// Whole as far as the cache can tell, and no state of a machine.
#[test]
fn a_state_that_does_not_come_up_is_told_and_made_again() {
    let cache = OwnCache::new("saved-garbage");
    cache.saved();
    let machines = cache.machines();
    for (dir, about, _) in machines.all().unwrap() {
        let name = dir.file_name().unwrap().to_string_lossy().into_owned();
        let room = machines.room().unwrap();
        let mut file = room.file().unwrap();
        file.seek(SeekFrom::Start(1 << 20)).unwrap();
        file.write_all(&[0x5a; 1 << 20]).unwrap();
        let id = name.strip_prefix("machine-").unwrap();
        machines.keep(id, room, AboutMachine { ..about }).unwrap();
    }
    let text = cache.run(&[]);
    assert!(text.contains("a saved machine did not come up: "), "{text}");
    assert!(
        !text.contains(WITH_GUESTS) && !text.contains(BARE),
        "{text}"
    );
    // Both are made again, and used.
    let text = cache.run(&[]);
    assert!(text.contains(WITH_GUESTS), "{text}");
}
