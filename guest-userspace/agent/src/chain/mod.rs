//! The call chain of a workload thread, known by construction, and what an unwind of it shows.
//!
//! The code is in `chain.s`. A frame-pointer unwind from a leaf sees, innermost first: the
//! leaf's instruction pointer, the return into `descend` from the leaf, one return into
//! `descend` for each further level, and the return into the root. There it ends: the root
//! calls down with `rbp = 0`, and the kernel stops at a frame pointer below the stack pointer
//! (`unwind_user_next_common` in kernel/unwind/user.c of Linux 7.2). So `n` frames are one leaf,
//! `n - 2` levels of `descend` and one root.

mod code;
pub mod frameless;
pub mod interpreter;
pub mod odd;

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use unwindlab_abi::message::{ExpectedStack, KnownStack};
use unwindlab_abi::plan::{SPIN_ROUNDS, SYSCALLS_BATCH, WILD_ENDS};
use unwindlab_abi::{MARK_PORT, WorkloadKind, mark};

use crate::call::Call;
use crate::shared::SharedPages;

pub use code::{C_BEGIN, signal_handler, symbols};

std::arch::global_asm!(
    include_str!("chain.s"),
    MARK_PORT = const MARK_PORT,
    SPIN_ROUNDS = const SPIN_ROUNDS,
    SYSCALLS_BATCH = const SYSCALLS_BATCH,
    SYS_GETPPID = const libc::SYS_getppid,
    SYS_CLONE = const libc::SYS_clone,
    SYS_EXIT = const libc::SYS_exit,
    SYS_EXECVE = const libc::SYS_execve,
    ANSWER = const Call::ANSWER,
    BEFORE = const offset_of!(ChainWords, before),
    BEFORE_TOO = const offset_of!(ChainWords, before_too),
    CALL = const offset_of!(ChainWords, call),
    AFTER = const offset_of!(ChainWords, after),
    ENTRY = const offset_of!(ChainWords, entry),
    ENTRY_SKIP = const offset_of!(ChainWords, entry_skip),
    SIGNALS = const offset_of!(ChainWords, signals),
    ENTRY_CALL = const Entry::Call as u32,
    ENTRY_READ = const Entry::Read as u32,
    ENTRY_WRITE = const Entry::Write as u32,
    ENTRY_INT3 = const Entry::Int3 as u32,
    ENTRY_INT1 = const Entry::Int1 as u32,
    ENTRY_HALT = const Entry::Halt as u32,
    ENTRY_STEP = const Entry::Step as u32,
    ENTRY_INT80 = const Entry::Int80 as u32,
    UCONTEXT_RIP = const UCONTEXT_RIP,
    UCONTEXT_FLAGS = const UCONTEXT_RIP + 8,
    SYS_RT_SIGRETURN = const libc::SYS_rt_sigreturn,
    SYS_GETPPID_32 = const SYS_GETPPID_32,
    PLAIN_END = const PLAIN_END,
    NO_ADDRESS = const NO_ADDRESS,
    EXEC_PATH = const offset_of!(ChainWords, exec_path),
    EXEC_ARGUMENTS = const offset_of!(ChainWords, exec_arguments),
    LEAF = const offset_of!(ChainWords, leaf),
    DEPTH = const offset_of!(ChainWords, depth),
    PROGRESS = const offset_of!(ChainWords, progress),
    STOP = const offset_of!(ChainWords, stop),
    LIMIT = const offset_of!(ChainWords, limit),
    RESULT = const offset_of!(ChainWords, result),
    ARM = const offset_of!(ChainWords, arm),
    DONE = const offset_of!(ChainWords, done),
    FD = const offset_of!(ChainWords, fd),
    END_ON_STACK = const offset_of!(ChainWords, end_on_stack),
    END = const offset_of!(ChainWords, end),
    STACK_TOP = const offset_of!(ChainWords, stack_top),
    CALLERS_STACK = const offset_of!(ChainWords, callers_stack),
    SYS_IO_URING_ENTER = const libc::SYS_io_uring_enter,
    IORING_ENTER_GETEVENTS = const IORING_ENTER_GETEVENTS,
    CLOCK_MONOTONIC = const libc::CLOCK_MONOTONIC,
    CLOCK_GETTIME = sym libc::clock_gettime,
    URING_TAIL = const offset_of!(ChainWords, uring_tail),
    URING_HEAD = const offset_of!(ChainWords, uring_head),
);

