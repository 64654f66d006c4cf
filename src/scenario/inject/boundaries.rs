//! Where instructions begin: found by decoding from the start of a symbol.
//!
//! The code is that of the image, before the kernel patches itself: inside the few bytes of an
//! alternative the running kernel may have other boundaries.

use iced_x86::{Decoder, DecoderOptions, Mnemonic};

use crate::scenario::resolve::KernelSymbols;

/// Bytes to look at behind the offset: enough for the boundary after it.
const BEHIND: u64 = 16;

/// Where the instructions of the functions of this name begin, as far as they can be decoded.
pub(in crate::scenario) fn of(name: &str, symbols: &dyn KernelSymbols) -> Vec<u64> {
    let mut found = Vec::new();
    let size = symbols.size(name).unwrap_or(0);
    for start in symbols.addresses(name) {
        let length = usize::try_from(size).unwrap_or(0);
        let Some(code) = symbols.code(start, length) else {
            continue;
        };
        for instruction in &mut Decoder::with_ip(64, &code, start, DecoderOptions::NONE) {
            // What stands behind the last one up to the next function is padding.
            if instruction.is_invalid() || instruction.mnemonic() == Mnemonic::Int3 {
                break;
            }
            found.push(instruction.ip());
        }
    }
    found
}

/// `None` where an instruction begins `offset` bytes behind `start`, or where the code cannot be
/// had or decoded; else the boundaries next to it, in words.
pub(super) fn not_one(start: u64, offset: u64, symbols: &dyn KernelSymbols) -> Option<String> {
    if offset == 0 {
        return None;
    }
    let length = usize::try_from(offset.checked_add(BEHIND)?).ok()?;
    let code = symbols.code(start, length)?;
    let (mut before, mut after) = (0, None);
    for instruction in &mut Decoder::with_ip(64, &code, 0, DecoderOptions::NONE) {
        // What follows is data, or another kind of code: nothing can be said.
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
