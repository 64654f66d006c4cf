//! Confines a child process: which files it may read and write, no network, no privileges.
//!
//! Three layers, the first two of which are required:
//!
//! - Landlock: nothing but the listed files can be opened, and processes outside cannot be signalled;
//! - seccomp: no sockets, and none of the system calls that a compiler has no use for;
//! - namespaces of its own (user, mount, network, IPC): no capability, no network device, and every file system
//!   read-only but the folders to write to. What Landlock does not control (modes, times, attributes of
//!   files) is read-only by this alone.
//!
//! All is prepared before the fork. Between fork and exec there are system calls only.

mod calls;
mod files;
mod namespaces;

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use rustix::thread::set_no_new_privs;

pub use files::Allowed;

/// What is done where a process cannot be confined.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Policy {
    /// It is run anyway, and a warning says so once.
    #[default]
    Warn,
    /// It is refused.
    Require,
    /// Nothing is confined, even where it can be.
    Off,
}

/// The process's choice. Until it is made: [`Policy::Warn`].
static POLICY: OnceLock<Policy> = OnceLock::new();

/// Chooses for the whole process, once: later calls change nothing.
pub fn choose(policy: Policy) {
    let _ = POLICY.set(policy);
}

/// What was chosen.
#[must_use]
pub fn policy() -> Policy {
    POLICY.get().copied().unwrap_or_default()
}

/// What this system can do, each layer tried on a child process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Means {
    /// Why the files cannot be confined, if so.
    pub files: Result<(), String>,
    /// Why the system calls cannot be confined, if so.
    pub calls: Result<(), String>,
    /// Why there are no namespaces, if so.
    pub namespaces: Result<(), String>,
}

impl Means {
    /// What the system lacks that is required, for messages.
    #[must_use]
    pub fn lacking(&self) -> Option<String> {
        let parts = [("Landlock", &self.files), ("a seccomp filter", &self.calls)];
        let lacking: Vec<String> = parts
            .into_iter()
            .filter_map(|(name, means)| Some(format!("no {name} ({})", means.as_ref().err()?)))
            .collect();
        (!lacking.is_empty()).then(|| lacking.join(", "))
    }
}

/// What this system can do. Tried once: all together, and each alone where that fails.
pub fn means() -> &'static Means {
    static MEANS: OnceLock<Means> = OnceLock::new();
    MEANS.get_or_init(|| {
        let all = Layers {
            files: true,
            calls: true,
            namespaces: true,
        };
        if attempt(all).is_ok() {
            return Means {
                files: Ok(()),
                calls: Ok(()),
                namespaces: Ok(()),
            };
        }
        let tried = |layers| attempt(layers).map_err(|error| error.to_string());
        let none = Layers::default();
        Means {
            files: tried(Layers {
                files: true,
                ..none
            }),
            calls: tried(Layers {
                calls: true,
                ..none
            }),
            namespaces: tried(Layers {
                namespaces: true,
                ..none
            }),
        }
    })
}

#[derive(Debug, Clone, Copy, Default)]
struct Layers {
    files: bool,
    calls: bool,
    namespaces: bool,
}

fn attempt(layers: Layers) -> io::Result<()> {
    let mut command = Command::new("true");
    let null = Stdio::null;
    command.stdin(null()).stdout(null()).stderr(null());
    arm(&mut command, &Allowed::system(), layers)?;
    match command.status()?.success() {
        true => Ok(()),
        false => Err(io::Error::other("`true` fails under it")),
    }
}

/// Why a process is not started.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// `--require-sandbox`, and the system lacks something.
    #[error("--require-sandbox: {what} cannot be confined on this system: {lacking}")]
    Required {
        /// What was to be started.
        what: &'static str,
        /// What the system lacks.
        lacking: String,
    },
    /// It could be tried, and now fails.
    #[error("cannot confine {what}: {source}")]
    System {
        /// What was to be started.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// Has a child confined to these files as soon as it is forked, as far as the policy demands. `what` it is, for
/// messages.
///
/// # Errors
/// [`ConfineError`].
pub fn confine(
    command: &mut Command,
    allowed: &Allowed,
    what: &'static str,
) -> Result<(), ConfineError> {
    if policy() == Policy::Off {
        return Ok(());
    }
    let means = means();
    if let Some(lacking) = means.lacking() {
        if policy() == Policy::Require {
            return Err(ConfineError::Required { what, lacking });
        }
        warn_once(what, &lacking);
    }
    let layers = Layers {
        files: means.files.is_ok(),
        calls: means.calls.is_ok(),
        namespaces: means.namespaces.is_ok(),
    };
    arm(command, allowed, layers).map_err(|source| ConfineError::System { what, source })
}

fn warn_once(what: &str, lacking: &str) {
    static SAID: OnceLock<()> = OnceLock::new();
    SAID.get_or_init(|| {
        tracing::warn!("NOT fully confined: {what}, since this system has {lacking}");
    });
}

fn arm(command: &mut Command, allowed: &Allowed, layers: Layers) -> io::Result<()> {
    let mut namespaces = match layers.namespaces {
        true => Some(namespaces::prepare(allowed.writable())?),
        false => None,
    };
    let mut files = match layers.files {
        true => Some(files::prepare(allowed)?),
        false => None,
    };
    let calls = match layers.calls {
        true => Some(calls::prepare()?),
        false => None,
    };
    let enter = move || -> io::Result<()> {
        if let Some(namespaces) = namespaces.take() {
            namespaces.enter()?;
        }
        set_no_new_privs(true)?;
        if let Some(files) = files.take() {
            files::restrict(files)?;
        }
        if let Some(calls) = &calls {
            calls::restrict(calls)?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe code may run. `enter` makes system calls with what
    // was prepared above, allocates nothing and takes no lock; what it drops are file descriptors. The
    // memory of `namespaces` is leaked rather than freed.
    unsafe {
        command.pre_exec(enter);
    }
    Ok(())
}

/// A folder that exists, without symbolic links: rules are about the folder at its end.
fn real(path: &Path) -> io::Result<PathBuf> {
    path.canonicalize()
}

#[cfg(test)]
mod tests;
