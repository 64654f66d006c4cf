//! `io-uring`: each system call waits for completions, where the kernel runs task work.

use std::ptr::null_mut;

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::io_uring::{
    IORING_OFF_CQ_RING, IORING_OFF_SQ_RING, IORING_OFF_SQES, IoringFeatureFlags, IoringSetupFlags,
    io_uring_params, io_uring_setup,
};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use unwindlab_abi::{Observation, WorkloadKind};

use super::{WorkloadError, failed};
use crate::chain::Chain;

/// Concurrent requests: one, a power of two.
const ENTRIES: u32 = 1;
/// Bytes of a submission (`struct io_uring_sqe`).
const SUBMISSION: usize = 64;
/// Bytes of a completion (`struct io_uring_cqe`).
const COMPLETION: usize = 16;

/// How long a timer takes: a `struct __kernel_timespec`, in seconds and nanoseconds.
static WAIT: [i64; 2] = [0, 10_000_000];

/// Runs all iterations with a separate ring. Each gives the kernel the same submission.
pub(super) fn run(
    chain: Chain,
    thread: u32,
    kind: WorkloadKind,
) -> Result<Observation, WorkloadError> {
    let (submission, flags) = match kind {
        WorkloadKind::IoUringWorker => (Submission::by_worker(), IoringSetupFlags::empty()),
        WorkloadKind::IoUringTimer => (Submission::timer(), IoringSetupFlags::empty()),
        WorkloadKind::IoUringCooperative => (Submission::timer(), IoringSetupFlags::COOP_TASKRUN),
        _ => (Submission::default(), IoringSetupFlags::empty()),
    };
    let ring = Ring::new(submission, flags).map_err(failed(thread, "cannot make an io_uring"))?;
    // SAFETY: both words are in the ring's mapping, which stays.
    let chain = unsafe { chain.with_ring(ring.fd.as_raw_fd(), ring.tail, ring.head) };
    while chain.goes_on() {
        chain.run();
        let result = chain.last_result();
        if result != 1 {
            // Negative: the errno. Otherwise the kernel took another number of submissions than
            // one.
            let errno = i32::try_from(-result).ok().filter(|errno| *errno > 0);
            let errno = errno.map_or(Errno::IO, Errno::from_raw_os_error);
            return Err(failed(thread, "io_uring_enter did not take one request")(
                errno,
            ));
        }
    }
    Ok(Observation::IoUring { thread })
}

/// The beginning of a submission (`struct io_uring_sqe`, include/uapi/linux/io_uring.h). All zero, it is `IORING_OP_NOP`.
#[derive(Default)]
#[repr(C)]
struct Submission {
    opcode: u8,
    flags: u8,
    priority: u16,
    fd: i32,
    offset: u64,
    address: u64,
    length: u32,
}

impl Submission {
    fn by_worker() -> Self {
        /// `IOSQE_ASYNC`.
        const ASYNC: u8 = 1 << 4;
        Self {
            flags: ASYNC,
            ..Self::default()
        }
    }

    fn timer() -> Self {
        /// `IORING_OP_TIMEOUT`: `address` is one `struct __kernel_timespec`.
        const TIMEOUT: u8 = 11;
        Self {
            opcode: TIMEOUT,
            address: (&raw const WAIT).expose_provenance() as u64,
            length: 1,
            ..Self::default()
        }
    }
}

/// A ring. Its memory is mapped until the process ends.
struct Ring {
    fd: OwnedFd,
    tail: u64,
    head: u64,
}

impl Ring {
    fn new(submission: Submission, flags: IoringSetupFlags) -> Result<Self, Errno> {
        let mut params = io_uring_params::default();
        params.flags = flags;
        // SAFETY: no flag is set with which anything of `params` is an address or a descriptor.
        let fd = unsafe { io_uring_setup(ENTRIES, &mut params)? };
        let submissions = params.sq_off.array as usize + params.sq_entries as usize * 4;
        let completions = params.cq_off.cqes as usize + params.cq_entries as usize * COMPLETION;
        // The array of submissions is all zeroes: slot 0 is submission 0.
        let sq = map(&fd, IORING_OFF_SQ_RING, submissions.max(completions))?;
        let cq = if params.features.contains(IoringFeatureFlags::SINGLE_MMAP) {
            sq
        } else {
            map(&fd, IORING_OFF_CQ_RING, completions)?
        };
        let slots = map(
            &fd,
            IORING_OFF_SQES,
            params.sq_entries as usize * SUBMISSION,
        )?;
        let first = std::ptr::with_exposed_provenance_mut::<Submission>(
            usize::try_from(slots).map_err(|_| Errno::FAULT)?,
        );
        // SAFETY: the mapping has room for a submission, and nothing else knows of it yet.
        unsafe { first.write(submission) };
        Ok(Self {
            fd,
            tail: sq + u64::from(params.sq_off.tail),
            head: cq + u64::from(params.cq_off.head),
        })
    }
}

/// Maps a part of the ring; returns its address.
fn map(fd: &OwnedFd, offset: u64, len: usize) -> Result<u64, Errno> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::POPULATE;
    // SAFETY: a new mapping at an address the kernel chooses.
    let start = unsafe { mmap(null_mut(), len, access, flags, fd, offset)? };
    Ok(start.expose_provenance() as u64)
}
