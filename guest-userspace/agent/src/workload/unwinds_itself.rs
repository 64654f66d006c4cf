//! A workload thread in a process of its own, which answers the signals of unwinding in user mode: no
//! BPF program may send init a signal (`bpf_send_signal_common`, kernel/trace/bpf_trace.c).
//!
//! The process shares the agent's memory, but neither its signal handlers nor its id.

use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::Pid;
use rustix::thread::futex::{self, Flags};
use unwindlab_abi::behaviour::Behaviour;
use unwindlab_abi::mailbox::PAGE_SIZE;
use unwindlab_abi::{EXIT_AT_ONCE, Observation, UserModePlan, mark};

use super::gate::Gate;
use super::job::ThreadJob;
use super::seen_calls::SeenCalls;
use super::{WorkloadError, failed, pin};
use crate::chain::Chain;
use crate::pages::Pages;
use crate::user_mode::Registration;
use crate::{ports, processes};

/// What the process does next: [`CLOSED`] until it is told.
const CLOSED: u32 = 0;
/// It runs its iterations.
const RUN: u32 = 1;
/// It ends at once.
const END: u32 = 2;
/// Its exit status if it cannot register.
const NOT_REGISTERED: c_int = 99;
/// The agent itself.
const PROGRAM: &std::ffi::CStr = c"/proc/self/exe";

/// What the process is given. It stays until the process has ended.
#[derive(Debug)]
struct Given<'a> {
    chain: &'a Chain,
    calls: SeenCalls,
    stack: Pages,
    /// That of the chain, if it is another one.
    chain_stack: Option<&'a Pages>,
    registration: Registration,
    gate: AtomicU32,
}

/// Runs a job in a process of its own. `tell` gets its id before it waits at the gate.
pub(super) fn run(
    plan: &UserModePlan,
    job: ThreadJob,
    gate: &Gate,
    tell: impl FnOnce(Pid),
) -> Result<Vec<Observation>, WorkloadError> {
    let thread = job.thread;
    pin(thread, None, job.cpu)?;
    let wrong = |what| {
        move |source| WorkloadError::System {
            thread,
            what,
            source,
        }
    };
    let stack = Pages::new(job.stack_bytes.div_ceil(PAGE_SIZE));
    let arguments: [*const c_char; 3] = [PROGRAM.as_ptr(), EXIT_AT_ONCE.as_ptr(), std::ptr::null()];
    let [path, arguments_at] = [PROGRAM.as_ptr().addr(), arguments.as_ptr().addr()];
    let chain = job.chain.executing(path as u64, arguments_at as u64);
    let given = Given {
        chain: &chain,
        calls: SeenCalls::new(job.kind).map_err(failed(thread, "cannot prepare its calls"))?,
        stack: stack.map_err(failed(thread, "cannot map a stack"))?,
        chain_stack: job.stack.as_ref(),
        registration: Registration::new(plan, thread, chain.shared().stop_address())
            .map_err(failed(thread, "cannot map an alternate stack"))?,
        gate: AtomicU32::new(CLOSED),
    };
    let pid = start(&given).map_err(wrong("cannot start a process"))?;
    tell(pid);
    let runs = gate.wait();
    given
        .gate
        .store(if runs { RUN } else { END }, Ordering::Release);
    let _ = futex::wake(&given.gate, Flags::empty(), 1);
    let end =
        processes::wait(pid.as_raw_nonzero().get()).map_err(wrong("cannot wait for a process"))?;
    if runs && (end != 0 || job.kind.is_process()) {
        // It ended in its iteration.
        // SAFETY: the agent's main thread has allowed the port before it made any other.
        unsafe { ports::ring_mark(mark::pack(mark::DONE, thread)) }
        chain.count();
    }
    // How it ends is compared with its twin, if it has one.
    if end == libc::W_EXITCODE(NOT_REGISTERED, 0) || (end != 0 && !plan.twins) {
        let what = format!("it ended with status {end:#x}");
        return Err(wrong("the process that unwinds itself")(io::Error::other(
            what,
        )));
    }
    Ok(vec![Observation::Behaviour(Behaviour {
        thread,
        opts_in: plan.opts_in(thread),
        calls: given.calls.seen(),
        end,
    })])
}

fn start(given: &Given<'_>) -> io::Result<Pid> {
    let top = usize::try_from(given.stack.end()).unwrap_or(0);
    let top = std::ptr::with_exposed_provenance_mut(top);
    let argument = std::ptr::from_ref(given).cast_mut().cast();
    let flags = libc::CLONE_VM | libc::SIGCHLD;
    // SAFETY: the stack is the process's own, and the caller keeps what it is given until it has
    // ended; it is only read, but for an atomic.
    let pid = unsafe { libc::clone(child, top, flags, argument) };
    match pid {
        1.. => Pid::from_raw(pid).ok_or_else(|| io::ErrorKind::InvalidData.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn child(given: *mut c_void) -> c_int {
    // SAFETY: the creator keeps it until this process has ended.
    let given = unsafe { &*given.cast::<Given<'_>>() };
    let registration = &given.registration;
    // SAFETY: stacks and registration are part of it.
    if unsafe { registration.make_known(&given.stack, given.chain_stack) }.is_err() {
        return NOT_REGISTERED;
    }
    while given.gate.load(Ordering::Acquire) == CLOSED {
        let _ = futex::wait(&given.gate, Flags::empty(), CLOSED, None);
    }
    if given.gate.load(Ordering::Acquire) == RUN {
        for round in (0..).take_while(|_| given.chain.goes_on()) {
            // SAFETY: as above.
            if unsafe { registration.begin(round) }.is_err() {
                return NOT_REGISTERED;
            }
            // SAFETY: only this process calls it, and its creator keeps it.
            unsafe { given.calls.iterate(given.chain, registration, round) }
        }
        if registration.end().is_err() {
            return NOT_REGISTERED;
        }
    }
    registration.opt_out();
    registration.leave();
    0
}
