//! The files that a confined process may open: Landlock.

use std::io;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _,
    RulesetCreated, RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope,
    path_beneath_rules,
};

/// Programs, libraries and what they read. Nothing of the user's, and of /etc only what the loader and
/// the C library need.
const SYSTEM: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    "/gnu/store",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/group",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    // objtool reads its own limits. What other processes have there is closed by Landlock's rules for ptrace,
    // except what everyone may read: their command lines.
    "/proc",
    "/sys/devices/system/cpu",
    "/dev/urandom",
    "/dev/random",
    "/dev/zero",
];

/// Without truncation, which came third, any file could still be emptied.
const NEEDED: ABI = ABI::V3;
/// Used where the system has it: signals, abstract sockets, and ioctl on devices.
const WANTED: ABI = ABI::V6;

/// Which files a process may open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed {
    read: Vec<PathBuf>,
    write: Vec<PathBuf>,
    devices: Vec<PathBuf>,
}

impl Allowed {
    /// The system's programs and libraries, read-only.
    #[must_use]
    pub fn system() -> Self {
        Self {
            read: SYSTEM.iter().map(PathBuf::from).collect(),
            write: Vec::new(),
            devices: Vec::new(),
        }
    }

    /// And what is in this folder, or this file.
    #[must_use]
    pub fn and_read(mut self, path: &Path) -> Self {
        self.read.push(path.to_path_buf());
        self
    }

    /// And this folder, for writing too.
    #[must_use]
    pub fn and_write(mut self, folder: &Path) -> Self {
        self.write.push(folder.to_path_buf());
        self
    }

    /// And this device, for reading, writing and ioctl.
    #[must_use]
    pub fn and_device(mut self, device: &Path) -> Self {
        self.devices.push(device.to_path_buf());
        self
    }

    pub(super) fn writable(&self) -> &[PathBuf] {
        &self.write
    }
}

/// Opens the files. What is not there is left out.
pub(super) fn prepare(allowed: &Allowed) -> io::Result<RulesetCreated> {
    let all = AccessFs::from_all(WANTED);
    let ruleset = || {
        Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_all(NEEDED))?
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(all)?
            .scope(Scope::from_all(WANTED))?
            .create()?
            .add_rules(path_beneath_rules(
                &allowed.read,
                AccessFs::from_read(WANTED),
            ))?
            .add_rules(path_beneath_rules(&allowed.write, all))?
            .add_rules(path_beneath_rules(
                &allowed.devices,
                AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev,
            ))?
            .add_rules(path_beneath_rules(
                ["/dev/null"],
                AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate,
            ))
    };
    ruleset().map_err(|error: RulesetError| match error {
        // It lists all rights, and says no more.
        RulesetError::HandleAccesses(_) => io::Error::other("Linux 6.2 or later has it"),
        other => io::Error::other(other),
    })
}

/// From here on.
pub(super) fn restrict(ruleset: RulesetCreated) -> io::Result<()> {
    match ruleset.restrict_self() {
        Ok(status) if status.ruleset != RulesetStatus::NotEnforced => Ok(()),
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}
