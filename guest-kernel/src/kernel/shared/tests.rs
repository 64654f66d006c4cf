//! What the module above promises.

use std::path::Path;

use sha2::{Digest as _, Sha256};

use super::*;
use crate::Silent;
use crate::cache::hex;

const NOTE: &str = "built-1";

fn cache(folder: &Path, name: &str) -> Cache {
    Cache::open(Some(folder.join(name))).unwrap()
}

/// A cache with an entry of a kernel that was "built"; its id.
fn built(folder: &Path) -> (Cache, String) {
    let cache = cache(folder, "builder");
    let id = hex(&Sha256::digest(b"the kernel"));
    for (kind, file, content) in [
        (KIND, "vmlinux", "the kernel"),
        (lines::KIND, "source/kernel/unwind/deferred.c", "text"),
    ] {
        let scratch = cache.scratch().unwrap();
        let path = scratch.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        cache.publish(scratch, kind, &id, "about").unwrap();
    }
    (cache, id)
}

fn noted(cache: &Cache) -> Option<String> {
    cache.note::<String>(NOTE).unwrap().map(|it| it.fact)
}

#[test]
fn another_cache_has_the_kernel_and_its_lines_then() {
    let folder = tempfile::tempdir().unwrap();
    let (builder, id) = built(folder.path());
    let place = folder.path().join("store");
    let store = Store::Folder(place.clone());
    let other = cache(folder.path(), "other");
    assert!(!take(NOTE, &store, &other, &Silent).unwrap());
    assert!(lacks(NOTE, &store));
    put(NOTE, &id, &store, &builder).unwrap();
    assert!(!lacks(NOTE, &store));
    // Damaged, and put once more.
    fs::write(place.join(format!("{KIND}-{id}/vmlinux")), "THE KERNEL").unwrap();
    assert!(take(NOTE, &store, &other, &Silent).is_err());
    put(NOTE, &id, &store, &builder).unwrap();
    let url = Store::parse(&crate::store::serve(place)).unwrap();
    for (name, store) in [("other", store), ("by URL", url)] {
        let other = cache(folder.path(), name);
        assert!(take(NOTE, &store, &other, &Silent).unwrap());
        assert_eq!(noted(&other).as_deref(), Some(id.as_str()));
        for kind in KINDS {
            let found = other.find::<String>(kind, &id).unwrap().unwrap();
            assert_eq!(found.about, "about");
        }
        assert!(other.verify(&Silent).unwrap().damaged.is_empty());
    }
}

/// Each is refused with its name, and leaves nothing in the cache.
#[test]
fn what_is_not_the_kernel_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (builder, id) = built(folder.path());
    let other = cache(folder.path(), "other");
    let refused = |change: &dyn Fn(&Path)| {
        let place = tempfile::tempdir_in(folder.path()).unwrap();
        let store = Store::Folder(place.path().to_path_buf());
        put(NOTE, &id, &store, &builder).unwrap();
        change(place.path());
        let error = take(NOTE, &store, &other, &Silent).unwrap_err().to_string();
        assert_eq!(noted(&other), None);
        assert!(
            other.find::<String>(KIND, &id).unwrap().is_none(),
            "{error}"
        );
        error
    };
    let kernel = format!("{KIND}-{id}");
    let in_kernel = |place: &Path, file: &str| place.join(&kernel).join(file);
    let edit = |place: &Path, old: &str, new: &str| {
        let path = in_kernel(place, MANIFEST);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(old), "{text}");
        fs::write(&path, text.replace(old, new)).unwrap();
    };
    let told = refused(&|place| fs::write(in_kernel(place, "vmlinux"), "THE KERNEL").unwrap());
    assert!(told.contains(&kernel) && told.contains("vmlinux"), "{told}");
    let told =
        refused(&|place| fs::write(in_kernel(place, "vmlinux"), "the kernel and more").unwrap());
    assert!(told.contains("has 19 bytes"), "{told}");
    let told = refused(&|place| fs::remove_file(in_kernel(place, "vmlinux")).unwrap());
    assert!(told.ends_with("vmlinux is not there"), "{told}");
    let told = refused(&|place| edit(place, "\"vmlinux\"", "\"../vmlinux\""));
    assert!(
        told.ends_with("a file cannot be called ../vmlinux"),
        "{told}"
    );
    let told = refused(&|place| edit(place, &id, &hex(&Sha256::digest(b"THE KERNEL"))));
    assert!(told.ends_with("it has another kernel"), "{told}");
    let told = refused(&|place| edit(place, "10", "2000000000"));
    assert!(
        told.ends_with("1 files of 2000000000 bytes together"),
        "{told}"
    );
    let told = refused(&|place| fs::remove_dir_all(place.join(&kernel)).unwrap());
    assert!(told.ends_with(&format!("{kernel} is not there")), "{told}");
    let told = refused(&|place| fs::write(place.join("built-1.json"), "\"../../etc\"").unwrap());
    assert!(told.ends_with("it names no kernel"), "{told}");
}
