//! The words that the host and the workload threads share; layout in [`unwindlab_abi::shared`].

use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use unwindlab_abi::command::CommandWords;
use unwindlab_abi::shared::{
    ANSWER_OFFSET, COMMAND_OFFSET, MAX_THREADS, PAGES, STACKS_OFFSET, STOP_OFFSET, progress_offset,
};

use crate::blocker::Blocker;
use crate::pages::Pages;
use crate::physical::{self, PhysicalError};
use crate::processes::Processes;
use crate::requests::IterationRequests;

/// The area shared with the host, and what the threads share among themselves.
#[derive(Debug)]
pub struct SharedPages {
    pages: Pages,
    blocker: Blocker,
    requests: IterationRequests,
    processes: Processes,
    operation: OnceLock<OperationCall>,
}

/// A system call that workload thread 0 makes in one iteration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationCall {
    /// The iteration, from 1.
    pub iteration: u64,
    /// The call's number.
    pub number: i64,
    /// Its arguments.
    pub arguments: Vec<u64>,
}

impl SharedPages {
    /// Maps the area, all zero.
    ///
    /// # Errors
    /// The errno of `mmap`.
    pub fn new() -> Result<Self, rustix::io::Errno> {
        Ok(Self {
            pages: Pages::staying(PAGES)?,
            blocker: Blocker::default(),
            requests: IterationRequests::default(),
            processes: Processes::default(),
            operation: OnceLock::new(),
        })
    }

    /// Guest-physical addresses for [`unwindlab_abi::AgentMessage::Shared`].
    ///
    /// # Errors
    /// [`PhysicalError`].
    pub fn physical(&self) -> Result<Vec<u64>, PhysicalError> {
        physical::pages(self.pages.address(), PAGES)
    }

    /// Whether the workload is to end.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.stop_word().load(Ordering::Relaxed) != 0
    }

    /// Tells the workload to end, as the host does.
    pub fn stop(&self) {
        self.stop_word().store(1, Ordering::Relaxed);
    }

    /// Iterations of a thread; 0 for an invalid thread number.
    #[must_use]
    pub fn progress(&self, thread: u32) -> u64 {
        self.counter(thread)
            .map_or(0, |counter| counter.load(Ordering::Relaxed))
    }

    /// Counts an iteration of a thread whose leaf does not count.
    pub fn count(&self, thread: u32) {
        if let Some(counter) = self.counter(thread) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Virtual address of the stop word.
    #[must_use]
    pub fn stop_address(&self) -> u64 {
        self.pages.address() + STOP_OFFSET as u64
    }

    /// Virtual address of a thread's counter.
    #[must_use]
    pub fn progress_address(&self, thread: u32) -> Option<u64> {
        let offset = Self::counter_offset(thread)?;
        Some(self.pages.address() + offset as u64)
    }

    /// The command after number `done`, with its number.
    #[must_use]
    pub fn command(&self, done: u64) -> Option<(u64, CommandWords)> {
        // The host writes the number last.
        let number = self.word(COMMAND_OFFSET)?.load(Ordering::Acquire);
        let word = |n: usize| {
            let word = self.word(COMMAND_OFFSET + 8 * n)?;
            Some(word.load(Ordering::Relaxed))
        };
        let words = CommandWords {
            what: word(1)?,
            thread: word(2)?,
            argument: word(3)?,
        };
        (number != done).then_some((number, words))
    }

    /// Writes the result of a command.
    pub fn answer(&self, number: u64, errno: u64) {
        if let (Some(done), Some(result)) = (self.word(ANSWER_OFFSET), self.word(ANSWER_OFFSET + 8))
        {
            result.store(errno, Ordering::Relaxed);
            done.store(number, Ordering::Release);
        }
    }

    /// The blocked page.
    #[must_use]
    pub const fn blocker(&self) -> &Blocker {
        &self.blocker
    }

    /// The host's requests for next iterations.
    #[must_use]
    pub const fn requests(&self) -> &IterationRequests {
        &self.requests
    }

    /// The processes of workload `process`.
    #[must_use]
    pub const fn processes(&self) -> &Processes {
        &self.processes
    }

    /// Sets the operation of workload `perf-calls`. Only the first one counts.
    pub fn set_operation(&self, call: OperationCall) {
        let _ = self.operation.set(call);
    }

    /// The operation of workload `perf-calls`, if there is one.
    #[must_use]
    pub fn operation(&self) -> Option<OperationCall> {
        self.operation.get().cloned()
    }

    /// Sets the end of the stack on which a thread's chain runs.
    pub fn set_stack_top(&self, thread: u32, top: u64) {
        if let Some(word) = self.stack_word(thread) {
            word.store(top, Ordering::Relaxed);
        }
    }

    /// The end of the stack on which a thread's chain runs; 0 if not known.
    #[must_use]
    pub fn stack_top(&self, thread: u32) -> u64 {
        self.stack_word(thread)
            .map_or(0, |word| word.load(Ordering::Relaxed))
    }

    fn stack_word(&self, thread: u32) -> Option<&AtomicU64> {
        let known = thread < MAX_THREADS;
        known.then(|| self.word(STACKS_OFFSET + 8 * thread as usize))?
    }

    /// The word at an offset that is a multiple of 8.
    fn word(&self, offset: usize) -> Option<&AtomicU64> {
        if !offset.is_multiple_of(8) {
            return None;
        }
        let at: NonNull<AtomicU64> = self.pages.at(offset, size_of::<AtomicU64>())?.cast();
        // SAFETY: in bounds, aligned, and alive as long as `self`; only ever accessed as an atomic
        // here, and by the host.
        Some(unsafe { at.as_ref() })
    }

    fn counter_offset(thread: u32) -> Option<usize> {
        (thread < MAX_THREADS).then(|| progress_offset(thread))
    }

    fn stop_word(&self) -> &AtomicU32 {
        static NEVER: AtomicU32 = AtomicU32::new(0);
        let word = self.pages.at(STOP_OFFSET, size_of::<AtomicU32>());
        // SAFETY: in bounds and aligned (a multiple of 4 in a page), alive as long as `self`, and
        // only ever accessed as an atomic or by the machine code of `chain.s`.
        word.map_or(&NEVER, |at| unsafe { at.cast().as_ref() })
    }

    fn counter(&self, thread: u32) -> Option<&AtomicU64> {
        let at: NonNull<AtomicU64> = self
            .pages
            .at(Self::counter_offset(thread)?, size_of::<AtomicU64>())?
            .cast();
        // SAFETY: as for the stop word; counters are 64 bytes apart.
        Some(unsafe { at.as_ref() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_has_a_counter_of_its_own() {
        let shared = SharedPages::new().unwrap();
        for thread in 0..MAX_THREADS {
            shared.count(thread);
        }
        assert!((0..MAX_THREADS).all(|thread| shared.progress(thread) == 1));
        assert_eq!(shared.progress_address(MAX_THREADS), None);
        assert!(!shared.stopped());
        shared.stop();
        assert!(shared.stopped());
    }
}
