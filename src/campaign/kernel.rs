//! How a user names a kernel, and the request that it means: files read, names looked up.

use std::io;
use std::path::{Path, PathBuf};
use unwindlab_guest_kernel::input;

use serde::{Deserialize, Serialize};
use unwindlab_guest_kernel::build::config::Fragment;
use unwindlab_guest_kernel::build::embedded::{self, PatchKind};
use unwindlab_guest_kernel::build::patch::Patch;
use unwindlab_guest_kernel::{BuildSpec, Source};

use crate::host::kernel_request::KernelRequest;

const STOCK: &str = "stock";
const DEBIAN: &str = "debian";
/// What stands before a kernel's file.
const FILE: &str = "path:";

/// A kernel as the options of the command line name it: one that exists (`kernel`), or one to be
/// built (everything else). A replay file keeps it, to get the kernel again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct KernelChoice {
    /// `stock`, `stock:7.0`, or `path:FILE`.
    pub kernel: Option<String>,
    /// A folder with the source of Linux.
    pub tree: Option<PathBuf>,
    /// A revision of the repository in `tree`.
    pub rev: Option<String>,
    /// `debian`, `debian:7.2`, or `upstream`.
    pub source: Option<String>,
    /// Patches, in order: files, `mutant:NAME`, `variant:NAME`, `proposal:NAME` or `fix:NAME`.
    pub patch: Vec<String>,
    /// Configuration fragments: files, or names of built-in ones.
    pub config: Vec<String>,
}

/// Why options do not name a kernel.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum KernelError {
    /// `source` is not a source.
    #[error(
        "unknown --source {0:?}: give debian, debian:VERSION (such as debian:7.2), \
         upstream (what Debian's patches apply to), or --tree DIR"
    )]
    Source(String),
    /// No built-in patch has this name.
    #[error("no {kind} {name:?}; there are: {known}")]
    Patch {
        kind: &'static str,
        name: String,
        known: String,
    },
    /// A file without a patch.
    #[error("no patch in {0}")]
    NoPatch(String),
    /// Neither a file nor a built-in fragment.
    #[error("no configuration fragment {name:?}: give a file, or one of {known}")]
    Fragment { name: String, known: String },
    /// A fragment is not UTF-8.
    #[error("{0} is not a text")]
    NotText(String),
    /// A file cannot be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    Read { path: PathBuf, source: io::Error },
}

impl KernelChoice {
    /// Whether a kernel is to be built.
    #[must_use]
    pub fn builds(&self) -> bool {
        self.tree.is_some()
            || self.source.is_some()
            || !self.patch.is_empty()
            || !self.config.is_empty()
    }

    /// The kernel that they name; the stock one where they name none.
    ///
    /// # Errors
    /// [`KernelError`].
    pub fn request(&self) -> Result<KernelRequest, KernelError> {
        if self.builds() {
            return Ok(KernelRequest::Build(self.build_spec()?));
        }
        let spec = self.kernel.as_deref().unwrap_or(STOCK);
        Ok(KernelRequest::Ready(spec.to_owned()))
    }

    /// What to build; Debian's newest source where no other is named.
    ///
    /// # Errors
    /// [`KernelError`].
    pub fn build_spec(&self) -> Result<BuildSpec, KernelError> {
        let mut patches = Vec::new();
        for name in &self.patch {
            match name == ALL_FIXES {
                true => patches.extend(embedded::fixes()),
                false => patches.push(patch(name)?),
            }
        }
        let fragments = self.config.iter().map(|name| fragment(name));
        Ok(BuildSpec {
            source: self.source()?,
            patches,
            fragments: fragments.collect::<Result<_, _>>()?,
        })
    }

    fn source(&self) -> Result<Source, KernelError> {
        if let Some(tree) = self.tree.clone() {
            return Ok(match self.rev.clone() {
                Some(revision) => Source::Revision { tree, revision },
                None => Source::Tree(tree),
            });
        }
        let text = self.source.as_deref().unwrap_or(DEBIAN);
        Source::packaged(text).ok_or_else(|| KernelError::Source(text.to_owned()))
    }

