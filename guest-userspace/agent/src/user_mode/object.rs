//! The ELF object that the loader takes: code, maps and relocations, as a compiler would write them.

use object::write::{Object, Relocation, Symbol, SymbolSection};
use object::{
    Architecture, BinaryFormat, Endianness, RelocationFlags, SectionKind, SymbolFlags, SymbolKind,
    SymbolScope, elf,
};

use super::asm::Code;
use super::kernel::LICENSE;

/// A map, as `struct bpf_map_def` says it.
#[derive(Debug, Clone, Copy)]
pub struct MapDefinition {
    /// Its symbol.
    pub name: &'static str,
    /// `enum bpf_map_type`.
    pub kind: u32,
    /// Bytes of a key.
    pub key: u32,
    /// Bytes of a value.
    pub value: u32,
    /// Most entries; of a ring buffer its bytes.
    pub entries: u32,
    /// `BPF_F_*`.
    pub flags: u32,
}

impl MapDefinition {
    /// With id and pinning, which are 0.
    fn bytes(&self) -> Vec<u8> {
        let words = [
            self.kind,
            self.key,
            self.value,
            self.entries,
            self.flags,
            0,
            0,
        ];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}

/// The symbol of the program.
pub const PROGRAM: &str = "unwind_request";

/// An object with one program for tracepoints.
///
/// # Errors
/// What the writer says.
pub fn object(code: &Code, maps: &[MapDefinition]) -> Result<Vec<u8>, object::write::Error> {
    let mut file = Object::new(BinaryFormat::Elf, Architecture::Bpf, Endianness::Little);
    let mut section = |name: &[u8], kind| file.add_section(Vec::new(), name.to_vec(), kind);
    let text = section(b"tracepoint", SectionKind::Text);
    let definitions = section(b"maps", SectionKind::Data);
    let license = section(b"license", SectionKind::Data);
    // Helpers and kernel functions for tracing are for programs under the GPL. This one is under
    // both licences of the kernel's own examples.
    file.append_section_data(license, LICENSE, 1);
    file.append_section_data(text, &code.bytes, 8);
    let symbol = |name: &str, value, size, kind, section| Symbol {
        name: name.as_bytes().to_vec(),
        value,
        size,
        kind,
        scope: SymbolScope::Dynamic,
        weak: false,
        section: SymbolSection::Section(section),
        flags: SymbolFlags::None,
    };
    file.add_symbol(symbol(
        PROGRAM,
        0,
        code.bytes.len() as u64,
        SymbolKind::Text,
        text,
    ));
    for map in maps {
        let bytes = map.bytes();
        let at = file.append_section_data(definitions, &bytes, 4);
        let size = bytes.len() as u64;
        let id = file.add_symbol(symbol(map.name, at, size, SymbolKind::Data, definitions));
        for (offset, _) in code.maps.iter().filter(|(_, name)| *name == map.name) {
            let relocation = Relocation {
                offset: *offset,
                symbol: id,
                addend: 0,
                flags: RelocationFlags::Elf {
                    r_type: elf::R_BPF_64_64,
                },
            };
            file.add_relocation(text, relocation)?;
        }
    }
    file.write()
}
