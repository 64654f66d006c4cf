//! The symbol table inside every kernel, for its own oops messages and for /proc/kallsyms. It is all
//! that is left when a distribution has stripped the vmlinux.
//!
//! scripts/kallsyms.c writes it into `.rodata`, since Linux 6.4 in this order:
//!
//! ```text
//! num_syms        u32
//! names           num_syms x (length, ULEB128 of 1 or 2 bytes; that many token numbers)
//! markers         u32 for every 256th name: its offset in `names`
//! token_table     256 NUL-terminated strings
//! token_index     u16 x 256: the offset of each string
//! offsets         u32 x num_syms, in the order of the names, sorted by address
//! relative_base   u64                                         (up to Linux 6.x, see below)
//! seqs_of_names   u24 x num_syms: the names in alphabetical order
//! ```
//!
//! Each part is aligned, to 8 bytes in older kernels and to 4 in newer ones. An expanded name
//! starts with the type letter of nm(1).
//!
//! What an offset means has changed:
//! - with per-CPU symbols based at zero (x86-64 before 6.15, `KALLSYMS_ABSOLUTE_PERCPU`): not
//!   negative, the value itself (a per-CPU symbol); negative, `relative_base - 1 - offset`;
//! - without them, but with a `relative_base`: `relative_base + offset`;
//! - without a `relative_base` (as in 7.2): signed, from the place of the offset itself.
//!
//! Nothing in a stripped image points at these tables, so they are found by their content: the
//! tokens `0` to `9` follow one another because digits stand for themselves, and the index after
//! the tokens must agree with them. All parts are checked against each other, because the image may
//! be hostile.

use super::found::{Segment, Symbol};

/// Why there is no symbol table.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum KallsymsError {
    /// No table found.
    #[error("it holds no kallsyms table in the layout of Linux 6.4 or later")]
    Missing,
    /// Found, but it contradicts itself.
    #[error("its kallsyms table is damaged: {0}")]
    Damaged(&'static str),
}

const TOKENS: usize = 256;
/// A kernel has one table. This bound is for hostile images.
const MAX_TABLES: usize = 16;
/// A kernel has some 200,000 symbols. This bound is for hostile images.
const MAX_SYMBOLS: usize = 8 << 20;
/// The kernel's KSYM_NAME_LEN is 512.
const MAX_NAME: usize = 1024;
/// Kernel text lies in the top 2 GiB.
const KERNEL_BASE: u64 = 0xffff_ffff_8000_0000;

/// Decodes the table in any of the segments.
pub(crate) fn decode(segments: &[Segment<'_>]) -> Result<Vec<Symbol>, KallsymsError> {
    let mut result = Err(KallsymsError::Missing);
    for segment in segments {
        for tokens in find_tokens(segment.data).take(MAX_TABLES) {
            match decode_at(*segment, &tokens) {
                Ok(symbols) => return Ok(symbols),
                Err(error) => result = Err(error),
            }
        }
    }
    result
}

/// A token table and its surroundings.
struct Tokens<'a> {
    /// Offset of the table in the segment.
    start: usize,
    /// Offset of what follows the index.
    end: usize,
    strings: Vec<&'a [u8]>,
}

/// Every place in `data` that contains a token table with its index.
fn find_tokens(data: &[u8]) -> impl Iterator<Item = Tokens<'_>> {
    const DIGITS: &[u8] = b"0\x001\x002\x003\x004\x005\x006\x007\x008\x009\x00";
    memchr::memmem::find_iter(data, DIGITS).filter_map(|at| tokens_around(data, at))
}

/// The table whose 48th string (ASCII `0`) is at `zero`.
fn tokens_around(data: &[u8], zero: usize) -> Option<Tokens<'_>> {
    // The offsets of the strings from `0` on, and the end of the last one.
    let mut position = zero;
    let mut from_zero = Vec::with_capacity(TOKENS);
    for _ in usize::from(b'0')..TOKENS {
        from_zero.push(position - zero);
        let rest = data.get(position..)?;
        let text = rest.get(..MAX_NAME).unwrap_or(rest);
        position += memchr::memchr(0, text)? + 1;
    }
    // The index is 4- or 8-aligned, and says how far before `0` the table begins.
    for alignment in [4, 8] {
        let index_start = position.next_multiple_of(alignment);
        let index: Vec<usize> = data
            .get(index_start..index_start + TOKENS * 2)?
            .as_chunks::<2>()
            .0
            .iter()
            .map(|entry| usize::from(u16::from_le_bytes(*entry)))
            .collect();
        if let Some(tokens) = agreed_tokens(data, zero, &from_zero, &index, index_start) {
            return Some(tokens);
        }
    }
    None
}

