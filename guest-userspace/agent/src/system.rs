//! Sets up the guest: file systems, memory that does not move, sysctls, the console.

use std::fs;
use std::io;
use std::path::Path;

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::mount::{MountFlags, mount};
use rustix::thread::{CpuSet, sched_getaffinity};
use unwindlab_abi::EventSource;
use unwindlab_abi::Tracing;

/// Where [`mount_tracefs`] mounts tracefs.
pub const TRACEFS: &str = "/tracing";

/// Why the guest cannot be set up.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum SystemError {
    /// A file system cannot be mounted.
    #[error("cannot mount {kind} on {target}: {source}")]
    Mount {
        kind: &'static str,
        target: &'static str,
        source: io::Error,
    },
    /// Memory cannot be kept in place.
    #[error("cannot pin the agent's memory: {0}")]
    Pin(rustix::io::Errno),
    /// A sysctl cannot be read or set.
    #[error("cannot set sysctl {name} to {value}: {source}")]
    Sysctl {
        name: &'static str,
        value: String,
        source: io::Error,
    },
    /// A sysctl of the plan cannot be set.
    #[error("cannot set sysctl kernel.{name} to {value}: {source}")]
    PlannedSysctl {
        name: String,
        value: String,
        source: io::Error,
    },
    /// The online CPUs are unknown.
    #[error("cannot tell which CPUs are online: {0}")]
    Cpus(rustix::io::Errno),
}

/// Mounts `/proc`, for the page map, sysctls, and the state of threads.
///
/// # Errors
/// [`SystemError::Mount`].
pub fn mount_proc() -> Result<(), SystemError> {
    mount_one("proc", "/proc")
}

/// Mounts `/dev`, for `kmsg`.
///
/// # Errors
/// [`SystemError::Mount`].
pub fn mount_dev() -> Result<(), SystemError> {
    mount_one("devtmpfs", "/dev")
}

/// Mounts tracefs if an event of the plan needs it, or something else does.
///
/// # Errors
/// [`SystemError::Mount`].
pub fn mount_tracefs(tracing: &Tracing, otherwise_needed: bool) -> Result<(), SystemError> {
    let needed = otherwise_needed
        || tracing.events.iter().any(|spec| {
            matches!(
                spec.source,
                EventSource::Tracepoint { .. }
                    | EventSource::Kprobe { .. }
                    | EventSource::Fprobe { .. }
                    | EventSource::Uprobe { .. }
            )
        });
    if needed {
        mount_one("tracefs", TRACEFS)?;
    }
    Ok(())
}

/// Mounts `/sys`, where perf finds the counters.
///
/// # Errors
/// [`SystemError::Mount`].
pub fn mount_sys() -> Result<(), SystemError> {
    mount_one("sysfs", "/sys")
}

/// Opens a cgroup of the unified hierarchy: its root, or a new one without tasks.
///
/// # Errors
/// Where there are no cgroups.
pub fn cgroup(empty: bool) -> io::Result<fs::File> {
    const ROOT: &str = "/cgroups";
    const EMPTY: &str = "/cgroups/empty";
    if !Path::new(ROOT).exists() {
        mount_one("cgroup2", ROOT).map_err(io::Error::other)?;
        // Only a change of the root's controllers gives new cgroups those that need no change, such
        // as perf's (`cgroup_propagate_control`, kernel/cgroup/cgroup.c).
        let controllers = fs::read_to_string(format!("{ROOT}/cgroup.controllers"))?;
        if let Some(first) = controllers.split_whitespace().next() {
            fs::write(
                format!("{ROOT}/cgroup.subtree_control"),
                format!("+{first}"),
            )?;
        }
        fs::create_dir(EMPTY)?;
    }
    fs::File::open(if empty { EMPTY } else { ROOT })
}

/// Sets sysctls below `/proc/sys/kernel`, in order.
///
/// # Errors
/// [`SystemError::PlannedSysctl`].
pub fn set_sysctls(sysctls: &[(String, String)]) -> Result<(), SystemError> {
    for (name, value) in sysctls {
        let path = Path::new("/proc/sys/kernel").join(name);
        fs::write(path, value).map_err(|source| SystemError::PlannedSysctl {
            name: name.clone(),
            value: value.clone(),
            source,
        })?;
    }
    Ok(())
}

/// Mounts debugfs, whose path this is.
///
/// # Errors
/// [`SystemError::Mount`].
pub fn mount_debugfs() -> Result<&'static Path, SystemError> {
    const DEBUGFS: &str = "/debug";
    mount_one("debugfs", DEBUGFS)?;
    Ok(Path::new(DEBUGFS))
}

fn mount_one(kind: &'static str, target: &'static str) -> Result<(), SystemError> {
    let failed = |source| SystemError::Mount {
        kind,
        target,
        source,
    };
    fs::create_dir_all(target).map_err(failed)?;
    mount(kind, target, kind, MountFlags::empty(), None).map_err(|e| failed(e.into()))
}

