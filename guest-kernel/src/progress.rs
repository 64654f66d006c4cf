//! How long-running work reports its progress.

/// Receives progress reports. This crate never prints: the command line turns these calls into
/// progress bars, and tests ignore them.
pub trait Progress {
    /// A new step begins. `what` is one line, lower-case, without a full stop.
    fn step(&self, what: &str);

    /// How far the current step is, in bytes or in any other unit.
    fn bytes(&self, done: u64, total: u64);

    /// How far the whole command is: `done` of `total` trials, points, kernels or the like. Told at its begin and whenever one
    /// is done, so that the time left can be estimated.
    fn overall(&self, _done: usize, _total: usize) {}

    /// Whether to end the work early, with an error. Work that waits for a child process looks at
    /// this several times a second.
    fn stopped(&self) -> bool {
        false
    }
}

/// Shows nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn step(&self, _what: &str) {}

    fn bytes(&self, _done: u64, _total: u64) {}
}

/// Wants all work to end.
#[cfg(test)]
pub(crate) struct Stopped;

#[cfg(test)]
impl Progress for Stopped {
    fn step(&self, _what: &str) {}

    fn bytes(&self, _done: u64, _total: u64) {}

    fn stopped(&self) -> bool {
        true
    }
}
