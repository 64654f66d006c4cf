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
        let Some((scheme, rest)) = self.0.split_once("://") else {
            return String::new();
        };
        let (host, path) = rest
            .split_once('/')
            .map_or((rest, ""), |(host, path)| (host, path));
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        format!("{scheme}://{host}/{path}")
    }

    /// Fetches a file; whether it is there.
    pub(super) fn fetch(
        &self,
        wanted: Wanted<'_>,
        into: &Path,
        progress: &dyn Progress,
    ) -> Result<bool, StoreError> {
        let url = format!("{}/{}", self.0, wanted.name);
        let failed = |message| StoreError::Url {
            url: format!("{}/{}", self.shown().trim_end_matches('/'), wanted.name),
            message,
        };
        match apt::fetch_file(&url, wanted.sha256, wanted.most, into, progress) {
            Ok(()) => Ok(true),
            Err(AptError::Gone(_)) => Ok(false),
            Err(AptError::Network(message) | AptError::Hash(message)) => {
                Err(failed(message.replace(&self.0, &self.shown())))
            }
            Err(AptError::Failed { message, .. }) => {
                Err(failed(message.replace(&self.0, &self.shown())))
            }
            Err(error) => Err(error.into()),
        }
    }
}
