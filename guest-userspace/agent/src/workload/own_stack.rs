//! `own-stack`: the leaf asks for the stack of its own thread, in another way in each iteration.

use std::io;
use std::ptr::{null, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
use rustix::thread::gettid;
use unwindlab_abi::mailbox::PAGE_SIZE;
use unwindlab_abi::own_stack::{OwnStackCalls, OwnStackCase};
use unwindlab_abi::{Observation, WorkloadKind};

use super::pagemap::{Look, drop_pages};
use super::{WorkloadError, failed};
use crate::chain::{Chain, Entry};
use crate::pages::Pages;
use crate::signals;

/// `unwind_self(frames, room, flags)` of `proposal:own-stack`; it is no system call elsewhere.
const UNWIND_SELF: i64 = 490;
const PAGE: u64 = PAGE_SIZE as u64;

/// Nothing else in the workload sends it.
const SIGNAL: libc::c_int = libc::SIGUSR2;

/// Pages of the buffer: room for more frames than a walk has.
const BUFFER_PAGES: usize = 2;
/// Words of the buffer.
const WORDS: usize = BUFFER_PAGES * PAGE_SIZE / size_of::<u64>();
/// Room of [`OwnStackCase::Cut`].
const FEW: u64 = 4;
/// What the buffer holds before a call: no address.
const EMPTY: u64 = 0x5a5a_5a5a_5a5a_5a5a;
/// Outcomes in one observation, which fits the mailbox.
const PIECE: usize = 16;
/// More outcomes than a right kernel has; the rest is left out.
const MOST: usize = 256;

/// Runs all iterations.
pub(super) fn run(
    chain: Chain,
    thread: u32,
    kind: WorkloadKind,
    stack_bytes: usize,
) -> Result<Vec<Observation>, WorkloadError> {
    let stack = Pages::shared(stack_bytes.div_ceil(PAGE_SIZE))
        .map_err(failed(thread, "cannot map a stack"))?;
    // SAFETY: the stack was sized for this chain, and is unmapped after the last run.
    let chain = unsafe { chain.on_stack(stack.end()) }.entering(Entry::Call);
    chain.shared().set_stack_top(thread, stack.end());
    let handler = handle().map_err(|source| WorkloadError::System {
        thread,
        what: "cannot handle its signal",
        source,
    })?;
    let buffers = Buffers::new().map_err(failed(thread, "cannot map its buffers"))?;
    let look = Look::new(&stack).map_err(failed(thread, "cannot map what it looks with"))?;
    let mut seen: Vec<OwnStackCalls> = Vec::new();
    let (comes_and_goes, over) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let beside = thread::Builder::new().spawn_scoped(scope, || {
            buffers.come_and_go(&comes_and_goes, &over);
        });
        let done = beside
            .map_err(|source| WorkloadError::Spawn { thread, source })
            .and_then(|_| {
                let frameless = kind == WorkloadKind::OwnStackFrameless;
                // A handler keeps frame pointers, and the leaf behind it has none.
                let cases = OwnStackCase::ALL.into_iter();
                let cases = cases.filter(|&it| !(frameless && it == OwnStackCase::InHandler));
                for case in cases.cycle() {
                    if !chain.goes_on() {
                        break;
                    }
                    comes_and_goes.store(case == OwnStackCase::Unmapped, Ordering::Release);
                    let mut call = ask(&chain, thread, case, &stack, &buffers, &look)?;
                    if case == OwnStackCase::InHandler {
                        call.handler = handler;
                    }
                    note(&mut seen, call);
                }
                Ok(())
            });
        over.store(true, Ordering::Release);
        done
    })?;
    drop(stack);
    let pieces = seen.chunks(PIECE);
    Ok(pieces
        .map(|piece| Observation::OwnStack(piece.to_vec()))
        .collect())
}