std::arch::global_asm!(
    include_str!("odd.s"),
    MARK_PORT = const MARK_PORT,
    ANSWER = const Call::ANSWER,
    BEFORE = const offset_of!(ChainWords, before),
    BEFORE_TOO = const offset_of!(ChainWords, before_too),
    AFTER = const offset_of!(ChainWords, after),
    ODD = const offset_of!(ChainWords, odd),
    SYS_RT_SIGRETURN = const libc::SYS_rt_sigreturn,
    UCONTEXT_RIP = const UCONTEXT_RIP,
    NO_ADDRESS = const NO_ADDRESS,
    PROGRESS = const offset_of!(ChainWords, progress),
    ARM = const offset_of!(ChainWords, arm),
    DONE = const offset_of!(ChainWords, done),
    CALLERS_STACK = const offset_of!(ChainWords, callers_stack),
);

/// Exit status of a process of workload `process` that did nothing but its system call.
pub const PLAIN_END: i32 = 7;
/// What code without frame pointers has in `rbp`: no canonical address.
pub const NO_ADDRESS: u64 = 0x0123_4567_89ab_cdef;
/// `getppid` of 32-bit code (arch/x86/entry/syscalls/syscall_32.tbl).
const SYS_GETPPID_32: u32 = 64;
/// Byte offset of the instruction pointer in a signal's `ucontext`; the flags follow
/// (`struct sigcontext_64`, arch/x86/include/uapi/asm/sigcontext.h).
const UCONTEXT_RIP: usize =
    offset_of!(libc::ucontext_t, uc_mcontext) + 8 * libc::REG_RIP.unsigned_abs() as usize;
/// Flag to wait for completions (include/uapi/linux/io_uring.h).
const IORING_ENTER_GETEVENTS: u32 = 1;
/// Bytes of one frame on the stack: return address and saved frame pointer.
pub const FRAME_BYTES: usize = 16;
/// Bytes of a frame of `frameless`: return address, saved register, and what `bare_descend` takes.
pub const BARE_FRAME_BYTES: usize = 40;
/// Bytes of the leaf's frame of `frameless` at its system call: return address, saved register, and
/// what it takes.
pub const LEAF_BYTES: u64 = 0x1010;
/// The shortest chain: leaf, one caller, root.
pub const MIN_FRAMES: u32 = 3;

mod entry {
    use super::ChainWords;
    unsafe extern "sysv64" {
        pub(super) fn ul_root(chain: *const ChainWords);
        pub(super) fn ul_bare_root(chain: *const ChainWords);
        pub(super) fn ul_odd_root(chain: *const ChainWords);
        pub(super) fn ul_compat_root(chain: *const ChainWords);
        pub(super) fn ul_exit_root(
            chain: *const ChainWords,
            flags: u64,
            stack_top: u64,
            clear_tid: *const u32,
        ) -> i64;
    }
}

/// How the leaf of the kinds that are about entries enters the kernel.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// By its system call, [`Chain::call`].
    Call,
    /// It reads a byte at the address that is the call's first argument.
    Read,
    /// It writes a byte there.
    Write,
    /// By `int3`.
    Int3,
    /// By `int1`.
    Int1,
    /// By `hlt`, which user mode may not execute.
    Halt,
    /// By a single step: it sets the trap flag.
    Step,
    /// By `int 0x80`.
    Int80,
}

impl Entry {
    /// Bytes of an instruction that would raise its signal again once the signal was handled.
    const fn skip(self) -> u32 {
        match self {
            // `mov byte ptr [rdx], al`.
            Self::Write => 2,
            Self::Halt => 1,
            _ => 0,
        }
    }
}

/// The data of one thread's assembly; `chain.s` uses the fields by their offsets.
#[repr(C)]
#[derive(Debug)]
struct ChainWords {
    /// Address of the leaf.
    leaf: u64,
    /// Levels of `descend`.
    depth: u64,
    /// Address of the thread's counter.
    progress: u64,
    /// Address of the stop word.
    stop: u64,
    /// The counter's value at which the thread ends.
    limit: u64,
    /// The result of the last `read`.
    result: AtomicI64,
    arm: u32,
    done: u32,
    /// The descriptor to read from; for the `io-uring` leaf the ring.
    fd: i32,
    /// All ones if `end` is relative to the stack pointer of the root, 0 if it is an address.
    end_on_stack: u64,
    /// The frame pointer with which the root ends the chain.
    end: u64,
    /// End of the stack to run on; 0 for the calling thread's own.
    stack_top: u64,
    /// Address of the name of the program that the `exec` leaf executes, a C string.
    exec_path: u64,
    /// Address of its arguments, as `execve` takes them.
    exec_arguments: u64,
    /// The calling thread's stack pointer while the chain runs.
    callers_stack: AtomicU64,
    /// Address of the ring's tail of submissions, and of its head of completions.
    uring_tail: u64,
    uring_head: u64,
    /// Calls of the leaves of `missing-pages`, `paged-out` and `perf-calls` before their system
    /// call.
    before: Call,
    before_too: Call,
    /// Their call after it.
    after: Call,
    /// How the leaf of entries enters the kernel, an [`Entry`] (for the `compat` leaf also the
    /// address of a function that does), and the instruction's bytes that its signal handler skips.
    entry: u32,
    entry_skip: u32,
    /// Signals that the handler took.
    signals: AtomicU64,
    /// The system call of the leaves of `process`, `fork`, `vfork`, `clone3` and `shapes`.
    call: Call,
    /// What the code of `frameless-shapes` calls through memory.
    odd: odd::Calls,
}

