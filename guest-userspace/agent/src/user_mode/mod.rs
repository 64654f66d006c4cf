//! Unwinding in user mode: the BPF program on the sampling event, its maps, and the handler.
//!
//! The loader is aya: pure Rust, so that the agent stays one static program; libbpf would need a C
//! compiler for each of its libraries. aya knows no kernel functions, so their id, which the host knows from the kernel's
//! BTF, is in the program before aya gets it. `/sys` is not mounted: aya would read all of that BTF, which takes most of a second in
//! an emulated guest.

mod askers;
pub(crate) mod asm;
mod handler;
pub(crate) mod kernel;
pub(crate) mod object;
pub(crate) mod program;
mod registration;
mod threads;

pub use registration::Registration;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use aya::maps::{HashMap, Map, MapData};
use aya::programs::TracePoint;
use aya::{Ebpf, EbpfLoader};
use rustix::io::Errno;
use rustix::mm::ProtFlags;
use unwindlab_abi::UserModePlan;
use unwindlab_abi::mailbox::PAGE_SIZE;
use unwindlab_abi::user_mode::{Asker, RESULT_PAGES, RING_BYTES, UnwinderKind};

use crate::pages::Pages;
use crate::physical::{self, PhysicalError};
use crate::unwinders::{UnwindersError, Way};

