//! The emulated KVM host: QEMU's TCG emulates an AMD CPU with SVM, the outer Linux's `kvm_amd`
//! gives /dev/kvm on it, and this same binary is its init.
//!
//! The command's side: `qemu` is the command line, `initramfs` what the machine boots into,
//! `starts` how often it is started, `saved` how it is saved, `mapped` how it gets its memory back, `up` what it does then. The machine's side: `init`, with `first_cpu`.
//!
//! Nothing is left outside of the cache: the initramfs is a memfd, console and channel are socket pairs, and
//! QEMU dies with us, however we die.

pub mod deterministic;
pub mod first_cpu;
pub mod init;
pub mod initramfs;
mod mapped;
pub mod qemu;
mod saved;
mod starts;
mod up;

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use unwindlab_guest_kernel::{AboutMachine, SavedMachine, SavedMachines};

use self::qemu::{CMDLINE, OuterMachine, inherited_path};
use self::saved::Saving;
use self::starts::StartError;
pub use self::up::Emulated;
use super::channel::ToHost;
use super::conversation::HostError;
use super::process::HostProcess;
use super::timekeeping;
use crate::interrupt::Interrupt;
use crate::plan::{InfraError, Progress};

/// From power-on to the init's hello; a loaded 2-core machine needs 4 to 8 s.
const BOOT_LIMIT: Duration = Duration::from_secs(90);
/// From QEMU's start to the first word of a machine that goes on from a saved state.
const LOAD_LIMIT: Duration = Duration::from_secs(30);

/// A kernel under test.
#[derive(Debug, Clone, Copy)]
pub struct GivenKernel<'a> {
    /// Its content hash.
    pub hash: &'a str,
    /// Its image.
    pub path: &'a Path,
}

/// Starts a host that can boot `kernel`, if there is one: from a saved state, or else by booting the outer machine. One that dies in its boot, where
/// no guest has executed anything, is started again as [`starts`] has it; [`Executor::host`](crate::plan::Executor::host) says so.
///
/// # Errors
/// [`InfraError`] with the console when it does not come up.
pub fn start(
    outer: &OuterMachine,
    kernel: Option<GivenKernel<'_>>,
    why: &str,
    progress: &dyn Progress,
    interrupt: &Interrupt,
) -> Result<Emulated, InfraError> {
    let names = Names::of(outer, kernel).map_err(|source| {
        let what = "QEMU";
        HostError::Start { what, source }.with_console(String::new())
    })?;
    let mut told = String::new();
    if let Some((mut host, what)) = go_on(outer, kernel, &names, interrupt, &mut told)? {
        let release = &host.about.release;
        host.process.description =
            format!("emulated (outer kernel {release}, {what}; {why}{told})");
        return Ok(host);
    }
    progress.step("booting the outer machine");
    let ((mut host, release), deaths) = starts::until_up(progress, || boot(outer, interrupt))?;
    host.process.deaths = deaths.len();
    host.process.description = format!(
        "emulated (outer kernel {release}; {why}{}{told})",
        starts::told(&deaths)
    );
    host.about.release = release;
    host.names = names;
    host.save_bare()?;
    if let Some(kernel) = kernel {
        host.give(kernel)?;
    }
    Ok(host)
}

/// A host that goes on from a saved state, if one comes up, with what its description says of it. `told` gets what is said of one that
/// did not.
fn go_on(
    outer: &OuterMachine,
    kernel: Option<GivenKernel<'_>>,
    names: &Names,
    interrupt: &Interrupt,
    told: &mut String,
) -> Result<Option<(Emulated, &'static str)>, InfraError> {
    let Some(machines) = &outer.saved else {
        return Ok(None);
    };
    let with_guests = names.with_guests.as_ref().map(|id| (id, true));
    for (id, knows_kernel) in with_guests.into_iter().chain([(&names.bare, false)]) {
        match load(outer, machines, id, interrupt) {
            Ok(None) => {}
            Err(HostError::Interrupted) => {
                return Err(HostError::Interrupted.with_console(String::new()));
            }
            Err(error) => {
                *told = format!("; a saved machine did not come up: {error}");
                // What cannot be removed does not come up another time either.
                let _ = machines.remove(id);
            }
            Ok(Some(mut host)) => {
                host.names.clone_from(names);
                if knows_kernel {
                    return Ok(Some((host, "saved with guests")));
                }
                if let Some(kernel) = kernel {
                    host.give(kernel)?;
                }
                return Ok(Some((host, "saved")));
            }
        }
    }
    Ok(None)
}

/// What states of a machine are called.
#[derive(Debug, Clone, Default)]
struct Names {
    /// That of one that has booted, and knows no kernel under test.
    bare: String,
    /// That of one with guests, if it may be saved with them.
    with_guests: Option<String>,
}

