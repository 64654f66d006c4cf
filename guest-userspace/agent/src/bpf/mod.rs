//! A BPF client of user stacks on an unmodified kernel: the program on the sampling tracepoint takes a thread's
//! stack at once, or schedules task work for it (`bpf_task_work_schedule_resume`), whose callback is part of the program.
//!
//! The request is that of unwinding in user mode, with a callback for a handler. Maps and program are made
//! by bpf(2): a callback needs type information of functions and of a map's value, which aya takes from a
//! compiler's output only.

mod program;
mod sys;
mod types;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::mm::ProtFlags;
use unwindlab_abi::BpfPlan;
use unwindlab_abi::mailbox::PAGE_SIZE;
use unwindlab_abi::user_mode::{RESULT_PAGES, RING_BYTES};

use crate::user_mode::kernel;

/// Why there is no BPF client.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// The program is not one.
    #[error("the BPF program cannot be written")]
    Write,
    /// The kernel refuses a map or what it is to hold.
    #[error("map {0}: {1}")]
    Map(&'static str, Errno),
    /// The kernel refuses the type information.
    #[error("this kernel does not take the BPF program's types: {0}")]
    Types(Errno),
    /// The kernel refuses the program.
    #[error("this kernel does not take the BPF program: {0}: {1}")]
    Program(Errno, String),
}

/// The loaded program with its maps.
#[derive(Debug)]
pub struct BpfClient {
    program: OwnedFd,
    maps: Vec<(&'static str, OwnedFd)>,
    /// Ring buffer, counters and results, with numbers of pages.
    mappings: [(u64, u32); 3],
}

impl BpfClient {
    /// Loads the program and maps what it writes.
    ///
    /// # Errors
    /// [`BpfError`].
    pub fn load(plan: &BpfPlan) -> Result<Self, BpfError> {
        let schedule = plan.schedule.map(i32::try_from).transpose();
        let schedule = schedule.map_err(|_| BpfError::Write)?;
        let types = sys::load_types(&types::types()).map_err(BpfError::Types)?;
        let mut maps = Vec::new();
        for map in program::maps() {
            let made = sys::create_map(&map, types.as_fd());
            maps.push((
                map.name,
                made.map_err(|errno| BpfError::Map(map.name, errno))?,
            ));
        }
        let mut code = program::code(plan.stack, schedule).ok_or(BpfError::Write)?;
        for (at, name) in &code.maps {
            let fd = find(&maps, name)?;
            sys::name_map(&mut code.bytes, *at, fd).ok_or(BpfError::Write)?;
        }
        let loaded = sys::load_program(&code, types.as_fd());
        let program = loaded.map_err(|(errno, log)| BpfError::Program(errno, log))?;
        let pages = |bytes: usize| u32::try_from(bytes / PAGE_SIZE).unwrap_or(0);
        let map_of = |name, offset, bytes| -> Result<_, BpfError> {
            let start = kernel::memory_of(find(&maps, name)?, offset, bytes, ProtFlags::READ);
            let start = start.map_err(|errno| BpfError::Map(name, errno))?;
            Ok((start.as_ptr().addr() as u64, pages(bytes)))
        };
        let mappings = [
            map_of(program::RING, PAGE_SIZE as u64, PAGE_SIZE + RING_BYTES)?,
            map_of(program::COUNTS, 0, PAGE_SIZE)?,
            map_of(program::RESULTS, 0, RESULT_PAGES * PAGE_SIZE)?,
        ];
        Ok(Self {
            program,
            maps,
            mappings,
        })
    }

    /// The program, to attach to an event.
    #[must_use]
    pub fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// Opts threads in: thread i has slot i.
    ///
    /// # Errors
    /// [`BpfError::Map`].
    pub fn opt_in(&self, tids: &[u32]) -> Result<(), BpfError> {
        let threads = find(&self.maps, program::THREADS)?;
        for (slot, tid) in (0_u32..).zip(tids) {
            let done = sys::insert(threads, tid, &slot);
            done.map_err(|errno| BpfError::Map(program::THREADS, errno))?;
        }
        Ok(())
    }

    /// Addresses and numbers of pages of ring buffer, counters and results.
    #[must_use]
    pub const fn mappings(&self) -> [(u64, u32); 3] {
        self.mappings
    }
}

fn find<'a>(maps: &'a [(&'static str, OwnedFd)], name: &str) -> Result<BorrowedFd<'a>, BpfError> {
    let map = maps.iter().find(|(it, _)| *it == name);
    map.map(|(_, fd)| fd.as_fd()).ok_or(BpfError::Write)
}
