//! Kernels from source: a tree, patches, configuration fragments, and the lab client.
//!
//! ```text
//! source ──> tree ──> patched tree ──> src/ ──> obj-CONFIG/vmlinux ──> kernel entry
//!  (git, a folder,      (git apply       (only files     (make O=, incremental)
//!   Debian's package)    on an index)     that differ)
//! ```
//!
//! This happens in a `workspace` of the cache, one for each source. Its git
//! repository is ours; the user's tree is only read. A patched tree is a git tree object, so its id
//! identifies (source, patches) before anything is compiled. Going from one patched tree to the next
//! writes only the files that differ, so `make` compiles only those and what includes them. A new
//! workspace begins with the objects of the one whose source is most similar (`seed`).

pub mod application;
mod client;
pub mod config;
pub mod embedded;
mod error;
pub mod generate;
mod git;
pub mod header;
pub mod history;
mod mail;
mod make;
mod package;
pub mod patch;
pub mod recipients;
mod script;
mod seed;
pub mod series;
mod source;
pub mod submission;
mod tools;
mod tree;
pub mod upstream;
mod workspace;

use std::fmt;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::cache::{At as _, Cache, hex};
use crate::input;
use crate::kernel::{self, KernelImage, Origin, shared};
use crate::progress::Progress;
use crate::store::Store;

pub use client::Client;
use config::Fragment;
pub use error::BuildError;
use patch::Patch;
pub use source::Source;
pub use workspace::{Pruned, prune};

/// A kernel to be built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildSpec {
    /// The source.
    pub source: Source,
    /// Applied to it in this order, before the lab client is added.
    pub patches: Vec<Patch>,
    /// Configuration on top of [`config::BASE`]. Later fragments win.
    pub fragments: Vec<Fragment>,
}

impl fmt::Display for BuildSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.source)?;
        for patch in &self.patches {
            write!(f, " + {}", patch.name)?;
        }
        for fragment in &self.fragments {
            write!(f, ", {} config", fragment.name)?;
        }
        Ok(())
    }
}

/// A built kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Built {
    /// The kernel, in the cache.
    pub image: KernelImage,
    /// Whether the lab client is in it.
    pub client: Client,
}

/// Part of a kernel's identity. Change it when the same inputs give another kernel.
const RECIPE: &str = "1";

/// Builds the kernel, unless the cache has it.
///
/// Processes that build from the same source wait for each other. One whose kernel is in the cache does not wait for a build.
///
/// # Errors
/// [`BuildError`]; the user's tree is unchanged whatever happens.
pub fn build(
    spec: &BuildSpec,
    cache: &Cache,
    progress: &dyn Progress,
) -> Result<Built, BuildError> {
    tools::need_git()?;
    let what = spec.to_string();
    let (workspace, tree) = tree::open(&spec.source, cache, progress)?;
    let tree = patch::apply_all(&workspace, tree, &spec.source.to_string(), &spec.patches)?;
    let (tree, client) = client::add(&workspace, tree)?;
    let fragments = embedded::with_built_in(&spec.fragments, client == Client::Added);

    let note = identity(&tree, &fragments)?;
    let store = Store::of_environment()?;
    if let Some(image) = known(&note, spec, cache)? {
        // It was built without a store.
        let lacks = store.as_ref().filter(|it| shared::lacks(&note, it));
        share(&note, &image, lacks, cache);
        return Ok(Built { image, client });
    }
    if take_shared(&note, store.as_ref(), cache, progress)?
        && let Some(image) = known(&note, spec, cache)?
    {
        return Ok(Built { image, client });
    }
    let workspace = workspace.for_building(cache, progress)?;
    // Another process may have built it while we waited.
    if let Some(image) = known(&note, spec, cache)? {
        return Ok(Built { image, client });
    }
    tools::need_compiler()?;
    seed::fill(&workspace, &tree, &fragments, cache, progress)?;
    workspace.check_out(&tree, progress)?;
    make::vmlinux(&workspace, &fragments, &what, progress)?;
    let folders = workspace.folders();
    let (obj, src) = (folders.obj(&fragments), folders.src());
    let image = enter(&obj, spec, &src, cache, progress)?;
    cache.set_note(&note, &image.id)?;
    share(&note, &image, store.as_ref(), cache);
    Ok(Built { image, client })
}

/// Takes the kernel of these inputs from the store; whether it has it. One that cannot be used is told, and the kernel built.
fn take_shared(
    note: &str,
    store: Option<&Store>,
    cache: &Cache,
    progress: &dyn Progress,
) -> Result<bool, BuildError> {
    let Some(store) = store else {
        return Ok(false);
    };
    shared::take(note, store, cache, progress).or_else(|error| {
        if progress.stopped() {
            return Err(BuildError::Stopped);
        }
        tracing::warn!("no kernel from {}: {error}; it is built", store.shown());
        Ok(false)
    })
}

/// Puts a kernel into the store. One that cannot be used is told.
fn share(note: &str, image: &KernelImage, store: Option<&Store>, cache: &Cache) {
    let Some(store) = store else {
        return;
    };
    if let Err(error) = shared::put(note, &image.id, store, cache) {
        tracing::warn!("{} did not get the kernel: {error}", store.shown());
    }
}

/// The kernel that this note names, if the cache has it.
fn known(note: &str, spec: &BuildSpec, cache: &Cache) -> Result<Option<KernelImage>, BuildError> {
    let Some(known) = cache.note::<String>(note)? else {
        return Ok(None);
    };
    let image = kernel::find(&known.fact, cache)?;
    Ok(image.map(|image| KernelImage {
        origin: origin(spec),
        ..image
    }))
}

/// The name of the note that says which kernel was made from these inputs.
fn identity(tree: &str, fragments: &[Fragment]) -> Result<String, BuildError> {
    let mut hash = Sha256::new();
    hash.update(RECIPE);
    hash.update(tree);
    hash.update(tools::versions()?);
    for fragment in fragments {
        hash.update(&fragment.content);
        hash.update([0]);
    }
    Ok(format!("built-{}", hex(&hash.finalize())))
}

fn origin(spec: &BuildSpec) -> Origin {
    Origin::Built {
        source: spec.source.to_string(),
        patches: spec.patches.iter().map(|it| it.name.clone()).collect(),
        config: spec.fragments.iter().map(|it| it.name.clone()).collect(),
    }
}

fn enter(
    obj: &Path,
    spec: &BuildSpec,
    source: &Path,
    cache: &Cache,
    progress: &dyn Progress,
) -> Result<KernelImage, BuildError> {
    let content = input::below(obj, make::VMLINUX, input::IMAGE).at(&obj.join(make::VMLINUX))?;
    let name = spec.to_string();
    kernel::enter(&content, &name, origin(spec), source, cache, progress)
        .map_err(|error| BuildError::Image(Box::new(error)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Silent;

    /// A stranger's Makefile may leave anything in the place of the kernel. Who opens a FIFO waits for the other end.
    #[test]
    fn a_fifo_is_no_kernel() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(folder.path().join("cache"))).unwrap();
        let fifo = folder.path().join(make::VMLINUX);
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let spec = BuildSpec {
            source: Source::Debian(vec![7]),
            patches: Vec::new(),
            fragments: Vec::new(),
        };
        let error = enter(folder.path(), &spec, folder.path(), &cache, &Silent).unwrap_err();
        let told = error.to_string();
        assert!(told.contains("it is not a regular file"), "{told}");
    }
}
