//! Where campaigns get kernels and KVM hosts from.

use std::path::{Path, PathBuf};

use unwindlab_abi::plan::CompiledProgram;
use unwindlab_guest_kernel::build::Pruned;
use unwindlab_guest_kernel::build::application::{Application, Attempt};
use unwindlab_guest_kernel::build::generate::Generated;
use unwindlab_guest_kernel::build::patch::Patch;
use unwindlab_guest_kernel::build::series::Series;
use unwindlab_guest_kernel::build::submission::{Message, Submission, SubmissionError};
use unwindlab_guest_kernel::{BuildError, BuildSpec, FetchError, SavedMachines, Source, Verified};

use super::choice::KvmHost;
use super::kernel_request::KernelRequest;
use unwindlab_engine::interrupt::Interrupt;
use unwindlab_engine::plan::{Executor, InfraError, Progress};
use unwindlab_engine::text::printable;
use unwindlab_scenario::KernelSymbols;

/// Provides kernels and KVM hosts.
pub trait Provider: Sync {
    /// Gets a kernel from the cache or from where the request names it, or builds it.
    ///
    /// # Errors
    /// [`ProviderError`].
    fn fetch(
        &self,
        request: &KernelRequest,
        progress: &dyn Progress,
        interrupt: &Interrupt,
    ) -> Result<Box<dyn TestKernel>, ProviderError>;

    /// The mutants of a kernel that have a wanted name: see [`generate`](unwindlab_guest_kernel::build::generate::generate).
    ///
    /// # Errors
    /// [`ProviderError`].
    fn generate(
        &self,
        _spec: &BuildSpec,
        _is_wanted: &dyn Fn(&str) -> bool,
        _progress: &(dyn Progress + Sync),
        _interrupt: &Interrupt,
    ) -> Result<Generated, ProviderError> {
        Err(ProviderError::Unavailable(
            "there is no source here".to_owned(),
        ))
    }

    /// The series in a file or folder.
    ///
    /// # Errors
    /// [`ProviderError`].
    fn series(&self, _path: &Path) -> Result<Series, ProviderError> {
        Err(ProviderError::Unavailable("there is no series".to_owned()))
    }

    /// The patches of Debian's own kernel, and the upstream release that they apply to.
    ///
    /// # Errors
    /// [`ProviderError`].
    fn debian_series(&self, _progress: &dyn Progress) -> Result<(Series, Source), ProviderError> {
        Err(ProviderError::Unavailable(
            "there is no archive here".to_owned(),
        ))
    }

    /// How patches apply to a kernel's source, one after the other: see [`attempt`](unwindlab_guest_kernel::build::application::attempt).
    ///
    /// # Errors
    /// [`ProviderError`].
    fn attempt(
        &self,
        _spec: &BuildSpec,
        _patches: &[&Patch],
        _go_on: &mut dyn FnMut(&Application) -> bool,
        _progress: &dyn Progress,
    ) -> Result<Vec<Attempt>, ProviderError> {
        Err(ProviderError::Unavailable(
            "there is no source here".to_owned(),
        ))
    }

    /// A fix as a mail for maintainers: see [`prepare`](unwindlab_guest_kernel::build::submission::prepare).
    ///
    /// # Errors
    /// [`ProviderError`].
    fn submission(
        &self,
        _source: &Source,
        _fix: &Patch,
        _message: &Message,
        _concerns: &[String],
        _progress: &dyn Progress,
    ) -> Result<Submission, ProviderError> {
        Err(ProviderError::Unavailable(
            "there is no source here".to_owned(),
        ))
    }

    /// The path of a kernel in the cache; fetches nothing.
    ///
    /// # Errors
    /// [`ProviderError`], also if the kernel is not in the cache.
    fn path(&self, spec: &str) -> Result<PathBuf, ProviderError>;

    /// The kernels in the cache, a line each.
    ///
    /// # Errors
    /// [`ProviderError`].
    fn list(&self) -> Result<Vec<String>, ProviderError>;

