//! A kernel's symbols: names to addresses and back.
//!
//! They come from the ELF symbol table of a vmlinux that has one, else from the kallsyms tables
//! in the image ([`crate::kallsyms`]). All addresses are as linked, which is where the kernel
//! is when it runs without KASLR (`nokaslr`).
//!
//! Kept beside the kernel as one file that is read as it is, without building anything:
//!
//! ```text
//! magic     8 bytes, with the version of this layout
//! start     u64   lowest address of the image
//! end       u64   first address above it
//! count     u32, number of symbols
//! length    u32, bytes of all names
//! addresses u64 x count, rising; the best name of an address first
//! by name   u32 x count, numbers of symbols in the order of their names
//! ends      u32 x count, where each name ends in the names
//! kinds     u8 x count, letters as of nm(1)
//! names     UTF-8, one after the other
//! ```

use std::cmp::Reverse;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol, SymbolKind};

use crate::kallsyms::{self, KallsymsError, Segment};

/// Why a kernel's symbols cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SymbolsError {
    /// The image is no ELF file to speak of.
    #[error("cannot read the kernel's symbols: {0}")]
    Elf(object::Error),
    /// Stripped, and without kallsyms.
    #[error(
        "cannot find the kernel's symbols: it has no .symtab, and {0}; \
         give the vmlinux of its build instead"
    )]
    Kallsyms(#[from] KallsymsError),
    /// More symbols, or longer names, than the file can hold.
    #[error("cannot keep the kernel's symbols: there are too many")]
    TooMany,
    /// The kept file is not one of ours, or of another version.
    #[error("{} is no symbol file of this version: remove it, it will be made again", .0.display())]
    Damaged(PathBuf),
    /// The kept file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// One symbol as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Symbol {
    pub address: u64,
    /// Letter as of nm(1): `T` global text, `t` local text, ...
    pub kind: u8,
    pub name: String,
}

/// A kernel's symbols.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbols {
    /// The kept file, whole.
    bytes: Vec<u8>,
    count: usize,
}

const MAGIC: &[u8; 8] = b"ulsyms\x00\x01";
const HEADER: usize = 32;

impl Symbols {
    /// Reads the symbols of a vmlinux: from its `.symtab`, else from its kallsyms.
    pub fn from_elf(vmlinux: &[u8]) -> Result<Self, SymbolsError> {
        let file = ElfFile64::<Endianness>::parse(vmlinux).map_err(SymbolsError::Elf)?;
        let segments = segments(&file, vmlinux)?;
        let mut symbols = symtab(&file);
        if symbols.is_empty() {
            symbols = kallsyms::decode(&segments)?;
        }
        let start = segments.iter().map(|segment| segment.address).min();
        let end = segments
            .iter()
            .map(|segment| segment.address.saturating_add(segment.size))
            .max();
        Self::build(symbols, start.unwrap_or(0), end.unwrap_or(0)).ok_or(SymbolsError::TooMany)
    }

    /// Reads what [`Symbols::as_bytes`] gave, from a file.
    pub fn load(path: &Path) -> Result<Self, SymbolsError> {
        let bytes = fs::read(path).map_err(|source| SymbolsError::Io {
            path: path.to_path_buf(),
            source,
        })?;
        Self::from_bytes(bytes).ok_or_else(|| SymbolsError::Damaged(path.to_path_buf()))
    }

    /// The form in which the symbols are kept.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Number of symbols.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Address of a symbol, as linked. Of several local ones with this name, the lowest.
    #[must_use]
    pub fn address(&self, name: &str) -> Option<u64> {
        self.number_of(name)
            .and_then(|number| self.address_at(number))
    }

    /// Bytes from the symbol to the next one at another address, or to the end of the image.
    #[must_use]
    pub fn size(&self, name: &str) -> Option<u64> {
        let address = self.address(name)?;
        let next = self.first_above(address);
        let end = self.address_at(next).or(self.image_end())?;
        end.checked_sub(address)
    }

