//! A kernel's symbols: names to addresses and back.
//!
//! They come from the ELF symbol table of a vmlinux that has one, else from the kallsyms tables
//! in the image (`kallsyms`). All addresses are as linked, which is where the kernel
//! is when it runs without KASLR (`nokaslr`).

mod found;
mod kallsyms;
mod similar;
mod table;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use object::Endianness;
use object::read::elf::ElfFile64;

#[cfg(test)]
pub(crate) use found::{Segment, Symbol};
pub use kallsyms::KallsymsError;
use table::Table;

/// Why a kernel's symbols cannot be read.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum SymbolsError {
    /// The image is not a valid ELF file.
    #[error("cannot read the kernel's symbols: {0}")]
    Elf(object::Error),
    /// The image is stripped and has no kallsyms.
    #[error(
        "cannot find the kernel's symbols: it has no .symtab, and {0}; \
         give the vmlinux of its build instead"
    )]
    Kallsyms(#[from] KallsymsError),
    /// More symbols, or longer names, than the file can hold.
    #[error("cannot keep the kernel's symbols: there are too many")]
    TooMany,
    /// The symbol file has another format or version.
    #[error("{} is no symbol file of this version: remove it, it will be made again", .0.display())]
    Damaged(PathBuf),
    /// The symbol file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// A kernel's symbols.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbols(Table);

impl Symbols {
    /// Reads the symbols of a vmlinux: from its `.symtab`, else from its kallsyms.
    pub fn from_elf(vmlinux: &[u8]) -> Result<Self, SymbolsError> {
        let file = ElfFile64::<Endianness>::parse(vmlinux).map_err(SymbolsError::Elf)?;
        let segments = found::segments(&file, vmlinux).map_err(SymbolsError::Elf)?;
        let mut symbols = found::symtab(&file);
        if symbols.is_empty() {
            symbols = kallsyms::decode(&segments)?;
        }
        let start = segments.iter().map(|segment| segment.address).min();
        let end = segments
            .iter()
            .map(|segment| segment.address.saturating_add(segment.size))
            .max();
        Table::build(symbols, start.unwrap_or(0), end.unwrap_or(0))
            .map(Self)
            .ok_or(SymbolsError::TooMany)
    }

    /// Reads a file that contains [`Symbols::as_bytes`].
    pub fn load(path: &Path) -> Result<Self, SymbolsError> {
        let bytes = fs::read(path).map_err(|source| SymbolsError::Io {
            path: path.to_path_buf(),
            source,
        })?;
        Table::from_bytes(bytes)
            .map(Self)
            .ok_or_else(|| SymbolsError::Damaged(path.to_path_buf()))
    }

    /// The form in which the symbols are kept.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Number of symbols.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.count()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.count() == 0
    }

    /// Address of a symbol, as linked. Of several local ones with this name, the lowest.
    #[must_use]
    pub fn address(&self, name: &str) -> Option<u64> {
        self.0
            .number_of(name)
            .and_then(|number| self.0.address_at(number))
    }

    /// Addresses of all symbols of this name, rising.
    pub fn addresses(&self, name: &str) -> impl Iterator<Item = u64> {
        let numbers = self.0.numbers_of(name);
        numbers.filter_map(|number| self.0.address_at(number))
    }

    /// Bytes from the symbol to the next one at a higher address, or to the end of the image.
    #[must_use]
    pub fn size(&self, name: &str) -> Option<u64> {
        let address = self.address(name)?;
        let next = self.0.first_above(address);
        let end = self.0.address_at(next).or(self.0.image_end())?;
        // After the last per-CPU symbol of an old kernel comes another part of the address space.
        let start = self.0.image_start()?;
        if address < start && end >= start {
            return None;
        }
        end.checked_sub(address)
    }

    /// The symbol that `address` belongs to, and the offset from its start. Of several symbols at
    /// one address, text goes before data and global before local. Addresses outside the kernel
    /// image have none: user addresses, modules, per-CPU offsets.
    #[must_use]
    pub fn resolve(&self, address: u64) -> Option<(&str, u64)> {
        if address < self.0.image_start()? || address >= self.0.image_end()? {
            return None;
        }
        let start = self
            .0
            .address_at(self.0.first_above(address).checked_sub(1)?)?;
        // Symbols of one address stand best first.
        let best = self.0.first_at_or_above(start);
        let offset = address.checked_sub(start)?;
        (start >= self.0.image_start()?).then_some((self.0.name_at(best)?, offset))
    }

    /// The offset of a per-CPU variable: a CPU's GS base plus this offset (wrapping) is the address
    /// of that CPU's copy.
    ///
    /// Before Linux 6.15 x86-64 linked per-CPU variables at zero and GS based on the CPU's
    /// area; since then they are linked where their initial values lie and GS holds the distance
    /// to the CPU's area. In both layouts the offset is the symbol's address, which must lie between
    /// `__per_cpu_start` and `__per_cpu_end`.
    #[must_use]
    pub fn percpu_offset(&self, name: &str) -> Option<u64> {
        let address = self.address(name)?;
        let section = self.address("__per_cpu_start")?..self.address("__per_cpu_end")?;
        section.contains(&address).then_some(address)
    }

    /// [`Symbols::percpu_offset`] of the pointer to the running task: `current_task`, or (6.2 to
    /// 6.14) the first member of `pcpu_hot`.
    #[must_use]
    pub fn current_task_offset(&self) -> Option<u64> {
        self.percpu_offset("current_task")
            .or_else(|| self.percpu_offset("pcpu_hot"))
    }

    /// Up to five similar names, the most similar first.
    #[must_use]
    pub fn similar(&self, name: &str) -> Vec<String> {
        let wanted = name.to_ascii_lowercase();
        let mut found: Vec<(usize, usize, &str)> = (0..self.0.count())
            .filter_map(|number| {
                let other = self.0.name_at(number)?;
                let distance = similar::distance(&wanted, &other.to_ascii_lowercase())?;
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
        (0..self.0.count()).filter_map(|number| {
            Some((
                self.0.address_at(number)?,
                char::from(self.0.kind_at(number)?),
                self.0.name_at(number)?,
            ))
        })
    }
}

#[cfg(test)]
mod tests;
