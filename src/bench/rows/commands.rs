//! Rows that are command lines of this program and of cargo.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use unwindlab_engine::interrupt::Interrupt;
use unwindlab_engine::plan::Progress;

use super::Row;
use crate::bench::command::{CommandError, Ended, run};

/// What command lines are measured with.
#[expect(missing_debug_implementations, reason = "holds trait objects")]
#[derive(Clone, Copy)]
pub struct Commands<'a> {
    /// How often each number is measured.
    pub rounds: u32,
    /// Options of `run` for the kernel, the KVM host and how processes are confined.
    pub options: &'a [OsString],
    /// A source tree of this program, if the user has named one.
    pub checkout: Option<&'a Path>,
    /// Removes a kernel from the cache, by its hash.
    pub forget: &'a dyn Fn(&str),
    /// Shows what is measured.
    pub progress: &'a dyn Progress,
    /// Set when the user wants to stop.
    pub interrupt: &'a Interrupt,
}

impl Commands<'_> {
    /// Runs scenarios, as this program would for the user.
    pub(super) fn run(&self, scenarios: &[&str], more: &[OsString]) -> Result<Ended, CommandError> {
        let mut command = Command::new("/proc/self/exe");
        command.arg("run").args(scenarios);
        command.args(self.options).args(more);
        run(command, self.interrupt)
    }

    /// The command line of that, for whoever compares figures.
    pub(super) fn words(&self, scenarios: &[&str]) -> String {
        let options = self.options.iter().map(|it| it.to_string_lossy());
        let words = ["run"].iter().chain(scenarios);
        let words = words.map(|it| (*it).into()).chain(options);
        words.collect::<Vec<_>>().join(" ")
    }

    pub(super) fn tell(&self, row: Row, round: u32) {
        let (rounds, name) = (self.rounds, row.name());
        self.progress
            .step(&format!("{name}, round {} of {rounds}", round + 1));
    }
}
