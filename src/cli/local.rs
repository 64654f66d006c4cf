//! The [`Lab`] of this machine: kernels from the cache of guest-kernel, KVM hosts from
//! [`crate::host`].

use std::path::{Path, PathBuf};

use unwindlab_guest_kernel::{
    Cache, FetchError, KernelImage, KernelSpec, Progress, Symbols, cache::CacheError, fetch, list,
    path,
};

use super::args::KvmHost;
use super::lab::{Lab, LabError, TestKernel};
use crate::runner::{Executor, Interrupt};
use crate::scenario::KernelSymbols;

/// Where KVM hosts come from.
pub trait Hosts {
    /// Starts a KVM host that can boot `kernel`.
    ///
    /// # Errors
    /// [`LabError`].
    fn start(
        &self,
        host: KvmHost,
        kernel: &Path,
        cache: &Cache,
        progress: &dyn Progress,
        interrupt: &Interrupt,
    ) -> Result<Box<dyn Executor>, LabError>;

    /// Which KVM host would be used and why, and what is missing: text of some lines.
    ///
    /// # Errors
    /// [`LabError`].
    fn doctor(&self, cache: &Cache) -> Result<String, LabError>;
}

/// This machine.
#[expect(missing_debug_implementations, reason = "holds a trait object")]
pub struct Local<'a> {
    /// Its KVM hosts.
    pub hosts: &'a dyn Hosts,
}

struct LocalKernel {
    image: KernelImage,
    symbols: Symbols,
}

impl TestKernel for LocalKernel {
    fn hash(&self) -> &str {
        &self.image.id
    }

    fn release(&self) -> &str {
        &self.image.release
    }

    fn path(&self) -> &Path {
        &self.image.vmlinux
    }

    fn symbols(&self) -> &dyn KernelSymbols {
        &self.symbols
    }
}

impl KernelSymbols for Symbols {
    fn addresses(&self, name: &str) -> Vec<u64> {
        self.iter()
            .filter(|(_, _, other)| *other == name)
            .map(|(address, _, _)| address)
            .collect()
    }

    fn size(&self, name: &str) -> Option<u64> {
        Self::size(self, name)
    }

    fn similar(&self, name: &str) -> Vec<String> {
        Self::similar(self, name)
    }

    fn current_task_offset(&self) -> Option<u64> {
        Self::current_task_offset(self)
    }

    fn resolve(&self, address: u64) -> Option<(String, u64)> {
        Self::resolve(self, address).map(|(name, offset)| (name.to_owned(), offset))
    }
}

impl Lab for Local<'_> {
    fn fetch(
        &self,
        spec: &str,
        refresh: bool,
        progress: &dyn Progress,
    ) -> Result<Box<dyn TestKernel>, LabError> {
        let spec = parse(spec)?;
        let image = fetch(&spec, &cache()?.with_refresh(refresh), progress)?;
        let symbols = Symbols::load(&image.symbols)
            .map_err(|error| LabError::Unavailable(error.to_string()))?;
        Ok(Box::new(LocalKernel { image, symbols }))
    }

    fn path(&self, spec: &str) -> Result<PathBuf, LabError> {
        match path(&parse(spec)?, &cache()?)? {
            Some(image) => Ok(image.vmlinux),
            None => Err(LabError::Unavailable(format!(
                "{spec} is not in the cache; get it with `unwindlab kernel fetch {spec}`"
            ))),
        }
    }

    fn list(&self) -> Result<Vec<String>, LabError> {
        let images = list(&cache()?)?;
        Ok(images
            .iter()
            .map(|image| {
                format!(
                    "{}  {}  {}",
                    image.release,
                    image.origin,
                    image.vmlinux.display()
                )
            })
            .collect())
    }

    fn executor(
        &self,
        host: KvmHost,
        kernel: &dyn TestKernel,
        progress: &dyn Progress,
        interrupt: &Interrupt,
    ) -> Result<Box<dyn Executor>, LabError> {
        self.hosts
            .start(host, kernel.path(), &cache()?, progress, interrupt)
    }

    fn doctor(&self) -> Result<String, LabError> {
        self.hosts.doctor(&cache()?)
    }
}

fn cache() -> Result<Cache, LabError> {
    Ok(Cache::open(None)?)
}

fn parse(spec: &str) -> Result<KernelSpec, LabError> {
    spec.parse()
        .map_err(|error| LabError::Usage(format!("{error}")))
}

impl From<CacheError> for LabError {
    fn from(error: CacheError) -> Self {
        Self::Unavailable(error.to_string())
    }
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
