//! What the commands need from the rest of the harness.

use std::path::{Path, PathBuf};

use unwindlab_guest_kernel::build::patch::Patch;
use unwindlab_guest_kernel::{BuildError, FetchError};

use super::choice::KvmHost;
use super::kernel_request::KernelRequest;
use crate::interrupt::Interrupt;
use crate::plan::{Executor, InfraError, Progress};
use crate::scenario::KernelSymbols;
use crate::text::printable;

/// The places where kernels and KVM hosts come from.
pub trait Provider: Sync {
    /// Gets a kernel, from the cache, from where its spec says, or by building it.
    ///
    /// # Errors
    /// [`ProviderError`].
    fn fetch(
        &self,
        request: &KernelRequest,
        progress: &dyn Progress,
        interrupt: &Interrupt,
    ) -> Result<Box<dyn TestKernel>, ProviderError>;

    /// The patches of a series in a file or folder, in order.
    ///
    /// # Errors
    /// [`ProviderError`].
    fn series(&self, path: &Path) -> Result<Vec<Patch>, ProviderError>;

    /// Where a kernel in the cache is; nothing is fetched.
    ///
    /// # Errors
    /// [`ProviderError`]; a kernel that is not in the cache is one.
    fn path(&self, spec: &str) -> Result<PathBuf, ProviderError>;

    /// The kernels in the cache, a line each.
    ///
    /// # Errors
    /// [`ProviderError`].
    fn list(&self) -> Result<Vec<String>, ProviderError>;

    /// The folder of the distribution's perf, from the cache or from the distribution.
    ///
    /// # Errors
    /// [`ProviderError`].
    fn perf_tool(&self, _progress: &dyn Progress) -> Result<PathBuf, ProviderError> {
        Err(ProviderError::Unavailable(
            "there is no perf here".to_owned(),
        ))
    }

    /// Starts a KVM host that can boot `kernel`; with perf in this folder for scenarios that use it. With
    /// a seed one whose trials follow from that, each the same every time: it is always emulated.
    ///
    /// # Errors
    /// [`ProviderError`].
    fn executor(
        &self,
        host: KvmHost,
        seed: Option<u64>,
        kernel: &dyn TestKernel,
        perf_tool: Option<&Path>,
        progress: &dyn Progress,
        interrupt: &Interrupt,
    ) -> Result<Box<dyn Executor>, ProviderError>;

    /// The folder of the QEMU that `bench` compares with: this one, or Debian's from the cache or from the
    /// distribution.
    ///
    /// # Errors
    /// [`ProviderError`].
    fn peer(
        &self,
        _chosen: Option<&Path>,
        _progress: &dyn Progress,
    ) -> Result<PathBuf, ProviderError> {
        Err(ProviderError::Unavailable(
            "there is no QEMU here".to_owned(),
        ))
    }

    /// Starts a KVM host for measurements, with the QEMU in this folder.
    ///
    /// # Errors
    /// [`ProviderError`].
    fn bench_host(
        &self,
        _host: KvmHost,
        _kernel: &dyn TestKernel,
        _peer: Option<&Path>,
        _progress: &dyn Progress,
        _interrupt: &Interrupt,
    ) -> Result<Box<dyn Executor>, ProviderError> {
        Err(ProviderError::Unavailable(
            "nothing can be measured here".to_owned(),
        ))
    }

    /// Which KVM host would be used and why, and what is missing: text of some lines.
    ///
    /// # Errors
    /// [`ProviderError`].
    fn doctor(&self) -> Result<String, ProviderError>;
}

/// A kernel to test.
pub trait TestKernel: Send {
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
pub enum ProviderError {
    /// The user asked for what cannot be: exit code 2.
    #[error("{0}")]
    Usage(String),
    /// Something that is needed is not to be had: exit code 125.
    #[error("{0}")]
    Unavailable(String),
    /// The kernel cannot be made of what the user named: it does not compile, a patch does not
    /// apply. Exit code 125, as of a revision that `git bisect` is to skip.
    #[error("{0}")]
    Unbuildable(String),
}

/// Lines of a console's end that are shown.
const CONSOLE_LINES: usize = 20;

impl From<InfraError> for ProviderError {
    fn from(error: InfraError) -> Self {
        let lines: Vec<&str> = error.console.trim_end().lines().collect();
        let last = lines.iter().skip(lines.len().saturating_sub(CONSOLE_LINES));
        let last: String = last
            .map(|line| format!("\n  {}", printable(line)))
            .collect();
        Self::Unavailable(match last.as_str() {
            "" => error.reason,
            console => format!("{}; its console ends:{console}", error.reason),
        })
    }
}

impl From<BuildError> for ProviderError {
    fn from(error: BuildError) -> Self {
        let message = error.to_string();
        match error {
            BuildError::NotLinux(..)
            | BuildError::Tree { .. }
            | BuildError::Revision { .. }
            | BuildError::NoPatches(_)
            | BuildError::NoSuchSource { .. } => Self::Usage(message),
            BuildError::Patch { .. } | BuildError::Config { .. } | BuildError::Compile { .. } => {
                Self::Unbuildable(message)
            }
            BuildError::Tools { .. }
            | BuildError::Git { .. }
            | BuildError::Apt(_)
            | BuildError::Deb(_)
            | BuildError::Cache(_)
            | BuildError::Image(_) => Self::Unavailable(message),
        }
    }
}

impl From<FetchError> for ProviderError {
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
