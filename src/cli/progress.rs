//! Progress on stderr, where someone is watching.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use unwindlab_guest_kernel::Progress;

/// A spinner with what is being done; nothing where stderr is no terminal.
#[expect(missing_debug_implementations, reason = "a style has none")]
pub struct Spinner {
    bar: ProgressBar,
    text: ProgressStyle,
    bytes: ProgressStyle,
}

impl Spinner {
    /// Starts it.
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
        };
        spinner.bar.set_style(spinner.text.clone());
        if !spinner.bar.is_hidden() {
            spinner.bar.enable_steady_tick(Duration::from_millis(100));
        }
        spinner
    }

    /// Does something, such as printing, while the spinner is out of the way.
    pub fn suspend<T>(&self, act: impl FnOnce() -> T) -> T {
        self.bar.suspend(act)
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
