//! What the program brings along: configuration fragments, mutants, variants, the lab client.

use include_dir::{Dir, include_dir};

use super::config::Fragment;
use super::patch::{self, Patch};
use super::workspace::Workspace;
use super::{BuildError, Client};

static CONFIG: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/config");
static PATCHES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/patches");
static CLIENT: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/client");

/// What the lab client needs of the configuration.
pub(super) const CLIENT_CONFIG: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/client/client.config"));

/// Only a source with this has something to add a client to.
const FEATURE: &str = "kernel/unwind/deferred.c";

/// The built-in fragment of this name.
#[must_use]
pub fn fragment(name: &str) -> Option<Fragment> {
    let file = CONFIG.get_file(format!("{name}.config"))?;
    Some(Fragment {
        name: name.to_owned(),
        content: file.contents_utf8()?.to_owned(),
    })
}

/// The names of the built-in fragments.
#[must_use]
pub fn fragments() -> Vec<&'static str> {
    names(&CONFIG, "config")
}

/// A folder of built-in patches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchKind {
    /// Deliberate bugs.
    Mutant,
    /// Design alternatives.
    Variant,
    /// What closes a finding.
    Fix,
}

impl PatchKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Mutant, Self::Variant, Self::Fix];

    /// As in `mutant:NAME`.
    #[must_use]
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Mutant => "mutant",
            Self::Variant => "variant",
            Self::Fix => "fix",
        }
    }

    const fn folder(self) -> &'static str {
        match self {
            Self::Mutant => "mutants",
            Self::Variant => "variants",
            Self::Fix => "fixes",
        }
    }
}

/// The built-in patch of this kind and name.
#[must_use]
pub fn patch(kind: PatchKind, name: &str) -> Option<Patch> {
    let file = PATCHES.get_file(format!("{}/{name}.patch", kind.folder()))?;
    Some(Patch {
        name: format!("{}:{name}", kind.prefix()),
        content: file.contents().to_vec(),
    })
}

/// The names of the built-in patches of a kind.
#[must_use]
pub fn patches(kind: PatchKind) -> Vec<&'static str> {
    PATCHES
        .get_dir(kind.folder())
        .map(|folder| names(folder, "patch"))
        .unwrap_or_default()
}

fn names(folder: &'static Dir<'_>, extension: &str) -> Vec<&'static str> {
    let mut names: Vec<&str> = folder
        .files()
        .filter(|file| file.path().extension().is_some_and(|it| it == extension))
        .filter_map(|file| file.path().file_stem()?.to_str())
        .collect();
    names.sort_unstable();
    names
}

/// The tree with the lab client in it: its files as they are, and the first of its hooks that
/// applies.
pub(super) fn add_client(
    workspace: &Workspace,
    tree: String,
) -> Result<(String, Client), BuildError> {
    if !workspace.has(&tree, FEATURE) {
        let reason = format!("the source has no {FEATURE}");
        return Ok((tree, Client::LeftOut(reason)));
    }
    let mut hooks: Vec<_> = CLIENT
        .files()
        .filter(|file| file.path().extension().is_some_and(|it| it == "patch"))
        .collect();
    hooks.sort_by_key(|file| file.path());
    let mut reasons = Vec::new();
    for hook in hooks {
        let patch = Patch {
            name: hook.path().display().to_string(),
            content: hook.contents().to_vec(),
        };
        let added = workspace.derive(&tree, |index| {
            // Few lines of context: the hooks serve many versions.
            patch::apply(workspace, index, &patch, &["-C1"])?;
            add_files(workspace, index)
        });
        match added {
            Ok(tree) => return Ok((tree, Client::Added)),
            Err(error) => reasons.push(error.to_string()),
        }
    }
    Ok((tree, Client::LeftOut(reasons.join("; "))))
}

fn add_files(workspace: &Workspace, index: &std::path::Path) -> Result<(), BuildError> {
    let Some(files) = CLIENT.get_dir("files") else {
        return Ok(());
    };
    let mut folders = vec![files];
    while let Some(folder) = folders.pop() {
        folders.extend(folder.dirs());
        for file in folder.files() {
            let Ok(path) = file.path().strip_prefix("files") else {
                continue;
            };
            let blob = workspace.store(file.contents())?;
            workspace
                .git()
                .call("update-index")
                .args(["--add", "--cacheinfo"])
                .arg(format!("100644,{blob},{}", path.display()))
                .index(index)
                .run()?;
        }
    }
    Ok(())
}
