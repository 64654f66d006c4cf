//! Progress on stderr, where someone is watching.

use std::io::{self, IsTerminal as _};
use std::sync::Once;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use unwindlab_guest_kernel::Progress;

use super::output::print;

/// A spinner with what is being done; nothing where stderr is no terminal.
pub struct Spinner {
    bar: ProgressBar,
    text: ProgressStyle,
    bytes: ProgressStyle,
    /// Set with the first step.
    started: Once,
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
            text: style("{spinner} {wide_msg} {elapsed}"),
            bytes: style("{spinner} {msg} {bar:20} {binary_bytes}/{binary_total_bytes}"),
            started: Once::new(),
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
}
