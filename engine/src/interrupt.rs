//! Ctrl-C: tells everything to end in order.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// Set once the user wants to stop. Code that waits looks at it at least every 100 ms, ends what it
/// started, and returns.
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    set: Arc<AtomicBool>,
    computing: Arc<AtomicUsize>,
}

/// As long as it lives, something is computed that does not look at the [`Interrupt`].
#[derive(Debug)]
pub struct Computing(Arc<AtomicUsize>);

/// How often [`Interrupt::watch`] looks.
const LOOK: Duration = Duration::from_millis(100);

impl Interrupt {
    /// Set by SIGINT, SIGTERM and SIGHUP. A second signal ends the process at once.
    ///
    /// # Errors
    /// If the handlers cannot be installed.
    pub fn from_signals() -> io::Result<Self> {
        let set = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // In this order: the first signal finds the flag clear, then sets it.
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&set))?;
            flag::register(signal, Arc::clone(&set))?;
        }
        Ok(Self {
            set,
            ..Self::default()
        })
    }

    /// Whether to stop.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.set.load(Ordering::Relaxed)
    }

    /// Tells everything to stop.
    pub fn set(&self) {
        self.set.store(true, Ordering::Relaxed);
    }

    /// Something begins that does not look at this, and that may be broken off anywhere.
    #[must_use]
    pub fn computing(&self) -> Computing {
        self.computing.fetch_add(1, Ordering::Relaxed);
        Computing(Arc::clone(&self.computing))
    }

    /// Has a thread call `end`, which ends the process, once this has been set for `patience` and something is
    /// computed all the while. Our QEMU ends with us.
    ///
    /// # Errors
    /// If the thread cannot be made.
    pub fn watch(
        &self,
        patience: Duration,
        mut end: impl FnMut() + Send + 'static,
    ) -> io::Result<()> {
        let this = self.clone();
        let body = move || {
            let mut since = None;
            loop {
                thread::sleep(LOOK);
                let deaf = this.is_set() && this.computing.load(Ordering::Relaxed) > 0;
                since = deaf.then(|| since.unwrap_or_else(Instant::now));
                if since.is_some_and(|at| at.elapsed() >= patience) {
                    return end();
                }
            }
        };
        thread::Builder::new()
            .name("interrupt".to_owned())
            .spawn(body)?;
        Ok(())
    }
}

impl Drop for Computing {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn only_what_is_computed_behind_an_interrupt_is_broken_off() {
        let interrupt = Interrupt::default();
        let (send, ended) = mpsc::channel();
        let end = move || send.send(()).unwrap();
        interrupt.watch(Duration::ZERO, end).unwrap();
        drop(interrupt.computing());
        interrupt.set();
        let quiet = ended.recv_timeout(5 * LOOK);
        assert_eq!(quiet, Err(mpsc::RecvTimeoutError::Timeout));
        let _computing = interrupt.computing();
        assert_eq!(ended.recv(), Ok(()));
    }
}
