//! Drives the kernel's lab client as planned: sets it up, starts it, disturbs it, and stops it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::mm::{MapFlags, ProtFlags, mmap};
use unwindlab_abi::LabPlan;
use unwindlab_abi::lab::{DEVICE, LabChurn, LabPoke, RawPoke, clients, ioctl};
use unwindlab_abi::mailbox::PAGE_SIZE;

use crate::pinned;
use crate::workload::gate::Gate;

/// Why the lab client does not follow the plan.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum LabError {
    /// The kernel has no lab client: a skip.
    #[error("the kernel has no lab client (no {DEVICE}); `--source debian` builds one that has")]
    Missing,
    /// The lab client refuses something.
    #[error("lab client: {what}: {source}")]
    Failed {
        what: &'static str,
        source: io::Error,
    },
    /// The kernel takes no kprobe there.
    #[error("lab client: no requests at {symbol}+{offset:#x}: {source}")]
    Place {
        symbol: String,
        offset: u32,
        source: io::Error,
    },
    /// A disturbing thread ended by a panic.
    #[error("a thread that disturbs the workload panicked")]
    Panicked,
}

impl LabError {
    /// Whether the kernel lacks the client, as opposed to something going wrong.
    #[must_use]
    pub const fn is_unsupported(&self) -> bool {
        matches!(self, Self::Missing)
    }
}

/// The open lab client. Its log stays mapped, because the host reads it.
#[derive(Debug)]
pub struct Lab {
    device: Arc<File>,
    plan: LabPlan,
    log: NonNull<u8>,
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<(), LabError>>>,
}

impl Lab {
    /// Opens the client and maps its log.
    ///
    /// # Errors
    /// [`LabError`].
    pub fn open(plan: &LabPlan) -> Result<Self, LabError> {
        let device = OpenOptions::new().read(true).write(true).open(DEVICE);
        let device = device.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => LabError::Missing,
            _ => failed("cannot open it")(source),
        })?;
        call(&device, ioctl::SETUP, &plan.log_pages).map_err(failed("cannot make a log"))?;
        let len = (plan.log_pages as usize + 1) * PAGE_SIZE;
        // SAFETY: a new mapping at an address the kernel chooses.
        let log = unsafe {
            mmap(
                null_mut(),
                len,
                ProtFlags::READ,
                MapFlags::SHARED,
                device.as_fd(),
                0,
            )
        };
        let log = log.map_err(|errno| failed("cannot map its log")(errno.into()))?;
        let no_memory = || failed("cannot map its log")(io::ErrorKind::OutOfMemory.into());
        Ok(Self {
            device: Arc::new(device),
            plan: plan.clone(),
            log: NonNull::new(log.cast()).ok_or_else(no_memory)?,
            over: Arc::new(AtomicBool::new(false)),
            threads: Vec::new(),
        })
    }

    /// Virtual address of the log's control page.
    #[must_use]
    pub fn log_address(&self) -> u64 {
        self.log.as_ptr().addr() as u64
    }

    /// Pages of the log, control page included.
    #[must_use]
    pub const fn log_pages(&self) -> u32 {
        self.plan.log_pages + 1
    }

    /// Registers the clients, sets the threads, and starts the requests.
    ///
    /// # Errors
    /// [`LabError::Failed`]. A client that the kernel refuses is not an error: the log records it.
    pub fn start(&self, tids: &[u32]) -> Result<(), LabError> {
        for client in 0..self.plan.clients {
            call(&self.device, ioctl::REGISTER, &client).map_err(failed("register"))?;
        }
        for client in clients(self.plan.cancelled) {
            call(&self.device, ioctl::CANCEL, &client).map_err(failed("cancel"))?;
        }
        for tid in tids {
            call(&self.device, ioctl::TARGET, tid).map_err(failed("cannot watch a thread"))?;
        }
        for place in &self.plan.places {
            let too_long = || io::Error::from(io::ErrorKind::InvalidInput);
            let raw = place.raw().ok_or_else(too_long);
            let set = raw.and_then(|raw| call(&self.device, ioctl::PLACE, &raw));
            set.map_err(|source| LabError::Place {
                symbol: place.symbol.clone(),
                offset: place.offset,
                source,
            })?;
        }
        call(&self.device, ioctl::CONFIG, &self.plan.raw_config())
            .map_err(failed("does not take its configuration"))?;
        call(&self.device, ioctl::START, &0_u32).map_err(failed("does not start"))
    }

    /// Starts the threads that disturb the workload, which begin when the gate opens. Before, one could
    /// come to where the host makes its CPU stand still, and with it whoever opens the gate.
    ///
    /// # Errors
    /// [`LabError::Failed`].
    pub(crate) fn disturb(&mut self, gate: &Arc<Gate>) -> Result<(), LabError> {
        for &poke in &self.plan.pokes {
            let (device, over) = (Arc::clone(&self.device), Arc::clone(&self.over));
            let body = move || run_poke(&device, poke, &over);
            self.threads.push(spawn("poke", poke.from, gate, body)?);
        }
        for &churn in &self.plan.churn {
            let (device, over) = (Arc::clone(&self.device), Arc::clone(&self.over));
            let body = move || run_churn(&device, churn, &over);
            self.threads.push(spawn("churn", churn.cpu, gate, body)?);
        }
        Ok(())
    }

    /// Ends the disturbance, then the requests, and cancels all clients.
    ///
    /// # Errors
    /// The first error of a thread, or of stopping.
    pub fn stop(&mut self) -> Result<(), LabError> {
        self.over.store(true, Ordering::Relaxed);
        let mut outcome = Ok(());
        for thread in self.threads.drain(..) {
            outcome = outcome.and(thread.join().unwrap_or(Err(LabError::Panicked)));
        }
        let stopped = call(&self.device, ioctl::STOP, &0_u32).map_err(failed("does not stop"));
        outcome.and(stopped)
    }
}

