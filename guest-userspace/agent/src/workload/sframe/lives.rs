//! What a section outlives: fork, and not exec, unmapping and removal.

use std::ffi::{CString, c_char};
use std::io;
use std::sync::Arc;

use unwindlab_abi::mailbox::PAGE_SIZE;
use unwindlab_abi::sframe::{SframeCase, SframeExpects};
use unwindlab_abi::{EXIT_AFTER_CHAIN, WorkloadKind};
use unwindlab_sframe::{FieldKind, Section};

use super::super::WorkloadError;
use super::ground::{ENCODINGS, Ground};
use crate::chain::{Chain, frameless};
use crate::pages::Pages;
use crate::shared::SharedPages;
use crate::{ports, processes};

const PAGE: u64 = PAGE_SIZE as u64;

pub(super) fn run(ground: &mut Ground) -> Result<(), WorkloadError> {
    super::ground::whole(ground)?;
    for (number, encoding) in (0..).zip(ENCODINGS) {
        let bytes = ground.encoded(encoding)?.bytes;
        let size = bytes.len() as u64;
        let at = ground.address();

        ground.put(&bytes)?;
        let errno = ground.register(size);
        in_child(ground, |ground| {
            ground.chain.run();
            ground.remove();
            ground.chain.run();
        })?;
        ground.note(SframeCase::Forked, number, errno, SframeExpects::Whole);
        ground.note(SframeCase::Removed, 2 * number, 0, SframeExpects::Alone);
        ground.ask(
            SframeCase::ForkedParent,
            number,
            errno,
            SframeExpects::Whole,
        );
        executed(ground, number, encoding)?;
        ground.remove();
        ground.ask(SframeCase::Removed, 2 * number + 1, 0, SframeExpects::Alone);

        type Change = fn(&mut Ground, u64) -> Result<(), WorkloadError>;
        let changes: [(SframeCase, Change); 3] = [
            (SframeCase::UnmappedSection, |ground, at| {
                unmap(at, PAGE);
                map_again(ground)
            }),
            (SframeCase::Overmapped, |ground, _| map_again(ground)),
            (SframeCase::Moved, |ground, at| {
                move_away(at);
                map_again(ground)
            }),
        ];
        for (case, change) in changes {
            ground.put(&bytes)?;
            let errno = ground.register(size);
            change(ground, at)?;
            ground.put(&bytes)?;
            ground.ask(case, number, errno, SframeExpects::Alone);
            ground.remove();
        }
    }
    Ok(())
}

/// A fork with a section that lies.
pub(super) fn hostile(ground: &mut Ground) -> Result<(), WorkloadError> {
    for (number, encoding) in (0..).zip(ENCODINGS) {
        let mut lies = ground.encoded(encoding)?;
        let words: Vec<_> = lies.all(FieldKind::Word).cloned().collect();
        for field in words {
            lies.set(&field, 24);
        }
        ground.put(&lies.bytes)?;
        let errno = ground.register(lies.bytes.len() as u64);
        let expects = ground.said(&lies.bytes);
        in_child(ground, |ground| ground.chain.run())?;
        ground.note(
            SframeCase::ForkOfHostile,
            2 * number,
            errno,
            expects.clone(),
        );
        ground.ask(SframeCase::ForkOfHostile, 2 * number + 1, errno, expects);
        ground.remove();
    }
    Ok(())
}

/// The agent, executed again, asks where the same bytes are at the same place.
fn executed(
    ground: &mut Ground,
    number: u32,
    (version, pc_relative): (unwindlab_sframe::Version, bool),
) -> Result<(), WorkloadError> {
    let which = ENCODINGS
        .iter()
        .position(|&it| it == (version, pc_relative))
        .unwrap_or(0);
    let words = [
        "/proc/self/exe".to_owned(),
        EXIT_AFTER_CHAIN.to_string_lossy().into_owned(),
        ground.address().to_string(),
        which.to_string(),
        ground.chain.levels().to_string(),
    ];
    let words = words.map(|it| CString::new(it).unwrap_or_default());
    let mut arguments: Vec<*const c_char> = words.iter().map(|it| it.as_ptr()).collect();
    arguments.push(std::ptr::null());
    in_child(ground, |_| {
        // SAFETY: C strings, and a list of them that ends.
        unsafe { libc::execv(c"/proc/self/exe".as_ptr(), arguments.as_ptr()) };
        // SAFETY: the child ends.
        unsafe { libc::_exit(3) };
    })?;
    ground.note(SframeCase::Executed, number, 0, SframeExpects::Alone);
    Ok(())
}

