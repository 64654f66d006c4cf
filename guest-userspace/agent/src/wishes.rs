//! What the host wants of a workload thread's next iteration.
//!
//! The thread itself sets it up, between two iterations, and says so before it goes on: whatever
//! the host has follow finds it set up. Nobody else could change the address space while the
//! thread's CPU stands still, because that takes a lock which a third thread may hold that waits
//! for that very CPU.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// One command that waits for its thread.
#[derive(Debug, Clone, Copy)]
pub struct Wish {
    /// Number of the command.
    pub number: u64,
    /// The thread.
    pub thread: u32,
    /// What it is.
    pub what: Wanted,
}

/// What is wanted; addresses are those of pages of the thread's stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// Looks at the page block.
    Block(u64),
    /// The page is not mapped.
    Unmap(u64),
    /// The page is not in memory.
    PageOut(u64),
    /// The page is one of a file that ends before it.
    Truncate(u64),
    /// The process executes another program.
    Exec,
}

/// The wish; one at a time, as commands are.
#[derive(Debug, Default)]
pub struct Wishes(Mutex<Option<Wish>>);

impl Wishes {
    /// Asks a thread.
    pub fn make(&self, wish: Wish) {
        *self.wish() = Some(wish);
    }

    /// What is wanted of the calling thread.
    pub fn take(&self, thread: u32) -> Option<Wish> {
        self.wish().take_if(|wish| wish.thread == thread)
    }

    fn wish(&self) -> MutexGuard<'_, Option<Wish>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