/// Keeps all present and future memory of this process populated, in RAM, and at its guest-physical
/// address: workload threads take no page faults, and the addresses that the host knows stay valid.
///
/// Locked pages can still move by compaction and by their collapse into huge pages; both are
/// disabled.
///
/// # Errors
/// [`SystemError`].
pub fn pin_memory() -> Result<(), SystemError> {
    sysctl_if_there("vm/compact_unevictable_allowed", "0")?;
    rustix::thread::disable_transparent_huge_pages(true).map_err(SystemError::Pin)?;
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE).map_err(SystemError::Pin)
}

/// Keeps timers on their CPU. Otherwise the kernel moves the timers of an idle CPU to a busy one
/// (`get_nohz_timer_target`, kernel/sched/core.c), and a thread that sleeps here would not wake up
/// while that CPU is frozen.
///
/// # Errors
/// [`SystemError::Sysctl`].
pub fn keep_timers() -> Result<(), SystemError> {
    sysctl_if_there("kernel/timer_migration", "0")
}

/// The set of this one CPU; empty, which the kernel refuses, if the number is too large.
#[must_use]
pub fn only(cpu: u32) -> CpuSet {
    let mut set = CpuSet::new();
    if (cpu as usize) < CpuSet::MAX_CPU {
        set.set(cpu as usize);
    }
    set
}

/// Allows perf all that a plan can contain, without throttling.
///
/// # Errors
/// [`SystemError::Sysctl`].
pub fn unleash_perf() -> Result<(), SystemError> {
    sysctl("kernel/perf_event_paranoid", "-1")?;
    sysctl("kernel/perf_event_mlock_kb", "1048576")?;
    // In this order: the rate cannot be written once the limit is off
    // (`perf_event_max_sample_rate_handler` in kernel/events/core.c).
    sysctl("kernel/perf_event_max_sample_rate", "1000000000")?;
    sysctl("kernel/perf_cpu_time_max_percent", "0")?;
    // Its NMIs are not those of the scenario.
    sysctl_if_there("kernel/nmi_watchdog", "0")
}

/// Keeps kernel messages off the slow console, until dropped: they would change the timing, and an
/// unclaimed NMI is reported at the highest urgency. They stay in `/dev/kmsg`.
#[derive(Debug)]
pub struct QuietConsole {
    before: String,
}

impl QuietConsole {
    const SYSCTL: &str = "kernel/printk";

    /// Silences the console, except for a panic or an oops.
    ///
    /// The level is -1, because `console_verbose` (kernel/printk/printk.c), which a panic calls,
    /// does not raise level 0, and level 1 lets messages of urgency 0 through.
    ///
    /// # Errors
    /// [`SystemError::Sysctl`].
    pub fn new() -> Result<Self, SystemError> {
        let before = fs::read_to_string(sysctl_path(Self::SYSCTL)).map_err(|source| {
            SystemError::Sysctl {
                name: Self::SYSCTL,
                value: "-1".to_owned(),
                source,
            }
        })?;
        sysctl(Self::SYSCTL, "-1")?;
        Ok(Self { before })
    }
}

impl Drop for QuietConsole {
    fn drop(&mut self) {
        // A failure does no harm: the log reaches the host by mailbox.
        let _ = sysctl(Self::SYSCTL, &self.before);
    }
}

/// Numbers of the CPUs that this process may use, which are all online ones.
///
/// # Errors
/// [`SystemError::Cpus`].
pub fn online_cpus() -> Result<Vec<u32>, SystemError> {
    let set = sched_getaffinity(None).map_err(SystemError::Cpus)?;
    Ok((0_u32..)
        .zip(0..CpuSet::MAX_CPU)
        .filter(|&(_, field)| set.is_set(field))
        .map(|(cpu, _)| cpu)
        .collect())
}

pub(crate) fn sysctl_path(name: &str) -> std::path::PathBuf {
    Path::new("/proc/sys").join(name)
}

pub(crate) fn sysctl(name: &'static str, value: &str) -> Result<(), SystemError> {
    fs::write(sysctl_path(name), value).map_err(|source| SystemError::Sysctl {
        name,
        value: value.trim_end().to_owned(),
        source,
    })
}

/// For those that depend on the kernel's configuration (the file is missing) or on the machine
/// (the file is read-only in Linux 6.12; the kernel's own `ENOTSUPP`, which no C library knows,
/// in 7.2).
pub(crate) fn sysctl_if_there(name: &'static str, value: &str) -> Result<(), SystemError> {
    const ENOTSUPP: i32 = 524;
    match sysctl(name, value) {
        Err(SystemError::Sysctl { source, .. })
            if matches!(
                source.raw_os_error(),
                Some(libc::ENOENT | libc::EACCES | ENOTSUPP)
            ) =>
        {
            Ok(())
        }
        other => other,
    }
}