/// Makes one call.
fn ask(
    chain: &Chain,
    thread: u32,
    case: OwnStackCase,
    stack: &Pages,
    buffers: &Buffers,
    look: &Look,
) -> Result<OwnStackCalls, WorkloadError> {
    let whole = WORDS as u64;
    let (address, room, flags) = match case {
        OwnStackCase::Whole
        | OwnStackCase::NotPresent
        | OwnStackCase::StackNotPresent
        | OwnStackCase::InHandler => (buffers.own.address(), whole, 0),
        OwnStackCase::Cut => (buffers.own.address(), FEW, 0),
        OwnStackCase::NoRoom => (buffers.own.address(), 0, 0),
        OwnStackCase::Flags => (buffers.own.address(), whole, 1),
        OwnStackCase::BeyondAddressSpace => (0xffff_8880_0000_0000, whole, 0),
        OwnStackCase::ReadOnly => (buffers.read_only.address(), whole, 0),
        OwnStackCase::IntoHole => (buffers.hole - 16, whole, 0),
        OwnStackCase::Unmapped => (buffers.unsteady, whole, 0),
    };
    buffers.empty();
    let [first, second, third] = chain.preparing();
    for call in [first, second, third] {
        call.unset();
    }
    let looks = looks(case);
    if looks || case == OwnStackCase::NotPresent {
        drop_pages(first, stack);
    }
    if case == OwnStackCase::NotPresent {
        drop_pages(second, &buffers.own);
    }
    if case == OwnStackCase::InHandler {
        let task = gettid().as_raw_nonzero().get().unsigned_abs();
        let arguments = [std::process::id(), task, SIGNAL.unsigned_abs()].map(u64::from);
        first.set(libc::SYS_tgkill, &arguments);
    }
    // The last call of the leaf may be the one: behind it nothing touches the stack before the thread looks.
    let asks = if looks { second } else { chain.call() };
    if looks {
        look.set(third);
        chain.call().set(libc::SYS_getppid, &[]);
    }
    asks.set(UNWIND_SELF, &[address, room, flags]);
    chain.run();
    let dropping = match case {
        OwnStackCase::NotPresent => &[first, second][..],
        _ if looks => &[first],
        _ => &[],
    };
    for call in dropping {
        call.answer()
            .map_err(failed(thread, "cannot drop its pages"))?;
    }
    let call = match case {
        OwnStackCase::InHandler => third,
        _ => asks,
    };
    let answer = match call.answer() {
        Ok(frames) => i64::try_from(frames).unwrap_or(i64::MAX),
        Err(Errno::NOSYS) => return Err(WorkloadError::Unsupported("unwind_self")),
        Err(errno) => -i64::from(errno.raw_os_error()),
    };
    Ok(OwnStackCalls {
        thread,
        case,
        count: 1,
        answer,
        frames: buffers.written(),
        touched_stack: looks.then(|| look.found(third)).flatten(),
        handler: [0; 2],
    })
}

/// Whether the thread looks after the call which pages of its stack are present.
const fn looks(case: OwnStackCase) -> bool {
    matches!(
        case,
        OwnStackCase::StackNotPresent
            | OwnStackCase::NoRoom
            | OwnStackCase::Flags
            | OwnStackCase::BeyondAddressSpace
    )
}

/// A signal's disposition, as the kernel has it (`struct kernel_sigaction`).
#[repr(C)]
#[derive(Default)]
struct Disposition {
    handler: u64,
    flags: u64,
    restorer: u64,
    mask: u64,
}