/// The frame pointers of [`WILD_ENDS`], as (`end_on_stack`, `end`). The frame of the outermost
/// `descend` lies 16 bytes below the root's stack pointer, that of the one it calls 32.
const ENDS: [(u64, u64); WILD_ENDS as usize] = [
    (0, 0),
    (u64::MAX, 16_u64.wrapping_neg()),
    (u64::MAX, 32_u64.wrapping_neg()),
    (u64::MAX, 4),
    (0, 0xffff_8880_0000_0000),
    (0, 0x0100_0000_0000_0000),
    (u64::MAX, 8_u64.wrapping_neg()),
    (0, 16_u64.wrapping_neg()),
];

/// Whether the chain of a kind is 32-bit code.
#[must_use]
pub const fn is_compat(kind: WorkloadKind) -> bool {
    matches!(
        kind,
        WorkloadKind::Compat
            | WorkloadKind::CompatSframe
            | WorkloadKind::CompatInt80
            | WorkloadKind::CompatSyscall
            | WorkloadKind::CompatSysenter
    )
}

/// A 32-bit function without a frame of its own that makes the system call in EAX: frame 0 of a
/// system call is in it, in place of the leaf that called it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vsyscall {
    /// Where it starts.
    pub start: u32,
    /// Where the kernel returns to. From here on the frame pointer is the leaf's.
    pub landing_pad: u32,
    /// Behind its last instruction.
    pub end: u32,
}

impl Vsyscall {
    /// The same by `sysenter` of the agent's own; the kernel returns from that to the vDSO.
    #[must_use]
    pub fn by_sysenter(self) -> Option<Self> {
        let start = u32::try_from(code::compat_sysenter()).ok()?;
        Some(Self { start, ..self })
    }
}

/// The call chain of one thread.
#[derive(Debug)]
pub struct Chain {
    words: ChainWords,
    kind: WorkloadKind,
    thread: u32,
    shared: Arc<SharedPages>,
    vsyscall: Option<Vsyscall>,
    /// Whether sections describe all code of a chain without frame pointers.
    described: bool,
}

impl Chain {
    /// A chain of `frames` frames for thread `thread`, which ends after `iterations` iterations (0:
    /// only at the stop word). The sleeping kind reads `fd`. `None` if `frames` is below
    /// [`MIN_FRAMES`] or the shared pages have no counter for the thread.
    #[must_use]
    pub fn new(
        kind: WorkloadKind,
        thread: u32,
        frames: u32,
        iterations: u64,
        fd: i32,
        shared: Arc<SharedPages>,
    ) -> Option<Self> {
        let levels = { frames.checked_sub(interpreter::other_frames(kind)) }.filter(|&n| n > 0)?;
        let words = ChainWords {
            leaf: code::leaf(kind),
            depth: u64::from(levels),
            progress: shared.progress_address(thread)?,
            stop: shared.stop_address(),
            limit: if iterations == 0 {
                u64::MAX
            } else {
                iterations
            },
            result: AtomicI64::new(1),
            arm: mark::pack(mark::ARM, thread),
            done: mark::pack(mark::DONE, thread),
            fd,
            end_on_stack: 0,
            end: 0,
            stack_top: 0,
            exec_path: 0,
            exec_arguments: 0,
            callers_stack: AtomicU64::new(0),
            uring_tail: 0,
            uring_head: 0,
            before: Call::none(),
            before_too: Call::none(),
            after: Call::none(),
            call: Call::none(),
            entry: Entry::Call as u32,
            entry_skip: 0,
            signals: AtomicU64::new(0),
            odd: [0; 4],
        };
        Some(Self {
            words,
            kind,
            thread,
            shared,
            vsyscall: None,
            described: false,
        })
    }

