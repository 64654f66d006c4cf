//! Why a command ends without doing its work, and with which exit code.

use std::io;

use crate::bisect::log::LogError;
use crate::host::provider::ProviderError;
use crate::judge::outcome::{EXIT_INTERRUPTED, EXIT_UNTESTED, EXIT_USAGE};
use crate::report::artifacts::WriteError;
use crate::scenario::ScenarioErrors;
use crate::scenario::library::LibraryError;
use unwindlab_oracle::invariant::finding::FindingsError;

/// Why a command ends; shown after `error: `.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The user asked for what cannot be.
    #[error("{0}")]
    Usage(String),
    /// Scenarios cannot be had.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// Scenarios are not for this kernel.
    #[error(transparent)]
    Scenario(#[from] ScenarioErrors),
    /// A result file cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// Kernel or KVM host cannot be had.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// The log of a bisection is of no use.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The findings that are built in are wrong.
    #[error(transparent)]
    Findings(#[from] FindingsError),
    /// The user wants to stop.
    #[error("interrupted")]
    Interrupted,
    /// Standard output cannot be written, or signals not be caught.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Results cannot be put as JSON.
    #[error("cannot put results as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// Results cannot be put as XML.
    #[error("cannot put results as JUnit XML: {0}")]
    Junit(#[from] quick_junit::SerializeError),
}

impl CommandError {
    /// The exit code, as in docs/outcomes.md.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_)
            | Self::Library(_)
            | Self::Scenario(_)
            | Self::Write(_)
            | Self::Log(LogError::Other(_) | LogError::Damaged { .. })
            | Self::Provider(ProviderError::Usage(_)) => EXIT_USAGE,
            Self::Interrupted => EXIT_INTERRUPTED,
            Self::Findings(_)
            | Self::Log(LogError::Io { .. })
            | Self::Provider(ProviderError::Unavailable(_) | ProviderError::Unbuildable(_))
            | Self::Io(_)
            | Self::Json(_)
            | Self::Junit(_) => EXIT_UNTESTED,
        }
    }
}

/// Shows an error on stderr, each of its lines on its own.
pub(super) fn show(error: &CommandError) {
    for line in error.to_string().lines() {
        anstream::eprintln!("error: {line}");
    }
}
