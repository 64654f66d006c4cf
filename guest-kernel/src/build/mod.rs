//! Kernels from source: a tree, patches, configuration fragments, and the lab client.
//!
//! ```text
//! source ──> tree ──> patched tree ──> src/ ──> obj-CONFIG/vmlinux ──> kernel entry
//!  (git, a folder,      (git apply       (only files     (make O=, incremental)
//!   Debian's package)    on an index)     that differ)
//! ```
//!
//! All of it happens in a [`workspace`](workspace::Workspace) of the cache, one for each source.
//! Its git repository is ours: a tree of the user's is only ever read. Since a patched tree is a git
//! tree object, its id is the identity of (source, patches), known before anything is compiled; and
//! going from one patched tree to the next writes exactly the files that differ, so that `make`
//! compiles those and what includes them, and nothing else.

pub mod config;
pub mod embedded;
mod git;
pub mod header;
pub mod history;
pub mod mail;
mod make;
pub mod patch;
mod seed;
mod source;
mod tools;
mod workspace;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::cache::{Cache, CacheError, hex};
use crate::debian::apt::AptError;
use crate::debian::deb::DebError;
use crate::kernel::{self, FetchError, KernelImage, Origin};
use crate::progress::Progress;

use config::Fragment;
use patch::Patch;
pub use source::Source;
use workspace::Workspace;

/// A kernel to be built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildSpec {
    /// The source.
    pub source: Source,
    /// Applied to it in this order, before the lab client is added.
    pub patches: Vec<Patch>,
    /// Configuration on top of [`config::BASE`]; what comes later wins.
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

/// Why a kernel cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// Programs or headers are missing.
    #[error("building a kernel needs {missing}: install with `{install}`")]
    Tools {
        /// What is missing.
        missing: String,
        /// The command that installs it.
        install: String,
    },
    /// Not a source of Linux for x86.
    #[error("{0} is not a Linux source tree: it lacks {1}")]
    NotLinux(String, &'static str),
    /// No such folder, or it cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Tree {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A revision that the repository does not have.
    #[error("{} has no revision {revision}: {message}", tree.display())]
    Revision {
        /// The user's tree.
        tree: PathBuf,
        /// What was asked for.
        revision: String,
        /// git's words.
        message: String,
    },
    /// A file or folder without a patch.
    #[error("no patch in {}: give an mbox, a folder of *.patch files, or a range A..B", .0.display())]
    NoPatches(PathBuf),
    /// A patch that does not apply.
    #[error("{name} does not apply to {to}:\n{message}")]
    Patch {
        /// The patch.
        name: String,
        /// What it was applied to.
        to: String,
        /// git's words.
        message: String,
    },
    /// The kernel's Kconfig does not give what a fragment asks for.
    #[error("{fragment} asks for what this kernel's Kconfig does not give: {options}")]
    Config {
        /// The fragment.
        fragment: String,
        /// `CONFIG_X=y (is n), ...`.
        options: String,
    },
    /// It does not compile, or not link.
    #[error("{what} does not build ({target}):\n{lines}\nthe whole log: {}", log.display())]
    Compile {
        /// The kernel.
        what: String,
        /// What `make` was to make.
        target: &'static str,
        /// The compiler's own lines.
        lines: String,
        /// The log.
        log: PathBuf,
    },
    /// The archive has no such source.
    #[error("no such source: debian:{asked}; the archive offers {offered}")]
    NoSuchSource {
        /// The numbers asked for.
        asked: String,
        /// What there is.
        offered: String,
    },
    /// git failed in a way that is nobody's patch.
    #[error("git {command}: {message}")]
    Git {
        /// The subcommand.
        command: String,
        /// Its words.
        message: String,
    },
    /// The archive does not give it.
    #[error(transparent)]
    Apt(#[from] AptError),
    /// A package cannot be unpacked.
    #[error(transparent)]
    Deb(#[from] DebError),
    /// The cache cannot be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// What was built is no kernel that can be read.
    #[error(transparent)]
    Image(#[from] Box<FetchError>),
}

/// A built kernel, and what there is to say about how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Built {
    /// The kernel, in the cache.
    pub image: KernelImage,
    /// Whether the lab client is in it; why not, where it is not.
    pub client: Client,
}

/// Whether the lab client could be added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Client {
    /// It is in.
    Added,
    /// The source has no deferred unwinding, or the hooks do not apply.
    LeftOut(String),
}

/// Changed when the same inputs would give another kernel: part of its identity.
const RECIPE: &str = "1";

/// Builds the kernel, unless the cache has it.
///
/// Other processes that build from the same source wait for each other.
///
/// # Errors
/// [`BuildError`]; the user's tree is unchanged whatever happens.
pub fn build(
    spec: &BuildSpec,
    cache: &Cache,
    progress: &dyn Progress,
) -> Result<Built, BuildError> {
    tools::need_git()?;
    let workspace = Workspace::open(&spec.source, cache, progress)?;
    let what = spec.to_string();
    let tree = spec.source.tree(&workspace, cache, progress)?;
    let tree = patch::apply_all(&workspace, tree, &spec.source.to_string(), &spec.patches)?;
    let (tree, client) = embedded::add_client(&workspace, tree)?;
    let fragments = config::with_built_in(&spec.fragments, client == Client::Added);

    let note = identity(&tree, &fragments)?;
    if let Some(known) = cache.note::<String>(&note)?
        && let Some(image) = kernel::find(&known.fact, cache)?
    {
        let image = KernelImage {
            origin: origin(spec),
            ..image
        };
        return Ok(Built { image, client });
    }
    tools::need_compiler()?;
    seed::fill(&workspace, &tree, &fragments, cache, progress)?;
    workspace.check_out(&tree, progress)?;
    let vmlinux = make::vmlinux(&workspace, &fragments, &what, progress)?;
    let image = enter(&vmlinux, spec, &workspace.folders().src(), cache, progress)?;
    cache.set_note(&note, &image.id)?;
    Ok(Built { image, client })
}

/// The name of the note that says which kernel was made of these.
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
    vmlinux: &Path,
    spec: &BuildSpec,
    source: &Path,
    cache: &Cache,
    progress: &dyn Progress,
) -> Result<KernelImage, BuildError> {
    let content = std::fs::read(vmlinux).map_err(|error| CacheError::new(vmlinux, error))?;
    let name = spec.to_string();
    kernel::enter(&content, &name, origin(spec), source, cache, progress)
        .map_err(|error| BuildError::Image(Box::new(error)))
}
