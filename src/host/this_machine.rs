//! Kernels and KVM hosts as the commands ask for them: the cache, the probe, the outer machine.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use unwindlab_guest_kernel as kernels;
use unwindlab_guest_kernel::build::patch::Patch;
use unwindlab_guest_kernel::lines::NO_LINES;
use unwindlab_guest_kernel::{
    BuildSpec, Cache, KeptLines, KernelImage, KernelSpec, Lines, Symbols, closure, qemu,
};
use unwindlab_vmm::Kernel;

use super::choice::KvmHost;
use super::choice::{Choice, choose};
use super::deterministic::Deterministic;
use super::emulated::{Emulated, OuterMachine};
use super::first_cpu::OUTER_CPUS;
use super::initramfs::{self, Contents};
use super::kernel_request::KernelRequest;
use super::native::{InProcess, Native};
use super::provider::{Lab, LabError, TestKernel};
use crate::interrupt::Interrupt;
use crate::plan::{Executor, Progress};
use crate::scenario::{KernelSymbols, SourceLines};

/// RAM of the outer machine in MiB. It is touched only as it is used: the initramfs twice, the
/// guests (at most 2 GiB of RAM by the scenario's limits, and their checkpoints), and the outer kernel.
const OUTER_MEMORY_MIB: u32 = 6144;

/// What a KVM host gets besides.
#[derive(Debug, Clone, Copy, Default)]
struct Added<'a> {
    /// The folder of the distribution's perf.
    perf_tool: Option<&'a Path>,
    /// That of a QEMU to compare with.
    peer: Option<&'a Path>,
}

/// The real places: this machine. The cache folder is opened when something asks for it.
#[derive(Debug, Clone, Copy, Default)]
pub struct ThisMachine;

impl ThisMachine {
    /// What an outer machine for `kernel` is made of, and `uname -r` of the outer kernel.
    fn outer(
        &self,
        kernel: &dyn TestKernel,
        added: Added<'_>,
        progress: &dyn Progress,
    ) -> Result<(OuterMachine, String), LabError> {
        let qemu = kernels::qemu(&cache()?, progress).map_err(unavailable)?;
        let outer = kernels::outer_kernel(&cache()?, progress).map_err(unavailable)?;
        // By this name it is found even if a build has replaced its file meanwhile.
        let init = Path::new("/proc/self/exe");
        let initramfs = initramfs::build(&Contents {
            init,
            modules: &outer.modules,
            kernels: &[(kernel.hash(), kernel.path())],
            perf_tool: added.perf_tool,
            peer: added.peer,
        })
        .map_err(|e| LabError::Unavailable(format!("cannot build the outer machine: {e}")))?;
        let machine = OuterMachine {
            qemu,
            vmlinux: outer.vmlinux,
            initramfs,
            memory_mib: OUTER_MEMORY_MIB,
            cpus: OUTER_CPUS,
        };
        Ok((machine, outer.release))
    }

    fn emulated(
        &self,
        why: &str,
        kernel: &dyn TestKernel,
        added: Added<'_>,
        progress: &dyn Progress,
        interrupt: &Interrupt,
    ) -> Result<Emulated, LabError> {
        let (machine, _) = self.outer(kernel, added, progress)?;
        progress.step("booting the outer machine");
        Ok(Emulated::start(&machine, why, interrupt)?)
    }

    /// Starts the KVM host that is asked for, or chosen.
    fn start(
        &self,
        host: KvmHost,
        kernel: &dyn TestKernel,
        added: Added<'_>,
        progress: &dyn Progress,
        interrupt: &Interrupt,
    ) -> Result<Box<dyn Executor>, LabError> {
        match choose(host) {
            Choice::Native { kvm, why } => {
                let known = [(kernel.hash().to_owned(), kernel.path().to_owned())];
                let native = added
                    .perf_tool
                    .map(super::perf_tool::archive)
                    .transpose()
                    .and_then(|tool| Native::new(kvm, HashMap::from(known), tool));
                let mut native = native.map_err(|e| {
                    LabError::Unavailable(format!("cannot build the guest's initramfs: {e}"))
                })?;
                if let Some(dir) = added.peer {
                    native = native.with_peer(dir);
                }
                Ok(Box::new(InProcess::new(native, &why, interrupt)))
            }
            Choice::Emulated { why } => Ok(Box::new(
                self.emulated(&why, kernel, added, progress, interrupt)?,
            )),
            Choice::Impossible { why } => Err(LabError::Unavailable(why)),
        }
    }
}

impl Lab for ThisMachine {
    fn fetch(
        &self,
        request: &KernelRequest,
        progress: &dyn Progress,
        _interrupt: &Interrupt,
    ) -> Result<Box<dyn TestKernel>, LabError> {
        let image = match request {
            KernelRequest::Ready(spec) => kernels::fetch(&parse(spec)?, &cache()?, progress)?,
            KernelRequest::Build(spec) => build(spec, progress)?,
        };
        let symbols = Symbols::load(&image.symbols).map_err(unavailable)?;
        let kept = KeptLines::find(&image.id, &cache()?).map_err(unavailable)?;
        Ok(Box::new(CachedKernel {
            symbols: LoadedSymbols {
                symbols,
                vmlinux: image.vmlinux.clone(),
                kept,
                lines: OnceLock::new(),
            },
            image,
        }))
    }

    fn series(&self, path: &Path) -> Result<Vec<Patch>, LabError> {
        Ok(kernels::build::mail::series(path, &cache()?)?)
    }