    /// The symbol that `address` belongs to, and how far behind its start it is. Of several
    /// at one place, text goes before data and global before local. Nothing outside the kernel
    /// image has one: not user addresses, not modules, not per-CPU offsets.
    #[must_use]
    pub fn resolve(&self, address: u64) -> Option<(&str, u64)> {
        if address < self.image_start()? || address >= self.image_end()? {
            return None;
        }
        let start = self.address_at(self.first_above(address).checked_sub(1)?)?;
        // Symbols of one address stand best first.
        let best = self.first_at_or_above(start);
        let offset = address.checked_sub(start)?;
        (start >= self.image_start()?).then_some((self.name_at(best)?, offset))
    }

    /// What to add, wrapping, to a CPU's GS base for the address of its copy of a per-CPU
    /// variable.
    ///
    /// Before Linux 6.15 x86-64 linked per-CPU variables at zero and GS based on the CPU's
    /// area; since then they are linked where their initial values lie and GS holds the distance
    /// to the CPU's area. Either way the sum is right: this is the symbol's address, checked to
    /// lie between `__per_cpu_start` and `__per_cpu_end`.
    #[must_use]
    pub fn percpu_offset(&self, name: &str) -> Option<u64> {
        let address = self.address(name)?;
        let section = self.address("__per_cpu_start")?..self.address("__per_cpu_end")?;
        section.contains(&address).then_some(address)
    }

    /// [`Symbols::percpu_offset`] of the pointer to the running task, whatever the kernel calls
    /// it: `current_task`, or (6.2 to 6.14) the first member of `pcpu_hot`.
    #[must_use]
    pub fn current_task_offset(&self) -> Option<u64> {
        self.percpu_offset("current_task")
            .or_else(|| self.percpu_offset("pcpu_hot"))
    }

    /// Up to five names that may have been meant, nearest first.
    #[must_use]
    pub fn similar(&self, name: &str) -> Vec<String> {
        let wanted = name.to_ascii_lowercase();
        let mut found: Vec<(usize, usize, &str)> = (0..self.count)
            .filter_map(|number| {
                let other = self.name_at(number)?;
                let distance = distance(&wanted, &other.to_ascii_lowercase())?;
                Some((distance, other.len(), other))
            })
            .collect();
        found.sort_unstable();
        found.dedup();
        found.truncate(5);
        found
            .into_iter()
            .map(|(_, _, name)| name.to_owned())
            .collect()
    }

    /// All symbols in the order of their addresses: address, letter as of nm(1), name.
    pub fn iter(&self) -> impl Iterator<Item = (u64, char, &str)> {
        (0..self.count).filter_map(|number| {
            let kind = *self.part(Part::Kinds)?.get(number)?;
            Some((
                self.address_at(number)?,
                char::from(kind),
                self.name_at(number)?,
            ))
        })
    }

    fn build(mut symbols: Vec<Symbol>, start: u64, end: u64) -> Option<Self> {
        symbols.sort_by(|a, b| (a.address, rank(a)).cmp(&(b.address, rank(b))));
        let count = u32::try_from(symbols.len()).ok()?;
        let length: usize = symbols.iter().map(|symbol| symbol.name.len()).sum();

        let mut by_name: Vec<u32> = (0..count).collect();
        by_name.sort_by_key(|number| {
            let number = usize::try_from(*number).unwrap_or(usize::MAX);
            symbols.get(number).map(|symbol| symbol.name.as_str())
        });

        let mut bytes = Vec::with_capacity(HEADER + symbols.len() * 17 + length);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&start.to_le_bytes());
        bytes.extend_from_slice(&end.to_le_bytes());
        bytes.extend_from_slice(&count.to_le_bytes());
        bytes.extend_from_slice(&u32::try_from(length).ok()?.to_le_bytes());
        for symbol in &symbols {
            bytes.extend_from_slice(&symbol.address.to_le_bytes());
        }
        for number in by_name {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        let mut name_end = 0_u32;
        for symbol in &symbols {
            name_end += u32::try_from(symbol.name.len()).ok()?;
            bytes.extend_from_slice(&name_end.to_le_bytes());
        }
        bytes.extend(symbols.iter().map(|symbol| symbol.kind));
        for symbol in &symbols {
            bytes.extend_from_slice(symbol.name.as_bytes());
        }
        Self::from_bytes(bytes)
    }