    /// Ends the chain with invalid frame pointer number `which` modulo [`WILD_ENDS`].
    #[must_use]
    pub fn with_wild_end(mut self, which: u32) -> Self {
        let end = ENDS.iter().cycle().nth(which as usize);
        (self.words.end_on_stack, self.words.end) = end.copied().unwrap_or_default();
        self
    }

    /// Ends the chain with this frame pointer.
    #[must_use]
    pub fn with_end(mut self, frame_pointer: u64) -> Self {
        (self.words.end_on_stack, self.words.end) = (0, frame_pointer);
        self
    }

    /// Runs on the stack that ends here instead of the calling thread's.
    ///
    /// # Safety
    /// It must be writable, have room for the chain, and stay as long as the chain.
    #[must_use]
    pub unsafe fn on_stack(mut self, end: u64) -> Self {
        self.words.stack_top = end;
        self
    }

    /// Sets what the `exec` leaf executes: addresses of a C string and of arguments for `execve`.
    /// Both must stay valid as long as the chain.
    #[must_use]
    pub fn executing(mut self, path: u64, arguments: u64) -> Self {
        (self.words.exec_path, self.words.exec_arguments) = (path, arguments);
        self
    }

    /// Sets the ring of the `io-uring` leaf, and the addresses of its submission tail and
    /// completion head.
    ///
    /// # Safety
    /// Both words must be writable as long as the chain runs.
    #[must_use]
    pub unsafe fn with_ring(mut self, ring: i32, tail: u64, head: u64) -> Self {
        self.words.fd = ring;
        (self.words.uring_tail, self.words.uring_head) = (tail, head);
        self
    }

    /// Sets how the leaf of entries enters the kernel.
    #[must_use]
    pub fn entering(mut self, entry: Entry) -> Self {
        (self.words.entry, self.words.entry_skip) = (entry as u32, entry.skip());
        self
    }

    /// Has the `compat` leaf call a function for its system call.
    #[must_use]
    pub const fn calling(mut self, vsyscall: Vsyscall) -> Self {
        self.words.entry = vsyscall.start;
        self.vsyscall = Some(vsyscall);
        self
    }

    /// Sets what the code of `frameless-shapes` calls through memory, and its calls that register a
    /// section and take it away.
    ///
    /// # Safety
    /// The code must stay as long as the chain, and keep to what `odd.s` expects of it.
    pub unsafe fn call_through(&mut self, shapes: &odd::Shapes) {
        self.words.odd = shapes.calls();
        let [add, remove] = shapes.prctls();
        self.words.before.set(libc::SYS_prctl, &add);
        self.words.after.set(libc::SYS_prctl, &remove);
    }

    /// Says that sections describe all code of a chain without frame pointers.
    #[must_use]
    pub const fn described(mut self) -> Self {
        self.described = true;
        self
    }

    /// The stacks at every instruction of a chain without frame pointers, whose stack must be set.
    #[must_use]
    pub fn known_stacks(&self) -> Vec<KnownStack> {
        let depth = u32::try_from(self.words.depth).unwrap_or(u32::MAX);
        frameless::known_stacks(self.words.stack_top, depth)
    }

    /// The handler of the signals that the leaf of entries raises.
    #[must_use]
    pub fn signal_handler() -> usize {
        code::handler()
    }

    /// The handler of a signal that makes the leaf's call in its place, with the answer in the last of
    /// [`Self::preparing`], and the instruction behind that call.
    #[must_use]
    pub fn own_handler() -> [u64; 2] {
        code::own_handler()
    }

    /// Signals that the handler took.
    #[must_use]
    pub fn signals(&self) -> u64 {
        self.words.signals.load(Ordering::Relaxed)
    }

    /// Levels of functions between leaf and root.
    #[must_use]
    pub const fn levels(&self) -> u64 {
        self.words.depth
    }

    /// The words shared with the host.
    #[must_use]
    pub fn shared(&self) -> &SharedPages {
        &self.shared
    }

