//! The system calls of perf events.

use std::ffi::{c_int, c_ulong, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use unwindlab_abi::mailbox::PAGE_SIZE;

use super::attr::PerfEventAttr;

/// `PERF_FLAG_FD_CLOEXEC`.
const FD_CLOEXEC: c_ulong = 8;
/// `PERF_EVENT_IOC_*`, from include/uapi/linux/perf_event.h.
mod request {
    use super::c_ulong;
    pub(super) const ENABLE: c_ulong = 0x2400;
    pub(super) const DISABLE: c_ulong = 0x2401;
    pub(super) const SET_OUTPUT: c_ulong = 0x2405;
    pub(super) const ID: c_ulong = 0x8008_2407;
}

/// Opens an event on one CPU, for all tasks, or where it is inherited for the calling one.
pub(super) fn open(attr: &PerfEventAttr, cpu: u32) -> Result<OwnedFd, Errno> {
    let inherits = attr.flags & super::attr::flag::INHERIT != 0;
    let (tasks, no_group): (c_int, c_int) = (if inherits { 0 } else { -1 }, -1);
    // SAFETY: the kernel reads `attr.size` bytes, which is the size of the struct.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_ref(attr),
            tasks,
            cpu,
            no_group,
            FD_CLOEXEC,
        )
    };
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

/// A ring buffer in this process: the control page, then the data pages. Writable, because only
/// then does the kernel respect `data_tail`, which the host moves on.
#[derive(Debug)]
pub struct RingMapping {
    start: NonNull<u8>,
    pages: u32,
    len: usize,
}

impl RingMapping {
    pub(super) fn new(fd: BorrowedFd<'_>, data_pages: u32) -> Result<Self, Errno> {
        let pages = data_pages.checked_add(1).ok_or(Errno::NOMEM)?;
        let len = (pages as usize)
            .checked_mul(PAGE_SIZE)
            .ok_or(Errno::NOMEM)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
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
}

impl Drop for RingMapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length, no references into it are given out.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}
