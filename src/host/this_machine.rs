//! Kernels and KVM hosts as the commands ask for them: the cache, the probe, the outer machine.

use std::path::{Path, PathBuf};

use unwindlab_abi::message::{KnownStack, Program};
use unwindlab_abi::plan::CompiledProgram;
use unwindlab_guest_kernel as kernels;
use unwindlab_guest_kernel::build::application::{self, Application, Attempt};
use unwindlab_guest_kernel::build::generate::{self, Generated};
use unwindlab_guest_kernel::build::patch::Patch;
use unwindlab_guest_kernel::build::series::Series;
use unwindlab_guest_kernel::build::submission::{self, Message, Submission};
use unwindlab_guest_kernel::build::upstream;
use unwindlab_guest_kernel::build::{self, Pruned};
use unwindlab_guest_kernel::{
    BuildSpec, CACHE_VARIABLE, CFunction, Cache, KernelImage, KernelSpec, SavedMachines, Source,
    Verified, closure, qemu,
};

use super::builds::builds;
use super::cached_kernel::CachedKernel;
use super::choice::{HostChoice, choose, choose_to_check};
use super::kernel_request::KernelRequest;
use super::provider::{HostRequest, Provider, ProviderError, TestKernel};
use unwindlab_engine::host::emulated::GivenKernel;
use unwindlab_engine::host::emulated::deterministic::Deterministic;
use unwindlab_engine::host::emulated::first_cpu::OUTER_CPUS;
use unwindlab_engine::host::emulated::initramfs::{Contents, Initramfs, Module};
use unwindlab_engine::host::emulated::qemu::OuterMachine;
use unwindlab_engine::host::native::process::Given;
use unwindlab_engine::host::{emulated, emulated_intel, native};
use unwindlab_engine::interrupt::Interrupt;
use unwindlab_engine::plan::{Executor, Progress};

/// RAM of the outer machine in MiB, of which only what is used takes memory: the initramfs twice,
/// the guests (at most 2 GiB of RAM by the scenario's limits, and their checkpoints), and the outer
/// kernel.
const OUTER_MEMORY_MIB: u32 = 6144;

/// Kernels from the cache, KVM hosts on this machine. The cache folder is opened when it is first
/// needed.
#[derive(Debug, Clone, Copy, Default)]
pub struct ThisMachine;

impl ThisMachine {
    /// What an outer machine for `kernel`, if there is one, is made of, and `uname -r` of the outer kernel.
    fn outer(
        &self,
        kernel: Option<&dyn TestKernel>,
        request: HostRequest<'_>,
        progress: &dyn Progress,
    ) -> Result<(OuterMachine, String), ProviderError> {
        let qemu = kernels::qemu(&cache()?, progress).map_err(unavailable)?;
        let outer = kernels::outer_kernel(&cache()?, progress).map_err(unavailable)?;
        // This path works even if a build has replaced the file meanwhile.
        let init = "/proc/self/exe".into();
        let initramfs = Initramfs::new(Contents {
            init,
            modules: modules(outer.modules, ""),
            // A machine that must not hear of anything once it runs.
            kernels: image(kernel.filter(|_| request.seed.is_some())),
            perf_tool: request.perf_tool.map(Path::to_owned),
            peer: request.peer.map(Path::to_owned),
        });
        let machine = OuterMachine {
            qemu,
            vmlinux: outer.vmlinux,
            initramfs,
            memory_mib: OUTER_MEMORY_MIB,
            cpus: OUTER_CPUS,
            guests: request.guests,
            saved: (!request.fresh && request.seed.is_none())
                .then(|| cache().map(SavedMachines::new))
                .transpose()?,
        };
        Ok((machine, outer.release))
    }

    /// What an outer machine in Bochs for `kernel`, if there is one, is made of.
    fn outer_intel(
        &self,
        kernel: Option<&dyn TestKernel>,
        request: HostRequest<'_>,
        progress: &dyn Progress,
    ) -> Result<emulated_intel::OuterMachine, ProviderError> {
        let bochs = kernels::bochs(&cache()?, progress).map_err(unavailable)?;
        let outer = kernels::outer_kernel(&cache()?, progress).map_err(unavailable)?;
        let initramfs = Initramfs::new(Contents {
            init: "/proc/self/exe".into(),
            // Bochs 3.0 refuses what `kvm_intel` asks for with it (docs/intel.md).
            modules: modules(outer.intel_modules, "enable_apicv=0"),
            kernels: image(kernel),
            perf_tool: request.perf_tool.map(Path::to_owned),
            peer: request.peer.map(Path::to_owned),
        });
        Ok(emulated_intel::OuterMachine {
            bochs,
            vmlinux: outer.vmlinux,
            initramfs,
        })
    }

