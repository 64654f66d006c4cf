//! Ctrl-C: tells everything to end in order.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// Set once the user wants to stop. Code that waits looks at it at least every 100 ms, ends what it
/// started, and returns.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

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
        Ok(Self(set))
    }

    /// Whether to stop.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Tells everything to stop.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
