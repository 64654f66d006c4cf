//! Which kernel the user means: options to a request, with files read and names looked up.

use std::fs;
use std::path::{Path, PathBuf};

use unwindlab_guest_kernel::build::config::Fragment;
use unwindlab_guest_kernel::build::embedded::{self, PatchKind};
use unwindlab_guest_kernel::build::patch::Patch;
use unwindlab_guest_kernel::{BuildSpec, Source};

use super::args::{BuildOptions, KernelOptions};
use super::error::CommandError;
use crate::host::kernel_request::KernelRequest;

const STOCK: &str = "stock";

/// What `--kernel` or the build options mean.
///
/// # Errors
/// [`CommandError::Usage`]: a file that cannot be read, a name that is not known.
pub fn request(options: &KernelOptions) -> Result<KernelRequest, CommandError> {
    let build = &options.build;
    if !build.is_empty() {
        return Ok(KernelRequest::Build(build_spec(build)?));
    }
    let spec = options.kernel.as_deref().unwrap_or(STOCK);
    Ok(KernelRequest::Ready(spec.to_owned()))
}

/// What the build options mean; Debian's newest source where none is named.
///
/// # Errors
/// [`CommandError::Usage`].
pub fn build_spec(options: &BuildOptions) -> Result<BuildSpec, CommandError> {
    Ok(BuildSpec {
        source: source(options)?,
        patches: options
            .patch
            .iter()
            .map(|name| patch(name))
            .collect::<Result<_, _>>()?,
        fragments: options
            .config
            .iter()
            .map(|name| fragment(name))
            .collect::<Result<_, _>>()?,
    })
}

fn source(options: &BuildOptions) -> Result<Source, CommandError> {
    if let Some(tree) = options.tree.clone() {
        return Ok(match options.rev.clone() {
            Some(revision) => Source::Revision { tree, revision },
            None => Source::Tree(tree),
        });
    }
    let text = options.source.as_deref().unwrap_or("debian");
    Source::debian(text).ok_or_else(|| {
        CommandError::Usage(format!(
            "unknown --source {text:?}: give debian, debian:VERSION (such as debian:7.2), or \
             --tree DIR"
        ))
    })
}

/// A patch by its file, or one of ours by `KIND:NAME`.
fn patch(name: &str) -> Result<Patch, CommandError> {
    for kind in PatchKind::ALL {
        let own = name.strip_prefix(kind.prefix());
        if let Some(own) = own.and_then(|rest| rest.strip_prefix(':')) {
            return embedded::patch(kind, own).ok_or_else(|| {
                CommandError::Usage(format!(
                    "no {} {own:?}; there are: {}",
                    kind.prefix(),
                    embedded::patches(kind).join(", ")
                ))
            });
        }
    }
    let content = read(Path::new(name))?;
    Ok(Patch {
        name: file_name(name),
        content,
    })
}

/// A fragment by its file, or one of ours by its name.
fn fragment(name: &str) -> Result<Fragment, CommandError> {
    if let Some(own) = embedded::fragment(name) {
        return Ok(own);
    }
    let path = PathBuf::from(name);
    if !path.exists() {
        return Err(CommandError::Usage(format!(
            "no configuration fragment {name:?}: give a file, or one of {}",
            embedded::fragments().join(", ")
        )));
    }
    let content = String::from_utf8(read(&path)?)
        .map_err(|_| CommandError::Usage(format!("{name} is not a text")))?;
    Ok(Fragment {
        name: file_name(name),
        content,
    })
}

fn read(path: &Path) -> Result<Vec<u8>, CommandError> {
    fs::read(path)
        .map_err(|error| CommandError::Usage(format!("cannot read {}: {error}", path.display())))
}

fn file_name(path: &str) -> String {
    let name = Path::new(path).file_name().and_then(|name| name.to_str());
    name.unwrap_or(path).to_owned()
}
