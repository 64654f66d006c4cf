//! Symbols as found in an image, and the ELF symbol table.

use std::cmp::Reverse;

use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol, SymbolKind};

/// One symbol as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Symbol {
    pub address: u64,
    /// Letter as of nm(1): `T` global text, `t` local text, ...
    pub kind: u8,
    pub name: String,
}

/// A loaded part of the image.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment<'a> {
    /// Virtual address, as linked.
    pub address: u64,
    /// Content of the file. The rest in memory is zero.
    pub data: &'a [u8],
    /// Size in memory.
    pub size: u64,
}

/// The order of symbols at one address: text first, then global ones, then names that do not look
/// like a mark of the linker script (`_stext`), then by length, then by alphabet.
pub(super) fn rank(symbol: &Symbol) -> (Reverse<bool>, Reverse<bool>, bool, usize, &str) {
    let text = matches!(symbol.kind, b'T' | b't' | b'W' | b'w');
    let global = symbol.kind.is_ascii_uppercase();
    (
        Reverse(text),
        Reverse(global),
        symbol.name.starts_with('_'),
        symbol.name.len(),
        &symbol.name,
    )
}

/// The loaded parts of an image.
pub(super) fn segments<'a>(
    file: &ElfFile64<'a, Endianness>,
    vmlinux: &'a [u8],
) -> object::Result<Vec<Segment<'a>>> {
    let endian = file.endian();
    let header = file.elf_header();
    let headers = header.program_headers(endian, vmlinux)?;
    let mut segments = Vec::new();
    for header in headers {
        // Old kernels have a segment for the per-CPU variables, linked at zero.
        if header.p_type(endian) == object::elf::PT_LOAD && header.p_vaddr(endian) != 0 {
            segments.push(Segment {
                address: header.p_vaddr(endian),
                data: header.data(endian, vmlinux).unwrap_or_default(),
                size: header.p_memsz(endian),
            });
        }
    }
    Ok(segments)
}

/// The named symbols of the ELF symbol table.
pub(super) fn symtab(file: &ElfFile64<'_, Endianness>) -> Vec<Symbol> {
    file.symbols()
        .filter(|symbol| !symbol.is_undefined())
        .filter(|symbol| !matches!(symbol.kind(), SymbolKind::File | SymbolKind::Section))
        .filter_map(|symbol| {
            let name = symbol.name().ok().filter(|name| !name.is_empty())?;
            let letter = match symbol.kind() {
                SymbolKind::Text => b't',
                _ if symbol.is_weak() => b'w',
                SymbolKind::Data => b'd',
                _ => b'r',
            };
            Some(Symbol {
                address: symbol.address(),
                kind: if symbol.is_global() {
                    letter.to_ascii_uppercase()
                } else {
                    letter
                },
                name: name.to_owned(),
            })
        })
        .collect()
}
