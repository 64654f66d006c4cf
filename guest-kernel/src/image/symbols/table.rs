//! The symbol file that lies beside a kernel. Lookups work on its bytes directly:
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

use super::found::{Symbol, rank};

/// A kernel's symbols in the format of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Table {
    /// The whole file.
    bytes: Vec<u8>,
    count: usize,
}

const MAGIC: &[u8; 8] = b"ulsyms\x00\x01";
const HEADER: usize = 32;

impl Table {
    /// `None` if there are more symbols, or longer names, than the file can hold.
    pub fn build(mut symbols: Vec<Symbol>, start: u64, end: u64) -> Option<Self> {
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

    /// Checks only that the parts lie within the file. A file with damaged content gives wrong or
    /// no answers; the cache detects files of the wrong size.
    pub fn from_bytes(bytes: Vec<u8>) -> Option<Self> {
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

    /// The file.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Number of symbols.
    pub fn count(&self) -> usize {
        self.count
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

    pub fn image_start(&self) -> Option<u64> {
        double(&self.bytes, 8)
    }

    pub fn image_end(&self) -> Option<u64> {
        double(&self.bytes, 16)
    }

    pub fn address_at(&self, number: usize) -> Option<u64> {
        double(self.part(Part::Addresses)?, number * 8)
    }

    pub fn name_at(&self, number: usize) -> Option<&str> {
        let ends = self.part(Part::Ends)?;
        let start = match number.checked_sub(1) {
            None => 0,
            Some(before) => word(ends, before * 4)?,
        };
        let range = usize::try_from(start).ok()?..usize::try_from(word(ends, number * 4)?).ok()?;
        str::from_utf8(self.part(Part::Names)?.get(range)?).ok()
    }

    pub fn kind_at(&self, number: usize) -> Option<u8> {
        self.part(Part::Kinds)?.get(number).copied()
    }

    pub fn number_of(&self, name: &str) -> Option<usize> {
        self.numbers_of(name).next()
    }

    /// All symbols of this name, in the order of their addresses.
    pub fn numbers_of(&self, name: &str) -> impl Iterator<Item = usize> {
        let at = |place: usize| {
            let number = word(self.part(Part::ByName)?, place * 4)?;
            usize::try_from(number).ok()
        };
        let named = move |place| at(place).and_then(|number| self.name_at(number));
        let first = partition(self.count, |place| named(place) < Some(name));
        let behind = partition(self.count, |place| named(place) <= Some(name));
        (first..behind).filter_map(at)
    }

    pub fn first_above(&self, address: u64) -> usize {
        partition(self.count, |number| {
            self.address_at(number) <= Some(address)
        })
    }

    pub fn first_at_or_above(&self, address: u64) -> usize {
        partition(self.count, |number| self.address_at(number) < Some(address))
    }
}

/// The parts of the file after its header.
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

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn double(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}