    fn path(&self, spec: &str) -> Result<PathBuf, LabError> {
        let image = kernels::path(&parse(spec)?, &cache()?)?;
        let image = image.ok_or_else(|| {
            LabError::Unavailable(format!(
                "no kernel `{spec}` in the cache: `unwindlab kernel fetch {spec}` gets it"
            ))
        })?;
        Ok(image.vmlinux)
    }

    fn list(&self) -> Result<Vec<String>, LabError> {
        let images = kernels::list(&cache()?)?;
        let line = |image: &KernelImage| {
            let short = image.id.get(..12).unwrap_or(&image.id);
            format!("{short}  {}  {}", image.release, image.origin)
        };
        Ok(images.iter().map(line).collect())
    }

    fn executor(
        &self,
        host: KvmHost,
        seed: Option<u64>,
        kernel: &dyn TestKernel,
        perf_tool: Option<&Path>,
        progress: &dyn Progress,
        interrupt: &Interrupt,
    ) -> Result<Box<dyn Executor>, LabError> {
        let added = Added {
            perf_tool,
            peer: None,
        };
        if let Some(seed) = seed {
            let (machine, release) = self.outer(kernel, added, progress)?;
            let host = Deterministic::new(machine, &release, seed, interrupt);
            return Ok(Box::new(host));
        }
        self.start(host, kernel, added, progress, interrupt)
    }

    fn peer(&self, chosen: Option<&Path>, progress: &dyn Progress) -> Result<PathBuf, LabError> {
        let Some(dir) = chosen else {
            return kernels::qemu::debian(&cache()?, progress).map_err(unavailable);
        };
        let parts = [closure::LOADER, qemu::PROGRAM, qemu::FIRMWARE];
        match parts.iter().find(|part| !dir.join(part).exists()) {
            Some(part) => Err(LabError::Unavailable(format!(
                "no QEMU to compare with: {} is missing",
                dir.join(part).display()
            ))),
            None => Ok(dir.to_path_buf()),
        }
    }

    fn bench_host(
        &self,
        host: KvmHost,
        kernel: &dyn TestKernel,
        peer: Option<&Path>,
        progress: &dyn Progress,
        interrupt: &Interrupt,
    ) -> Result<Box<dyn Executor>, LabError> {
        let added = Added {
            perf_tool: None,
            peer,
        };
        self.start(host, kernel, added, progress, interrupt)
    }

    fn perf_tool(&self, progress: &dyn Progress) -> Result<PathBuf, LabError> {
        let tool = kernels::perf_tool(&cache()?, progress).map_err(unavailable)?;
        Ok(tool.dir)
    }

    fn doctor(&self) -> Result<String, LabError> {
        Ok(super::doctor::report(&cache()?))
    }
}

fn build(spec: &BuildSpec, progress: &dyn Progress) -> Result<KernelImage, LabError> {
    let built = kernels::build(spec, &cache()?, progress)?;
    if let kernels::Client::LeftOut(reason) = built.client {
        tracing::warn!("{spec} is built without the lab client: {reason}");
    }
    Ok(built.image)
}

fn cache() -> Result<Cache, LabError> {
    Cache::open(None).map_err(unavailable)
}

fn parse(spec: &str) -> Result<KernelSpec, LabError> {
    spec.parse()
        .map_err(|e: kernels::SpecError| LabError::Usage(e.to_string()))
}

fn unavailable(error: impl std::fmt::Display) -> LabError {
    LabError::Unavailable(error.to_string())
}

/// A kernel of the cache with its symbols loaded.
#[derive(Debug)]
struct CachedKernel {
    image: KernelImage,
    symbols: LoadedSymbols,
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
    /// Where the kernel has DWARF.
    kept: Option<KeptLines>,
    /// Read when something asks for them.
    lines: OnceLock<Option<Lines>>,
}

impl LoadedSymbols {
    fn loaded(&self) -> Option<&Lines> {
        let load = || self.kept.as_ref()?.load();
        self.lines.get_or_init(load).as_ref()
    }
}

impl KernelSymbols for LoadedSymbols {
    fn addresses(&self, name: &str) -> Vec<u64> {
        self.symbols
            .iter()
            .filter(|&(_, _, other)| other == name)
            .map(|(at, _, _)| at)
            .collect()
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

    fn code(&self, address: u64, length: usize) -> Option<Vec<u8>> {
        kernels::text::read(&self.vmlinux, address, length)
            .inspect_err(|error| tracing::debug!(%error, "no text of the kernel"))
            .ok()
            .flatten()
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

    fn rdpmc_sites(&self) -> Result<Vec<u64>, String> {
        let path = &self.vmlinux;
        let elf = fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        // Letters as of nm(1): of text, global, local or weak.
        let symbols = self.symbols.iter();
        let symbols: Vec<(u64, bool)> = symbols
            .map(|(at, letter, _)| (at, matches!(letter, 'T' | 't' | 'W' | 'w')))
            .collect();
        unwindlab_vmm::rdpmc_sites(&Kernel::Elf(elf.into()), &symbols).map_err(|e| e.to_string())
    }
}

impl SourceLines for LoadedSymbols {
    fn place(&self, file: &str, line: u32) -> Result<Vec<u64>, String> {
        let lines = self.loaded().ok_or_else(|| NO_LINES.to_owned())?;
        let found = lines.place(file, line, &self.symbols);
        found.map_err(|error| error.to_string())
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
