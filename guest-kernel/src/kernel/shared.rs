//! Built kernels that machines share: one builds, the others take.
//!
//! ```text
//! built-INPUTS.json       the id of the kernel that these inputs give
//! kernel-ID/entry.json    its files, with size and SHA-256, as in the cache
//! kernel-ID/FILE
//! source-lines-ID/...     the same of its lines, if it has DWARF
//! ```
//!
//! Who may write to the store says which kernel belongs to which inputs. That the files are those of that kernel is checked.

use std::fs;
use std::path::Path;

use crate::cache::{At, Cache, MANIFEST, Part, Unfit, is_sha256, to_json};
use crate::image::lines;
use crate::progress::Progress;
use crate::store::{Store, StoreError, Wanted};

use super::{KIND, LOCK};

const VMLINUX: &str = "vmlinux";
/// The kernel comes last: who finds it has its lines, too.
const KINDS: [&str; 2] = [lines::KIND, KIND];

/// Takes the kernel of these inputs into the cache and notes it there; whether the store has it.
pub(crate) fn take(
    note: &str,
    store: &Store,
    cache: &Cache,
    progress: &dyn Progress,
) -> Result<bool, StoreError> {
    let named = format!("{note}.json");
    let Some(text) = store.text(&named, cache, progress)? else {
        return Ok(false);
    };
    let id = serde_json::from_slice::<String>(&text).ok();
    let Some(id) = id.filter(|it| is_sha256(it)) else {
        let what = "it names no kernel".to_owned();
        return Err(Unfit { name: named, what }.into());
    };
    progress.step(&format!("taking kernel {id} from {}", store.shown()));
    let _lock = cache.lock(LOCK, progress)?;
    for kind in KINDS {
        if cache.find::<serde_json::Value>(kind, &id)?.is_some() {
            continue;
        }
        let folder = format!("{kind}-{id}");
        match store.text(&format!("{folder}/{MANIFEST}"), cache, progress)? {
            Some(manifest) => {
                let fetch = |part: Part<'_>, into: &Path| {
                    fetch(part, (&folder, &id), into, store, progress)
                };
                cache.take_over(kind, &id, &manifest, fetch)?;
            }
            None if kind == KIND => {
                let what = format!("{folder} is not there");
                return Err(Unfit { name: named, what }.into());
            }
            None => {}
        }
    }
    cache.set_note(note, &id)?;
    Ok(true)
}

/// Whether the store takes kernels, and has none of these inputs.
pub(crate) fn lacks(note: &str, store: &Store) -> bool {
    matches!(store, Store::Folder(folder) if !folder.join(format!("{note}.json")).exists())
}

/// Puts a kernel of the cache there, for these inputs. What is there and is another file is replaced.
pub(crate) fn put(note: &str, id: &str, store: &Store, cache: &Cache) -> Result<(), StoreError> {
    for kind in KINDS {
        let Some((folder, files)) = cache.files_of(kind, id)? else {
            continue;
        };
        for file in files {
            let path = folder.join(&file);
            let content = fs::read(&path).at(&path)?;
            store.put(&format!("{kind}-{id}/{}", file.display()), &content)?;
        }
    }
    // Who finds it finds all of the kernel.
    let path = cache.root();
    store.put(&format!("{note}.json"), &to_json(&id).at(path)?)
}

/// Fetches a file of the entry `folder` of this kernel.
fn fetch(
    part: Part<'_>,
    (folder, id): (&str, &str),
    into: &Path,
    store: &Store,
    progress: &dyn Progress,
) -> Result<(), StoreError> {
    let unfit = |what: String| Unfit {
        name: folder.to_owned(),
        what,
    };
    if part.name == Path::new(VMLINUX) && part.sha256 != id {
        return Err(unfit("it has another kernel".to_owned()).into());
    }
    let name = format!("{folder}/{}", part.name.display());
    let wanted = Wanted {
        name: &name,
        most: part.size,
        sha256: Some(part.sha256),
    };
    match store.fetch(wanted, into, progress)? {
        true => Ok(()),
        false => Err(unfit(format!("{} is not there", part.name.display())).into()),
    }
}

#[cfg(test)]
mod tests;