    /// Checks only what makes the parts addressable: a damaged file gives wrong or no answers,
    /// but is told by its size in the cache before it comes to that.
    fn from_bytes(bytes: Vec<u8>) -> Option<Self> {
        if !bytes.starts_with(MAGIC) {
            return None;
        }
        let count = usize::try_from(word(&bytes, 24)?).ok()?;
        let length = usize::try_from(word(&bytes, 28)?).ok()?;
        let expected = HEADER
            .checked_add(count.checked_mul(17)?)?
            .checked_add(length)?;
        (bytes.len() == expected).then_some(Self { bytes, count })
    }

    fn part(&self, part: Part) -> Option<&[u8]> {
        let n = self.count;
        let (start, end) = match part {
            Part::Addresses => (0, n * 8),
            Part::ByName => (n * 8, n * 12),
            Part::Ends => (n * 12, n * 16),
            Part::Kinds => (n * 16, n * 17),
            Part::Names => (n * 17, self.bytes.len() - HEADER),
        };
        self.bytes.get(HEADER + start..HEADER + end)
    }

    fn image_start(&self) -> Option<u64> {
        double(&self.bytes, 8)
    }

    fn image_end(&self) -> Option<u64> {
        double(&self.bytes, 16)
    }

    fn address_at(&self, number: usize) -> Option<u64> {
        double(self.part(Part::Addresses)?, number * 8)
    }

    fn name_at(&self, number: usize) -> Option<&str> {
        let ends = self.part(Part::Ends)?;
        let start = match number.checked_sub(1) {
            None => 0,
            Some(before) => word(ends, before * 4)?,
        };
        let range = usize::try_from(start).ok()?..usize::try_from(word(ends, number * 4)?).ok()?;
        str::from_utf8(self.part(Part::Names)?.get(range)?).ok()
    }

    fn number_of(&self, name: &str) -> Option<usize> {
        let by_name = self.part(Part::ByName)?;
        let at = |place: usize| usize::try_from(word(by_name, place * 4)?).ok();
        let place = partition(self.count, |place| {
            at(place).and_then(|number| self.name_at(number)) < Some(name)
        });
        let number = at(place)?;
        (self.name_at(number)? == name).then_some(number)
    }

    fn first_above(&self, address: u64) -> usize {
        partition(self.count, |number| {
            self.address_at(number) <= Some(address)
        })
    }

    fn first_at_or_above(&self, address: u64) -> usize {
        partition(self.count, |number| self.address_at(number) < Some(address))
    }
}

/// The parts of the kept file behind its header.
enum Part {
    Addresses,
    ByName,
    Ends,
    Kinds,
    Names,
}

/// The first number below `count` for which `before` does not hold.
fn partition(count: usize, before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        if before(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// What sorts first of several symbols at one address: text, then global, then a name that does
/// not look like a mark of the linker script (`_stext`), then the shortest, then the alphabet.
fn rank(symbol: &Symbol) -> (Reverse<bool>, Reverse<bool>, bool, usize, &str) {
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

fn segments<'a>(
    file: &ElfFile64<'a, Endianness>,
    vmlinux: &'a [u8],
) -> Result<Vec<Segment<'a>>, SymbolsError> {
    let endian = file.endian();
    let header = file.elf_header();
    let headers = header
        .program_headers(endian, vmlinux)
        .map_err(SymbolsError::Elf)?;
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
fn symtab(file: &ElfFile64<'_, Endianness>) -> Vec<Symbol> {
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

/// How far apart two names are: 0 when one holds the other, else the number of edits, if few.
fn distance(wanted: &str, other: &str) -> Option<usize> {
    if wanted.len() >= 4 && other.contains(wanted) {
        return Some(0);
    }
    let limit = (wanted.len() / 4).clamp(1, 4);
    if wanted.len().abs_diff(other.len()) > limit {
        return None;
    }
    let other = other.as_bytes();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, a) in wanted.bytes().enumerate() {
        let mut diagonal = line;
        let mut left = line + 1;
        let mut best = left;
        for (cell, b) in row.iter_mut().skip(1).zip(other) {
            let above = *cell;
            let cost = (diagonal + usize::from(a != *b))
                .min(above + 1)
                .min(left + 1);
            diagonal = above;
            *cell = cost;
            left = cost;
            best = best.min(cost);
        }
        if best > limit {
            return None;
        }
        if let Some(first) = row.first_mut() {
            *first = line + 1;
        }
    }
    row.last().copied().filter(|distance| *distance <= limit)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn double(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests;