    /// Removes the kernel with this hash from the cache, if it is there.
    ///
    /// # Errors
    /// [`ProviderError`].
    fn forget(&self, _hash: &str) -> Result<(), ProviderError> {
        Ok(())
    }

    /// Compares every file of the cache with what it was when it was written. What is damaged is set aside.
    ///
    /// # Errors
    /// [`ProviderError`].
    fn verify_cache(&self, progress: &dyn Progress) -> Result<Verified, ProviderError>;

    /// The names of the cache's entries and of its build folders, and the bytes that each takes.
    ///
    /// # Errors
    /// [`ProviderError`].
    fn cache_entries(&self) -> Result<Vec<(String, u64)>, ProviderError> {
        Err(ProviderError::Unavailable("there is no cache".to_owned()))
    }

    /// Removes the build folders in the cache but those in use.
    ///
    /// # Errors
    /// [`ProviderError`].
    fn prune_builds(&self) -> Result<Pruned, ProviderError> {
        Err(ProviderError::Unavailable("there is no cache".to_owned()))
    }

    /// The outer machines that are saved in the cache.
    ///
    /// # Errors
    /// [`ProviderError`].
    fn saved_machines(&self) -> Result<SavedMachines, ProviderError> {
        Err(ProviderError::Unavailable("there is no cache".to_owned()))
    }

    /// The folder of the distribution's perf, which is fetched if it is not in the cache.
    ///
    /// # Errors
    /// [`ProviderError`].
    fn perf_tool(&self, _progress: &dyn Progress) -> Result<PathBuf, ProviderError> {
        Err(ProviderError::Unavailable(
            "there is no perf here".to_owned(),
        ))
    }

    /// The program of workload `c-program`, compiled now.
    ///
    /// # Errors
    /// [`ProviderError`].
    fn c_program(&self, _progress: &dyn Progress) -> Result<CompiledProgram, ProviderError> {
        Err(ProviderError::Unavailable(
            "there is no compiler here".to_owned(),
        ))
    }

    /// The C program that shows a finding (`f001`), compiled now.
    ///
    /// # Errors
    /// [`ProviderError`].
    fn reproducer(&self, _name: &str) -> Result<CompiledProgram, ProviderError> {
        Err(ProviderError::Unavailable(
            "there is no compiler here".to_owned(),
        ))
    }

    /// Starts a KVM host that can boot `kernel`.
    ///
    /// # Errors
    /// [`ProviderError`].
    fn executor(
        &self,
        request: HostRequest<'_>,
        kernel: &dyn TestKernel,
        progress: &dyn Progress,
        interrupt: &Interrupt,
    ) -> Result<Box<dyn Executor>, ProviderError>;

    /// The folder of the QEMU that `bench` compares with: this one, or Debian's from the cache or
    /// from the distribution.
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

    /// A text of some lines: which KVM host would be used and why, and what is missing.
    ///
    /// # Errors
    /// [`ProviderError`].
    fn doctor(&self) -> Result<String, ProviderError>;

    /// A KVM host to be checked, whether or not it can run kernels: this machine's /dev/kvm, unless another one is asked for.
    ///
    /// # Errors
    /// [`ProviderError`].
    fn host_to_check(
        &self,
        _request: HostRequest<'_>,
        _progress: &dyn Progress,
        _interrupt: &Interrupt,
    ) -> Result<Box<dyn Executor>, ProviderError> {
        Err(ProviderError::Unavailable(
            "there is no KVM host here".to_owned(),
        ))
    }
}

/// A KVM host that is wanted.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostRequest<'a> {
    /// Where KVM comes from.
    pub kvm_host: KvmHost,
    /// Makes the host deterministic: its trials follow from this seed, the same each time. Such a
    /// host is always emulated.
    pub seed: Option<u64>,
    /// The folder of perf, for scenarios that use it.
    pub perf_tool: Option<&'a Path>,
    /// The folder of the QEMU to compare with.
    pub peer: Option<&'a Path>,
    /// An outer machine is booted rather than taken from the cache, and not saved.
    pub fresh: bool,
    /// An outer machine may be one that was saved with guests of this kernel.
    pub guests: bool,
}

