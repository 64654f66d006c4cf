//! What a thread does to answer the signal.

use std::io;

use rustix::io::Errno;
use unwindlab_abi::UserModePlan;
use unwindlab_abi::user_mode::Asker;

use super::{STACK_PAGES, askers, handler, threads};
use crate::chain::Chain;
use crate::pages::Pages;

/// What a thread does to answer the signal.
#[derive(Debug)]
pub struct Registration {
    slot: usize,
    ask: Asker,
    signal: i32,
    blocked: bool,
    flags: i32,
    alternate: Option<Pages>,
    opts_in: bool,
    /// Iterations before it opts in.
    after: u64,
    bystander: Option<Pages>,
}

impl Registration {
    /// That of workload thread `slot`. Maps the alternate stack, if the plan has one. `stop` is the address of
    /// the stop word.
    ///
    /// # Errors
    /// The errno of `mmap`.
    pub fn new(plan: &UserModePlan, slot: u32, stop: u64) -> Result<Self, Errno> {
        handler::behave(plan.handler, stop);
        let alternate = plan.alternate_stack.then(|| Pages::new(STACK_PAGES));
        let mut flags = libc::SA_SIGINFO;
        if plan.restart {
            flags |= libc::SA_RESTART;
        }
        if plan.alternate_stack {
            flags |= libc::SA_ONSTACK;
        }
        let bystander = plan.bystander.then(|| Pages::new(STACK_PAGES));
        Ok(Self {
            ask: plan.ask,
            bystander: bystander.transpose()?,
            slot: usize::try_from(slot).map_err(|_| Errno::INVAL)?,
            signal: i32::try_from(plan.signal).map_err(|_| Errno::INVAL)?,
            blocked: plan.blocked,
            flags,
            alternate: alternate.transpose()?,
            opts_in: plan.opts_in(slot),
            after: plan.opts_in_after,
        })
    }

    /// Makes the calling process known; its only thread is the workload thread. Its chain may be on a stack of its
    /// own.
    ///
    /// # Errors
    /// The error of the system calls.
    ///
    /// # Safety
    /// The thread's stacks and the registration stay as long as the process.
    pub unsafe fn make_known(&self, stack: &Pages, chain: Option<&Pages>) -> io::Result<()> {
        let alternate = self.alternate.as_ref();
        let bounds = [Some(stack), alternate, chain];
        let bounds = bounds.map(|it| it.map_or((0, 0), |it| (it.address(), it.end())));
        let tid = std::process::id();
        // SAFETY: as the caller promises.
        unsafe { threads::know(self.slot, tid, bounds, alternate, self.flags) }
    }

    /// Opts out: a thread that ends asks for no more signals.
    pub fn opt_out(&self) {
        handler::opt_out(self.slot);
    }

    /// Signals with a nonce, and of the program's own, that the thread has handled.
    #[must_use]
    pub fn handled(&self) -> [u32; 2] {
        threads::handled(self.slot)
    }

    /// Whether a signal is asked for in the iteration with this number.
    #[must_use]
    pub const fn asks_for(&self, iteration: u64) -> bool {
        self.opts_in && iteration >= self.after
    }

    /// Whether a system call that a signal ended begins again, where it can.
    #[must_use]
    pub const fn restarts(&self) -> bool {
        self.flags & libc::SA_RESTART != 0
    }

    /// Runs one iteration, with the signal blocked if the plan says so.
    pub fn iterate(&self, chain: &Chain) {
        let blocked = self.blocked && !self.is_timer();
        if blocked {
            self.mask(libc::SIG_BLOCK);
        }
        chain.run();
        if blocked {
            self.mask(libc::SIG_UNBLOCK);
        }
    }

    const fn is_timer(&self) -> bool {
        matches!(self.ask, Asker::Itimer | Asker::ThreadTimer)
    }

    /// Opts in before the iteration with this number, if that is the one, and the thread is not a twin. Starts the other
    /// thread and the timer then, if there are such.
    ///
    /// # Errors
    /// The error of the system calls.
    ///
    /// # Safety
    /// As for [`Registration::make_known`].
    pub unsafe fn begin(&self, iteration: u64) -> io::Result<()> {
        if !self.opts_in || iteration != self.after {
            return Ok(());
        }
        handler::opt_in(self.slot, self.signal, self.flags)?;
        if let Some(stack) = &self.bystander {
            // SAFETY: as the caller promises.
            let tid = unsafe { askers::bystander(stack) }?;
            let slot = (threads::HANDLED_THREADS - 1).saturating_sub(self.slot);
            let bounds = [(stack.address(), stack.end()), (0, 0), (0, 0)];
            // SAFETY: as the caller promises.
            unsafe { threads::know(slot, tid, bounds, None, self.flags) }?;
        }
        if self.blocked && self.is_timer() {
            self.mask(libc::SIG_BLOCK);
        }
        askers::set_timer(self.ask, self.signal, true)
    }

    /// Behind the last iteration.
    ///
    /// # Errors
    /// The error of the system calls.
    pub fn end(&self) -> io::Result<()> {
        askers::set_timer(self.ask, self.signal, false)?;
        if self.blocked && self.is_timer() {
            self.mask(libc::SIG_UNBLOCK);
        }
        Ok(())
    }

    /// Ends the process, if there is another thread in it.
    pub fn leave(&self) {
        if self.bystander.is_some() {
            // SAFETY: what the process shares with others stays as it is.
            unsafe { libc::_exit(0) }
        }
    }

    fn mask(&self, how: libc::c_int) {
        // SAFETY: both sets are this function's.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, self.signal);
            libc::sigprocmask(how, &raw const set, std::ptr::null_mut());
        }
    }
}
