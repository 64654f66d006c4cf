//! The system calls of perf events.

use std::ffi::{CStr, c_int, c_ulong, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use unwindlab_abi::mailbox::PAGE_SIZE;

use super::attr::PerfEventAttr;

// `PERF_FLAG_*`.
const FD_NO_GROUP: c_ulong = 1;
const FD_OUTPUT: c_ulong = 2;
const PID_CGROUP: c_ulong = 4;
pub(crate) const FD_CLOEXEC: c_ulong = 8;
/// `PERF_EVENT_IOC_*`, from include/uapi/linux/perf_event.h.
pub(super) mod request {
    use super::c_ulong;
    pub(in crate::perf) const ENABLE: c_ulong = 0x2400;
    pub(in crate::perf) const DISABLE: c_ulong = 0x2401;
    pub(in crate::perf) const REFRESH: c_ulong = 0x2402;
    pub(in crate::perf) const RESET: c_ulong = 0x2403;
    pub(super) const SET_OUTPUT: c_ulong = 0x2405;
    pub(in crate::perf) const PAUSE_OUTPUT: c_ulong = 0x4004_2409;
    pub(super) const SET_FILTER: c_ulong = 0x4008_2406;
    pub(super) const SET_BPF: c_ulong = 0x4004_2408;
    pub(super) const ID: c_ulong = 0x8008_2407;
}

/// Whose event `perf_event_open` makes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Tasks<'a> {
    /// Every task's.
    All,
    /// The calling thread's.
    Caller,
    /// A thread's.
    Thread(u32),
    /// Those of a cgroup's tasks.
    Cgroup(BorrowedFd<'a>),
}

/// Opens an event on one CPU, for all tasks, or where it is inherited for the calling one.
pub(super) fn open(attr: &PerfEventAttr, cpu: u32) -> Result<OwnedFd, Errno> {
    let inherits = attr.flags & super::attr::flag::INHERIT != 0;
    let tasks = if inherits { Tasks::Caller } else { Tasks::All };
    open_for(attr, tasks, cpu, None)
}

/// Opens an event on one CPU; `output` is the event to whose ring it writes, if that is said now.
pub(super) fn open_for(
    attr: &PerfEventAttr,
    tasks: Tasks<'_>,
    cpu: u32,
    output: Option<BorrowedFd<'_>>,
) -> Result<OwnedFd, Errno> {
    let (pid, mut flags): (c_int, c_ulong) = match tasks {
        Tasks::All => (-1, FD_CLOEXEC),
        Tasks::Caller => (0, FD_CLOEXEC),
        Tasks::Thread(tid) => {
            let tid = c_int::try_from(tid).map_err(|_| Errno::SRCH)?;
            (tid, FD_CLOEXEC)
        }
        Tasks::Cgroup(fd) => (fd.as_raw_fd(), FD_CLOEXEC | PID_CGROUP),
    };
    let group = output.map_or(-1, |fd| fd.as_raw_fd());
    if output.is_some() {
        flags |= FD_NO_GROUP | FD_OUTPUT;
    }
    let cpu = c_int::try_from(cpu).map_err(|_| Errno::INVAL)?;
    // SAFETY: the size is that of the struct.
    unsafe { perf_event_open(attr, pid, cpu, group, flags) }
}

/// The system call itself.
///
/// # Safety
/// At `attr` are as many bytes as its `size` says.
pub(crate) unsafe fn perf_event_open(
    attr: *const PerfEventAttr,
    pid: c_int,
    cpu: c_int,
    group: c_int,
    flags: c_ulong,
) -> Result<OwnedFd, Errno> {
    // SAFETY: as the caller promises.
    let answer = unsafe { libc::syscall(libc::SYS_perf_event_open, attr, pid, cpu, group, flags) };
    let fd = c_int::try_from(answer).map_err(|_| Errno::OVERFLOW)?;
    if fd < 0 {
        return Err(last_errno());
    }
    // SAFETY: a descriptor that the kernel has just made for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The event's number in `PERF_SAMPLE_ID` and `PERF_SAMPLE_IDENTIFIER`.
pub(super) fn id(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    let mut id = 0_u64;
    // SAFETY: `ID` writes 8 bytes to its argument.
    unsafe { ioctl(fd, request::ID, (&raw mut id).cast())? };
    Ok(id)
}

/// Runs a BPF program at each occurrence of a tracepoint.
pub(super) fn set_bpf(fd: BorrowedFd<'_>, program: BorrowedFd<'_>) -> Result<(), Errno> {
    let program = usize::try_from(program.as_raw_fd()).map_err(|_| Errno::BADF)?;
    // SAFETY: takes a descriptor in place of a pointer.
    unsafe {
        ioctl(
            fd,
            request::SET_BPF,
            std::ptr::without_provenance_mut(program),
        )
    }
}

pub(super) fn enable(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: takes a flag word, no pointer.
    unsafe { ioctl(fd, request::ENABLE, null_mut()) }
}

pub(super) fn disable(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: takes a flag word, no pointer.
    unsafe { ioctl(fd, request::DISABLE, null_mut()) }
}

/// Lets an event write to another one's ring.
pub(super) fn set_output(fd: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<(), Errno> {
    let to = usize::try_from(to.as_raw_fd()).map_err(|_| Errno::BADF)?;
    // SAFETY: takes a descriptor in place of a pointer.
    unsafe {
        ioctl(
            fd,
            request::SET_OUTPUT,
            std::ptr::without_provenance_mut(to),
        )
    }
}

/// Has a tracepoint count only where a condition on its fields holds.
pub(super) fn set_filter(fd: BorrowedFd<'_>, filter: &CStr) -> Result<(), Errno> {
    let text = filter.as_ptr().cast_mut().cast();
    // SAFETY: `SET_FILTER` reads a C string.
    unsafe { ioctl(fd, request::SET_FILTER, text) }
}

/// # Safety
/// `argument` must be what the request takes.
unsafe fn ioctl(fd: BorrowedFd<'_>, request: c_ulong, argument: *mut c_void) -> Result<(), Errno> {
    // SAFETY: as promised by the caller.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request, argument) } {
        0.. => Ok(()),
        _ => Err(last_errno()),
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// A ring buffer in this process: the control page, then the data pages. If it is writable, the
/// kernel respects `data_tail`, which the host moves on.
#[derive(Debug)]
pub struct RingMapping {
    start: NonNull<u8>,
    pages: u32,
    len: usize,
}

impl RingMapping {
    pub(super) fn new(fd: BorrowedFd<'_>, data_pages: u32, writable: bool) -> Result<Self, Errno> {
        let pages = data_pages.checked_add(1).ok_or(Errno::NOMEM)?;
        let len = (pages as usize)
            .checked_mul(PAGE_SIZE)
            .ok_or(Errno::NOMEM)?;
        let protection = match writable {
            true => ProtFlags::READ | ProtFlags::WRITE,
            false => ProtFlags::READ,
        };
        // SAFETY: a new mapping at an address the kernel chooses.
        let start = unsafe { mmap(null_mut(), len, protection, MapFlags::SHARED, fd, 0)? };
        let ring = Self {
            start: NonNull::new(start.cast()).ok_or(Errno::NOMEM)?,
            pages,
            len,
        };
        ring.touch();
        Ok(ring)
    }

    /// Older kernels map the pages only when they are first looked at, and the host finds them in
    /// the page tables.
    fn touch(&self) {
        for offset in (0..self.len).step_by(PAGE_SIZE) {
            // SAFETY: inside the mapping; volatile, because the kernel writes there.
            unsafe { self.start.add(offset).read_volatile() };
        }
    }

    /// Virtual address of the control page.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.start.as_ptr().addr() as u64
    }

    /// Pages, control page included.
    #[must_use]
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Its length in bytes.
    pub(super) fn len(&self) -> u64 {
        self.len as u64
    }
}

impl Drop for RingMapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length, no references into it are given out.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}
