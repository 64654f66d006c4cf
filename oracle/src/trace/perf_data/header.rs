//! The header of a file, the attributes in it, and the feature sections behind the data.

use super::attr::{Attr, SMALLEST};
use super::{Endian, PerfDataError, shown, slice};
use crate::trace::record::fields::{Fields, text};

/// Attributes of a file (`MAX_NR_ATTRS`, tools/perf/util/header.c).
const MOST_ATTRS: u64 = 64 << 10;
/// Bytes of a section's offset and size.
const SECTION: usize = 16;
/// Bytes of `struct perf_file_header`, and of the header of a pipe.
const FILE_HEADER: u64 = 104;
/// Bytes of `struct perf_pipe_file_header`.
const PIPE_HEADER: u64 = 16;

/// `HEADER_*`, as far as they are read (tools/perf/util/header.h, Linux 7.3).
pub(super) mod feature {
    pub const OSRELEASE: u64 = 4;
    pub const ARCH: u64 = 6;
    pub const NRCPUS: u64 = 7;
    pub const CMDLINE: u64 = 11;
    pub const EVENT_DESC: u64 = 12;
    pub const DIR_FORMAT: u64 = 24;
    /// Bits of the header's map.
    pub const ALL: u64 = 256;
}

/// What the feature sections say.
#[derive(Debug, Default)]
pub(super) struct Features {
    pub release: String,
    pub arch: String,
    pub command: Option<Vec<String>>,
    /// One more than the highest CPU that is present, and the number of those that were on.
    pub cpus: Option<(u32, u32)>,
    /// The names of events, by the number of their attr.
    pub names: Vec<String>,
}

/// A file, up to its records.
#[derive(Debug)]
pub(super) struct Start<'a> {
    pub endian: Endian,
    pub attrs: Vec<Attr>,
    pub features: Features,
    pub data: &'a [u8],
    pub cut: Option<String>,
}

fn damaged(what: impl Into<String>) -> PerfDataError {
    PerfDataError::Damaged(what.into())
}

/// Reads a file up to its records.
pub(super) fn read(bytes: &[u8]) -> Result<Start<'_>, PerfDataError> {
    let endian = match bytes.first_chunk::<8>() {
        Some(b"PERFILE2") => Endian::Little,
        Some(b"2ELIFREP") => Endian::Big,
        _ => return Err(PerfDataError::NotPerfData),
    };
    let mut fields = Fields::new(bytes, endian);
    let mut word = || {
        fields
            .u64()
            .ok_or_else(|| damaged("its header is cut short"))
    };
    let (_magic, size) = (word()?, word()?);
    if size == PIPE_HEADER {
        return Ok(Start {
            endian,
            attrs: Vec::new(),
            features: Features::default(),
            data: slice(bytes, PIPE_HEADER, bytes.len() as u64 - PIPE_HEADER).unwrap_or_default(),
            cut: None,
        });
    }
    if size != FILE_HEADER {
        return Err(damaged(format!("its header says that it has {size} bytes")));
    }
    let attr_size = word()?;
    let (attrs_at, attrs_len) = (word()?, word()?);
    let (data_at, data_len) = (word()?, word()?);
    let _event_types = (word()?, word()?);
    let map = [word()?, word()?, word()?, word()?];

    let attrs = attrs(bytes, endian, attr_size, (attrs_at, attrs_len))?;
    let left = (bytes.len() as u64).saturating_sub(data_at);
    let mut features = Features::default();
    // perf writes the size at its end (`perf_session__read_header`).
    let cut = match data_len {
        0 => Some("perf did not end its file".to_owned()),
        len if len > left => Some("the file is shorter than its header says".to_owned()),
        len => {
            let behind = data_at.saturating_add(len);
            features.read_sections(bytes, endian, behind, map)?;
            None
        }
    };
    let len = if data_len == 0 {
        left
    } else {
        data_len.min(left)
    };
    let data =
        slice(bytes, data_at, len).ok_or_else(|| damaged("its records begin behind its end"))?;
    Ok(Start {
        endian,
        attrs,
        features,
        data,
        cut,
    })
}