/// The tokens, if every entry of the index is the start of a string.
fn agreed_tokens<'a>(
    data: &'a [u8],
    zero: usize,
    from_zero: &[usize],
    index: &[usize],
    index_start: usize,
) -> Option<Tokens<'a>> {
    let (before, after) = index.split_at_checked(usize::from(b'0'))?;
    let base = *after.first()?;
    if before.first() != Some(&0) || !after.iter().zip(from_zero).all(|(i, f)| *i == base + f) {
        return None;
    }
    let start = zero.checked_sub(base)?;
    let mut strings = Vec::with_capacity(TOKENS);
    for (number, offset) in index.iter().enumerate() {
        let text = data.get(start + offset..index_start)?;
        let length = memchr::memchr(0, text)?;
        let next = index.get(number + 1);
        if next.is_some_and(|next| *next != offset + length + 1) {
            return None;
        }
        strings.push(text.get(..length)?);
    }
    Some(Tokens {
        start,
        end: index_start + TOKENS * 2,
        strings,
    })
}

fn decode_at(segment: Segment<'_>, tokens: &Tokens<'_>) -> Result<Vec<Symbol>, KallsymsError> {
    let names = Names::before(segment.data, tokens.start).ok_or(KallsymsError::Damaged(
        "the names before its tokens cannot be found",
    ))?;
    let addresses = addresses(segment, tokens.end, names.count)
        .ok_or(KallsymsError::Damaged("its addresses are cut short"))?;
    let mut symbols = Vec::with_capacity(names.count);
    let mut rest = names.data;
    for address in addresses {
        let (codes, next) = next_name(rest).ok_or(KallsymsError::Damaged("a name is cut short"))?;
        rest = next;
        symbols.push(
            expand(codes, &tokens.strings, address)
                .ok_or(KallsymsError::Damaged("a name is too long or empty"))?,
        );
    }
    check(&symbols)?;
    Ok(symbols)
}

/// The names, from the first one on.
struct Names<'a> {
    count: usize,
    data: &'a [u8],
}

impl<'a> Names<'a> {
    /// Finds the names that end, with their markers, right before `end`.
    fn before(data: &'a [u8], end: usize) -> Option<Self> {
        // With 8-byte alignment there may be padding between the markers and `end`.
        [0, 4]
            .into_iter()
            .find_map(|padding| Self::before_markers(data, end.checked_sub(padding)?))
    }

    fn before_markers(data: &'a [u8], markers_end: usize) -> Option<Self> {
        // The table of tokens need not be aligned to 4 in itself, but its label is.
        let (start, last) = first_marker(data, markers_end)?;
        let markers = data.get(start..markers_end)?;
        let blocks = markers.len() / 4;
        // The names begin `last` bytes and one block of up to 256 names before the markers.
        let nearest = start.checked_sub(last)? & !3;
        let farthest = nearest.saturating_sub(256 * (MAX_NAME + 2));
        for first in (farthest..=nearest).rev().step_by(4) {
            for gap in [4, 8] {
                // Padding is zero; the length of the first name, which may stand here, is not.
                let padded =
                    gap == 4 || first.checked_sub(4).and_then(|at| word(data, at)) == Some(0);
                let count = first.checked_sub(gap).and_then(|at| word(data, at));
                let Some(count) = count.filter(|_| padded) else {
                    continue;
                };
                let count = usize::try_from(count).ok()?;
                if count.div_ceil(256) != blocks || count > MAX_SYMBOLS {
                    continue;
                }
                let names = data.get(first..start)?;
                if agrees(names, count, markers) {
                    return Some(Self { count, data: names });
                }
            }
        }
        None
    }
}

/// Offset of the first marker, which is 0, and the value of the last one. Backwards, the markers
/// decrease.
fn first_marker(data: &[u8], end: usize) -> Option<(usize, usize)> {
    let mut at = end.checked_sub(4)?;
    let last = word(data, at)?;
    let mut value = last;
    while value != 0 {
        at = at.checked_sub(4)?;
        let before = word(data, at)?;
        if before >= value || end - at > MAX_SYMBOLS / 64 {
            return None;
        }
        value = before;
    }
    Some((at, usize::try_from(last).ok()?))
}

