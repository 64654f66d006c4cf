//! Files behind an HTTP server, fetched by apt's own downloader: proxies, certificates and time limits are those of the system's apt.

use std::path::Path;

use super::{StoreError, Wanted};
use crate::debian::apt::{self, AptError};
use crate::progress::Progress;

/// A URL of `http` or `https`, without a slash at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Url(String);

impl Url {
    /// `None` where it is none, or has more than a place: a query cannot be told from a file's name.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let fits = |it: char| it.is_ascii_graphic() && !matches!(it, '?' | '#' | '"' | '\\');
        let is_one =
            matches!(scheme, "http" | "https") && !rest.is_empty() && rest.chars().all(fits);
        is_one.then(|| Self(text.trim_end_matches('/').to_owned()))
    }

    /// The URL without a user's name and password.
    pub(super) fn shown(&self) -> String {
        let (scheme, rest) = self.0.split_once("://").unwrap_or_default();
        let host = rest.split('/').next().unwrap_or_default();
        let user = host.rfind('@').map_or(0, |at| at + 1);
        format!("{scheme}://{}", rest.get(user..).unwrap_or_default())
    }

    /// Fetches a file; whether it is there.
    pub(super) fn fetch(
        &self,
        wanted: Wanted<'_>,
        into: &Path,
        progress: &dyn Progress,
    ) -> Result<bool, StoreError> {
        let url = format!("{}/{}", self.0, wanted.name);
        // apt says "Failed to fetch URL  why".
        let failed = |message: &str| StoreError::Url {
            url: format!("{}/{}", self.shown(), wanted.name),
            message: message
                .split_once(&format!("{url}  "))
                .map_or(message, |(_, why)| why)
                .replace(&self.0, &self.shown()),
        };
        match apt::fetch_file(&url, wanted.sha256, wanted.most, into, progress) {
            Ok(()) => Ok(true),
            Err(AptError::Gone(_)) => Ok(false),
            Err(AptError::Missing) => Err(failed("apt, which fetches it, is missing")),
            Err(
                AptError::Network(message)
                | AptError::Hash(message)
                | AptError::Failed { message, .. },
            ) => Err(failed(&message)),
            Err(error) => Err(error.into()),
        }
    }
}