    /// Starts a KVM host that can boot `kernel`, if there is one.
    fn start(
        &self,
        choice: HostChoice,
        kernel: Option<&dyn TestKernel>,
        request: HostRequest<'_>,
        progress: &dyn Progress,
        interrupt: &Interrupt,
    ) -> Result<Box<dyn Executor>, ProviderError> {
        Ok(match choice {
            HostChoice::Native { kvm, why } => {
                let perf_tool = request
                    .perf_tool
                    .map(unwindlab_engine::host::perf_tool::archive)
                    .transpose();
                let images = image(kernel).into_iter();
                let given = Given {
                    kernels: images.map(|(hash, path)| (hash, path.into())).collect(),
                    perf_tool: perf_tool.map_err(unavailable)?,
                    peer: request.peer.map(Into::into),
                };
                let program = std::env::current_exe().map_err(unavailable)?;
                let host = native::process::start(&program, &kvm, &given, &why, interrupt)?;
                Box::new(host)
            }
            HostChoice::Emulated { why } => {
                let (machine, _) = self.outer(kernel, request, progress)?;
                let given = kernel.map(|kernel| GivenKernel {
                    hash: kernel.hash(),
                    path: kernel.path(),
                });
                let host = emulated::start(&machine, given, &why, progress, interrupt)?;
                Box::new(host)
            }
            HostChoice::EmulatedIntel { why } => {
                let machine = self.outer_intel(kernel, request, progress)?;
                let host = emulated_intel::start(&machine, &why, progress, interrupt)?;
                Box::new(host)
            }
        })
    }
}

/// Content hash and file of a kernel that an initramfs has in it.
fn image(kernel: Option<&dyn TestKernel>) -> Vec<(String, PathBuf)> {
    let image = kernel.map(|it| (it.hash().to_owned(), it.path().to_owned()));
    image.into_iter().collect()
}

/// Modules in load order, the last of which, for the CPU's vendor, has these parameters.
fn modules(paths: Vec<PathBuf>, parameters: &'static str) -> Vec<Module> {
    let last = paths.len().saturating_sub(1);
    let numbered = paths.into_iter().enumerate();
    let module = |(number, path)| Module {
        path,
        parameters: if number == last { parameters } else { "" },
    };
    numbered.map(module).collect()
}

/// Progress of work that ends when the user interrupts.
struct UntilInterrupt<'a, P: ?Sized> {
    progress: &'a P,
    interrupt: &'a Interrupt,
}

impl<P: Progress + ?Sized> Progress for UntilInterrupt<'_, P> {
    fn step(&self, what: &str) {
        self.progress.step(what);
    }

    fn bytes(&self, done: u64, total: u64) {
        self.progress.bytes(done, total);
    }

    fn overall(&self, done: usize, total: usize) {
        self.progress.overall(done, total);
    }

    fn stopped(&self) -> bool {
        self.interrupt.is_set()
    }
}

impl Provider for ThisMachine {
    fn fetch(
        &self,
        request: &KernelRequest,
        progress: &dyn Progress,
        interrupt: &Interrupt,
    ) -> Result<Box<dyn TestKernel>, ProviderError> {
        let progress = &UntilInterrupt {
            progress,
            interrupt,
        };
        let image = match request {
            KernelRequest::Ready(spec) => kernels::fetch(&parse(spec)?, &cache()?, progress)?,
            KernelRequest::Build(spec) => build(spec, progress)?,
        };
        Ok(Box::new(CachedKernel::load(image, &cache()?)?))
    }

    fn generate(
        &self,
        spec: &BuildSpec,
        is_wanted: &dyn Fn(&str) -> bool,
        progress: &(dyn Progress + Sync),
        interrupt: &Interrupt,
    ) -> Result<Generated, ProviderError> {
        let progress = &UntilInterrupt {
            progress,
            interrupt,
        };
        Ok(generate::generate(spec, is_wanted, &cache()?, progress)?)
    }

