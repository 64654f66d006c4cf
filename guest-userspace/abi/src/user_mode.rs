//! Unwinding in user mode: what the guest's BPF program and signal handler write for the host.
//!
//! A BPF program on the sampling event gives the sample a *nonce*, writes the kernel stack and the
//! nonce into a BPF ring buffer, and sends the interrupted thread a signal with the nonce as its
//! value. The handler unwinds the thread and writes nonce and stack into a slot of a region that it
//! shares with the host.
//!
//! A thread's nonce is *pending* from the signal's sending until its handler has written the result:
//! until then no instruction of the interrupted code has run, so its stack is the outer part of
//! every stack that is sampled meanwhile, and such samples get the same nonce. The handler takes
//! it away last, after its result, so that a nonce that is used again always has an answer.

use serde::{Deserialize, Serialize};

use crate::mailbox::PAGE_SIZE;

/// What the agent sets up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UserModePlan {
    /// What asks for stacks.
    pub ask: Asker,
    /// The id of `bpf_send_signal_task` in the kernel's BTF, if the BPF program asks.
    pub send_signal: Option<u32>,
    /// The number of the signal.
    pub signal: u32,
    /// The handler runs on a stack of its own.
    pub alternate_stack: bool,
    /// The thread blocks the signal during each iteration, or until the end if a timer asks.
    pub blocked: bool,
    /// Its handler has `SA_RESTART`.
    pub restart: bool,
    /// A thread opts in after so many iterations.
    pub opts_in_after: u64,
    /// Every second thread does not opt in: the twin of the thread before it.
    pub twins: bool,
    /// Its process has another thread, which sleeps.
    pub bystander: bool,
    /// What the handler does besides.
    pub handler: HandlerKind,
    /// How it unwinds.
    pub unwinder: UnwinderKind,
    /// The BPF program's record is there instead of perf's sample, of which there is then none.
    pub instead: bool,
}

/// What the handler does before it unwinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum HandlerKind {
    /// Nothing.
    #[default]
    Prompt,
    /// A `getppid`.
    Calls,
    /// It waits, in user mode, for the end of the trial.
    Hangs,
    /// It reads address 0.
    Faults,
    /// It sends its thread another signal, which the program handles.
    Raises,
}

/// What asks for stacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Asker {
    /// The BPF program.
    #[default]
    Bpf,
    /// `setitimer(ITIMER_PROF)` of the process, every 10 ms of CPU time. The signal is SIGPROF.
    Itimer,
    /// `timer_create` with the thread's CPU time and `SIGEV_THREAD_ID`, every 10 ms.
    ThreadTimer,
    /// perf's `sigtrap` of an event on `nmi:nmi_handler` of the thread. The signal is SIGTRAP.
    Sigtrap,
}

/// How the handler unwinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum UnwinderKind {
    /// By frame pointers, as the kernel does.
    #[default]
    FramePointers,
    /// By the program's `.eh_frame`.
    EhFrame,
    /// By `.eh_frame`, with the functions that an interpreter executes in place of its own frame.
    Semantic,
}

impl UserModePlan {
    /// Whether this thread opts in.
    #[must_use]
    pub const fn opts_in(&self, thread: u32) -> bool {
        !self.twins || thread.is_multiple_of(2)
    }
}

/// What a thread that has not opted in has in place of its pending nonce: the BPF program sends it nothing. A
/// thread opts in and out by a store of its own.
pub const OPTED_OUT: u64 = u64::MAX;

/// Where the host finds what is written, in guest-physical addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UserModeAnnounce {
    /// The page of the BPF ring buffer with the producer's position, in its first word.
    pub producer: u64,
    /// Its data pages.
    pub ring: Vec<u64>,
    /// The page of the BPF program's counters ([`Counter`]).
    pub counters: u64,
    /// The results: the control page, whose first word counts the slots taken, then a page a slot.
    pub results: Vec<u64>,
    /// The handler's first instruction.
    pub handler: u64,
    /// How it unwinds.
    pub unwinder: UnwinderKind,
}

/// Bytes of the BPF ring buffer's data; a power of two.
pub const RING_BYTES: usize = 1 << 20;
/// Slots for results.
pub const RESULT_SLOTS: usize = 1024;
/// Pages of the results, with the control page.
pub const RESULT_PAGES: usize = 1 + RESULT_SLOTS;
/// Kernel frames in a request.
pub const KERNEL_FRAMES: usize = 32;
/// Words of a request before its kernel stack.
pub const REQUEST_HEAD: usize = 6;
/// Bytes of a request.
pub const REQUEST_BYTES: usize = 8 * (REQUEST_HEAD + KERNEL_FRAMES);
/// Words of a result before its frames.
pub const RESULT_HEAD: usize = 8;
/// User frames in a result.
pub const RESULT_FRAMES: usize = PAGE_SIZE / 8 - RESULT_HEAD;

/// Words of a request, by index.
pub mod request {
    /// The nonce.
    pub const NONCE: usize = 0;
    /// Thread group id in the upper half, thread id in the lower.
    pub const TASK: usize = 1;
    /// What was done: [`super::Asked`].
    pub const ASKED: usize = 2;
    /// What `bpf_send_signal_task` returned.
    pub const ANSWER: usize = 3;
    /// The CPU.
    pub const CPU: usize = 4;
    /// Bytes of kernel stack, or a negative errno.
    pub const STACK_BYTES: usize = 5;
}

/// Words of a result, by index.
pub mod result {
    /// The nonce.
    pub const NONCE: usize = 0;
    /// The thread id.
    pub const TID: usize = 1;
    /// The interrupted instruction.
    pub const IP: usize = 2;
    /// The interrupted stack pointer.
    pub const SP: usize = 3;
    /// Frames that follow.
    pub const FRAMES: usize = 4;
    /// Why there are no more: the unwinder's number.
    pub const STOP: usize = 5;
    /// 1 once everything else is written.
    pub const DONE: usize = 6;
    /// `si_code` in the lower half; `si_overrun` of a timer's signal, or `si_perf_flags`, in the upper.
    pub const CODE: usize = 7;
}

/// What the BPF program did for a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[repr(u64)]
pub enum Asked {
    /// It made a nonce, and the signal was sent or will be.
    Sent = 1,
    /// It used the thread's pending nonce.
    Again = 2,
    /// It made a nonce, and the kernel refused the signal: nobody answers this nonce.
    Refused = 3,
    /// Nothing: the thread has not opted in. There is no nonce.
    NotOptedIn = 4,
}

impl Asked {
    /// From its number.
    #[must_use]
    pub const fn from_number(number: u64) -> Option<Self> {
        match number {
            1 => Some(Self::Sent),
            2 => Some(Self::Again),
            3 => Some(Self::Refused),
            4 => Some(Self::NotOptedIn),
            _ => None,
        }
    }
}

/// The BPF program's counters, by index of the word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Samples of the workload's threads.
    Samples = 0,
    /// Nonces made.
    Nonces = 1,
    /// Signals refused.
    Refused = 2,
    /// Samples for which the ring buffer had no room: without a record and without a signal.
    Full = 3,
}

/// Number of counters.
pub const COUNTERS: usize = 8;
