//! The line programs of DWARF: rows, and the names of files.
//!
//! Each program is read once, regardless of the units: the units of hostile DWARF could all name the
//! same one. Damage ends the reading of that program.

use std::collections::HashMap;

use gimli::{Dwarf, EndianSlice, LittleEndian, Reader as _};

use super::row::{END, Row, STATEMENT};

pub(super) type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// A bound for hostile files.
const MAX_ROWS: usize = 16 << 20;

/// For each line program, by its offset: our numbers of its files, by the program's own numbers.
pub(super) type FilesOfPrograms = HashMap<usize, Vec<u32>>;

/// The content of all line programs.
#[derive(Default)]
pub(super) struct Programs {
    pub rows: Vec<Row>,
    pub files: Vec<String>,
    by_name: HashMap<String, u32>,
    pub of_program: FilesOfPrograms,
}

impl Programs {
    /// Reads all line programs.
    pub fn read(&mut self, dwarf: &Dwarf<Slice<'_>>) -> Result<(), gimli::Error> {
        let mut offset = 0;
        let length = gimli::Section::reader(&dwarf.debug_line).len();
        while offset < length && self.rows.len() < MAX_ROWS {
            let at = gimli::DebugLineOffset(offset);
            let program = dwarf.debug_line.program(at, 8, None, None)?;
            let header = program.header();
            let initial = usize::from(header.format().initial_length_size());
            let whole = header.unit_length().checked_add(initial);
            let next = whole.and_then(|whole| offset.checked_add(whole));
            let files = self.files_of(dwarf, header);
            self.rows_of(program.rows(), &files);
            self.of_program.insert(offset, files);
            offset = next.unwrap_or(length);
        }
        Ok(())
    }

    fn files_of(
        &mut self,
        dwarf: &Dwarf<Slice<'_>>,
        header: &gimli::LineProgramHeader<Slice<'_>>,
    ) -> Vec<u32> {
        let text = |value| {
            let text = match value {
                gimli::AttributeValue::String(text) => Some(text),
                gimli::AttributeValue::DebugStrRef(at) => dwarf.debug_str.get_str(at).ok(),
                gimli::AttributeValue::DebugLineStrRef(at) => dwarf.line_string(at).ok(),
                _ => None,
            };
            text.map(|text| String::from_utf8_lossy(text.slice()).into_owned())
        };
        // Up to version 4 the tables begin with number 1.
        let compiled_in = header.directory(0).and_then(text).unwrap_or_default();
        let first = u64::from(header.version() <= 4);
        let mut files = vec![u32::MAX; usize::from(header.version() <= 4)];
        for number in first.. {
            let Some(file) = header.file(number) else {
                break;
            };
            let name = text(file.path_name()).unwrap_or_default();
            let folder = file.directory(header).and_then(text).unwrap_or_default();
            // A folder can be relative to the one where the compiler ran.
            let path = join(&join(&compiled_in, &folder), &name);
            files.push(self.number(path));
        }
        files
    }

    fn number(&mut self, path: String) -> u32 {
        let next = u32::try_from(self.files.len()).unwrap_or(u32::MAX);
        *self.by_name.entry(path).or_insert_with_key(|path| {
            self.files.push(path.clone());
            next
        })
    }

    fn rows_of<'a>(
        &mut self,
        mut program: gimli::LineRows<Slice<'a>, gimli::IncompleteLineProgram<Slice<'a>>>,
        files: &[u32],
    ) {
        while let Ok(Some((_, row))) = program.next_row() {
            let file = usize::try_from(row.file_index()).ok();
            let line = row.line().and_then(|line| u32::try_from(line.get()).ok());
            let mut flags = 0;
            if row.is_stmt() {
                flags |= STATEMENT;
            }
            if row.end_sequence() {
                flags |= END;
            }
            self.rows.push(Row {
                address: row.address(),
                file: file
                    .and_then(|it| files.get(it))
                    .copied()
                    .unwrap_or(u32::MAX),
                line: line.unwrap_or(0),
                copy: 0,
                flags,
            });
            if self.rows.len() >= MAX_ROWS {
                return;
            }
        }
    }
}

/// The path of a file, without `.` and `..`.
fn join(folder: &str, name: &str) -> String {
    let whole = if name.starts_with('/') || folder.is_empty() {
        name.to_owned()
    } else {
        format!("{folder}/{name}")
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in whole.split('/').filter(|part| !matches!(*part, "" | ".")) {
        match (part, parts.last()) {
            ("..", Some(last)) if *last != ".." => {
                parts.pop();
            }
            _ => parts.push(part),
        }
    }
    let root = if whole.starts_with('/') { "/" } else { "" };
    // The table holds one name per line.
    format!("{root}{}", parts.join("/")).replace(['\n', '\r'], "?")
}
