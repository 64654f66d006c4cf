//! Adds the lab client to a tree.

use std::path::Path;

use include_dir::{Dir, include_dir};

use super::BuildError;
use super::patch::{self, Patch};
use super::workspace::Workspace;

static CLIENT: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/client");

/// A source without this file has no deferred unwinding.
const FEATURE: &str = "kernel/unwind/deferred.c";

/// Whether the lab client could be added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Client {
    /// The kernel has the client.
    Added,
    /// The source has no deferred unwinding, or the hooks do not apply.
    LeftOut(String),
}

/// Adds the client's files to the tree, and the first of its hook patches that applies.
pub(super) fn add(workspace: &Workspace, tree: String) -> Result<(String, Client), BuildError> {
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
            // One line of context suffices: the hooks must apply to many versions.
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

fn add_files(workspace: &Workspace, index: &Path) -> Result<(), BuildError> {
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
