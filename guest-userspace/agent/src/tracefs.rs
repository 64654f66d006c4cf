//! Instances of tracefs as tracers: made, switched on, changed while the workload runs. The host reads their
//! buffers in the agent's memory. Those of instances that are removed while the workload runs are read here, since a
//! mapped one cannot be removed.

mod mapped;
mod unmapped;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;
use unwindlab_abi::tracefs::{
    CLEARED, ChurnKind, MARKER_EVENT, MAY_END, OPTION, PART_BYTES, REQUEST_EVENT, STACK_EVENT,
    SUB_BUFFER, SYSCALL_ENTER, SYSCALL_EXIT, SYSCALLS, TracefsChurn, TracefsFormat,
    TracefsInstance, TracefsPart, TracefsPlan, sub_buffers,
};

pub use mapped::Mapped;
use unmapped::{lost, pages};

use crate::pinned;

/// Most bytes of sub-buffers that are kept of instances that were removed, all their lives together. What later
/// lives hold is counted as lost.
const MOST_KEPT: usize = 32 << 20;

/// Why the instances do not follow the plan.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum TracefsError {
    /// The kernel lacks the option: a skip.
    #[error(
        "the kernel's tracefs has no option `{OPTION}`; `--patch proposal:tracefs-stack` adds it"
    )]
    Missing,
    /// A file cannot be used.
    #[error("tracefs: {file}: {source}")]
    File { file: String, source: io::Error },
    /// The thread that changes the instances ended by a panic.
    #[error("the thread that changes instances of tracefs panicked")]
    Panicked,
    /// The thread cannot be made.
    #[error("cannot start a thread beside the workload: {0}")]
    Thread(io::Error),
}

impl TracefsError {
    /// Whether the kernel lacks something, as opposed to something going wrong.
    #[must_use]
    pub const fn is_unsupported(&self) -> bool {
        matches!(self, Self::Missing)
    }
}

/// One instance.
#[derive(Debug, Clone)]
struct Instance {
    number: u32,
    life: u32,
    folder: PathBuf,
    plan: TracefsInstance,
}

/// All instances. What was read of those that are gone is kept.
#[derive(Debug)]
struct State {
    instances: Vec<Instance>,
    cpus: Vec<u32>,
    kept: Kept,
}

/// What was read, and how many bytes more may be.
#[derive(Debug)]
struct Kept {
    parts: Vec<TracefsPart>,
    room: usize,
}

type Churning = JoinHandle<Result<State, TracefsError>>;

/// The instances of a trial.
#[derive(Debug)]
pub struct Tracefs {
    churn: Option<TracefsChurn>,
    root: PathBuf,
    mapped: Vec<Mapped>,
    over: Arc<AtomicBool>,
    state: Option<State>,
    thread: Option<Churning>,
}

