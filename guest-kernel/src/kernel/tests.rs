//! What the module above promises.

use super::fetch::spec_note;
use super::*;
use crate::image::fixtures::{LAYOUTS, Packing, bzimage, elf, functions, kallsyms, pack};
use crate::progress::Silent;

fn cache() -> (tempfile::TempDir, Cache) {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(Some(folder.path().join("cache"))).unwrap();
    (folder, cache)
}

fn vmlinux(functions_in_it: u64) -> Vec<u8> {
    elf(&kallsyms(LAYOUTS[2], &functions(functions_in_it)))
}

#[test]
fn a_file_becomes_a_kernel() {
    let (folder, cache) = cache();
    let file = folder.path().join("bzImage");
    fs::write(&file, bzimage(&pack(Packing::Xz, &vmlinux(9)))).unwrap();
    let spec = KernelSpec::Path(file.clone());
    assert_eq!(path(&spec, &cache).unwrap(), None);

    let image = fetch(&spec, &cache, &Silent).unwrap();
    assert_eq!(image.release, "7.2.0-test");
    assert_eq!(image.origin, Origin::Path(file.clone()));
    assert_eq!(image.config, None);
    assert_eq!(image.id, hex(&Sha256::digest(vmlinux(9))));
    assert_eq!(fs::read(&image.vmlinux).unwrap(), vmlinux(9));
    let symbols = Symbols::load(&image.symbols).unwrap();
    assert!(symbols.address("f_9").is_some());

    // Known now, by the file and in the list; and the same kernel in another form.
    assert_eq!(fetch(&spec, &cache, &Silent).unwrap(), image);
    assert_eq!(path(&spec, &cache).unwrap().as_ref(), Some(&image));
    assert_eq!(list(&cache).unwrap(), std::slice::from_ref(&image));
    let other = folder.path().join("vmlinux");
    fs::write(&other, vmlinux(9)).unwrap();
    let same = fetch(&KernelSpec::Path(other), &cache, &Silent).unwrap();
    assert_eq!((same.id, same.vmlinux), (image.id.clone(), image.vmlinux));

    // Changed in place: another kernel.
    fs::write(&file, vmlinux(10)).unwrap();
    assert_ne!(fetch(&spec, &cache, &Silent).unwrap().id, image.id);
    assert_eq!(list(&cache).unwrap().len(), 2);
}

#[test]
fn what_is_no_kernel_leaves_nothing() {
    let (folder, cache) = cache();
    let file = folder.path().join("file");
    let error = |content: &[u8]| {
        fs::write(&file, content).unwrap();
        fetch(&KernelSpec::Path(file.clone()), &cache, &Silent)
            .unwrap_err()
            .to_string()
    };
    assert!(
        error(b"#!/bin/sh").ends_with("file: not a kernel: neither an ELF vmlinux nor a bzImage")
    );
    assert!(error(&elf(b"no symbols")).contains("cannot find the kernel's symbols"));
    let spec = KernelSpec::Path(folder.path().join("missing"));
    let missing = fetch(&spec, &cache, &Silent).unwrap_err().to_string();
    assert!(
        missing.contains("cannot read") && missing.contains("missing"),
        "{missing}"
    );
    let spec = KernelSpec::Path(folder.path().to_path_buf());
    let directory = fetch(&spec, &cache, &Silent).unwrap_err().to_string();
    assert!(directory.contains("not a regular file"), "{directory}");
    assert_eq!(list(&cache).unwrap(), []);
    assert_eq!(fs::read_dir(cache.root().join("tmp")).unwrap().count(), 0);
}

#[test]
fn a_kernel_that_was_looked_up_today_needs_no_archive() {
    let (folder, cache) = cache();
    let file = folder.path().join("vmlinux");
    fs::write(&file, vmlinux(3)).unwrap();
    let image = fetch(&KernelSpec::Path(file), &cache, &Silent).unwrap();
    cache
        .set_note(&spec_note(&KernelSpec::stock()), &image.id)
        .unwrap();
    let stock = fetch(&KernelSpec::stock(), &cache, &Silent).unwrap();
    assert_eq!(stock.id, image.id);
    assert!(!cache.root().join("apt").exists(), "apt was asked");
    assert_eq!(
        path(&KernelSpec::stock(), &cache)
            .unwrap()
            .map(|image| image.id),
        Some(image.id)
    );
    assert_eq!(path(&"stock:7.0".parse().unwrap(), &cache).unwrap(), None);
}
