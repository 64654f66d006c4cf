//! Words in guest memory through which host and guest communicate while the guest runs.
//!
//! Page 0 starts with the control words below; the progress counters of the threads follow from
//! [`PROGRESS_OFFSET`], one little-endian `u64` each, 64 bytes apart (a cache line per thread).
//! They use further pages if there are many threads.

/// Byte offset of the stop word: the host writes a non-zero `u32`, and every thread ends at its
/// next iteration.
pub const STOP_OFFSET: usize = 0;
/// Byte offset of the first thread's progress counter.
pub const PROGRESS_OFFSET: usize = 64;
/// Distance of two threads' counters.
pub const PROGRESS_STRIDE: usize = 64;
/// Threads a workload may have; keeps the counters within the first four pages.
pub const MAX_THREADS: u32 = 255;
/// Pages of the shared area.
pub const PAGES: usize = 5;
/// Byte offset of the number of the last command that the host gave; its words follow
/// ([`crate::command`]): what, thread, argument.
pub const COMMAND_OFFSET: usize = 4 * 4096;
/// Byte offset of the number of the last finished command; its errno follows, 0 for success.
pub const ANSWER_OFFSET: usize = COMMAND_OFFSET + 64;
/// Byte offset of the end of the first thread's stack, a `u64` for each thread; 0 if not known.
pub const STACKS_OFFSET: usize = COMMAND_OFFSET + 1024;

/// Byte offset of a thread's progress counter, from the start of the shared area.
#[must_use]
pub const fn progress_offset(thread: u32) -> usize {
    PROGRESS_OFFSET + thread as usize * PROGRESS_STRIDE
}