/// Has the chain's own handler take the signal, in the whole process. Returns the instruction behind the handler's
/// call, and where the handler returns to, which the C library chooses.
fn handle() -> io::Result<[u64; 2]> {
    let [entry, behind] = Chain::own_handler();
    let mut kernels = Disposition::default();
    // SAFETY: the handler is code of `chain.s` that returns, and the kernel writes a disposition, whose mask has 8 bytes.
    let answer = unsafe {
        signals::handle(SIGNAL, usize::try_from(entry).map_err(io::Error::other)?, 0)?;
        let none = null::<Disposition>();
        libc::syscall(libc::SYS_rt_sigaction, SIGNAL, none, &raw mut kernels, 8)
    };
    match answer {
        0 => Ok([behind, kernels.restorer]),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Counts calls with one outcome together.
fn note(seen: &mut Vec<OwnStackCalls>, call: OwnStackCalls) {
    let same = |it: &OwnStackCalls| {
        it.case == call.case
            && it.answer == call.answer
            && it.frames == call.frames
            && it.touched_stack == call.touched_stack
    };
    match seen.iter().position(same) {
        Some(at) => {
            if let Some(known) = seen.get_mut(at) {
                known.count = known.count.saturating_add(1);
            }
        }
        None if seen.len() < MOST => seen.push(call),
        None => {}
    }
}

/// What the kernel writes to, or must not.
struct Buffers {
    own: Pages,
    read_only: Pages,
    /// Where a page without access begins, behind one with it.
    hole: u64,
    /// A page that comes and goes.
    unsteady: u64,
}

impl Buffers {
    fn new() -> Result<Self, Errno> {
        let read_only = Pages::new(BUFFER_PAGES)?;
        let page = |address: u64| -> Result<*mut libc::c_void, Errno> {
            let address = usize::try_from(address).map_err(|_| Errno::FAULT)?;
            Ok(with_exposed_provenance_mut(address))
        };
        // Both mappings stay until the process ends.
        let before_hole = std::mem::ManuallyDrop::new(Pages::new(2)?);
        let unsteady = std::mem::ManuallyDrop::new(Pages::new(BUFFER_PAGES)?);
        // SAFETY: the pages are this value's, and nothing else uses them. The hole stays mapped, without access: into
        // one that is not, the next mapping of a page would go.
        unsafe {
            mprotect(
                page(read_only.address())?,
                BUFFER_PAGES * PAGE_SIZE,
                MprotectFlags::READ,
            )?;
            mprotect(
                page(before_hole.address() + PAGE)?,
                PAGE_SIZE,
                MprotectFlags::empty(),
            )?;
        }
        Ok(Self {
            own: Pages::shared(BUFFER_PAGES)?,
            read_only,
            hole: before_hole.address() + PAGE,
            unsteady: unsteady.address(),
        })
    }

    /// Fills the buffer with what is no frame.
    fn empty(&self) {
        for at in 0..WORDS {
            if let Some(word) = self.own.at(at * size_of::<u64>(), size_of::<u64>()) {
                // SAFETY: in the buffer, which only the kernel writes to besides, in calls of this thread.
                unsafe { word.as_ptr().cast::<u64>().write_volatile(EMPTY) }
            }
        }
    }

    /// The words up to the last that is not empty.
    fn written(&self) -> Vec<u64> {
        let bytes = self
            .own
            .read(0, WORDS * size_of::<u64>())
            .unwrap_or_default();
        let words = bytes.chunks_exact(size_of::<u64>());
        let mut words: Vec<u64> = words
            .filter_map(|it| it.try_into().ok().map(u64::from_le_bytes))
            .collect();
        let end = words.iter().rposition(|word| *word != EMPTY);
        words.truncate(end.map_or(0, |it| it + 1));
        words
    }

    /// Unmaps the unsteady pages and maps them again, as long as `comes_and_goes`.
    fn come_and_go(&self, comes_and_goes: &AtomicBool, over: &AtomicBool) {
        let Ok(start) = usize::try_from(self.unsteady) else {
            return;
        };
        let accesses = [ProtFlags::empty(), ProtFlags::READ | ProtFlags::WRITE];
        for access in accesses.into_iter().cycle() {
            if over.load(Ordering::Acquire) {
                break;
            }
            if !comes_and_goes.load(Ordering::Acquire) {
                thread::yield_now();
                continue;
            }
            let start = with_exposed_provenance_mut(start);
            let flags = MapFlags::PRIVATE | MapFlags::FIXED;
            // SAFETY: it replaces pages that only the kernel writes to, for this thread's calls. Where
            // it fails, they stay as they are.
            let _ = unsafe { mmap_anonymous(start, BUFFER_PAGES * PAGE_SIZE, access, flags) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mailbox::CAPACITY;
    use unwindlab_abi::{AgentMessage, mailbox};

    #[test]
    fn the_buffer_tells_what_was_written() {
        let mut buffers = Buffers::new().unwrap();
        buffers.empty();
        assert!(buffers.written().is_empty());
        buffers.own.write(0, &7_u64.to_le_bytes()).unwrap();
        buffers.own.write(16, &9_u64.to_le_bytes()).unwrap();
        assert_eq!(buffers.written(), [7, EMPTY, 9]);
    }

    #[test]
    fn the_largest_piece_fits_the_mailbox() {
        let call = OwnStackCalls {
            thread: u32::MAX,
            case: OwnStackCase::InHandler,
            count: u32::MAX,
            answer: i64::MIN,
            frames: vec![u64::MAX; WORDS],
            touched_stack: Some(true),
            handler: [u64::MAX; 2],
        };
        let piece = AgentMessage::Observed(Observation::OwnStack(vec![call; PIECE]));
        assert!(mailbox::encode(&piece).unwrap().len() <= CAPACITY);
    }

    #[test]
    fn calls_with_one_outcome_are_one() {
        let call = |answer| OwnStackCalls {
            thread: 0,
            case: OwnStackCase::Whole,
            count: 1,
            answer,
            frames: Vec::new(),
            touched_stack: None,
            handler: [0; 2],
        };
        let mut seen = Vec::new();
        for answer in [3, -14, 3] {
            note(&mut seen, call(answer));
        }
        let counts: Vec<_> = seen.iter().map(|it| (it.answer, it.count)).collect();
        assert_eq!(counts, [(3, 2), (-14, 1)]);
    }
}
