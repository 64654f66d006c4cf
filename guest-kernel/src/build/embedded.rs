//! What is embedded in the program: configuration fragments, mutants, variants, proposals, fixes.

use include_dir::{Dir, include_dir};

use super::config::{BASE, Fragment};
use super::patch::Patch;

static CONFIG: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/config");
static PATCHES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/patches");

/// The name of the lab client's fragment.
const CLIENT: &str = "client";

/// Configuration that the lab client needs.
const CLIENT_CONFIG: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/client/client.config"));

/// The built-in fragment of this name.
#[must_use]
pub fn fragment(name: &str) -> Option<Fragment> {
    let file = CONFIG.get_file(format!("{name}.config"))?;
    Some(Fragment {
        name: name.to_owned(),
        content: file.contents_utf8()?.to_owned(),
    })
}

/// All fragments of a build, in the order in which they count.
pub(super) fn with_built_in(fragments: &[Fragment], client: bool) -> Vec<Fragment> {
    let client = client.then(|| Fragment {
        name: CLIENT.to_owned(),
        content: CLIENT_CONFIG.to_owned(),
    });
    fragment(BASE)
        .into_iter()
        .chain(client)
        .chain(fragments.iter().cloned())
        .collect()
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
    /// What the kernel does not have yet.
    Proposal,
    /// What closes a finding.
    Fix,
}

impl PatchKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Mutant, Self::Variant, Self::Proposal, Self::Fix];

    /// As in `mutant:NAME`.
    #[must_use]
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Mutant => "mutant",
            Self::Variant => "variant",
            Self::Proposal => "proposal",
            Self::Fix => "fix",
        }
    }

    const fn folder(self) -> &'static str {
        match self {
            Self::Mutant => "mutants",
            Self::Variant => "variants",
            Self::Proposal => "proposals",
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

/// The fixes of all findings, in the order of their names, in which they apply to one kernel.
pub fn fixes() -> impl Iterator<Item = Patch> {
    let names = patches(PatchKind::Fix).into_iter();
    names.filter_map(|name| patch(PatchKind::Fix, name))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_debug_fragment_asks_for_the_checkers() {
        let debug = fragment("debug").unwrap().content;
        for option in ["PROVE_LOCKING", "KASAN", "PROVE_RCU", "DEBUG_ATOMIC_SLEEP"] {
            let line = format!("CONFIG_{option}=y");
            assert!(debug.lines().any(|it| it == line), "{option}");
        }
    }
}
