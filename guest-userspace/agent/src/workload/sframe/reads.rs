//! Which pages a walk touches: those of the section, the page before it and the one behind are not
//! present, and each first access to one of them is seen.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use unwindlab_abi::mailbox::PAGE_SIZE;
use unwindlab_abi::sframe::{SframeCase, SframeExpects, SframeReads};
use unwindlab_sframe::{Base, Encoded, FieldKind, Numbers, Row, Rules, Version};

use super::super::WorkloadError;
use super::fields::SEED;
use super::ground::{ENCODINGS, Ground, SECTION_PAGES};
use super::in_walk::{drop_pages, release};
use crate::chain::frameless::SframeError;
use crate::userfault::Userfault;

const PAGE: u64 = PAGE_SIZE as u64;
/// Pages of a section whose functions are at its beginning and whose rows at its end.
const PAGES: usize = 3;

pub(super) fn run(ground: &mut Ground) -> Result<(), WorkloadError> {
    let mut trial = 0;
    for (number, encoding) in (0..).zip(ENCODINGS) {
        let right = stretched(ground.encoded(encoding)?);
        let reads = touched(ground, SframeCase::Right, number, &right.bytes)?;
        // All three kinds of pages are seen, or the trials show nothing.
        if reads.inside < 2 {
            return Ok(());
        }
    }
    endless(ground)?;
    while ground.chain.goes_on() {
        let mut numbers = Numbers::of(SEED, trial.into());
        let index = usize::try_from(trial).unwrap_or(0) % ENCODINGS.len();
        let Some(&encoding) = ENCODINGS.get(index) else {
            break;
        };
        let mut section = stretched(ground.encoded(encoding)?);
        section.make_wrong(&mut numbers);
        touched(ground, SframeCase::Field, trial, &section.bytes)?;
        trial += 1;
    }
    Ok(())
}

/// The section with its rows at the end of the last page: it begins where a page does, and ends where
/// one does.
fn stretched(right: Encoded) -> Encoded {
    let mut all = right;
    let Some(first) = first_row_byte(&all) else {
        return all;
    };
    let gap = (PAGES * PAGE_SIZE).saturating_sub(all.bytes.len());
    let offset: Vec<_> = all.all(FieldKind::RowsOffset).cloned().collect();
    for field in offset {
        // From the end of the header.
        all.set(&field, (first + gap) as u64 - 28);
    }
    let rows = all.bytes.split_off(first);
    all.bytes.resize(first + gap, 0);
    all.bytes.extend(rows);
    for field in &mut all.fields {
        if field.bytes.start >= first {
            field.bytes = field.bytes.start + gap..field.bytes.end + gap;
        }
    }
    all
}

/// Where the rows begin: behind header and table.
fn first_row_byte(section: &Encoded) -> Option<usize> {
    let field = section.all(FieldKind::RowsOffset).next()?;
    let offset = section.bytes.get(field.bytes.clone())?;
    let offset = offset
        .iter()
        .rfold(0_usize, |n, &byte| n << 8 | usize::from(byte));
    Some(28 + offset)
}

/// Registers bytes, asks, and notes which pages the walk touched.
fn touched(
    ground: &mut Ground,
    case: SframeCase,
    number: u32,
    bytes: &[u8],
) -> Result<SframeReads, WorkloadError> {
    ground.put(bytes)?;
    let errno = ground.register(bytes.len() as u64);
    let pages = bytes.len().div_ceil(PAGE_SIZE);
    let seen = watched(ground, pages)?;
    let inside = |&&page: &&usize| (1..=pages).contains(&page);
    let count = |pages: usize| u32::try_from(pages).unwrap_or(u32::MAX);
    let within = seen.iter().filter(inside).count();
    let reads = SframeReads {
        case,
        number,
        pages: count(pages),
        inside: count(within),
        outside: count(seen.len() - within),
    };
    ground.reads.push(reads);
    let expects = match errno {
        0 => ground.said(bytes),
        _ => SframeExpects::Alone,
    };
    ground.note(case, number, errno, expects);
    ground.remove();
    Ok(reads)
}

/// Runs the chain with the section's pages and their neighbours not present. Returns the touched
/// ones, from 0 for the page before the section.
fn watched(ground: &Ground, pages: usize) -> Result<Vec<usize>, WorkloadError> {
    let error = |source| WorkloadError::System {
        thread: ground.thread,
        what: "cannot block pages",
        source,
    };
    let (from, bytes) = (ground.memory.address(), (pages as u64 + 2) * PAGE);
    let mut fault = Userfault::open().map_err(error)?;
    drop_pages(from, bytes);
    fault.block(from, bytes).map_err(error)?;
    let done = AtomicBool::new(false);
    let seen = thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut seen = Vec::new();
            loop {
                let last = done.load(Ordering::Acquire);
                while let Some(address) = fault.next_address() {
                    let page = (address / PAGE * PAGE).saturating_sub(from) / PAGE;
                    seen.push(usize::try_from(page).unwrap_or(usize::MAX));
                    release(&fault, from + page * PAGE, PAGE);
                }
                if last {
                    return seen;
                }
                thread::sleep(Duration::from_micros(50));
            }
        });
        ground.chain.run();
        done.store(true, Ordering::Release);
        watcher.join().unwrap_or_default()
    });
    let _ = fault.release(from, bytes);
    let mut seen = seen;
    seen.sort_unstable();
    seen.dedup();
    Ok(seen)
}

/// A function that claims to begin long before the leaf, with more rows than a walk should read: as
/// many as [`SECTION_PAGES`] hold, each with an offset below that of the leaf.
fn endless(ground: &mut Ground) -> Result<(), WorkloadError> {
    const BEFORE: u64 = 0x10_0000;
    const ROW: usize = 6;
    let rules = Rules::Plain {
        base: Base::StackPointer,
        cfa: 8,
        frame_pointer: None,
    };
    let rows = (SECTION_PAGES * PAGE_SIZE - 64) / ROW;
    let row = |offset| Row { offset, rules };
    let rows = (0..u32::try_from(rows).unwrap_or(0)).map(row).collect();
    let mut section = ground.section((Version::V2, true));
    let Some(mut function) = section.functions.last().cloned() else {
        return Ok(());
    };
    function.start = function.start.saturating_sub(BEFORE);
    function.size += 0x10_0000;
    function.rows = rows;
    section.functions = vec![function];
    let section = section.encode(ground.address());
    let bytes = section.map_err(SframeError::Encode)?.bytes;
    touched(ground, SframeCase::EndlessRows, 0, &bytes)?;
    Ok(())
}