/// Pages of an alternate stack: the signal's frame with vector state, and the frames of a walk.
const STACK_PAGES: usize = 16;
/// Why there is no unwinding in user mode.
#[derive(Debug, thiserror::Error)]
pub enum UserModeError {
    /// The program is not one.
    #[error("the BPF program cannot be written: {0}")]
    Write(String),
    /// The loader refuses it.
    #[error("aya does not load the BPF program: {0}")]
    Load(#[from] Box<aya::EbpfError>),
    /// The kernel refuses it.
    #[error("this kernel does not take the BPF program: {0}")]
    Program(#[from] Box<aya::programs::ProgramError>),
    /// A map is missing or refuses an entry.
    #[error("map {0}: {1}")]
    Map(&'static str, String),
    /// Memory cannot be mapped.
    #[error("cannot map {0}: {1}")]
    Memory(&'static str, Errno),
    /// The event does not take it.
    #[error("the sampling event does not take the BPF program: {0}")]
    Attach(Errno),
    /// The plan has none of the events that it attaches to.
    #[error("no event is a tracepoint, which the BPF program needs")]
    NoEvent,
    /// There is no event with `sigtrap`.
    #[error("cannot open an event with sigtrap: {0}")]
    Sigtrap(#[source] io::Error),
    /// The handler has no unwinder.
    #[error(transparent)]
    Unwinders(#[from] UnwindersError),
}

/// The loaded program with its maps, and the results. They stay as long as the agent: a handler may
/// run as long as a thread does.
#[derive(Debug)]
pub struct UserMode {
    asks: Asks,
    results: Pages,
    unwinder: UnwinderKind,
}

/// What asks.
#[derive(Debug)]
enum Asks {
    Program(Box<Program>),
    Sigtrap(Unused, Vec<OwnedFd>),
    Timer(Unused),
}

/// The loaded program, and its maps.
#[derive(Debug)]
struct Program {
    /// Keeps the program.
    bpf: Ebpf,
    threads: HashMap<MapData, u32, u32>,
    /// Producer page and data of the ring buffer.
    ring: NonNull<u8>,
    counters: NonNull<u8>,
}

/// Where the host looks for a ring buffer and counters, without a program.
#[derive(Debug)]
struct Unused {
    ring: Pages,
    counters: Pages,
}

impl Unused {
    fn new() -> Result<Self, UserModeError> {
        let pages =
            |what, count| Pages::shared(count).map_err(|errno| UserModeError::Memory(what, errno));
        Ok(Self {
            ring: pages("ring", 1 + RING_BYTES / PAGE_SIZE)?,
            counters: pages("counters", 1)?,
        })
    }
}

// SAFETY: the pointers are to mappings that stay, of which only the addresses are used.
unsafe impl Send for Program {}

impl Program {
    /// Loads the program and maps what it shares; also the address of the pending nonces.
    fn load(plan: &UserModePlan) -> Result<(Self, u64), UserModeError> {
        let write = |why: &str| UserModeError::Write(why.to_owned());
        let function = plan.send_signal.and_then(|it| i32::try_from(it).ok());
        let function = function.ok_or_else(|| write("id of bpf_send_signal_task"))?;
        let signal = i32::try_from(plan.signal).map_err(|_| write("number of the signal"))?;
        let code = program::code(signal, function, plan.instead).ok_or_else(|| write("a jump"))?;
        let file = object::object(&code, &program::MAPS);
        let file = file.map_err(|error| write(&error.to_string()))?;
        let mut bpf = EbpfLoader::new().load(&file).map_err(Box::new)?;
        let pending = map_of(&bpf, program::PENDING, 0, PAGE_SIZE, true)?;
        let counters = map_of(&bpf, program::COUNTS, 0, PAGE_SIZE, false)?;
        let ring = map_of(
            &bpf,
            program::RING,
            PAGE_SIZE as u64,
            PAGE_SIZE + RING_BYTES,
            false,
        )?;
        let failed =
            |map, error: &dyn std::fmt::Display| UserModeError::Map(map, error.to_string());
        let threads = bpf.take_map(program::THREADS);
        let threads = threads.ok_or_else(|| failed(program::THREADS, &"none"))?;
        let threads = HashMap::try_from(threads).map_err(|it| failed(program::THREADS, &it))?;
        let program = Self {
            bpf,
            threads,
            ring,
            counters,
        };
        Ok((program, pending.as_ptr().addr() as u64))
    }
}

impl UserMode {
    /// Loads the program, if one asks, and maps what is shared with the host.
    ///
    /// # Errors
    /// [`UserModeError`].
    pub fn load(plan: &UserModePlan) -> Result<Self, UserModeError> {
        handler::unwind_by(way(plan.unwinder))?;
        let (asks, pending) = match plan.ask {
            Asker::Bpf => {
                let (program, pending) = Program::load(plan)?;
                (Asks::Program(Box::new(program)), pending)
            }
            Asker::Sigtrap => (Asks::Sigtrap(Unused::new()?, Vec::new()), 0),
            Asker::Itimer | Asker::ThreadTimer => (Asks::Timer(Unused::new()?), 0),
        };
        let results = Pages::shared(RESULT_PAGES);
        let results = results.map_err(|errno| UserModeError::Memory("results", errno))?;
        // SAFETY: both stay: nothing unmaps them before the agent ends.
        unsafe { handler::set_up(results.address(), pending) };
        Ok(Self {
            asks,
            results,
            unwinder: plan.unwinder,
        })
    }

    /// The program, to attach to an event, if one asks.
    ///
    /// # Errors
    /// [`UserModeError::Program`] if the kernel refuses it.
    pub fn program(&mut self) -> Result<Option<BorrowedFd<'_>>, UserModeError> {
        let Asks::Program(loaded) = &mut self.asks else {
            return Ok(None);
        };
        let none = || UserModeError::Write("no program".to_owned());
        let program = loaded.bpf.program_mut(object::PROGRAM).ok_or_else(none)?;
        let program: &mut TracePoint = program.try_into().map_err(Box::new)?;
        program.load().map_err(Box::new)?;
        Ok(Some(program.fd().map_err(Box::new)?.as_fd()))
    }

    /// Says which threads are the workload's: thread i has slot i. Each opts in itself.
    ///
    /// # Errors
    /// [`UserModeError::Map`], [`UserModeError::Sigtrap`].
    pub fn watch(&mut self, tids: &[u32]) -> Result<(), UserModeError> {
        for (slot, tid) in (0_u32..).zip(tids) {
            match &mut self.asks {
                Asks::Program(program) => {
                    let done = program.threads.insert(tid, slot, 0);
                    done.map_err(|error| UserModeError::Map(program::THREADS, error.to_string()))?;
                }
                Asks::Sigtrap(_, events) => {
                    events.push(askers::sigtrap(*tid).map_err(UserModeError::Sigtrap)?);
                }
                Asks::Timer(_) => {}
            }
        }
        Ok(())
    }

    /// Addresses and numbers of pages of ring buffer and counters.
    #[must_use]
    pub fn mappings(&self) -> [(u64, u32); 2] {
        let (ring, counters) = match &self.asks {
            Asks::Program(it) => {
                let address = |it: NonNull<u8>| it.as_ptr().addr() as u64;
                (address(it.ring), address(it.counters))
            }
            Asks::Sigtrap(it, _) | Asks::Timer(it) => (it.ring.address(), it.counters.address()),
        };
        let pages = 1 + RING_BYTES / PAGE_SIZE;
        [(ring, u32::try_from(pages).unwrap_or(0)), (counters, 1)]
    }

    /// Guest-physical addresses of the results' pages.
    ///
    /// # Errors
    /// [`PhysicalError`].
    pub fn results(&self) -> Result<Vec<u64>, PhysicalError> {
        physical::pages(self.results.address(), RESULT_PAGES)
    }

    /// How the handler unwinds.
    #[must_use]
    pub const fn unwinder(&self) -> UnwinderKind {
        self.unwinder
    }
}

const fn way(kind: UnwinderKind) -> Way {
    match kind {
        UnwinderKind::FramePointers => Way::FramePointers,
        UnwinderKind::EhFrame => Way::Dwarf,
        UnwinderKind::Semantic => Way::Semantic,
    }
}

/// The signal that the program handles itself.
pub const OWN_SIGNAL: i32 = threads::OWN_SIGNAL;

/// The handler's first instruction.
#[must_use]
pub fn handler() -> u64 {
    handler::entry() as u64
}

/// Maps a map's memory.
fn map_of(
    bpf: &Ebpf,
    name: &'static str,
    offset: u64,
    len: usize,
    writable: bool,
) -> Result<NonNull<u8>, UserModeError> {
    let none = || UserModeError::Map(name, "none".to_owned());
    let map = bpf.map(name).ok_or_else(none)?;
    let (Map::Array(data) | Map::RingBuf(data)) = map else {
        return Err(none());
    };
    let access = if writable {
        ProtFlags::READ | ProtFlags::WRITE
    } else {
        ProtFlags::READ
    };
    let start = kernel::memory_of(data.fd().as_fd(), offset, len, access);
    start.map_err(|errno| UserModeError::Memory(name, errno))
}