impl Names {
    /// A machine that is not saved needs none.
    fn of(outer: &OuterMachine, kernel: Option<GivenKernel<'_>>) -> io::Result<Self> {
        let Some(machines) = &outer.saved else {
            return Ok(Self::default());
        };
        let bare = outer.identity(machines)?;
        let with_guests = kernel.filter(|_| outer.guests).map(|kernel| {
            let kernel: String = kernel.hash.chars().take(32).collect();
            format!("{bare}-{kernel}")
        });
        Ok(Self { bare, with_guests })
    }
}

/// Boots it once; the host and its `uname -r`.
fn boot(outer: &OuterMachine, interrupt: &Interrupt) -> Result<(Emulated, String), StartError> {
    let mut host = spawn(outer, None, interrupt).map_err(|source| {
        let error = HostError::Start {
            what: "QEMU",
            source,
        };
        StartError::Failed(error.with_console(String::new()))
    })?;
    let up = host.process.hello(BOOT_LIMIT).and_then(|release| {
        keeps_time(&mut host.process)?;
        Ok(release)
    });
    match up {
        Ok(release) => Ok((host, release)),
        Err(error @ (HostError::Boot(_) | HostError::Clock { .. } | HostError::Timers { .. })) => {
            Err(StartError::Died(host.process.failed(&error)))
        }
        Err(error) => Err(StartError::Failed(host.process.failed(&error))),
    }
}

/// Whether an outer machine waits for orders, and takes its clocks for what they are.
fn keeps_time(process: &mut HostProcess) -> Result<(), HostError> {
    let (_, timekeeping) = process.idle(&ToHost::Ping, LOAD_LIMIT)?;
    if let Some(times) = timekeeping.clock_is_off() {
        return Err(HostError::Clock { times });
    }
    match timekeeping.timers_are_off() {
        Some(times) => Err(HostError::Timers { times }),
        None => Ok(()),
    }
}

/// Goes on from a saved state, if there is one.
fn load(
    outer: &OuterMachine,
    machines: &SavedMachines,
    id: &str,
    interrupt: &Interrupt,
) -> Result<Option<Emulated>, HostError> {
    let cannot = |source| HostError::Start {
        what: "QEMU",
        source,
    };
    let found = machines
        .find(id)
        .map_err(|it| cannot(io::Error::other(it)))?;
    let Some(saved) = found else {
        return Ok(None);
    };
    let mut host = spawn(outer, Some(&saved), interrupt).map_err(cannot)?;
    host.about = saved.about.clone();
    // QEMU reads it meanwhile. What is damaged, or does not come up, ends with `host`.
    match machines.is_whole(&saved) {
        Ok(true) => keeps_time(&mut host.process).map(|()| Some(host)),
        Ok(false) => Ok(None),
        Err(error) => Err(cannot(io::Error::other(error))),
    }
}

/// Starts QEMU, for a boot or from a saved state.
fn spawn(
    outer: &OuterMachine,
    from: Option<&SavedMachine>,
    interrupt: &Interrupt,
) -> io::Result<Emulated> {
    let prepared =
        { outer.saved.as_ref() }.map(|machines| Saving::prepare(machines, from, outer, interrupt));
    let (saving, states) = match prepared.transpose() {
        Ok(prepared) => prepared.unzip(),
        Err(error) if from.is_some() => return Err(io::Error::other(error)),
        // It can still boot.
        Err(error) => {
            tracing::warn!("the outer machine cannot be saved: {error}");
            (None, None)
        }
    };
    let (stream, channel_end) = UnixStream::pair()?;
    let (console, console_end) = UnixStream::pair()?;
    let (channel_fd, console_fd) = (channel_end.as_raw_fd(), console_end.as_raw_fd());
    let cmdline = format!("{CMDLINE} tsc_early_khz={}", timekeeping::khz());
    let mut options = vec![
        ("-append", cmdline),
        ("-accel", "tcg,thread=multi,tb-size=512".to_owned()),
        ("-device", "virtio-serial-pci".to_owned()),
        (
            "-device",
            "virtserialport,chardev=channel,name=unwindlab".to_owned(),
        ),
        ("-smp", outer.cpus.to_string()),
        ("-chardev", format!("socket,id=channel,fd={channel_fd}")),
        ("-chardev", format!("socket,id=console,fd={console_fd}")),
    ];
    let mut inherited = vec![channel_end.as_fd(), console_end.as_fd()];
    // One that goes on has long read it.
    if from.is_none() {
        let initrd = outer.initramfs.packed()?;
        options.push(("-initrd", inherited_path(initrd)));
        inherited.push(initrd);
    }
    if let Some(states) = &states {
        options.extend(states.options.iter().cloned());
        inherited.extend(states.descriptors());
    }
    let errors = OwnedFd::from(console_end.try_clone()?);
    let memory = from.map(|from| from.path.as_path());
    let child = outer.start(&options, &inherited, memory, errors)?;
    Ok(Emulated {
        process: HostProcess::new(child, stream, console, interrupt)?,
        saving,
        about: AboutMachine::default(),
        names: Names::default(),
    })
}