fn attrs(
    bytes: &[u8],
    endian: Endian,
    attr_size: u64,
    (at, len): (u64, u64),
) -> Result<Vec<Attr>, PerfDataError> {
    let stride = usize::try_from(attr_size).unwrap_or(usize::MAX);
    let count = len.checked_div(attr_size).unwrap_or(0);
    if stride < SMALLEST + SECTION || count == 0 || count > MOST_ATTRS {
        return Err(damaged(format!("{count} attributes of {attr_size} bytes")));
    }
    let section = slice(bytes, at, len).ok_or_else(|| damaged("its attributes are cut short"))?;
    // Sections that overlap hold more ids than the file.
    let mut room = bytes.len();
    let mut read = |entry: &[u8]| {
        let size = Attr::size(entry, endian).filter(|size| size + SECTION == entry.len())?;
        let (attr, ids) = entry.split_at_checked(size)?;
        let mut ids = Fields::new(ids, endian);
        let (at, len) = (ids.u64()?, ids.u64()?);
        let ids = slice(bytes, at, len).filter(|_| len.is_multiple_of(8))?;
        room = room.checked_sub(ids.len())?;
        Some(Attr {
            ids: Fields::new(ids, endian).words(ids.len())?,
            ..Attr::read(attr, endian)?
        })
    };
    let entries = section.chunks_exact(stride).enumerate();
    entries
        .map(|(at, entry)| {
            read(entry).ok_or_else(|| damaged(format!("attribute {at} makes no sense")))
        })
        .collect()
}

/// `u32 len, char text[len]`.
fn string(fields: &mut Fields<'_>) -> Option<String> {
    let len = usize::try_from(fields.u32()?).ok()?;
    Some(shown(&text(fields.bytes(len)?)))
}

impl Features {
    /// Reads the sections behind the data: a table of offsets and sizes, one for each bit that is set.
    fn read_sections(
        &mut self,
        bytes: &[u8],
        endian: Endian,
        table: u64,
        map: [u64; 4],
    ) -> Result<(), PerfDataError> {
        let table = slice(bytes, table, (bytes.len() as u64).saturating_sub(table));
        let mut table = Fields::new(table.unwrap_or_default(), endian);
        let is_set = |bit: &u64| {
            let word = usize::try_from(bit / 64).ok().and_then(|at| map.get(at));
            word.is_some_and(|word| word >> (bit % 64) & 1 == 1)
        };
        for bit in (0..feature::ALL).filter(is_set) {
            // A table that is cut short is one without the rest.
            let (Some(at), Some(len)) = (table.u64(), table.u64()) else {
                return Ok(());
            };
            if let Some(section) = slice(bytes, at, len) {
                self.read(bit, section, endian)?;
            }
        }
        Ok(())
    }

    /// Reads one, as it stands in a section or in a record of a pipe. What makes no sense says nothing.
    pub fn read(&mut self, bit: u64, section: &[u8], endian: Endian) -> Result<(), PerfDataError> {
        let mut fields = Fields::new(section, endian);
        match bit {
            feature::OSRELEASE => self.release = string(&mut fields).unwrap_or_default(),
            feature::ARCH => self.arch = string(&mut fields).unwrap_or_default(),
            feature::NRCPUS => self.cpus = fields.pair(),
            feature::CMDLINE => {
                let count = fields.u32().unwrap_or(0);
                let words = (0..count).map_while(|_| string(&mut fields));
                self.command = Some(words.collect());
            }
            feature::EVENT_DESC => self.names = names(&mut fields).unwrap_or_default(),
            feature::DIR_FORMAT => {
                return Err(PerfDataError::Unsuitable {
                    what: "it is one of several files of a folder".to_owned(),
                    instead: "record without --threads",
                });
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether an event that fires gave a sample each time, for all that the command line says.
    pub fn everything(&self) -> bool {
        let words = self.command.as_deref();
        words.is_some_and(|words| {
            !words
                .iter()
                .any(|it| it.contains("filter") || it.contains("exclude"))
        })
    }
}

/// `HEADER_EVENT_DESC`: for each attr its bytes, the number of its ids, its name and the ids.
fn names(fields: &mut Fields<'_>) -> Option<Vec<String>> {
    let (count, size) = fields.pair()?;
    let size = usize::try_from(size).ok()?;
    let mut names = Vec::new();
    for _ in 0..count {
        fields.bytes(size)?;
        let ids = usize::try_from(fields.u32()?).ok()?;
        names.push(string(fields)?);
        fields.bytes(ids.checked_mul(8)?)?;
    }
    Some(names)
}
