//! How long work is shown to whoever waits for it.

/// Told what is being done. This crate never prints; the command line turns these calls into
/// progress bars, a test ignores them.
pub trait Progress {
    /// A new step begins: one line, lower-case, without a full stop.
    fn step(&self, what: &str);

    /// How far the current step is, in bytes or in any other unit that `total` is in too.
    fn bytes(&self, done: u64, total: u64);
}

/// Shows nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn step(&self, _what: &str) {}

    fn bytes(&self, _done: u64, _total: u64) {}
}
