//! Hostile sections, by name.

use unwindlab_abi::sframe::{SframeCase, SframeExpects};
use unwindlab_sframe::{Encoded, FieldKind, Function, Version};

use super::super::WorkloadError;
use super::ground::{ENCODINGS, Ground, add, remove, whole};

/// Most sections that a process may have: `SFRAME_MAX_SECTIONS` of the proposal. A kernel with
/// another limit shows by what it returns.
const MOST_SECTIONS: u64 = 16_384;

pub(super) fn run(ground: &mut Ground) -> Result<(), WorkloadError> {
    whole(ground)?;
    for (number, encoding) in (0..).zip(ENCODINGS) {
        let right = ground.encoded(encoding)?;
        for (case, section) in wrong(&right) {
            ground.offer(case, number, &section.bytes)?;
        }
        let mut section = ground.section(encoding);
        section.functions = overlapping(&ground.functions);
        ground.offer(SframeCase::Overlapping, number, &encode(ground, &section)?)?;
        section.functions = ground.functions.iter().rev().cloned().collect();
        ground.offer(SframeCase::Unsorted, number, &encode(ground, &section)?)?;
        refused(ground, number, &right);
        neighbours(ground, number, encoding)?;
    }
    thousands(ground)
}

fn encode(ground: &Ground, section: &unwindlab_sframe::Section) -> Result<Vec<u8>, WorkloadError> {
    let encoded = section.encode(ground.address());
    let bytes = encoded.map_err(crate::chain::frameless::SframeError::Encode)?;
    Ok(bytes.bytes)
}

/// Sections with a wrong number, in each field of a kind at once.
fn wrong(right: &Encoded) -> Vec<(SframeCase, Encoded)> {
    let length = right.bytes.len() as u64;
    let with = |changes: &[(FieldKind, u64)]| {
        let mut section = right.clone();
        for &(kind, value) in changes {
            let fields: Vec<_> = right.all(kind).cloned().collect();
            for field in fields {
                section.set(&field, value);
            }
        }
        section
    };
    // Rows that repeat: bit 4 of the info.
    let repeats = with(&[(FieldKind::FunctionInfo, 0x10), (FieldKind::RepeatSize, 0)]);
    let unsorted: Vec<_> = right.all(FieldKind::Flags).cloned().collect();
    let mut not_sorted = right.clone();
    for field in unsorted {
        let flags = right.bytes.get(field.bytes.start).copied().unwrap_or(0);
        not_sorted.set(&field, u64::from(flags & !1));
    }
    vec![
        (SframeCase::RepeatOfZero, repeats),
        (
            SframeCase::RowsBeyond,
            with(&[(FieldKind::FunctionRows, u64::MAX)]),
        ),
        (
            SframeCase::FunctionsBeyond,
            with(&[(FieldKind::Functions, u64::MAX)]),
        ),
        (
            SframeCase::FunctionsOutside,
            with(&[(FieldKind::FunctionsOffset, length)]),
        ),
        (
            SframeCase::RowsOutside,
            with(&[(FieldKind::RowsOffset, length)]),
        ),
        (
            SframeCase::FunctionRowsOutside,
            with(&[(FieldKind::FunctionRowsOffset, u64::MAX - 7)]),
        ),
        (SframeCase::NotSorted, not_sorted),
    ]
}

/// The functions, the second of which has another one in its middle.
fn overlapping(functions: &[Function]) -> Vec<Function> {
    let mut all = functions.to_vec();
    if let Some(second) = functions.get(1) {
        let half = second.size / 2;
        let mut inner = second.clone();
        inner.start += u64::from(half);
        inner.rows.truncate(1);
        all.insert(2, inner);
    }
    all
}

/// Registrations that cannot be right, wherever the section is.
fn refused(ground: &mut Ground, number: u32, right: &Encoded) {
    const KERNEL: u64 = 0xffff_ffff_8100_0000;
    if ground.put(&right.bytes).is_err() {
        return;
    }
    let (address, text) = (ground.address(), ground.text());
    let size = right.bytes.len() as u64;
    let nothing = text.start..text.start;
    for (case, answer) in [
        (SframeCase::Cut, add(address, 27, text.clone())),
        (SframeCase::Unmapped, add(0x1000, size, text.clone())),
        (SframeCase::KernelMemory, add(KERNEL, size, text.clone())),
        (SframeCase::Empty, add(address, 0, text)),
        (SframeCase::EmptyText, add(address, size, nothing)),
    ] {
        let expects = match answer {
            0 => SframeExpects::Unknown,
            _ => SframeExpects::Alone,
        };
        ground.ask(case, number, answer, expects);
        ground.remove();
    }
}

/// Two sections: each for a part of the code, and both for all of it.
fn neighbours(
    ground: &mut Ground,
    number: u32,
    encoding: (Version, bool),
) -> Result<(), WorkloadError> {
    let text = ground.text();
    let middle = ground.functions.get(2).map_or(text.end, |it| it.start);
    let mut first = ground.section(encoding);
    first.functions.truncate(2);
    let mut second = ground.section(encoding);
    second.functions.drain(..2);
    let bytes = encode(ground, &first)?;
    let behind = ground.address() + bytes.len() as u64;
    let encoded = second.encode(behind);
    let more = encoded.map_err(crate::chain::frameless::SframeError::Encode)?;
    let (size, more_size) = (bytes.len() as u64, more.bytes.len() as u64);
    ground.put(&[bytes, more.bytes].concat())?;
    let one = ground.register_for(size, text.start..middle);
    let other = add(behind, more_size, middle..text.end);
    let errno = if one == 0 { other } else { one };
    ground.ask(SframeCase::Adjacent, number, errno, SframeExpects::Whole);
    // All of the code again: refused, and those that are there stay.
    let errno = add(behind, more_size, text);
    let expects = match errno {
        0 => SframeExpects::Unknown,
        _ => SframeExpects::Whole,
    };
    ground.ask(SframeCase::SameText, number, errno, expects);
    ground.remove();
    remove(behind);
    Ok(())
}

/// As many as there may be, for code at which nothing runs, and the right one last.
fn thousands(ground: &mut Ground) -> Result<(), WorkloadError> {
    const ELSEWHERE: u64 = 0x1000_0000_0000;
    let bytes = ground.encoded((Version::V3, true))?.bytes;
    let size = bytes.len() as u64;
    ground.put(&bytes)?;
    let mut errno = 0;
    for section in 1..MOST_SECTIONS {
        let start = ELSEWHERE + 16 * section;
        errno = ground.register_for(size, start..start + 16);
        if errno != 0 {
            break;
        }
    }
    if errno == 0 {
        errno = ground.register(size);
    }
    let expects = match errno {
        0 => SframeExpects::Whole,
        _ => SframeExpects::Unknown,
    };
    ground.ask(SframeCase::Thousands, 0, errno, expects.clone());
    let errno = ground.register_for(size, ELSEWHERE..ELSEWHERE + 16);
    ground.ask(SframeCase::OneTooMany, 0, errno, expects);
    // All of them begin at one address.
    ground.remove();
    ground.ask(SframeCase::Removed, 1, 0, SframeExpects::Alone);
    Ok(())
}
