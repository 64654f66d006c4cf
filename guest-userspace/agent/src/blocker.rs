//! The page of a workload thread's stack that is to block.
//!
//! The thread itself sets it up, between two iterations, and says so before it goes on: whatever
//! the host has follow finds it set up. Nobody else could while the thread's CPU stands still,
//! because that takes the lock of the address space, which a third thread may hold that waits for
//! that very CPU.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use unwindlab_abi::mailbox::PAGE_SIZE;

use crate::userfault::Userfault;

/// The page, from the wish to the release. One at a time.
#[derive(Debug, Default)]
pub struct Blocker(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    wish: Option<Wish>,
    fault: Option<Userfault>,
    /// The page that blocks, and whose stack it is of.
    page: Option<(u64, u32)>,
    blocked: bool,
}

/// A page that is to block.
#[derive(Debug, Clone, Copy)]
pub struct Wish {
    /// Number of the command.
    pub number: u64,
    /// The page.
    pub page: u64,
    /// The thread.
    pub thread: u32,
}

impl Blocker {
    /// Asks the thread to set it up.
    pub fn wish(&self, wish: Wish) {
        self.state().wish = Some(wish);
    }

    /// Sets up what is wished of the calling thread: the command's number, and how it went.
    pub fn set_up(&self, thread: u32) -> Option<(u64, io::Result<()>)> {
        let mut state = self.state();
        let wish = state.wish.take_if(|wish| wish.thread == thread)?;
        Some((wish.number, state.block(wish)))
    }

    /// The thread whose page somebody has begun to wait for since the last time.
    pub fn has_blocked(&self) -> Option<u32> {
        let mut state = self.state();
        let (_, thread) = state.page?;
        let began = !state.blocked && state.fault.as_mut()?.has_blocked();
        state.blocked |= began;
        began.then_some(thread)
    }

    /// Lets the page go.
    ///
    /// # Errors
    /// There is none, or the kernel's errno.
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
    fn block(&mut self, wish: Wish) -> io::Result<()> {
        if self.page.is_some() {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        let fault = match self.fault.take() {
            Some(fault) => fault,
            None => Userfault::open()?,
        };
        fault.block(wish.page, PAGE_SIZE as u64)?;
        self.fault = Some(fault);
        self.page = Some((wish.page, wish.thread));
        self.blocked = false;
        Ok(())
    }
}
