//! Values of options: the names of enums, and what needs a parser of its own.

use clap::ValueEnum;
use clap::builder::PossibleValue;

use crate::bench::rows::Row;
use crate::host::choice::KvmHost;

impl ValueEnum for KvmHost {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self {
            Self::Auto => {
                "`native` where a probe guest shows that it runs kernels, else `emulated`"
            }
            Self::Native => "This machine's /dev/kvm",
            Self::Emulated => "A Linux with KVM in QEMU's TCG",
            Self::EmulatedIntel => "A Linux with KVM on an Intel CPU in Bochs: very slow",
        };
        Some(PossibleValue::new(self.name()).help(help))
    }
}

impl ValueEnum for Row {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self {
            Self::Boot => "Machine start to agent ready",
            Self::Memory => "Memory of the VMM beyond the guest's own",
            Self::Restore => "Putting a machine back to a checkpoint",
            Self::Trials => "Trials a second of a sweep",
            Self::Decode => "Decoding of ring buffers",
            Self::Judge => "All invariants on one trace",
            Self::Shard => "A part of a sweep, before its first trial",
            Self::Warm => "A run of one scenario from a saved machine",
            Self::Library => "The whole library from a saved machine; some minutes each",
            Self::HostStarts => "Starts of the KVM host, and how many died; some seconds each",
            Self::Edit => {
                "A line of the kernel changes: until the verdicts are there; builds kernels"
            }
            Self::CleanBuild => "A clean build of --checkout; minutes each",
            Self::FirstRun => "The first run of --checkout, downloads included; minutes each",
            Self::Tests => "The test command of --checkout; the better part of an hour each",
        };
        Some(PossibleValue::new(self.name()).help(help))
    }
}

/// The text is no factor.
#[derive(Debug, thiserror::Error)]
#[error("expected a number from 1 to 100, such as 2.5")]
pub(super) struct FactorError;

/// A number from 1 to 100.
pub(super) fn factor(text: &str) -> Result<f64, FactorError> {
    let factor = text.parse().map_err(|_| FactorError)?;
    match (1.0..=100.0).contains(&factor) {
        true => Ok(factor),
        false => Err(FactorError),
    }
}

/// The text is no share.
#[derive(Debug, thiserror::Error)]
#[error("expected a number between 0 and 1, such as 0.99")]
pub(super) struct ShareError;

/// A number above 0 and below 1.
pub(super) fn share(text: &str) -> Result<f64, ShareError> {
    let share = text.parse().map_err(|_| ShareError)?;
    match share > 0.0 && share < 1.0 {
        true => Ok(share),
        false => Err(ShareError),
    }
}
