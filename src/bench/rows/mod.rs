//! The rows: each is one promise, or figure, with its peer.

mod decode;
mod library;
mod restore;
mod starts;
mod trials;

use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

use super::series::Series;
use crate::judge::MatchFinding;
use crate::plan::MachineSpec;
use crate::plan::measurement::{Figures, Order, Vmm};
use crate::plan::sweep::SweepPlan;
use crate::plan::{Executor, Progress, TrialPlan};
use crate::scenario::KernelSymbols;
use unwindlab_oracle::invariant::Invariant;

pub use library::library;

/// From a process's start to its guest's first word, at the longest; an emulated KVM host beside other
/// work takes ten times what it does alone.
pub const BOOT_LIMIT: Duration = Duration::from_secs(60);

/// The peer's name, as it is shown.
pub const QEMU: &str = "QEMU microvm";

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Row {
    /// Machine start to agent ready.
    Boot,
    /// Memory of the VMM beyond the guest's own.
    Memory,
    /// Putting a machine back to a checkpoint.
    Restore,
    /// Trials a second of a sweep.
    Trials,
    /// Decoding of ring buffers.
    Decode,
    /// The whole library; takes more than a minute.
    Library,
}

impl Row {
    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Boot => "boot",
            Self::Memory => "memory",
            Self::Restore => "restore",
            Self::Trials => "trials",
            Self::Decode => "decode",
            Self::Library => "library",
        }
    }
}

/// One figure of a row, against the peer's where there is one.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Line {
    /// The row.
    pub row: Row,
    /// What is measured.
    pub what: &'static str,
    /// Unit of the numbers.
    pub unit: &'static str,
    /// Ours.
    pub ours: Series,
    /// The peer's; nothing where there is no peer.
    pub peer: Option<PeerSeries>,
    /// What is promised.
    pub promises: Vec<Promise>,
    /// What is to be known besides.
    pub notes: Vec<String>,
}

/// The numbers of a peer.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PeerSeries {
    /// Who it is.
    pub name: &'static str,
    /// Its numbers, each of the same round as ours.
    #[serde(flatten)]
    pub series: Series,
}

/// A promise of docs/specification.md. Never asserted.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Promise {
    /// Of our number.
    AtMost(f64),
    /// Of our number.
    AtLeast(f64),
    /// Of the ratio to the peer's number.
    RatioAtMost(f64),
    /// Of the ratio to the peer's number.
    RatioAtLeast(f64),
}

impl Line {
    /// Whether there are all numbers that there should be.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        let of_peer = self.peer.as_ref().map(|peer| peer.series.spread());
        self.ours.spread().is_some() && of_peer != Some(None)
    }
}

/// What rows are measured with: one KVM host for all of them.
#[expect(missing_debug_implementations, reason = "holds trait objects")]
pub struct Bench<'a> {
    /// The KVM host.
    pub executor: &'a mut dyn Executor,
    /// Whether it was given QEMU, or why not.
    pub peer: Result<(), String>,
    /// How often each number is measured.
    pub rounds: u32,
    /// The machine.
    pub machine: MachineSpec,
    /// A sweep, whose scenario is also the trial that is made by reboot.
    pub sweep: SweepPlan,
    /// A trial with many records.
    pub recorded: TrialPlan,
    /// What a sweep's trials are judged by, as the command does.
    pub invariants: &'a [&'a dyn Invariant],
    /// See there.
    pub findings: &'a dyn MatchFinding,
    /// The kernel's.
    pub symbols: &'a dyn KernelSymbols,
    /// Who is told what is done.
    pub progress: &'a dyn Progress,
}

impl Bench<'_> {
    /// Measures rows; a line or more for each, told as soon as they are there.
    ///
    /// # Errors
    /// Those of `tell`.
    pub fn measure<E>(
        &mut self,
        rows: &[Row],
        tell: &mut dyn FnMut(Line) -> Result<(), E>,
    ) -> Result<(), E> {
        let wanted = |row| rows.contains(&row);
        if wanted(Row::Boot) || wanted(Row::Memory) {
            for line in self.starts() {
                if wanted(line.row) {
                    tell(line)?;
                }
            }
        }
        if wanted(Row::Restore) {
            tell(self.restore())?;
        }
        if wanted(Row::Trials) {
            self.trials().into_iter().try_for_each(&mut *tell)?;
        }
        if wanted(Row::Decode) {
            self.decode().into_iter().try_for_each(&mut *tell)?;
        }
        Ok(())
    }

    fn order(&mut self, order: &Order) -> Result<Figures, String> {
        let figures = self.executor.bench(order);
        figures.unwrap_or_else(|error| Err(error.reason))
    }

    /// An empty series of the peer's, unless it is known that there will be none.
    fn series_of_peer(&self) -> Series {
        match &self.peer {
            Ok(()) => Series::default(),
            Err(why) => Series::impossible(why),
        }
    }

    /// Both VMMs, in an order that changes from round to round.
    fn turns(&self, round: u32) -> [Vmm; 2] {
        match round % 2 {
            0 => [Vmm::Ours, Vmm::Qemu],
            _ => [Vmm::Qemu, Vmm::Ours],
        }
    }

    fn tell(&self, what: &str, round: u32) {
        let rounds = self.rounds;
        self.progress
            .step(&format!("{what}, round {} of {rounds}", round + 1));
    }
}

/// The order was answered as another one.
fn other_figures(figures: &Figures) -> String {
    format!("the KVM host answered with {figures:?}")
}

#[expect(
    clippy::cast_precision_loss,
    reason = "microseconds and KiB are far below 2^52"
)]
fn number(count: u64) -> f64 {
    count as f64
}
