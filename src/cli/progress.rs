//! Progress on stderr, where someone is watching.

use std::io::{self, IsTerminal as _};
use std::sync::{Once, OnceLock};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};
use unwindlab_guest_kernel::Progress;

use super::output::print;

/// A spinner with what is being done, and how long the whole will take; nothing where stderr is no terminal.
pub struct Spinner {
    bar: ProgressBar,
    text: ProgressStyle,
    bytes: ProgressStyle,
    /// Set with the first step.
    started: Once,
    /// How much was done when that was first told, and when.
    first: OnceLock<(usize, Instant)>,
}

impl Spinner {
    /// One that starts with the first step.
    #[must_use]
    pub fn new() -> Self {
        let style = |template| {
            ProgressStyle::with_template(template)
                .unwrap_or_else(|_| ProgressStyle::default_spinner())
        };
        let spinner = Self {
            bar: if std::io::stderr().is_terminal() {
                ProgressBar::new_spinner()
            } else {
                ProgressBar::hidden()
            },
            text: style("{spinner} {prefix}{wide_msg} {elapsed}"),
            bytes: style("{spinner} {prefix}{msg} {bar:20} {binary_bytes}/{binary_total_bytes}"),
            started: Once::new(),
            first: OnceLock::new(),
        };
        spinner.bar.set_style(spinner.text.clone());
        spinner
    }

    /// Prints to stdout while the spinner is out of the way.
    ///
    /// # Errors
    /// Those of writing to stdout.
    pub fn print(&self, text: &str) -> io::Result<()> {
        self.bar.suspend(|| print(text))
    }

    /// Removes it.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

impl Default for Spinner {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Progress for Spinner {
    fn step(&self, what: &str) {
        tracing::info!("{what}");
        if !self.bar.is_hidden() {
            let tick = || self.bar.enable_steady_tick(Duration::from_millis(100));
            self.started.call_once(tick);
        }
        self.bar.set_style(self.text.clone());
        self.bar.unset_length();
        self.bar.set_message(what.to_owned());
    }

    fn bytes(&self, done: u64, total: u64) {
        if total > 0 && self.bar.length() != Some(total) {
            self.bar.set_style(self.bytes.clone());
            self.bar.set_length(total);
        }
        self.bar.set_position(done);
    }

    fn overall(&self, done: usize, total: usize) {
        let &(before, since) = self.first.get_or_init(|| (done, Instant::now()));
        let (made, rest) = (done.saturating_sub(before), total.saturating_sub(done));
        let left = left(made, rest, since.elapsed()).map(HumanDuration);
        let left = left.map_or_else(String::new, |left| format!(", {left} left"));
        tracing::info!("{done} of {total}{left}");
        self.bar.set_prefix(format!("{done} of {total}{left}: "));
    }
}

/// How long the rest will take at the speed so far; `None` before anything is done.
fn left(done: usize, rest: usize, elapsed: Duration) -> Option<Duration> {
    let each = elapsed.checked_div(u32::try_from(done).ok()?)?;
    each.checked_mul(u32::try_from(rest).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_takes_as_long_as_what_was_done() {
        let ten = Duration::from_secs(10);
        assert_eq!(left(5, 15, ten), Some(Duration::from_secs(30)));
        assert_eq!(left(0, 20, ten), None);
        assert_eq!(left(20, 0, ten), Some(Duration::ZERO));
        assert_eq!(left(1, usize::MAX, ten), None);
    }
}