    /// The same kernel with this patch on top, built from Debian's source where it was not built
    /// before.
    #[must_use]
    pub fn patched(&self, patch: Option<&Patch>) -> Self {
        let mut patched = self.clone();
        if patched.tree.is_none() && patched.source.is_none() {
            patched.source = Some(DEBIAN.to_owned());
        }
        patched.patch.extend(patch.map(|it| it.name.clone()));
        patched
    }

    /// The same options, with files by their absolute path.
    ///
    /// # Errors
    /// Where a path cannot be resolved.
    pub fn absolute(&self) -> io::Result<Self> {
        let absolute = |path: &String| -> io::Result<String> {
            // Names of built-in patches and fragments are not files.
            match Path::new(path).exists() {
                true => Ok(std::fs::canonicalize(path)?.display().to_string()),
                false => Ok(path.clone()),
            }
        };
        let all = |paths: &[String]| paths.iter().map(absolute).collect::<io::Result<_>>();
        let file = self.kernel.as_deref().and_then(|it| it.strip_prefix(FILE));
        let file = file.map(std::fs::canonicalize).transpose()?;
        let file = file.map(|it| format!("{FILE}{}", it.display()));
        Ok(Self {
            kernel: file.or_else(|| self.kernel.clone()),
            tree: self.tree.as_ref().map(std::fs::canonicalize).transpose()?,
            patch: all(&self.patch)?,
            config: all(&self.config)?,
            ..self.clone()
        })
    }
}

/// Every built-in fix, as `--patch` names them.
const ALL_FIXES: &str = "fix:all";

/// A patch by its file, or a built-in one by `KIND:NAME`.
fn patch(name: &str) -> Result<Patch, KernelError> {
    for kind in PatchKind::ALL {
        let own = name.strip_prefix(kind.prefix());
        if let Some(own) = own.and_then(|rest| rest.strip_prefix(':')) {
            return embedded::patch(kind, own).ok_or_else(|| KernelError::Patch {
                kind: kind.prefix(),
                name: own.to_owned(),
                known: embedded::patches(kind).join(", "),
            });
        }
    }
    let content = read(Path::new(name))?;
    let patch = Patch {
        name: file_name(name),
        content,
    };
    match patch.has_diff() {
        true => Ok(patch),
        false => Err(KernelError::NoPatch(name.to_owned())),
    }
}

/// A fragment by its file, or a built-in one by its name.
fn fragment(name: &str) -> Result<Fragment, KernelError> {
    if let Some(own) = embedded::fragment(name) {
        return Ok(own);
    }
    let path = PathBuf::from(name);
    if !path.exists() {
        return Err(KernelError::Fragment {
            name: name.to_owned(),
            known: embedded::fragments().join(", "),
        });
    }
    let content = String::from_utf8(read(&path)?);
    Ok(Fragment {
        name: file_name(name),
        content: content.map_err(|_| KernelError::NotText(name.to_owned()))?,
    })
}

fn read(path: &Path) -> Result<Vec<u8>, KernelError> {
    input::read(path, input::RECORDED).map_err(|source| KernelError::Read {
        path: path.to_owned(),
        source,
    })
}

fn file_name(path: &str) -> String {
    let name = Path::new(path).file_name().and_then(|name| name.to_str());
    name.unwrap_or(path).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_of_a_file_is_found_from_everywhere() {
        let absolute = |kernel: &str| {
            let choice = KernelChoice {
                kernel: Some(kernel.to_owned()),
                ..KernelChoice::default()
            };
            choice.absolute().unwrap().kernel.unwrap()
        };
        // The tests of a package run in its folder.
        let manifest = concat!("path:", env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        assert_eq!(absolute("path:Cargo.toml"), manifest);
        assert_eq!(absolute("stock:7.2"), "stock:7.2");
    }

    #[test]
    fn a_file_without_a_diff_is_no_patch() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("p.patch");
        let name = file.to_str().unwrap();
        for content in ["", "a text\n---\n- a list\n"] {
            std::fs::write(&file, content).unwrap();
            let told = patch(name).unwrap_err().to_string();
            assert_eq!(told, format!("no patch in {name}"));
        }
        for content in [
            "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n",
            "text\n\ndiff --git a/x b/x\nold mode 100644\nnew mode 100755\n",
        ] {
            std::fs::write(&file, content).unwrap();
            assert!(patch(name).is_ok(), "{content}");
        }
    }
}