/// A kernel to test.
pub trait TestKernel: Send + Sync {
    /// Content hash of the image, by which the executor finds it.
    fn hash(&self) -> &str;
    /// `uname -r`, as far as the image tells.
    fn release(&self) -> &str;
    /// The image.
    fn path(&self) -> &Path;
    /// Its symbols.
    fn symbols(&self) -> &dyn KernelSymbols;
}

/// Why a kernel or a KVM host is not available. The message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// The user asked for what cannot be.
    #[error("{0}")]
    Usage(String),
    /// Something that is needed is missing.
    #[error("{0}")]
    Unavailable(String),
    /// The kernel cannot be fetched.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The kernel cannot be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A fix is not ready for maintainers.
    #[error(transparent)]
    Submission(SubmissionError),
    /// The KVM host failed.
    #[error("{}", with_console(.0))]
    KvmHost(#[from] InfraError),
}

impl From<SubmissionError> for ProviderError {
    fn from(error: SubmissionError) -> Self {
        match error {
            SubmissionError::Build(error) => Self::Build(error),
            error => Self::Submission(error),
        }
    }
}

/// Who has to do something about a [`ProviderError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProviderFailure {
    /// The user, who asked for what cannot be.
    Usage,
    /// Whoever looks after the machine: something that is needed is missing.
    Unavailable,
    /// The kernel's author: it does not compile, or a patch does not apply. `git bisect` is to skip
    /// such a revision.
    Unbuildable,
}

impl ProviderError {
    /// Who has to do something about it.
    #[must_use]
    pub const fn kind(&self) -> ProviderFailure {
        match self {
            Self::Usage(_)
            | Self::Build(
                BuildError::NotLinux(..)
                | BuildError::Tree { .. }
                | BuildError::Revision { .. }
                | BuildError::NoPatches(_)
                | BuildError::Store(_)
                | BuildError::NoSuchSource { .. },
            )
            // What the user named is not there, or is no kernel.
            | Self::Fetch(
                FetchError::NoSuchKernel { .. }
                | FetchError::Read { .. }
                | FetchError::Image { .. }
                | FetchError::Symbols { .. },
            ) => ProviderFailure::Usage,
            Self::Build(
                BuildError::Patch { .. } | BuildError::Config { .. } | BuildError::Compile { .. },
            )
            | Self::Submission(
                SubmissionError::IsIn { .. }
                | SubmissionError::Conflicts { .. }
                | SubmissionError::Differs { .. }
                | SubmissionError::Fixes { .. }
                | SubmissionError::Style { .. },
            ) => ProviderFailure::Unbuildable,
            Self::Unavailable(_)
            | Self::KvmHost(_)
            | Self::Submission(SubmissionError::Script { .. } | SubmissionError::Build(_))
            | Self::Build(
                BuildError::Tools { .. }
                | BuildError::Stopped
                | BuildError::Confine(_)
                | BuildError::Git { .. }
                | BuildError::Apt(_)
                | BuildError::Deb(_)
                | BuildError::Cache(_)
                | BuildError::Image(_),
            )
            | Self::Fetch(
                FetchError::EmptyPackage(_)
                | FetchError::Apt(_)
                | FetchError::Deb(_)
                | FetchError::Cache(_),
            ) => ProviderFailure::Unavailable,
        }
    }
}

/// Lines of a console's end that are shown.
const CONSOLE_LINES: usize = 20;

/// Why a KVM host failed, and the end of its console.
fn with_console(error: &InfraError) -> String {
    let lines: Vec<&str> = error.console.trim_end().lines().collect();
    let last = lines.iter().skip(lines.len().saturating_sub(CONSOLE_LINES));
    let last: String = last
        .map(|line| format!("\n  {}", printable(line)))
        .collect();
    match last.as_str() {
        "" => error.reason.clone(),
        console => format!("{}; its console ends:{console}", error.reason),
    }
}
