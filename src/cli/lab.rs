//! What the commands need from the rest of the harness.

use std::path::{Path, PathBuf};

use unwindlab_guest_kernel::FetchError;

use super::args::KvmHost;
use crate::runner::{Executor, Interrupt, Progress};
use crate::scenario::KernelSymbols;

/// The places where kernels and KVM hosts come from.
pub trait Lab {
    /// Gets a kernel, from the cache or from where its spec says.
    ///
    /// # Errors
    /// [`LabError`].
    fn fetch(
        &self,
        spec: &str,
        progress: &dyn Progress,
        interrupt: &Interrupt,
    ) -> Result<Box<dyn TestKernel>, LabError>;

    /// Where a kernel in the cache is; nothing is fetched.
    ///
    /// # Errors
    /// [`LabError`]; a kernel that is not in the cache is one.
    fn path(&self, spec: &str) -> Result<PathBuf, LabError>;

    /// The kernels in the cache, a line each.
    ///
    /// # Errors
    /// [`LabError`].
    fn list(&self) -> Result<Vec<String>, LabError>;

    /// Starts a KVM host that can boot `kernel`.
    ///
    /// # Errors
    /// [`LabError`].
    fn executor(
        &self,
        host: KvmHost,
        kernel: &dyn TestKernel,
        progress: &dyn Progress,
        interrupt: &Interrupt,
    ) -> Result<Box<dyn Executor>, LabError>;

    /// Which KVM host would be used and why, and what is missing: text of some lines.
    ///
    /// # Errors
    /// [`LabError`].
    fn doctor(&self) -> Result<String, LabError>;
}

/// A kernel to test.
pub trait TestKernel {
    /// Content hash of the image, by which the executor finds it.
    fn hash(&self) -> &str;
    /// `uname -r`, as far as the image tells.
    fn release(&self) -> &str;
    /// The image.
    fn path(&self) -> &Path;
    /// Its symbols.
    fn symbols(&self) -> &dyn KernelSymbols;
}

/// Why a command cannot do its work. One line each, that says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LabError {
    /// The user asked for what cannot be: exit code 2.
    #[error("{0}")]
    Usage(String),
    /// Something that is needed is not to be had: exit code 125.
    #[error("{0}")]
    Unavailable(String),
}

impl From<FetchError> for LabError {
    fn from(error: FetchError) -> Self {
        let message = error.to_string();
        match error {
            // What the user named is not there, or is no kernel.
            FetchError::NoSuchKernel { .. }
            | FetchError::Read { .. }
            | FetchError::Image { .. }
            | FetchError::Symbols { .. } => Self::Usage(message),
            FetchError::EmptyPackage(_)
            | FetchError::Apt(_)
            | FetchError::Deb(_)
            | FetchError::Cache(_) => Self::Unavailable(message),
        }
    }
}