    /// Whether another iteration follows.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        !self.shared.stopped() && self.shared.progress(self.thread) < self.words.limit
    }

    /// Counts an iteration, for kinds whose leaf does not count.
    pub fn count(&self) {
        self.shared.count(self.thread);
    }

    /// Calls down to the leaf once, on the stack of the calling thread, which must have room for
    /// [`FRAME_BYTES`] a frame. The kinds with a loop in their leaf return after the last
    /// iteration.
    pub fn run(&self) {
        if is_compat(self.kind) {
            // Its code needs a stack below 4 GiB.
            if self.words.stack_top != 0 {
                // SAFETY: as below.
                unsafe { entry::ul_compat_root(&raw const self.words) }
            }
            return;
        }
        if self.kind.is_frameless() {
            // SAFETY: as below.
            unsafe { entry::ul_bare_root(&raw const self.words) }
            return;
        }
        if self.kind == WorkloadKind::FramelessShapes {
            // Its code calls what is in these words.
            if self.words.odd.iter().all(|&it| it != 0) {
                // SAFETY: as below.
                unsafe { entry::ul_odd_root(&raw const self.words) }
            }
            return;
        }
        // The `exit` leaf would end the calling thread: that is for `start_exiting_thread`.
        if self.kind != WorkloadKind::Exit {
            // SAFETY: the words outlive the call and point into `self.shared`, which does too;
            // the code keeps the C calling convention.
            unsafe { entry::ul_root(&raw const self.words) }
        }
    }

    /// Starts a thread that calls down to the `exit` leaf and ends there. The kernel zeroes
    /// `clear_tid` and wakes its (shared) futex when the thread no longer uses the stack.
    ///
    /// # Errors
    /// The errno of `clone`, or `EINVAL` for a chain of another kind.
    ///
    /// # Safety
    /// The stack below `stack_top` must have [`FRAME_BYTES`] a frame, it, `self` and `clear_tid`
    /// must stay until the kernel has zeroed `clear_tid`.
    pub unsafe fn start_exiting_thread(
        &self,
        stack_top: u64,
        clear_tid: *const u32,
    ) -> Result<(), rustix::io::Errno> {
        const FLAGS: i32 = libc::CLONE_VM
            | libc::CLONE_FS
            | libc::CLONE_FILES
            | libc::CLONE_SIGHAND
            | libc::CLONE_THREAD
            | libc::CLONE_SYSVSEM
            | libc::CLONE_CHILD_CLEARTID;
        if self.kind != WorkloadKind::Exit {
            return Err(rustix::io::Errno::INVAL);
        }
        // SAFETY: as promised by the caller; the new thread runs `chain.s` only, which uses no
        // thread-local storage, so that sharing the caller's is harmless.
        let answer = unsafe {
            entry::ul_exit_root(
                &raw const self.words,
                FLAGS.unsigned_abs().into(),
                stack_top,
                clear_tid,
            )
        };
        match i32::try_from(answer) {
            Ok(negative @ ..0) => Err(rustix::io::Errno::from_raw_os_error(-negative)),
            _ => Ok(()),
        }
    }

    /// The three calls of the leaf of entries before it enters the kernel its own way.
    #[must_use]
    pub const fn preparing(&self) -> [&Call; 3] {
        [
            &self.words.before,
            &self.words.before_too,
            &self.words.after,
        ]
    }

    /// The calls of the leaf before its system call, one after the other.
    #[must_use]
    pub const fn before(&self) -> [&Call; 2] {
        [&self.words.before, &self.words.before_too]
    }

    /// The call of the leaf after its system call.
    #[must_use]
    pub const fn after(&self) -> &Call {
        &self.words.after
    }

    /// The system call of the leaf, for kinds in which it varies.
    #[must_use]
    pub const fn call(&self) -> &Call {
        &self.words.call
    }

    /// The result of the last `read` or `io_uring_enter`.
    #[must_use]
    pub fn last_result(&self) -> i64 {
        self.words.result.load(Ordering::Relaxed)
    }

    /// What an unwind from the leaf shows.
    #[must_use]
    pub fn expected_stack(&self) -> ExpectedStack {
        let leaf = match &self.vsyscall {
            // No unwinder is bound to find all of it.
            None if self.kind.takes_section() && !self.described => code::Framed {
                start: 0,
                end: 0,
                syscall_return: 0,
            },
            Some(vsyscall) => code::Framed {
                start: vsyscall.landing_pad.into(),
                end: vsyscall.end.into(),
                syscall_return: vsyscall.landing_pad.into(),
            },
            None => code::framed_leaf(self.kind),
        };
        let returns = code::returns(self.kind);
        let inner_levels = u32::try_from(self.words.depth - 1).unwrap_or(u32::MAX);
        let mut callers = Vec::new();
        if self.kind.is_interpreted() {
            callers.push((interpreter::return_address(), 1));
        }
        callers.push((returns.innermost, 1));
        if inner_levels > 0 {
            callers.push((returns.level, inner_levels));
        }
        callers.push((returns.root, 1));
        ExpectedStack {
            leaf_start: leaf.start,
            leaf_end: leaf.end,
            syscall_return: leaf.syscall_return,
            callers,
        }
    }
}
