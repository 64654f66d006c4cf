//! Which line of the source each instruction of a kernel comes from.
//!
//! The lines are read from the kernel's DWARF when the kernel enters the cache (`dwarf`). They are
//! kept beside it (`kept`) as a compressed table, because DWARF is twenty times as large and slow
//! to read:
//!
//! ```text
//! magic   8 bytes, with the version of this layout
//! count   u32, number of rows
//! rows    count times, by address: address u64, file u32, line u32, copy u32, flags u32
//! files   UTF-8, one a line; the first is file 0
//! ```

mod copies;
mod dwarf;
mod kept;
mod programs;
mod row;

use std::collections::{BTreeMap, BTreeSet};

use super::symbols::Symbols;
pub(crate) use kept::{KIND, keep};
pub use kept::{KeptLines, of_interest};
use row::{END, ROW, Row, STATEMENT};

/// What the user can do if a kernel has no lines.
pub const NO_LINES: &str = "the kernel has no debug information, or it is compressed; `--source debian --config dwarf` builds one that has";

/// Why a source line has no address in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum LineError {
    /// No such file.
    #[error("the kernel has no code of `{0}`: name a source file as it is named in its tree")]
    NoFile(String),
    /// Several files have this name.
    #[error("the kernel has several files `{file}`: {}", found.join(", "))]
    ManyFiles { file: String, found: Vec<String> },
    /// No instruction comes from this line.
    #[error("{file}:{line} has no code, lines near it that have: {}", listed(near))]
    NoCode {
        file: String,
        line: u32,
        near: Vec<u32>,
    },
}

fn listed(lines: &[u32]) -> String {
    let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
    lines.join(" and ")
}

/// The lines of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lines {
    /// By address. Of several rows with one address the last one counts.
    rows: Vec<Row>,
    files: Vec<String>,
}

const MAGIC: &[u8; 8] = b"ullines\x01";

impl Lines {
    /// The lines of a vmlinux; `None` if it has no DWARF that can be read.
    #[must_use]
    pub fn from_elf(vmlinux: &[u8]) -> Option<Self> {
        let (rows, files) = dwarf::read(vmlinux).ok()?;
        (!rows.is_empty()).then_some(Self { rows, files })
    }

    /// The table in its file format; `None` if there are too many rows.
    fn to_bytes(&self) -> Option<Vec<u8>> {
        let count = u32::try_from(self.rows.len()).ok()?;
        let mut bytes = Vec::with_capacity(self.rows.len().saturating_mul(ROW));
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&count.to_le_bytes());
        for row in &self.rows {
            row.write(&mut bytes);
        }
        for file in &self.files {
            bytes.extend_from_slice(file.as_bytes());
            bytes.push(b'\n');
        }
        Some(bytes)
    }

    /// Reads what [`Lines::to_bytes`] wrote; `None` for any other file.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (count, rest) = bytes.strip_prefix(MAGIC)?.split_first_chunk()?;
        let count = usize::try_from(u32::from_le_bytes(*count)).ok()?;
        let (rows, files) = rest.split_at_checked(count.checked_mul(ROW)?)?;
        Some(Self {
            rows: rows.chunks_exact(ROW).filter_map(Row::read).collect(),
            files: str::from_utf8(files)
                .ok()?
                .lines()
                .map(str::to_owned)
                .collect(),
        })
    }

    /// The names of all files. For those in the source tree, the path below it.
    #[must_use]
    pub fn files(&self) -> &[String] {
        &self.files
    }

    /// The lines that the instruction at `address` comes from: its own line, and lines that begin
    /// there and of which no instruction is left.
    #[must_use]
    pub fn at(&self, address: u64) -> Vec<(&str, u32)> {
        let end = self.rows.partition_point(|row| row.address <= address);
        let known = self.rows.get(..end).unwrap_or_default();
        let Some(last) = known.last().filter(|row| row.flags & END == 0) else {
            return Vec::new();
        };
        let here = known.iter().rev().take_while(|row| row.address == address);
        let begins = here.filter(|row| row.flags & STATEMENT != 0 && row.flags & END == 0);
        let lines: BTreeSet<(u32, u32)> = [last]
            .into_iter()
            .chain(begins)
            .filter(|row| row.line != 0)
            .map(|row| (row.file, row.line))
            .collect();
        let named = |(file, line)| Some((self.name(file)?, line));
        lines.into_iter().filter_map(named).collect()
    }

    /// The lines of a file that have code.
    #[must_use]
    pub fn with_code(&self, file: &str) -> BTreeSet<u32> {
        self.statements(file).map(|row| row.line).collect()
    }

    /// The addresses at which a source line begins: one for each copy of its function.
    ///
    /// # Errors
    /// [`LineError`].
    pub fn place(&self, file: &str, line: u32, symbols: &Symbols) -> Result<Vec<u64>, LineError> {
        let file = self.file(file)?;
        let mut copies: BTreeMap<u32, (bool, u64)> = BTreeMap::new();
        for row in self.statements(file).filter(|row| row.line == line) {
            // The compiler moves seldom executed code away from its function, maybe before it.
            let function = symbols.resolve(row.address);
            let apart = function.is_some_and(|(name, _)| name.contains(".cold"));
            let first = copies.entry(row.copy).or_insert((apart, row.address));
            *first = (*first).min((apart, row.address));
        }
        if copies.is_empty() {
            let lines = self.with_code(file);
            let near = [lines.range(..line).next_back(), lines.range(line..).next()];
            return Err(LineError::NoCode {
                file: file.to_owned(),
                line,
                near: near.into_iter().flatten().copied().collect(),
            });
        }
        let addresses: BTreeSet<u64> = copies.values().map(|(_, address)| *address).collect();
        Ok(addresses.into_iter().collect())
    }

    /// The only file that has this name, or whose path ends with it.
    fn file(&self, asked: &str) -> Result<&str, LineError> {
        if let Some(file) = self.files.iter().find(|file| *file == asked) {
            return Ok(file);
        }
        let below = |file: &&String| {
            let folder = file.strip_suffix(asked);
            folder.is_some_and(|folder| folder.ends_with('/'))
        };
        let found: Vec<&String> = self.files.iter().filter(below).collect();
        match found.as_slice() {
            [] => Err(LineError::NoFile(asked.to_owned())),
            [file] => Ok(file),
            many => Err(LineError::ManyFiles {
                file: asked.to_owned(),
                found: many.iter().map(|file| (*file).clone()).collect(),
            }),
        }
    }

    /// The rows of a file at which a debugger would stop.
    fn statements(&self, file: &str) -> impl Iterator<Item = &Row> {
        let number = self.files.iter().position(|it| it == file);
        let number = number.and_then(|it| u32::try_from(it).ok());
        self.rows.iter().filter(move |row| {
            Some(row.file) == number && row.line != 0 && row.flags & (STATEMENT | END) == STATEMENT
        })
    }

    fn name(&self, file: u32) -> Option<&str> {
        Some(self.files.get(usize::try_from(file).ok()?)?)
    }
}

#[cfg(test)]
mod tests;