impl Tracefs {
    /// Makes the instances. Nothing is traced yet.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn open(plan: &TracefsPlan, cpus: &[u32], root: &Path) -> Result<Self, TracefsError> {
        if !root.join("options").join(OPTION).exists() {
            return Err(TracefsError::Missing);
        }
        let removes = plan.churn.is_some_and(|it| it.what == ChurnKind::Remove);
        let mut instances = Vec::new();
        let mut mapped = Vec::new();
        for (number, plan) in (0..).zip(&plan.instances) {
            let instance = Instance {
                number,
                life: 0,
                folder: root.join("instances").join(&plan.name),
                plan: plan.clone(),
            };
            instance.make()?;
            if !removes {
                for &cpu in cpus {
                    mapped.push(instance.map(cpu)?);
                }
            }
            instances.push(instance);
        }
        Ok(Self {
            churn: plan.churn,
            root: root.to_owned(),
            mapped,
            over: Arc::new(AtomicBool::new(false)),
            state: Some(State {
                instances,
                cpus: cpus.to_vec(),
                kept: Kept {
                    parts: Vec::new(),
                    room: MOST_KEPT,
                },
            }),
            thread: None,
        })
    }

    /// How the events are laid out that are the unwinder's, and those of system calls.
    ///
    /// # Errors
    /// [`TracefsError::File`].
    pub fn formats(&self) -> Result<Vec<TracefsFormat>, TracefsError> {
        let format = |system: &str, name: &str, event: String| {
            let file = self.root.join("events").join(system);
            let file = file.join(name).join("format");
            let text = fs::read_to_string(&file).map_err(failed(&file))?;
            Ok(TracefsFormat { event, text })
        };
        let own = [REQUEST_EVENT, STACK_EVENT, MARKER_EVENT].into_iter();
        let own = own.map(|name| format("ftrace", name, name.to_owned()));
        let of_calls = [SYSCALL_ENTER, SYSCALL_EXIT].into_iter();
        let of_calls = of_calls.filter(|&name| self.traces(SYSCALLS, name));
        let of_calls = of_calls.map(|name| format(SYSCALLS, name, format!("{SYSCALLS}:{name}")));
        own.chain(of_calls).collect()
    }

    /// Whether an instance traces an event.
    fn traces(&self, system: &str, name: &str) -> bool {
        let instances = self.state.iter().flat_map(|it| &it.instances);
        let mut events = instances.flat_map(|it| &it.plan.events);
        events.any(|it| it.0 == system && it.1 == name)
    }

    /// The buffers that the host reads.
    #[must_use]
    pub fn mapped(&self) -> &[Mapped] {
        &self.mapped
    }

    /// Sets the option and enables the events.
    ///
    /// # Errors
    /// [`TracefsError::File`].
    pub fn start(&self) -> Result<(), TracefsError> {
        let swaps = self.churn.is_some_and(|it| it.what == ChurnKind::Swap);
        for instance in self.state.iter().flat_map(|it| &it.instances) {
            instance.start(!swaps || instance.number == 0)?;
        }
        Ok(())
    }

    /// Starts the thread that changes the instances.
    ///
    /// # Errors
    /// [`TracefsError::Thread`].
    pub fn disturb(&mut self) -> Result<(), TracefsError> {
        if let Some(churn) = self.churn
            && let Some(state) = self.state.take()
        {
            let over = Arc::clone(&self.over);
            let body = move || run_churn(state, churn, &over);
            let thread = pinned::spawn("churn", churn.cpu, body);
            self.thread = Some(thread.map_err(TracefsError::Thread)?);
        }
        Ok(())
    }

    /// Ends the changes, then the tracing.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn stop(&mut self) -> Result<(), TracefsError> {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join().unwrap_or(Err(TracefsError::Panicked));
            self.state = Some(ended?);
        }
        for instance in self.state.iter().flat_map(|it| &it.instances) {
            instance.stop()?;
        }
        Ok(())
    }

    /// What the instances hold that are not mapped, after [`Tracefs::stop`]. They are removed.
    ///
    /// # Errors
    /// [`TracefsError::File`].
    pub fn read(&mut self) -> Result<Vec<TracefsPart>, TracefsError> {
        let Some(mut state) = self.state.take().filter(|_| self.mapped.is_empty()) else {
            return Ok(Vec::new());
        };
        // Nothing writes any more: the buffers' sizes are the limit.
        state.kept.room = usize::MAX;
        for instance in state.instances {
            instance.read(&state.cpus, &mut state.kept)?;
            fs::remove_dir(&instance.folder).map_err(failed(&instance.folder))?;
        }
        Ok(state.kept.parts)
    }
}

impl Instance {
    fn make(&self) -> Result<(), TracefsError> {
        fs::create_dir(&self.folder).map_err(failed(&self.folder))?;
        self.set("trace_clock", "perf")?;
        // What does not fit is lost at the end, and counted.
        self.set("options/overwrite", "0")?;
        self.set("buffer_size_kb", &self.plan.buffer_kib.to_string())
    }

    fn map(&self, cpu: u32) -> Result<Mapped, TracefsError> {
        let file = self.folder.join(format!("per_cpu/cpu{cpu}/trace_pipe_raw"));
        let sub_buffers = sub_buffers(self.plan.buffer_kib);
        Mapped::new(&file, self.number, cpu, sub_buffers).map_err(failed(&file))
    }

    fn start(&self, asks: bool) -> Result<(), TracefsError> {
        self.ask(asks)?;
        for (system, name) in &self.plan.events {
            self.set(&format!("events/{system}/{name}/enable"), "1")?;
        }
        Ok(())
    }

