//! A user stack in one line: `[getppid_return, descend+0x12 x 508, root+0x9]`.

use std::fmt::Write as _;

use crate::trace::symbolize::UserSymbols;

/// How frame 0 is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leaf {
    /// As symbol and offset.
    Exact,
    /// As `leaf`: where in it the task was is a matter of chance.
    Anywhere,
}

/// Writes the frames, innermost first; equal ones in a row are counted. An address outside all
/// symbols is `?`, since the address itself need not be the same in the next run.
pub(super) fn line(frames: &[u64], symbols: &UserSymbols<'_>, leaf: Leaf) -> String {
    let mut out = String::from("[");
    // Frame 0 is the interrupted instruction, all others are return addresses: equal values
    // would not be the same thing.
    if let Some((&first, callers)) = frames.split_first() {
        match leaf {
            Leaf::Exact => name(&mut out, symbols.find(first)),
            Leaf::Anywhere => out.push_str("leaf"),
        }
        for run in callers.chunk_by(|a, b| a == b) {
            out.push_str(", ");
            let caller = run.first().and_then(|&at| symbols.find_return(at));
            name(&mut out, caller);
            if run.len() > 1 {
                let _ = write!(out, " x {}", run.len());
            }
        }
    }
    out.push(']');
    out
}

fn name(out: &mut String, found: Option<(&str, u64)>) {
    match found {
        None => out.push('?'),
        Some((name, offset)) => {
            out.push_str(name);
            if offset != 0 {
                let _ = write!(out, "+{offset:#x}");
            }
        }
    }
}
