//! A kernel of the cache: its image, symbols and source lines.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::Serialize;
use serde::de::DeserializeOwned;
use unwindlab_guest_kernel as kernels;
use unwindlab_guest_kernel::lines::LineError;
use unwindlab_guest_kernel::types::{LayoutError, Member, Types, noted};
use unwindlab_guest_kernel::{Cache, KeptLines, KernelImage, Lines, Symbols};
use unwindlab_vmm::Kernel;

use super::provider::{ProviderError, TestKernel};
use super::this_machine::unavailable;
use unwindlab_scenario::{KernelSymbols, RdpmcError, SourceLines};

/// A kernel of the cache with its symbols loaded.
#[derive(Debug)]
pub struct CachedKernel {
    image: KernelImage,
    symbols: LoadedSymbols,
}

impl CachedKernel {
    /// Loads the symbols of an image.
    ///
    /// # Errors
    /// [`ProviderError`].
    pub fn load(image: KernelImage, cache: &Cache) -> Result<Self, ProviderError> {
        let symbols = LoadedSymbols {
            symbols: Symbols::load(&image.symbols).map_err(unavailable)?,
            vmlinux: image.vmlinux.clone(),
            identity: image.id.clone(),
            kept: KeptLines::find(&image.id, cache).map_err(unavailable)?,
            lines: OnceLock::new(),
            types: OnceLock::new(),
            cache: cache.clone(),
        };
        Ok(Self { image, symbols })
    }
}

impl TestKernel for CachedKernel {
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

#[derive(Debug)]
struct LoadedSymbols {
    symbols: Symbols,
    vmlinux: PathBuf,
    /// The hash of the image.
    identity: String,
    /// None of a kernel without DWARF.
    kept: Option<KeptLines>,
    /// Read when they are first asked for.
    lines: OnceLock<Option<Lines>>,
    /// Read when they are first asked for.
    types: OnceLock<Result<Types, LayoutError>>,
    /// Has what was asked of the types before.
    cache: Cache,
}

impl LoadedSymbols {
    /// What the lab client says of a member of a task (`unwindlab_task_pid`, two words: offset and
    /// size): kernels with it are usually built without type information.
    fn told_by_client(&self, structure: &str, path: &str) -> Option<Member> {
        (structure == "task_struct").then_some(())?;
        let name = format!("unwindlab_task_{}", path.replace('.', "_"));
        let [address] = self.addresses(&name)[..] else {
            return None;
        };
        let bytes = self.code(address, 8)?;
        let (offset, size) = bytes.split_at_checked(4)?;
        Some(Member {
            offset: u32::from_le_bytes(offset.try_into().ok()?).into(),
            size: u32::from_le_bytes(size.try_into().ok()?).into(),
        })
    }

    /// What the kernel's types say to `ask`, or what they said before. A cache that cannot be read, or written, only costs time.
    fn of_types<T: Copy + Serialize + DeserializeOwned>(
        &self,
        kind: noted::Kind<T>,
        key: &str,
        ask: impl FnOnce(&Types) -> Result<T, LayoutError>,
    ) -> Result<T, LayoutError> {
        let kernel = &self.identity;
        if let Ok(Some(answer)) = kind.noted(kernel, key, &self.cache) {
            return Ok(answer);
        }
        let load = || Types::load(&self.vmlinux, &self.symbols);
        let types = self.types.get_or_init(load).as_ref();
        let answer = ask(types.map_err(Clone::clone)?)?;
        if let Err(error) = kind.note(kernel, key, answer, &self.cache) {
            tracing::debug!(%error, key, "not noted");
        }
        Ok(answer)
    }

    fn loaded(&self) -> Option<&Lines> {
        let load = || self.kept.as_ref()?.load();
        self.lines.get_or_init(load).as_ref()
    }
}

impl KernelSymbols for LoadedSymbols {
    fn addresses(&self, name: &str) -> Vec<u64> {
        self.symbols.addresses(name).collect()
    }

    fn size(&self, name: &str) -> Option<u64> {
        self.symbols.size(name)
    }

    fn similar(&self, name: &str) -> Vec<String> {
        self.symbols.similar(name)
    }

    fn current_task_offset(&self) -> Option<u64> {
        self.symbols.current_task_offset()
    }

    fn percpu_offset(&self, name: &str) -> Option<u64> {
        self.symbols.percpu_offset(name)
    }

    fn member(&self, structure: &str, path: &str) -> Result<Member, LayoutError> {
        let key = format!("{structure}.{path}");
        let member = self.of_types(noted::MEMBERS, &key, |it| it.member(structure, path));
        match member {
            Err(LayoutError::NoTypes) => {
                { self.told_by_client(structure, path) }.ok_or(LayoutError::NoTypes)
            }
            other => other,
        }
    }

    fn function(&self, name: &str) -> Result<u32, LayoutError> {
        self.of_types(noted::FUNCTIONS, name, |it| it.function(name))
    }

    fn code(&self, address: u64, length: usize) -> Option<Vec<u8>> {
        kernels::text::read(&self.vmlinux, address, length)
            .inspect_err(|error| tracing::debug!(%error, "failed to read the kernel's code"))
            .ok()
            .flatten()
    }

    fn identity(&self) -> Option<String> {
        Some(self.identity.clone())
    }

    fn resolve(&self, address: u64) -> Option<(String, u64)> {
        self.symbols
            .resolve(address)
            .map(|(name, offset)| (name.to_owned(), offset))
    }

    fn lines(&self) -> Option<&dyn SourceLines> {
        self.loaded()?;
        Some(self)
    }

    fn rdpmc_sites(&self) -> Result<Vec<u64>, RdpmcError> {
        let elf = fs::read(&self.vmlinux).map_err(|source| RdpmcError::Read {
            path: self.vmlinux.clone(),
            source,
        })?;
        // nm(1)'s letters for text: global, local or weak.
        let symbols = self.symbols.iter();
        let symbols: Vec<(u64, bool)> = symbols
            .map(|(at, letter, _)| (at, matches!(letter, 'T' | 't' | 'W' | 'w')))
            .collect();
        Ok(unwindlab_vmm::rdpmc_sites(
            &Kernel::Elf(elf.into()),
            &symbols,
        )?)
    }
}

impl SourceLines for LoadedSymbols {
    fn place(&self, file: &str, line: u32) -> Result<Vec<u64>, LineError> {
        let no_file = || LineError::NoFile(file.to_owned());
        let lines = self.loaded().ok_or_else(no_file)?;
        lines.place(file, line, &self.symbols)
    }

    fn at(&self, address: u64) -> Vec<(&str, u32)> {
        self.loaded().map(|it| it.at(address)).unwrap_or_default()
    }

    fn with_code(&self, file: &str) -> BTreeSet<u32> {
        let lines = self.loaded().map(|it| it.with_code(file));
        lines.unwrap_or_default()
    }

    fn text(&self, file: &str) -> Option<String> {
        self.kept.as_ref()?.source(file)
    }
}