fn run_poke(device: &File, poke: LabPoke, over: &AtomicBool) -> Result<(), LabError> {
    let raw = RawPoke {
        cpu: poke.to,
        context: poke.context.number(),
        count: poke.count,
        pad: 0,
    };
    while !over.load(Ordering::Relaxed) {
        call(device, ioctl::POKE, &raw).map_err(failed("cannot poke"))?;
        std::thread::sleep(Duration::from_micros(poke.period_us));
    }
    Ok(())
}

fn run_churn(device: &File, churn: LabChurn, over: &AtomicBool) -> Result<(), LabError> {
    for client in clients(churn.clients).collect::<Vec<_>>().iter().cycle() {
        if over.load(Ordering::Relaxed) {
            break;
        }
        match call(device, ioctl::CANCEL, client) {
            // The kernel had refused to register it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            answer => answer.map_err(failed("cancel"))?,
        }
        call(device, ioctl::REGISTER, client).map_err(failed("register"))?;
        std::thread::sleep(Duration::from_micros(churn.period_us));
    }
    Ok(())
}

fn spawn(
    name: &str,
    cpu: u32,
    gate: &Arc<Gate>,
    body: impl FnOnce() -> Result<(), LabError> + Send + 'static,
) -> Result<JoinHandle<Result<(), LabError>>, LabError> {
    let gate = Arc::clone(gate);
    let thread = pinned::spawn(name, cpu, move || match gate.wait() {
        true => body(),
        false => Ok(()),
    });
    thread.map_err(failed("cannot start a thread beside the workload"))
}

/// Each ioctl of the lab client reads one argument, or none.
fn call<T: Copy>(device: &File, request: u64, argument: &T) -> io::Result<()> {
    // SAFETY: the client reads at most the size that is part of the request's number, which
    // a test of the ABI crate compares with the types.
    match unsafe { libc::ioctl(device.as_raw_fd(), request, std::ptr::from_ref(argument)) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> LabError {
    move |source| LabError::Failed { what, source }
}
