//! Makes a running vCPU leave `KVM_RUN`.
//!
//! When `KVM_RUN` starts, KVM reads the byte `immediate_exit` of the vCPU's shared page, and
//! returns at once if it is set. To stop a vCPU, the controller sets the byte and then sends the
//! thread a signal. A signal before `KVM_RUN` has no effect, but then the byte has; a later one
//! interrupts `KVM_RUN`. The byte itself is the request, so none is lost.
//!
//! The controller may write the byte while the vCPU runs, and the owner of the stopped vCPU may.
//! The owner clears it before it hands the vCPU to its thread; the thread never does, as it could
//! wipe out a new request. Where the thread itself wants `KVM_RUN` to return at once, it writes
//! another value, and takes back only that.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use kvm_bindings::kvm_run;
use vmm_sys_util::signal::{SIGRTMIN, register_signal_handler};

/// The values of the byte. To KVM, all but 0 are the same.
const RUN: u8 = 0;
const REQUESTED: u8 = 1;
const HELD: u8 = 2;

/// A second mapping of a vCPU's shared page, for access to `immediate_exit` only.
#[derive(Debug)]
pub(crate) struct RunPage {
    page: *mut libc::c_void,
}

// SAFETY: the page is shared memory that stays mapped while the value lives, and its only byte
// that is accessed is accessed atomically.
unsafe impl Send for RunPage {}
// SAFETY: as above.
unsafe impl Sync for RunPage {}

impl RunPage {
    pub(crate) fn new(vcpu: &impl AsRawFd) -> io::Result<Self> {
        // SAFETY: the kernel chooses the address, so no mapping of ours is replaced; the vCPU's
        // shared area is at least this long; the result is checked.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<kvm_run>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                vcpu.as_raw_fd(),
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { page })
    }

    fn immediate_exit(&self) -> &AtomicU8 {
        let byte = self
            .page
            .cast::<u8>()
            .wrapping_add(std::mem::offset_of!(kvm_run, immediate_exit));
        // SAFETY: the byte is in the mapping, which lives as long as `self`; one byte is always
        // aligned; all our accesses through this mapping are atomic.
        unsafe { AtomicU8::from_ptr(byte) }
    }

    /// Requests a return from `KVM_RUN`. The caller must send the signal.
    pub(crate) fn request(&self) {
        self.immediate_exit().store(REQUESTED, Ordering::SeqCst);
    }

    /// Withdraws the request. Only the owner of the stopped vCPU may.
    pub(crate) fn clear(&self) {
        self.immediate_exit().store(RUN, Ordering::SeqCst);
    }

    /// Has `KVM_RUN` return at once, until [`let_go`](Self::let_go). For whoever runs the vCPU; no request is lost.
    pub(crate) fn hold(&self) {
        self.replace(RUN, HELD);
    }

    /// The end of [`hold`](Self::hold).
    pub(crate) fn let_go(&self) {
        self.replace(HELD, RUN);
    }

    fn replace(&self, from: u8, to: u8) {
        // Any other value is a request, which stays.
        let _ = { self.immediate_exit() }.compare_exchange(
            from,
            to,
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
    }

    /// Whether a return is requested.
    pub(crate) fn requested(&self) -> bool {
        self.immediate_exit().load(Ordering::SeqCst) == REQUESTED
    }
}

impl Drop for RunPage {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`; no reference into it outlives `self`.
        unsafe { libc::munmap(self.page, size_of::<kvm_run>()) };
    }
}

/// The signal that interrupts `KVM_RUN`.
pub(crate) fn kick_signal() -> libc::c_int {
    SIGRTMIN()
}

extern "C" fn do_nothing(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}

/// Installs a handler for the signal that does nothing, once per process. The default action
/// would end the process.
pub(crate) fn install_handler() -> Result<(), vmm_sys_util::errno::Error> {
    static INSTALLED: OnceLock<Result<(), vmm_sys_util::errno::Error>> = OnceLock::new();
    *INSTALLED.get_or_init(|| register_signal_handler(kick_signal(), do_nothing))
}
