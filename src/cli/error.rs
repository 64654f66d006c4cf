//! Why a command ends without doing its work, and with which exit code.

use std::io::{self, Write as _};

use crate::campaign::error::CampaignError;
pub(super) use crate::judge::outcome::class_code;

use crate::host::provider::{ProviderError, ProviderFailure};
use crate::judge::outcome::{EXIT_INTERRUPTED, EXIT_UNTESTED, EXIT_USAGE};
use crate::report::output_file::WriteError;
use unwindlab_oracle::invariant::finding::FindingsError;
use unwindlab_scenario::library::LibraryError;

/// Why a command ends; shown after `error: `.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The user asked for what is impossible.
    #[error("{0}")]
    Usage(String),
    /// The campaign ended before its summary.
    #[error(transparent)]
    Campaign(#[from] CampaignError),
    /// The scenarios cannot be read.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// A result file cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The kernel is not available.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// The findings that are built in are wrong.
    #[error(transparent)]
    Findings(#[from] FindingsError),
    /// Standard output cannot be written, or signals cannot be caught.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Results cannot be written as JSON.
    #[error("failed to serialize results as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// Results cannot be written as XML.
    #[error("failed to serialize results as JUnit XML: {0}")]
    Junit(#[from] quick_junit::SerializeError),
}

impl CommandError {
    /// The exit code, as in docs/outcomes.md.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Library(_) | Self::Write(_) => EXIT_USAGE,
            Self::Provider(error) if matches!(error.kind(), ProviderFailure::Usage) => EXIT_USAGE,
            Self::Campaign(CampaignError::Interrupted) => EXIT_INTERRUPTED,
            Self::Campaign(error) if error.is_usage() => EXIT_USAGE,
            Self::Campaign(_)
            | Self::Provider(_)
            | Self::Findings(_)
            | Self::Io(_)
            | Self::Json(_)
            | Self::Junit(_) => EXIT_UNTESTED,
        }
    }
}

/// Shows an error on stderr, each of its lines on its own.
pub(super) fn show(error: &dyn std::error::Error) {
    for line in error.to_string().lines() {
        // Where nobody can be told, the exit code still tells.
        let _ = writeln!(anstream::stderr(), "error: {line}");
    }
}
