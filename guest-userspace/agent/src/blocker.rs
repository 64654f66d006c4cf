//! The blocked page of a workload thread's stack.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use unwindlab_abi::mailbox::PAGE_SIZE;

use crate::userfault::Userfault;

/// The blocked page, until it is released. There is at most one.
#[derive(Debug, Default)]
pub struct Blocker(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    fault: Option<Userfault>,
    /// The blocked page, and the thread of whose stack it is.
    page: Option<(u64, u32)>,
    blocked: bool,
}

impl Blocker {
    /// Blocks accesses to this page of the calling thread's stack.
    ///
    /// # Errors
    /// Another page is blocked, or the kernel's errno.
    pub fn block(&self, page: u64, thread: u32) -> io::Result<()> {
        self.state().block(page, thread)
    }

    /// The thread of the blocked page, if something has begun to wait for the page since the last
    /// call.
    pub fn has_blocked(&self) -> Option<u32> {
        let mut state = self.state();
        let (_, thread) = state.page?;
        let began = !state.blocked && state.fault.as_mut()?.has_blocked();
        state.blocked |= began;
        began.then_some(thread)
    }

    /// Releases the page.
    ///
    /// # Errors
    /// No page is blocked, or the kernel's errno.
    pub fn release(&self) -> io::Result<()> {
        let mut state = self.state();
        let page = state.page.take();
        match (&state.fault, page) {
            (Some(fault), Some((page, _))) => fault.release(page, PAGE_SIZE as u64),
            _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn block(&mut self, page: u64, thread: u32) -> io::Result<()> {
        if self.page.is_some() {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        let fault = match self.fault.take() {
            Some(fault) => fault,
            None => Userfault::open()?,
        };
        fault.block(page, PAGE_SIZE as u64)?;
        self.fault = Some(fault);
        self.page = Some((page, thread));
        self.blocked = false;
        Ok(())
    }
}