    fn series(&self, path: &Path) -> Result<Series, ProviderError> {
        Ok(Series::read(path, &cache()?)?)
    }

    fn debian_series(&self, progress: &dyn Progress) -> Result<(Series, Source), ProviderError> {
        let cache = cache()?;
        let (folder, source) = upstream::debian_patches(&KernelSpec::NEWEST, &cache, progress)?;
        Ok((Series::read(&folder, &cache)?, source))
    }

    fn attempt(
        &self,
        spec: &BuildSpec,
        patches: &[&Patch],
        go_on: &mut dyn FnMut(&Application) -> bool,
        progress: &dyn Progress,
    ) -> Result<Vec<Attempt>, ProviderError> {
        let patches = patches.iter().copied();
        Ok(application::attempt(
            spec,
            patches,
            go_on,
            &cache()?,
            progress,
        )?)
    }

    fn submission(
        &self,
        source: &Source,
        fix: &Patch,
        message: &Message,
        concerns: &[String],
        progress: &dyn Progress,
    ) -> Result<Submission, ProviderError> {
        let cache = cache()?;
        let made = submission::prepare(source, fix, message, concerns, &cache, progress);
        Ok(made?)
    }

    fn path(&self, spec: &str) -> Result<PathBuf, ProviderError> {
        let kernel = parse(spec)?;
        let image = kernels::path(&kernel, &cache()?)?;
        let image = image.ok_or_else(|| {
            let how = match kernel {
                KernelSpec::Stock { .. } => "downloads it",
                KernelSpec::Path(_) => "adds it, if it is a vmlinux or a bzImage",
            };
            ProviderError::Unavailable(format!(
                "no kernel `{spec}` in the cache: `unwindlab kernel fetch {spec}` {how}"
            ))
        })?;
        Ok(image.vmlinux)
    }

    fn list(&self) -> Result<Vec<String>, ProviderError> {
        let images = kernels::list(&cache()?)?;
        let line = |image: &KernelImage| {
            let short = image.id.get(..12).unwrap_or(&image.id);
            format!("{short}  {}  {}", image.release, image.origin)
        };
        Ok(images.iter().map(line).collect())
    }

    fn forget(&self, hash: &str) -> Result<(), ProviderError> {
        kernels::remove(hash, &cache()?).map_err(unavailable)
    }

    fn verify_cache(&self, progress: &dyn Progress) -> Result<Verified, ProviderError> {
        cache()?.verify(progress).map_err(unavailable)
    }

    fn cache_entries(&self) -> Result<Vec<(String, u64)>, ProviderError> {
        let cache = cache()?;
        let mut entries = cache.entries().map_err(unavailable)?;
        entries.extend(builds(cache.root()).map_err(unavailable)?);
        Ok(entries)
    }

    fn prune_builds(&self) -> Result<Pruned, ProviderError> {
        build::prune(&cache()?).map_err(unavailable)
    }

    fn saved_machines(&self) -> Result<SavedMachines, ProviderError> {
        Ok(SavedMachines::new(cache()?))
    }

    fn executor(
        &self,
        request: HostRequest<'_>,
        kernel: &dyn TestKernel,
        progress: &dyn Progress,
        interrupt: &Interrupt,
    ) -> Result<Box<dyn Executor>, ProviderError> {
        if let Some(seed) = request.seed {
            let (machine, release) = self.outer(Some(kernel), request, progress)?;
            let host = Deterministic::new(machine, &release, seed, interrupt);
            return Ok(Box::new(host));
        }
        let choice = choose(request.kvm_host).map_err(|error| {
            ProviderError::Unavailable(format!(
                "no native KVM host: {error}; --kvm-host emulated needs none"
            ))
        })?;
        self.start(choice, Some(kernel), request, progress, interrupt)
    }

    fn host_to_check(
        &self,
        request: HostRequest<'_>,
        progress: &dyn Progress,
        interrupt: &Interrupt,
    ) -> Result<Box<dyn Executor>, ProviderError> {
        let choice = choose_to_check(request.kvm_host).map_err(unavailable)?;
        self.start(choice, None, request, progress, interrupt)
    }