    /// Ends it. The events go first: what the agent's own calls here have asked for is still to be written. What other tasks
    /// have asked for may not be.
    fn stop(&self) -> Result<(), TracefsError> {
        for (system, name) in &self.plan.events {
            self.set(&format!("events/{system}/{name}/enable"), "0")?;
        }
        self.say(MAY_END)?;
        self.set("tracing_on", "0")
    }

    /// Sets or clears the option.
    fn ask(&self, asks: bool) -> Result<(), TracefsError> {
        let value = if asks { "1" } else { "0" };
        self.set(&format!("options/{OPTION}"), value)
    }

    /// Clears the option, and says so in the buffer, before and after.
    fn cancel(&self) -> Result<(), TracefsError> {
        self.say(MAY_END)?;
        self.ask(false)?;
        self.say(CLEARED)
    }

    /// Writes a text into the buffer.
    fn say(&self, text: &str) -> Result<(), TracefsError> {
        match self.set("trace_marker", text) {
            // The buffer is full (`write_marker_to_buffer`, kernel/trace/trace.c): the host sees that by itself.
            Err(TracefsError::File { source, .. })
                if source.raw_os_error() == Some(Errno::BADF.raw_os_error()) =>
            {
                Ok(())
            }
            written => written,
        }
    }

    fn set(&self, file: &str, value: &str) -> Result<(), TracefsError> {
        let file = self.folder.join(file);
        fs::write(&file, value).map_err(failed(&file))
    }

    /// Takes what is in the buffers, as far as there is room for it. Whatever stays there, or was written since,
    /// is counted as lost: its answer may be in the buffer of a CPU that is read later.
    fn read(&self, cpus: &[u32], kept: &mut Kept) -> Result<(), TracefsError> {
        let (instance, life) = (self.number, self.life);
        let folder = |cpu: u32| self.folder.join(format!("per_cpu/cpu{cpu}"));
        for &cpu in cpus {
            let most = sub_buffers(self.plan.buffer_kib).min(kept.room / SUB_BUFFER);
            let bytes = pages(&folder(cpu).join("trace_pipe_raw"), most)?;
            kept.room = kept.room.saturating_sub(bytes.len());
            for piece in bytes.chunks(PART_BYTES) {
                kept.parts.push(TracefsPart::Pages {
                    instance,
                    life,
                    cpu,
                    bytes: piece.to_vec(),
                });
            }
        }
        let mut events = 0_u64;
        for &cpu in cpus {
            let stats = folder(cpu).join("stats");
            let text = fs::read_to_string(&stats).map_err(failed(&stats))?;
            events = events.saturating_add(lost(&text));
        }
        kept.parts.push(TracefsPart::Lost {
            instance,
            life,
            events,
        });
        Ok(())
    }

    /// Removes it with its option set, and makes the next one.
    fn replace(&mut self, cpus: &[u32], kept: &mut Kept) -> Result<(), TracefsError> {
        self.read(cpus, kept)?;
        fs::remove_dir(&self.folder).map_err(failed(&self.folder))?;
        self.life += 1;
        self.make()?;
        self.start(true)
    }
}

fn run_churn(
    mut state: State,
    churn: TracefsChurn,
    over: &AtomicBool,
) -> Result<State, TracefsError> {
    let count = state.instances.len().max(1);
    for turn in 0.. {
        std::thread::sleep(Duration::from_micros(churn.period_us));
        if over.load(Ordering::Relaxed) {
            break;
        }
        let next = (turn + 1) % count;
        let State {
            instances,
            cpus,
            kept,
        } = &mut state;
        if let Some(instance) = instances.get_mut(turn % count) {
            match churn.what {
                ChurnKind::Option => {
                    instance.cancel()?;
                    instance.ask(true)?;
                }
                ChurnKind::Swap => instance.cancel()?,
                ChurnKind::Remove => instance.replace(cpus, kept)?,
            }
        }
        if let (ChurnKind::Swap, Some(instance)) = (churn.what, instances.get(next)) {
            instance.ask(true)?;
        }
    }
    Ok(state)
}

fn failed(file: &Path) -> impl Fn(io::Error) -> TracefsError {
    let file = file.display().to_string();
    move |source| TracefsError::File {
        file: file.clone(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_the_option_is_a_skip() {
        let root = std::env::temp_dir();
        let error = Tracefs::open(&TracefsPlan::default(), &[0], &root).unwrap_err();
        assert!(error.is_unsupported());
    }
}
