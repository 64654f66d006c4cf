//! Getting a running vCPU out of `KVM_RUN`.
//!
//! KVM looks at the byte `immediate_exit` of the vCPU's shared page when `KVM_RUN` starts, and
//! returns at once where it is set. So: set the byte, then send the thread a signal. Where the
//! signal comes before `KVM_RUN`, the byte does its work; where it comes later, the signal
//! does. Nothing is lost in between, and the byte itself is the request.
//!
//! Who may write the byte: the controller while the vCPU runs (to stop it), and whoever owns
//! the stopped vCPU. It is cleared by the owner before the vCPU is handed back to its thread,
//! never by the thread, so that a request made right after is not wiped out.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use kvm_bindings::kvm_run;
use vmm_sys_util::signal::{SIGRTMIN, register_signal_handler};

/// A second mapping of a vCPU's shared page, of which only `immediate_exit` is touched.
#[derive(Debug)]
pub(crate) struct RunPage {
    page: *mut libc::c_void,
}

// SAFETY: the page is shared memory that stays mapped while the value lives, and the only
// byte of it that is accessed is accessed atomically.
unsafe impl Send for RunPage {}
// SAFETY: as above.
unsafe impl Sync for RunPage {}

impl RunPage {
    pub(crate) fn new(vcpu: &impl AsRawFd) -> io::Result<Self> {
        // SAFETY: no address is asked for, so that no mapping of ours is replaced; the
        // length is a page, which the vCPU's shared area has at least; the result is checked.
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
        // SAFETY: the byte lies in the mapping, which lives as long as `self`; one byte is
        // always aligned; all our accesses through this mapping are atomic.
        unsafe { AtomicU8::from_ptr(byte) }
    }

    /// Asks KVM to return from `KVM_RUN`. The signal that must follow is the caller's affair.
    pub(crate) fn request(&self) {
        self.immediate_exit().store(1, Ordering::SeqCst);
    }

    /// Takes the request back. Only the owner of the stopped vCPU may.
    pub(crate) fn clear(&self) {
        self.immediate_exit().store(0, Ordering::SeqCst);
    }

    /// Whether a return was asked for.
    pub(crate) fn requested(&self) -> bool {
        self.immediate_exit().load(Ordering::SeqCst) != 0
    }
}

impl Drop for RunPage {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`; no reference into it outlives `self`.
        unsafe { libc::munmap(self.page, size_of::<kvm_run>()) };
    }
}

/// The signal that gets a thread out of `KVM_RUN`.
pub(crate) fn kick_signal() -> libc::c_int {
    SIGRTMIN()
}

extern "C" fn do_nothing(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}

/// Gives the signal a handler that does nothing, once per process: the default would end it.
pub(crate) fn install_handler() -> Result<(), vmm_sys_util::errno::Error> {
    static INSTALLED: OnceLock<Result<(), vmm_sys_util::errno::Error>> = OnceLock::new();
    *INSTALLED.get_or_init(|| register_signal_handler(kick_signal(), do_nothing))
}