/// What the agent does that was executed so: the bytes of the section are where they were, and
/// nobody has registered them. Returns its exit status.
#[must_use]
pub fn after_exec(arguments: &[String]) -> i32 {
    let mut numbers = arguments.iter().map(|it| it.parse::<u64>().ok());
    let mut next = || numbers.next().flatten();
    let (Some(at), Some(which), Some(levels)) = (next(), next(), next()) else {
        return 4;
    };
    let encoding = usize::try_from(which).ok().and_then(|it| ENCODINGS.get(it));
    let Some(&(version, pc_relative)) = encoding else {
        return 4;
    };
    let section = Section {
        version,
        pc_relative,
        functions: frameless::functions(),
    };
    let Ok(section) = section.encode(at) else {
        return 5;
    };
    if !map_fixed(at, PAGE) {
        return 6;
    }
    for (offset, byte) in section.bytes.iter().enumerate().take(PAGE_SIZE) {
        let to = usize::try_from(at).unwrap_or(0) + offset;
        // SAFETY: just mapped.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(to).write_volatile(*byte) };
    }
    let Ok(shared) = SharedPages::new() else {
        return 7;
    };
    if ports::allow().is_err() {
        return 8;
    }
    let frames = u32::try_from(levels + 2).unwrap_or(0);
    let kind = WorkloadKind::SframeLives;
    let (Some(chain), Ok(stack)) = (
        Chain::new(kind, 0, frames, 0, -1, Arc::new(shared)),
        Pages::new(64),
    ) else {
        return 9;
    };
    // SAFETY: the pages are kept to the end, and have room for the chain.
    unsafe { chain.on_stack(stack.end()) }.run();
    0
}

/// Does something in a child process, and waits for its end.
fn in_child(ground: &Ground, act: impl FnOnce(&Ground)) -> Result<(), WorkloadError> {
    let failed = |source| WorkloadError::System {
        thread: ground.thread,
        what: "a child process",
        source,
    };
    // SAFETY: the child makes system calls and runs the chain, and ends.
    match unsafe { libc::fork() } {
        -1 => Err(failed(io::Error::last_os_error())),
        0 => {
            // The words shared with the host stay the parent's.
            let shared = ground.chain.shared();
            let progress = shared.progress_address(ground.thread).unwrap_or(0);
            for word in [shared.stop_address(), progress] {
                map_fixed(word / PAGE * PAGE, PAGE);
            }
            act(ground);
            // SAFETY: the child ends.
            unsafe { libc::_exit(0) }
        }
        child => {
            let status = processes::wait(child).map_err(&failed)?;
            if status != 0 {
                let what = format!("it ended with status {status:#x}");
                return Err(failed(io::Error::other(what)));
            }
            Ok(())
        }
    }
}

/// Unmaps pages of the section's memory. [`map_again`] puts new ones there.
pub(super) fn unmap(at: u64, bytes: u64) {
    let (at, bytes) = (to_pointer(at), usize::try_from(bytes).unwrap_or(0));
    // SAFETY: nothing but the kernel uses the page until it is mapped again.
    unsafe { libc::munmap(at, bytes) };
}

fn move_away(at: u64) {
    // SAFETY: as for `unmap`.
    let moved = unsafe {
        libc::mremap(
            to_pointer(at),
            PAGE_SIZE,
            2 * PAGE_SIZE,
            libc::MREMAP_MAYMOVE,
        )
    };
    if moved != libc::MAP_FAILED {
        // SAFETY: just mapped there.
        unsafe { libc::munmap(moved, 2 * PAGE_SIZE) };
    }
}

/// Maps a new page where the first one of the section was, whatever is there.
pub(super) fn map_again(ground: &Ground) -> Result<(), WorkloadError> {
    if map_fixed(ground.address(), PAGE) {
        return Ok(());
    }
    Err(WorkloadError::System {
        thread: ground.thread,
        what: "cannot map a page again",
        source: io::Error::last_os_error(),
    })
}

fn map_fixed(at: u64, bytes: u64) -> bool {
    let flags = libc::MAP_FIXED | libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
    let (to, bytes) = (to_pointer(at), usize::try_from(bytes).unwrap_or(0));
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: only pages for sections are replaced.
    let mapped = unsafe { libc::mmap(to, bytes, access, flags, -1, 0) };
    mapped == to
}

fn to_pointer(at: u64) -> *mut std::ffi::c_void {
    std::ptr::with_exposed_provenance_mut(usize::try_from(at).unwrap_or(0))
}