/// Whether `count` names end where the markers begin, and every marker points to a 256th name.
fn agrees(names: &[u8], count: usize, markers: &[u8]) -> bool {
    let mut rest = names;
    for number in 0..count {
        if number % 256 == 0 {
            let here = names.len() - rest.len();
            let marker = word(markers, number / 64).map(usize::try_from);
            if marker != Some(Ok(here)) {
                return false;
            }
        }
        match next_name(rest) {
            Some((_, next)) => rest = next,
            None => return false,
        }
    }
    rest.len() < 8 && rest.iter().all(|byte| *byte == 0)
}

/// The token numbers of the next name, and what follows it.
fn next_name(names: &[u8]) -> Option<(&[u8], &[u8])> {
    let (low, rest) = names.split_first()?;
    let (length, rest) = if low & 0x80 == 0 {
        (usize::from(*low), rest)
    } else {
        let (high, rest) = rest.split_first()?;
        (usize::from(low & 0x7f) | usize::from(*high) << 7, rest)
    };
    if length == 0 || length > MAX_NAME {
        return None;
    }
    rest.split_at_checked(length)
}

fn expand(codes: &[u8], tokens: &[&[u8]], address: u64) -> Option<Symbol> {
    let mut text = Vec::with_capacity(32);
    for code in codes {
        text.extend_from_slice(tokens.get(usize::from(*code))?);
        if text.len() > MAX_NAME {
            return None;
        }
    }
    let (kind, name) = text.split_first()?;
    Some(Symbol {
        address,
        kind: *kind,
        name: str::from_utf8(name).ok()?.to_owned(),
    })
}

/// Reads the `count` offsets at `start` as addresses.
fn addresses(segment: Segment<'_>, start: usize, count: usize) -> Option<Vec<u64>> {
    let end = start.checked_add(count.checked_mul(4)?)?;
    let offsets = segment.data.get(start..end)?.as_chunks::<4>().0;
    let signed = || {
        offsets
            .iter()
            .map(|offset| i64::from(i32::from_le_bytes(*offset)))
    };

    let base_at = end.next_multiple_of(8);
    let base = segment
        .data
        .get(base_at..)
        .and_then(|rest| rest.first_chunk::<8>())
        .map(|bytes| u64::from_le_bytes(*bytes));
    // Without a base, the three-byte numbers of `seqs_of_names` follow, which are no address.
    let Some(base) = base.filter(|base| *base >= KERNEL_BASE) else {
        let table = segment.address.checked_add(u64::try_from(start).ok()?)?;
        return Some(
            signed()
                .zip(0_u64..)
                .map(|(offset, number)| {
                    let place = table.wrapping_add(number.wrapping_mul(4));
                    place.wrapping_add_signed(offset)
                })
                .collect(),
        );
    };
    // Offsets are negative only with absolute per-CPU symbols, and then most of them.
    let negative = signed().filter(|offset| *offset < 0).count();
    Some(if negative > count / 2 {
        signed()
            .map(|offset| match u64::try_from(offset) {
                Ok(per_cpu) => per_cpu,
                Err(_) => (base - 1).wrapping_add_signed(-offset),
            })
            .collect()
    } else {
        offsets
            .iter()
            .map(|offset| base.wrapping_add(u64::from(u32::from_le_bytes(*offset))))
            .collect()
    })
}

/// A table that was decoded correctly is sorted and contains `_text`.
fn check(symbols: &[Symbol]) -> Result<(), KallsymsError> {
    if !symbols.is_sorted_by_key(|symbol| symbol.address) {
        return Err(KallsymsError::Damaged("its addresses are out of order"));
    }
    let text = symbols.iter().find(|symbol| symbol.name == "_text");
    match text {
        Some(text) if text.address >= KERNEL_BASE => Ok(()),
        Some(_) => Err(KallsymsError::Damaged("its addresses are no kernel ones")),
        None => Err(KallsymsError::Damaged("it has no _text")),
    }
}

fn word(data: &[u8], at: usize) -> Option<u32> {
    let bytes = data.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests;
