//! The kinds that are about one way into the kernel, and out of it: `int80`, faults, exceptions
//! with a signal and its handler, `signals`, `seccomp`.

use std::sync::atomic::AtomicU8;

use rustix::io::Errno;
use rustix::mm::{MprotectFlags, mprotect};
use rustix::thread::gettid;
use unwindlab_abi::WorkloadKind;
use unwindlab_abi::mailbox::PAGE_SIZE;

use super::paged_out::{self, PageStore};
use super::{WorkloadError, failed};
use crate::chain::{Chain, Entry};
use crate::pages::Pages;
use crate::signals;

/// Bytes of the kernel's signal set.
const SIGSET_BYTES: u64 = 8;
/// The signals of `signals`.
const TWO: [libc::c_int; 2] = [libc::SIGUSR1, libc::SIGUSR2];

/// Runs all iterations. Each must raise the signals that its kind is to raise.
pub(super) fn run(
    chain: Chain,
    thread: u32,
    kind: WorkloadKind,
    store: Option<&PageStore>,
) -> Result<(), WorkloadError> {
    let (entry, signals): (Entry, &[libc::c_int]) = match kind {
        WorkloadKind::Int80 => (Entry::Int80, &[]),
        WorkloadKind::PageFault | WorkloadKind::MajorFault => (Entry::Read, &[]),
        WorkloadKind::ProtectionFault => (Entry::Write, &[libc::SIGSEGV]),
        WorkloadKind::Int3 => (Entry::Int3, &[libc::SIGTRAP]),
        WorkloadKind::Int1 => (Entry::Int1, &[libc::SIGTRAP]),
        WorkloadKind::GpFault => (Entry::Halt, &[libc::SIGSEGV]),
        WorkloadKind::SingleStep => (Entry::Step, &[libc::SIGTRAP]),
        WorkloadKind::Signals => (Entry::Call, &TWO),
        _ => (Entry::Call, &[libc::SIGSYS]),
    };
    let chain = chain.entering(entry);
    for signal in signals {
        handle(*signal).map_err(failed(thread, "cannot handle a signal"))?;
    }
    let page = page(kind, store).map_err(failed(thread, "cannot map a page"))?;
    chain.call().set(libc::SYS_getppid, &[page.address()]);
    // Read and written by the kernel, as long as the iterations go on.
    let (resident, set) = (AtomicU8::new(1), Box::new(set(&TWO)));
    match (kind, store) {
        (WorkloadKind::MajorFault, Some(store)) => {
            store.take_out(&chain, page.address(), &resident);
        }
        (WorkloadKind::PageFault, _) => {
            let [drop, ..] = chain.preparing();
            let page = [page.address(), PAGE_SIZE as u64, DONT_NEED];
            drop.set(libc::SYS_madvise, &page);
        }
        (WorkloadKind::Signals, _) => unblock_two(&chain, std::ptr::from_ref(&*set).addr() as u64),
        (WorkloadKind::Seccomp, _) => filter(thread)?,
        _ => {}
    }
    let wanted = signals.len() as u64;
    while chain.goes_on() {
        let (before, reads) = (chain.signals(), store.map_or(0, PageStore::reads));
        chain.run();
        let wrong = Errno::AGAIN;
        if chain.signals() - before != wanted {
            return Err(failed(thread, "another number of signals than it raised")(
                wrong,
            ));
        }
        if let Some(store @ PageStore::File(_)) = store
            && store.reads() == reads
        {
            return Err(failed(thread, "its page was not paged out")(wrong));
        }
        for call in chain.preparing() {
            call.answer()
                .map_err(failed(thread, "cannot prepare its entry"))?;
        }
    }
    drop((page, set));
    Ok(())
}

const DONT_NEED: u64 = libc::MADV_DONTNEED.unsigned_abs() as u64;

/// The page that the leaf reads or writes.
fn page(kind: WorkloadKind, store: Option<&PageStore>) -> Result<Pages, Errno> {
    let page = match store {
        Some(store) => store.stack(PAGE_SIZE)?,
        // What is dropped stays in memory: the next access finds it there.
        None => Pages::shared(1)?,
    };
    match kind {
        WorkloadKind::PageFault | WorkloadKind::MajorFault => paged_out::unlock(&page)?,
        WorkloadKind::ProtectionFault => {
            let start = usize::try_from(page.address()).map_err(|_| Errno::FAULT)?;
            let start = std::ptr::with_exposed_provenance_mut(start);
            // SAFETY: the page is this function's, and only the leaf writes to it.
            unsafe { mprotect(start, PAGE_SIZE, MprotectFlags::READ)? }
        }
        _ => {}
    }
    Ok(page)
}

/// Has the chain's own handler take a signal.
fn handle(signal: libc::c_int) -> Result<(), Errno> {
    // SAFETY: the handler keeps to what a handler may do; only this kind's leaf raises the signal.
    unsafe { signals::handle(signal, Chain::signal_handler(), libc::SA_SIGINFO) }
}

/// The kernel's set of these signals.
fn set(signals: &[libc::c_int]) -> u64 {
    let bit = |signal: &libc::c_int| 1_u64 << (signal.unsigned_abs() - 1);
    signals.iter().map(bit).sum()
}

/// Has the leaf block two signals, send them to its thread, and unblock them.
fn unblock_two(chain: &Chain, set: u64) {
    let change = |how: libc::c_int| [how.unsigned_abs().into(), set, 0, SIGSET_BYTES];
    let process = u64::from(std::process::id());
    let tid = gettid().as_raw_nonzero().get().unsigned_abs().into();
    let [block, first, second] = chain.preparing();
    block.set(libc::SYS_rt_sigprocmask, &change(libc::SIG_BLOCK));
    for (call, signal) in [first, second].into_iter().zip(TWO) {
        let signal = signal.unsigned_abs().into();
        call.set(libc::SYS_tgkill, &[process, tid, signal]);
    }
    let unblock = change(libc::SIG_UNBLOCK);
    chain.call().set(libc::SYS_rt_sigprocmask, &unblock);
}

/// Has the kernel turn each `getppid` of the calling thread into SIGSYS.
fn filter(thread: u32) -> Result<(), WorkloadError> {
    /// `seccomp(SECCOMP_SET_MODE_FILTER)`.
    const SET_FILTER: libc::c_ulong = 1;
    #[expect(clippy::cast_possible_truncation, reason = "it is 110")]
    const GETPPID: u32 = libc::SYS_getppid as u32;
    let line = |code: u32, jt, jf, k| libc::sock_filter {
        code: u16::try_from(code).unwrap_or(0),
        jt,
        jf,
        k,
    };
    // The number is the first word of `struct seccomp_data`.
    let mut lines = [
        line(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        line(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, GETPPID),
        line(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_TRAP),
        line(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: u16::try_from(lines.len()).unwrap_or(0),
        filter: lines.as_mut_ptr(),
    };
    // SAFETY: the kernel copies the program, which both outlive the call.
    let answer = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::syscall(libc::SYS_seccomp, SET_FILTER, 0, &raw const program)
    };
    match answer {
        0 => Ok(()),
        _ => match std::io::Error::last_os_error() {
            source if source.raw_os_error() == Some(libc::ENOSYS) => {
                Err(WorkloadError::Unsupported("seccomp"))
            }
            source if source.raw_os_error() == Some(libc::EINVAL) => {
                Err(WorkloadError::Unsupported("filters of seccomp"))
            }
            source => Err(WorkloadError::System {
                thread,
                what: "cannot set a filter",
                source,
            }),
        },
    }
}
