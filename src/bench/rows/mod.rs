//! The rows: each measures a promise of docs/specification.md, or another figure, and its peer.

mod cargo;
mod commands;
mod decode;
mod edit;
mod host_starts;
mod judge;
mod restore;
mod saved;
mod shard;
mod starts;
mod trials;

use serde::Serialize;

use super::series::Series;
use crate::judge::Judge;
use unwindlab_engine::plan::MachineSpec;
use unwindlab_engine::plan::measurement::{MeasuredFigures, Measurement, NotMeasured, Vmm};
use unwindlab_engine::plan::sweep::SweepPlan;
use unwindlab_engine::plan::{Executor, InfraError, Progress, TrialPlan};
use unwindlab_oracle::trace::Recording;
use unwindlab_oracle::trace::recording::TrialEnd;

pub use commands::Commands;
pub use host_starts::host_starts;
pub use shard::{PART, shard};

/// The peer's name, as it is shown.
pub const QEMU: &str = "QEMU microvm";

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
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
    /// All invariants on one trace.
    Judge,
    /// What a part of a sweep costs before its first trial.
    Shard,
    /// A warm run of one scenario, from a saved machine.
    Warm,
    /// The whole library; takes minutes.
    Library,
    /// Starts of the KVM host: how many die.
    HostStarts,
    /// A line of a kernel is changed: until the verdicts are there.
    Edit,
    /// A clean release build of this program.
    CleanBuild,
    /// The first run on a fresh machine: builds, downloads.
    FirstRun,
    /// The test command from an empty cache.
    Tests,
}

impl Row {
    /// Every row, in the order in which they are measured.
    pub const ALL: [Self; 14] = [
        Self::Boot,
        Self::Memory,
        Self::Restore,
        Self::Trials,
        Self::Decode,
        Self::Judge,
        Self::Shard,
        Self::Warm,
        Self::Library,
        Self::HostStarts,
        Self::Edit,
        Self::CleanBuild,
        Self::FirstRun,
        Self::Tests,
    ];

    /// Whether it is measured on the KVM host that several rows share.
    #[must_use]
    pub const fn shares_host(self) -> bool {
        !self.is_command() && !matches!(self, Self::HostStarts | Self::Shard)
    }

    /// Whether what is measured is a command line, which gets its kernel and its KVM host by itself.
    #[must_use]
    pub const fn is_command(self) -> bool {
        matches!(self, Self::Warm | Self::Library | Self::Edit) || self.needs_checkout()
    }

    /// Whether what is measured is cargo, in a source tree of this program.
    #[must_use]
    pub const fn needs_checkout(self) -> bool {
        matches!(self, Self::CleanBuild | Self::FirstRun | Self::Tests)
    }

    /// Whether it is measured where no row is named: it takes a minute or less.
    #[must_use]
    pub const fn is_usual(self) -> bool {
        self.shares_host() || matches!(self, Self::Shard | Self::Warm)
    }

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Boot => "boot",
            Self::Memory => "memory",
            Self::Restore => "restore",
            Self::Trials => "trials",
            Self::Decode => "decode",
            Self::Judge => "judge",
            Self::Shard => "shard",
            Self::Warm => "warm",
            Self::Library => "library",
            Self::HostStarts => "host-starts",
            Self::Edit => "edit",
            Self::CleanBuild => "clean-build",
            Self::FirstRun => "first-run",
            Self::Tests => "tests",
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
    /// Which numbers are better, and which ratios.
    pub better: Better,
    /// Ours.
    pub ours: Series,
    /// The peer's, if there is a peer.
    pub peer: Option<PeerSeries>,
    /// What is promised.
    pub promises: Vec<Promise>,
    /// What the numbers do not say.
    pub notes: Vec<String>,
    /// What else must be the same for numbers to be compared, beside kernel and KVM host.
    pub parameters: Vec<String>,
}

/// Which numbers are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    /// Small ones: times, memory.
    Less,
    /// Great ones: rates.
    More,
}

/// A peer's numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PeerSeries {
    /// The peer's name.
    pub name: &'static str,
    /// Its numbers, each of the same round as ours.
    #[serde(flatten)]
    pub series: Series,
}

/// A promise of docs/specification.md. It is shown whether it is kept, never asserted.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Promise {
    /// Our number is at most this.
    AtMost(f64),
    /// Our number is at least this.
    AtLeast(f64),
    /// The ratio to the peer's number is at most this.
    RatioAtMost(f64),
    /// The ratio to the peer's number is at least this.
    RatioAtLeast(f64),
}

impl Line {
    /// Whether no number is missing.
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
    /// Why it was not given QEMU, if so.
    pub missing_peer: Option<String>,
    /// How often each number is measured.
    pub rounds: u32,
    /// The machine.
    pub machine: MachineSpec,
    /// A sweep, whose scenario is also the trial that is made by reboot.
    pub sweep: SweepPlan,
    /// A trial with many records, to be decoded and judged.
    pub recorded: TrialPlan,
    /// What judges.
    pub judge: Judge<'a>,
    /// Shows what is measured.
    pub progress: &'a dyn Progress,
}

/// Why a number could not be measured.
#[derive(Debug, thiserror::Error)]
enum RowError {
    /// The KVM host could not make the measurement.
    #[error(transparent)]
    NotMeasured(#[from] NotMeasured),
    /// The KVM host failed.
    #[error(transparent)]
    KvmHost(#[from] InfraError),
    /// The KVM host answered with the figures of another measurement.
    #[error("the KVM host answered with {0:?}")]
    OtherAnswer(MeasuredFigures),
    /// No restore was made.
    #[error("nothing was restored")]
    NoRestore,
    /// The sweep, or the start of its KVM host, failed for this reason.
    #[error("{0}")]
    Sweep(String),
    /// The sweep broke off.
    #[error("the sweep did not end")]
    SweepUnended,
    /// The sweep did not come to its path.
    #[error("the sweep has no path")]
    NoPath,
    /// The trial with many records did not come to its end.
    #[error("the trial to be decoded ended with {0:?}")]
    Trial(TrialEnd),
}

impl Bench<'_> {
    /// Measures rows; `tell` gets a line or more for each as soon as it is measured.
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
        if wanted(Row::Decode) || wanted(Row::Judge) {
            let recording = self.recording();
            if wanted(Row::Decode) {
                self.decode(&recording)
                    .into_iter()
                    .try_for_each(&mut *tell)?;
            }
            if wanted(Row::Judge) {
                tell(self.judge(&recording))?;
            }
        }
        Ok(())
    }

    fn bench(&mut self, measurement: &Measurement) -> Result<MeasuredFigures, RowError> {
        Ok(self.executor.bench(measurement)??)
    }

    /// What the trial with many records leaves behind.
    fn recording(&mut self) -> Result<Recording, RowError> {
        let recording = self.executor.run(&self.recorded, self.progress)?;
        match recording.end {
            TrialEnd::Completed => Ok(recording),
            end => Err(RowError::Trial(end)),
        }
    }

    /// An empty series for the peer, or one that cannot be measured where it is missing.
    fn series_of_peer(&self) -> Series {
        let missing = self.missing_peer.as_ref();
        missing.map_or_else(Series::default, Series::impossible)
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

#[expect(
    clippy::cast_precision_loss,
    reason = "microseconds and KiB are far below 2^52"
)]
fn number(count: u64) -> f64 {
    count as f64
}
