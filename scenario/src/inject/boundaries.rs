//! Instruction boundaries, found by decoding from the start of a symbol.
//!
//! The decoded code is that of the image, before the kernel patches itself. Inside the few bytes of
//! an alternative the running kernel may have other boundaries.

use iced_x86::{Decoder, DecoderOptions, Mnemonic};

use crate::resolve::KernelSymbols;

/// Bytes to decode behind the offset, enough for the next boundary.
const BEHIND: u64 = 16;

/// The instruction boundaries of the functions of this name, as far as they can be decoded.
pub(crate) fn of(name: &str, symbols: &dyn KernelSymbols) -> Vec<u64> {
    let mut found = Vec::new();
    let size = symbols.size(name).unwrap_or(0);
    for start in symbols.addresses(name) {
        let length = usize::try_from(size).unwrap_or(0);
        let Some(code) = symbols.code(start, length) else {
            continue;
        };
        for instruction in &mut Decoder::with_ip(64, &code, start, DecoderOptions::NONE) {
            // Padding follows, up to the next function.
            if instruction.is_invalid() || instruction.mnemonic() == Mnemonic::Int3 {
                break;
            }
            found.push(instruction.ip());
        }
    }
    found
}

/// If no instruction begins `offset` bytes behind `start`: the nearest boundaries, as text. `None`
/// if one begins there, or the code cannot be read or decoded.
pub(super) fn not_one(start: u64, offset: u64, symbols: &dyn KernelSymbols) -> Option<String> {
    if offset == 0 {
        return None;
    }
    let length = usize::try_from(offset.checked_add(BEHIND)?).ok()?;
    let code = symbols.code(start, length)?;
    let (mut before, mut after) = (0, None);
    for instruction in &mut Decoder::with_ip(64, &code, 0, DecoderOptions::NONE) {
        // Data, or another kind of code: the boundaries are unknown.
        if instruction.is_invalid() {
            return None;
        }
        let end = instruction.next_ip();
        if end == offset {
            return None;
        }
        if end > offset {
            after = Some(end);
            break;
        }
        before = end;
    }
    let after = after?;
    Some(format!("+{before:#x} or +{after:#x}"))
}
