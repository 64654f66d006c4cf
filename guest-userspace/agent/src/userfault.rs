//! Blocks accesses to a page, including those of the kernel, while it is not in the page tables.
//!
//! Linux 7.2, fs/userfaultfd.c: minor faults are those on existing pages of shared memory that are
//! not mapped. A waiting access is retried, and succeeds, when the page is unregistered.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};

/// `UFFD_API`.
const API: u64 = 0xaa;
/// `UFFD_FEATURE_MINOR_SHMEM`.
const MINOR_SHMEM: u64 = 1 << 10;
/// `UFFDIO_REGISTER_MODE_MINOR`.
const MODE_MINOR: u64 = 1 << 2;
/// `UFFDIO_API`, `UFFDIO_REGISTER`, `UFFDIO_UNREGISTER`, `UFFDIO_WAKE`.
const IOCTL_API: u64 = 0xc018_aa3f;
const IOCTL_REGISTER: u64 = 0xc020_aa00;
const IOCTL_UNREGISTER: u64 = 0x8010_aa01;
const IOCTL_WAKE: u64 = 0x8010_aa02;
/// Bytes of `struct uffd_msg`.
const MESSAGE: usize = 32;
/// `arg.pagefault.address` in it.
const ADDRESS: std::ops::Range<usize> = 16..24;
/// `UFFD_EVENT_PAGEFAULT`, its first byte.
const PAGEFAULT: u8 = 0x12;

/// The file from which faults are read.
#[derive(Debug)]
pub struct Userfault(File);

impl Userfault {
    /// Opens a file that also gets the kernel's own faults.
    ///
    /// # Errors
    /// The errno: `ENOSYS` without `CONFIG_USERFAULTFD`, `EINVAL` without minor faults.
    pub fn open() -> io::Result<Self> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        let fd = i32::try_from(fd).map_err(io::Error::other)?;
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, and nobody else's.
        let this = Self(unsafe { File::from_raw_fd(fd) });
        this.call(IOCTL_API, &mut [API, MINOR_SHMEM, 0])?;
        Ok(this)
    }

    /// Blocks accesses to these bytes while they are not mapped.
    ///
    /// # Errors
    /// The errno.
    pub fn block(&self, start: u64, bytes: u64) -> io::Result<()> {
        self.call(IOCTL_REGISTER, &mut [start, bytes, MODE_MINOR, 0])
    }

    /// Ends this, and wakes what waits.
    ///
    /// # Errors
    /// The errno.
    pub fn release(&self, start: u64, bytes: u64) -> io::Result<()> {
        self.call(IOCTL_UNREGISTER, &mut [start, bytes])?;
        // `userfaultfd_unregister` wakes only accesses to pages that do not exist.
        self.wake(start, bytes)
    }

    /// Wakes what waits, whatever is there now.
    ///
    /// # Errors
    /// The errno.
    pub fn wake(&self, start: u64, bytes: u64) -> io::Result<()> {
        self.call(IOCTL_WAKE, &mut [start, bytes])
    }

    /// Whether something has begun to wait since the last call.
    #[must_use]
    pub fn has_blocked(&mut self) -> bool {
        let mut message = [0; MESSAGE];
        let read = self.0.read(&mut message);
        read.is_ok_and(|read| read == MESSAGE) && message.starts_with(&[PAGEFAULT])
    }

    /// The address of the next access that has begun to wait, if there is one.
    pub fn next_address(&mut self) -> Option<u64> {
        let mut message = [0; MESSAGE];
        let read = self.0.read(&mut message).ok()?;
        let (head, address) = (message.first()?, message.get(ADDRESS)?);
        let address = u64::from_ne_bytes(address.try_into().ok()?);
        (read == MESSAGE && *head == PAGEFAULT).then_some(address)
    }

    fn call<const N: usize>(&self, request: u64, words: &mut [u64; N]) -> io::Result<()> {
        // SAFETY: the requests read and write as many bytes as their numbers contain, which is the
        // size of `words` in each call.
        let answer = unsafe { libc::ioctl(self.0.as_raw_fd(), request, words.as_mut_ptr()) };
        match answer {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
