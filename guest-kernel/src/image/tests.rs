//! What the module above promises.

use proptest::prelude::*;

use super::*;
use crate::image::fixtures::{self, Packing, bzimage, elf, pack};

#[test]
fn an_elf_is_taken_as_it_is() {
    let kernel = elf(b"content");
    assert!(matches!(vmlinux(&kernel), Ok(Cow::Borrowed(out)) if out == kernel));
}

#[test]
fn every_compression_is_undone() {
    // Calls, so that the branch filter has something to change.
    let code: Vec<u8> = (0..2000_u32)
        .flat_map(|n| [0xe8].into_iter().chain((n * 5).to_le_bytes()))
        .collect();
    let kernel = elf(&code);
    for packing in [Packing::Zstd, Packing::Xz, Packing::Gzip] {
        let image = bzimage(&pack(packing, &kernel));
        assert_eq!(vmlinux(&image).unwrap(), kernel, "{packing:?}");
    }
}

#[test]
fn says_what_is_wrong() {
    let kernel = elf(b"content");
    let good = bzimage(&pack(Packing::Zstd, &kernel));
    let changed = |at: usize, bytes: &[u8]| {
        let mut image = good.clone();
        image[at..at + bytes.len()].copy_from_slice(bytes);
        vmlinux(&image).map(|_| ()).unwrap_err()
    };
    assert_eq!(vmlinux(b""), Err(ImageError::Unknown));
    assert_eq!(vmlinux(b"#!/bin/sh\n"), Err(ImageError::Unknown));
    assert_eq!(
        vmlinux(&good[..0x206]),
        Err(ImageError::Header("it is cut short"))
    );
    assert_eq!(changed(0x1fe, &[0, 0]), ImageError::Unknown);
    assert_eq!(
        changed(0x206, &[7, 2]),
        ImageError::Protocol { major: 2, minor: 7 }
    );
    assert_eq!(
        changed(0x248, &[0xff; 4]),
        ImageError::Header("its payload lies outside the file")
    );
    assert_eq!(
        changed(0x24c, &[0xff; 4]),
        ImageError::Header("its payload lies outside the file")
    );
    assert_eq!(
        changed(0x24c, &[0; 4]),
        ImageError::Header("its payload is empty")
    );
    assert_eq!(changed(0x410, b"BZh9"), ImageError::Compression);
    let size_at = good.len() - b"more code".len() - 4;
    assert!(matches!(
        changed(size_at, &[1, 0, 0, 0]),
        ImageError::Payload(_)
    ));
    assert_eq!(
        changed(size_at, &[0xff; 4]),
        ImageError::Header("its payload is too large")
    );
}

#[test]
fn an_elf_of_another_kind_is_no_kernel() {
    let with = |at: usize, byte: u8| {
        let mut kernel = elf(b"content");
        kernel[at] = byte;
        vmlinux(&kernel).map(|_| ()).unwrap_err().to_string()
    };
    assert!(with(4, 1).contains("64-bit"));
    assert!(with(18, 183).contains("another machine"));
    assert!(with(16, 1).contains("object file"));
    assert!(with(56, 0).contains("nothing to load"));
    assert!(with(39, 0x7f).contains("outside the file"));
    assert!(vmlinux(b"\x7fELF").is_err());
}

#[test]
fn finds_the_release_behind_the_format_string() {
    let data = fixtures::kallsyms(fixtures::Layout::Relative, &fixtures::functions(3));
    assert_eq!(release(&data), Some("7.2.0-test"));
    assert_eq!(release(b"Linux version "), None);
    assert_eq!(release(b"Linux version 7.2"), None);
}

#[test]
fn finds_the_configuration() {
    let mut data = b"data IKCFG_ST".to_vec();
    data.extend(pack(Packing::Gzip, b"CONFIG_SMP=y\n"));
    data.extend(b"IKCFG_ED");
    assert_eq!(config(&data).as_deref(), Some("CONFIG_SMP=y\n"));
    assert_eq!(config(b"IKCFG_ST\x1f\x8bnonsense"), None);
}

#[test]
fn a_note_is_the_pvh_entry() {
    // One PT_NOTE in place of the PT_LOAD.
    let kernel = |kind: u32, name: &[u8; 4]| {
        let mut content = Vec::new();
        content.extend(4_u32.to_le_bytes());
        content.extend(4_u32.to_le_bytes());
        content.extend(kind.to_le_bytes());
        content.extend(name);
        content.extend(0x100_0000_u32.to_le_bytes());
        let mut kernel = elf(&content);
        kernel[64] = 4;
        kernel[112..120].copy_from_slice(&4_u64.to_le_bytes());
        kernel
    };
    assert!(has_pvh_entry(&kernel(18, b"Xen\0")));
    assert!(!has_pvh_entry(&kernel(17, b"Xen\0")));
    assert!(!has_pvh_entry(&kernel(18, b"GNU\0")));
    assert!(!has_pvh_entry(b"nonsense"));
}

#[test]
fn what_is_not_loaded_is_not_kept() {
    let lean = elf(b"content");
    let mut built = lean.clone();
    built.extend([1; 1000]);
    built[0x28] = 1;
    built[0x3c..0x40].fill(2);
    assert_eq!(without_sections(&built), lean);
    assert_eq!(without_sections(&lean), lean);
    assert!(vmlinux(&without_sections(&built)).is_ok());
    assert_eq!(without_sections(b"nonsense"), &b"nonsense"[..]);
    // A segment that goes beyond the file.
    built[64 + 32..64 + 40].fill(0x7f);
    assert_eq!(without_sections(&built).len(), built.len());
}

proptest! {
    #[test]
    fn any_bytes_give_an_error(bytes in prop::collection::vec(any::<u8>(), 0..2048)) {
        prop_assert!(vmlinux(&bytes).is_err());
        let _ = (release(&bytes), config(&bytes), has_pvh_entry(&bytes));
    }

    /// Whatever is changed in a good image, the outcome is an error or an ELF.
    #[test]
    fn a_damaged_image_gives_an_error_or_a_kernel(
        packing in prop::sample::select(vec![Packing::Zstd, Packing::Xz, Packing::Gzip]),
        changes in prop::collection::vec((0..0x500_usize, any::<u8>()), 1..8),
        cut in 0..0x600_usize,
    ) {
        let mut image = bzimage(&pack(packing, &elf(&[7; 4096])));
        for (at, byte) in changes {
            if let Some(place) = image.get_mut(at) {
                *place = byte;
            }
        }
        image.truncate(image.len().saturating_sub(cut.saturating_sub(0x500)));
        if let Ok(out) = vmlinux(&image) {
            prop_assert!(out.starts_with(b"\x7fELF"));
        }
    }

    #[test]
    fn a_damaged_elf_never_panics(changes in prop::collection::vec((0..128_usize, any::<u8>()), 1..6)) {
        let mut kernel = elf(b"content");
        for (at, byte) in changes {
            kernel[at] = byte;
        }
        let _ = (vmlinux(&kernel).is_ok(), has_pvh_entry(&kernel));
        prop_assert!(without_sections(&kernel).len() <= kernel.len());
    }
}
