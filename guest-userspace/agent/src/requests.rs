//! What the host changes in a workload thread's next iteration.
//!
//! The thread makes the change itself, between two iterations, and confirms it before it goes on,
//! so that later injections find it in place. No other thread could make it while the thread's CPU
//! is frozen: that takes the lock of the address space, which a third thread may hold while it
//! waits for the frozen CPU.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A command that waits for its thread.
#[derive(Debug, Clone, Copy)]
pub struct IterationRequest {
    /// The command's number.
    pub number: u64,
    /// The thread.
    pub thread: u32,
    /// The change.
    pub change: IterationChange,
}

/// The change to make. Addresses are those of pages of the thread's stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IterationChange {
    /// Accesses to the page block.
    Block(u64),
    /// The page is not mapped.
    Unmap(u64),
    /// The page is paged out.
    PageOut(u64),
    /// The page is that of a file that ends before it.
    Truncate(u64),
    /// The process executes another program.
    Exec,
}

/// The pending request. There is at most one, as of commands.
#[derive(Debug, Default)]
pub struct IterationRequests(Mutex<Option<IterationRequest>>);

impl IterationRequests {
    /// Asks a thread.
    pub fn make(&self, request: IterationRequest) {
        *self.request() = Some(request);
    }

    /// Takes the request for this thread, if there is one.
    pub fn take(&self, thread: u32) -> Option<IterationRequest> {
        self.request().take_if(|request| request.thread == thread)
    }

    fn request(&self) -> MutexGuard<'_, Option<IterationRequest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