    fn peer(
        &self,
        chosen: Option<&Path>,
        progress: &dyn Progress,
    ) -> Result<PathBuf, ProviderError> {
        let Some(dir) = chosen else {
            return kernels::qemu::debian(&cache()?, progress).map_err(unavailable);
        };
        let parts = [closure::LOADER, qemu::PROGRAM, qemu::FIRMWARE];
        match parts.iter().find(|part| !dir.join(part).exists()) {
            Some(part) => Err(ProviderError::Unavailable(format!(
                "no QEMU to compare with: {} is missing",
                dir.join(part).display()
            ))),
            None => Ok(dir.to_path_buf()),
        }
    }

    fn perf_tool(&self, progress: &dyn Progress) -> Result<PathBuf, ProviderError> {
        let tool = kernels::perf_tool(&cache()?, progress).map_err(unavailable)?;
        Ok(tool.dir)
    }

    fn c_program(&self, progress: &dyn Progress) -> Result<CompiledProgram, ProviderError> {
        let made = kernels::c_program(&cache()?, progress).map_err(unavailable)?;
        let known = |it: &CFunction| KnownStack {
            start: it.start,
            end: it.end,
            stack_pointer: None,
            callers: it.callers.iter().map(|&address| (address, 1)).collect(),
        };
        Ok(CompiledProgram {
            begin: (made.begin, made.begin + 1),
            known: Program {
                stacks: made.functions.iter().map(known).collect(),
                covered: { made.functions.iter() }
                    .map(|it| (it.start, it.end))
                    .collect(),
            },
            elf: made.elf,
        })
    }

    fn reproducer(&self, name: &str) -> Result<CompiledProgram, ProviderError> {
        let elf = kernels::reproducer::compile(name, &cache()?).map_err(unavailable)?;
        Ok(CompiledProgram {
            elf,
            begin: (0, 0),
            known: Program::default(),
        })
    }

    fn doctor(&self) -> Result<String, ProviderError> {
        Ok(super::doctor::report(&cache()?))
    }
}

fn build(spec: &BuildSpec, progress: &dyn Progress) -> Result<KernelImage, ProviderError> {
    let built = kernels::build(spec, &cache()?, progress)?;
    if let kernels::Client::LeftOut(reason) = built.client {
        tracing::warn!("{spec} is built without the lab client: {reason}");
    }
    Ok(built.image)
}

fn cache() -> Result<Cache, ProviderError> {
    let place = std::env::var_os(CACHE_VARIABLE).map(PathBuf::from);
    Cache::open(None).map_err(|error| no_folder(place).unwrap_or_else(|| unavailable(error)))
}

/// What is wrong with a place that the user named for the cache: it is a file, or below one.
fn no_folder(place: Option<PathBuf>) -> Option<ProviderError> {
    let place = place?;
    let there = place.ancestors().find(|it| it.exists())?;
    (!there.is_dir()).then(|| {
        let (place, there) = (place.display(), there.display());
        ProviderError::Usage(format!(
            "{CACHE_VARIABLE} is {place}, but {there} is no folder: set it to one"
        ))
    })
}

fn parse(spec: &str) -> Result<KernelSpec, ProviderError> {
    spec.parse()
        .map_err(|e: kernels::SpecError| ProviderError::Usage(e.to_string()))
}

pub(super) fn unavailable(error: impl std::fmt::Display) -> ProviderError {
    ProviderError::Unavailable(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_no_place_for_the_cache() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| Some(folder.path().join(name));
        std::fs::write(folder.path().join("file"), "").unwrap();
        assert!(no_folder(None).is_none() && no_folder(at("new/cache")).is_none());
        for name in ["file", "file/below"] {
            let error = no_folder(at(name)).unwrap().to_string();
            assert!(error.starts_with("UNWINDLAB_CACHE is "), "{error}");
        }
    }

    #[test]
    fn only_the_module_for_the_vendor_has_parameters() {
        let paths = vec!["kvm.ko".into(), "kvm_intel.ko".into()];
        let modules = modules(paths, "a=0");
        let told: Vec<_> = modules.iter().map(|it| it.parameters).collect();
        assert_eq!(told, ["", "a=0"]);
        assert!(super::modules(Vec::new(), "a=0").is_empty());
    }
}
