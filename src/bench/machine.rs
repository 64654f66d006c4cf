//! On which machine, and beside how much other work, something was measured.

use std::fs;
use std::io;
use std::thread;

use serde::{Deserialize, Serialize};

/// A machine, and what it was busy with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Machine {
    /// Model of its CPUs.
    pub cpu: String,
    /// CPUs that this process may use.
    pub cores: usize,
    /// Load of the last minute, before the first figure and behind the last.
    pub load: [f64; 2],
    /// SHA-256 of the program that measured.
    pub program: String,
}

impl Machine {
    /// This one, before anything is measured by a program with this hash.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn here(program: String) -> io::Result<Self> {
        let text = fs::read_to_string("/proc/cpuinfo")?;
        let named = text.lines().find_map(|it| it.strip_prefix("model name"));
        let cpu = named.map(|it| it.trim_start_matches([' ', '\t', ':']).trim());
        Ok(Self {
            cpu: cpu.unwrap_or("unknown").to_owned(),
            cores: thread::available_parallelism()?.get(),
            load: [load()?; 2],
            program,
        })
    }

    /// Takes the load once more, behind the last figure.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn measured(&mut self) -> io::Result<()> {
        let [_, last] = &mut self.load;
        *last = load()?;
        Ok(())
    }

    /// Whether times of both can be compared, as far as that is known.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        (&self.cpu, self.cores) == (&other.cpu, other.cores)
    }
}

fn load() -> io::Result<f64> {
    let text = fs::read_to_string("/proc/loadavg")?;
    let first = text.split_whitespace().next().map(str::parse);
    match first {
        Some(Ok(load)) => Ok(load),
        _ => Err(io::Error::other("/proc/loadavg has no load")),
    }
}
