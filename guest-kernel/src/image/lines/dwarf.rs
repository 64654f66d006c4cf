//! From DWARF to rows: the line programs, and the copy of its function that each row belongs to.

use gimli::{Dwarf, LittleEndian, SectionId};
use object::read::elf::ElfFile64;
use object::{Endianness, Object as _, ObjectSection as _};

use super::copies::Copies;
use super::programs::{Programs, Slice};
use super::row::{END, Row};

/// A file that every kernel has. The part of its path before this is the source tree.
const ROOT_MARK: &str = "/init/main.c";

/// Rows by address, and the names of files, of a vmlinux.
pub(super) fn read(vmlinux: &[u8]) -> Result<(Vec<Row>, Vec<String>), Unreadable> {
    let elf = ElfFile64::<Endianness>::parse(vmlinux)?;
    let dwarf = Dwarf::load(|id: SectionId| {
        let section = elf.section_by_name(id.name());
        let plain = section.filter(|it| {
            let range = it.compressed_file_range();
            range.is_ok_and(|range| range.format == object::CompressionFormat::None)
        });
        let data = plain.map(|it| it.data()).transpose();
        data.map(|it| Slice::new(it.unwrap_or_default(), LittleEndian))
    })?;
    let mut table = Programs::default();
    table.read(&dwarf)?;
    let mut copies = Copies::default();
    copies.read(&dwarf, &table.of_program);
    let mut rows = table.rows;
    // At one address, ends go before begins; apart from that, the program's order is kept.
    rows.sort_by_key(|row| (row.address, row.flags & END == 0));
    copies.mark(&mut rows);
    Ok((rows, below_tree(table.files)))
}

/// Why there are no lines.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreadable {
    #[error(transparent)]
    Elf(#[from] object::Error),
    #[error(transparent)]
    Dwarf(#[from] gimli::Error),
}

/// Removes the path of the source tree from the names of files in it.
fn below_tree(files: Vec<String>) -> Vec<String> {
    let root = files.iter().find_map(|file| file.strip_suffix(ROOT_MARK));
    let Some(root) = root.map(|root| format!("{root}/")) else {
        return files;
    };
    let short = |file: &String| file.strip_prefix(&root).unwrap_or(file).to_owned();
    files.iter().map(short).collect()
}
