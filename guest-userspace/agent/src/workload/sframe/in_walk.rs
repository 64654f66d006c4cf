//! Sections that change or go away while a walk reads them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use unwindlab_abi::mailbox::PAGE_SIZE;
use unwindlab_abi::sframe::{SframeCase, SframeExpects};
use unwindlab_sframe::{Encoded, FieldKind, Numbers};

use super::super::{WorkloadError, failed, pin};
use super::ground::{ENCODINGS, Ground, add, remove};
use super::lives::{map_again, unmap};
use crate::userfault::Userfault;

const PAGE: u64 = PAGE_SIZE as u64;
/// Requests while other threads disturb.
const DISTURBED: u32 = 300;
/// Bytes of a section's header.
const HEADER: usize = 28;

pub(super) fn run(ground: &mut Ground) -> Result<(), WorkloadError> {
    for (number, encoding) in (0..).zip(ENCODINGS) {
        let right = ground.encoded(encoding)?;
        let at = ground.address();
        waits(ground, SframeCase::NotPresent, number, &right, || {})?;
        waits(ground, SframeCase::RemovedInWalk, number, &right, || {
            remove(at);
        })?;
        waits(ground, SframeCase::UnmappedInWalk, number, &right, || {
            unmap(at, PAGE);
        })?;
        map_again(ground)?;
        changes(ground, number, &right)?;
        disturbed(ground, number, &right)?;
        races(ground, number, &right)?;
    }
    Ok(())
}

/// A request whose walk waits for the section's page, until `act` has been done.
fn waits(
    ground: &mut Ground,
    case: SframeCase,
    number: u32,
    right: &Encoded,
    act: impl FnOnce() + Send,
) -> Result<(), WorkloadError> {
    ground.put(&right.bytes)?;
    let errno = ground.register(right.bytes.len() as u64);
    let waited = blocked(ground, act)?;
    let expects = match (waited, case) {
        (true, SframeCase::NotPresent) => SframeExpects::Whole,
        (true, _) => SframeExpects::Shorter,
        (false, _) => SframeExpects::Unknown,
    };
    ground.note(case, number, errno, expects);
    ground.remove();
    Ok(())
}

/// The page becomes another one while the walk waits for it: noise, but for the header, which was
/// read before.
fn changes(ground: &mut Ground, number: u32, right: &Encoded) -> Result<(), WorkloadError> {
    let at = ground.address();
    let size = right.bytes.len() as u64;
    let mut numbers = Numbers::of(0, number.into());
    for trial in 0..8 {
        let mut noise = right.bytes.clone();
        for byte in noise.iter_mut().skip(HEADER) {
            let [draw, ..] = numbers.draw().to_le_bytes();
            *byte = match trial {
                0 => 0,
                1 => 0xff,
                _ => draw,
            };
        }
        ground.put(&right.bytes)?;
        let errno = ground.register(size);
        let other = Alias::of(at).map_err(failed(ground.thread, "cannot map a page twice"))?;
        let waited = blocked(ground, || other.write(&noise))?;
        let expects = match (errno, waited) {
            (0, true) => ground.said(&noise),
            _ => SframeExpects::Unknown,
        };
        ground.note(
            SframeCase::ChangedInWalk,
            8 * number + trial,
            errno,
            expects,
        );
        ground.remove();
    }
    Ok(())
}

/// Requests while another thread writes to the section: functions without rows, without bytes, of an
/// unknown type, and as they should be. Nothing of that says another chain.
fn disturbed(ground: &mut Ground, number: u32, right: &Encoded) -> Result<(), WorkloadError> {
    ground.put(&right.bytes)?;
    let errno = ground.register(right.bytes.len() as u64);
    let other = Alias::of(ground.address());
    let other = other.map_err(failed(ground.thread, "cannot map a page twice"))?;
    let variants: Vec<Vec<u8>> = [
        (FieldKind::FunctionRows, 0),
        (FieldKind::FunctionSize, 0),
        (FieldKind::FunctionInfo, 3),
    ]
    .into_iter()
    .map(|(kind, value)| {
        let mut wrong = right.clone();
        for field in right.all(kind) {
            wrong.set(field, value);
        }
        wrong.bytes
    })
    .collect();
    let write = |stop: &AtomicBool| {
        while !stop.load(Ordering::Relaxed) {
            for bytes in &variants {
                other.write(bytes);
                other.write(&right.bytes);
            }
        }
    };
    beside(ground, &[&write], |ground, ask| {
        ground.ask(
            SframeCase::ChangedAllTheTime,
            DISTURBED * number + ask,
            errno,
            SframeExpects::Shorter,
        );
    });
    ground.remove();
    Ok(())
}

/// Requests while two threads register and take away.
fn races(ground: &mut Ground, number: u32, right: &Encoded) -> Result<(), WorkloadError> {
    ground.put(&right.bytes)?;
    let (at, text) = (ground.address(), ground.text());
    let size = right.bytes.len() as u64;
    let register = |stop: &AtomicBool| {
        while !stop.load(Ordering::Relaxed) {
            add(at, size, text.clone());
            remove(at);
        }
    };
    beside(ground, &[&register, &register], |ground, ask| {
        ground.ask(
            SframeCase::Race,
            DISTURBED * number + ask,
            0,
            SframeExpects::Shorter,
        );
    });
    remove(at);
    Ok(())
}

/// Makes [`DISTURBED`] requests while threads on other CPUs disturb, if there are others.
fn beside(
    ground: &mut Ground,
    disturb: &[&(dyn Fn(&AtomicBool) + Sync)],
    mut ask: impl FnMut(&mut Ground, u32),
) {
    let stop = AtomicBool::new(false);
    let cpus = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let others = u32::try_from(cpus).unwrap_or(1);
    let number = ground.thread;
    thread::scope(|scope| {
        for &disturb in disturb {
            let stop = &stop;
            scope.spawn(move || {
                // On the CPU of the requests, if there is no other: they take turns.
                let _ = pin(number, None, others.max(2) - 1);
                disturb(stop);
            });
        }
        for number in 0..DISTURBED {
            ask(ground, number);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Runs the chain with the first page of the section not present. `act` is done when something waits
/// for it, and then it may go on. Returns whether something waited.
fn blocked(ground: &Ground, act: impl FnOnce() + Send) -> Result<bool, WorkloadError> {
    let error = |source| WorkloadError::System {
        thread: ground.thread,
        what: "cannot block a page",
        source,
    };
    let at = ground.address();
    let mut fault = Userfault::open().map_err(error)?;
    drop_pages(at, PAGE);
    fault.block(at, PAGE).map_err(error)?;
    let done = AtomicBool::new(false);
    let waited = thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            loop {
                if fault.next_address().is_some() {
                    act();
                    release(&fault, at, PAGE);
                    return true;
                }
                if done.load(Ordering::Acquire) {
                    release(&fault, at, PAGE);
                    return false;
                }
                thread::sleep(Duration::from_micros(200));
            }
        });
        ground.chain.run();
        done.store(true, Ordering::Release);
        watcher.join().unwrap_or(false)
    });
    Ok(waited)
}

/// Lets everything go on that waits, whether the pages are still there or not.
pub(super) fn release(fault: &Userfault, at: u64, bytes: u64) {
    if fault.release(at, bytes).is_err() {
        let _ = fault.wake(at, bytes);
    }
}

/// Takes shared pages out of the page tables. They keep what is in them.
pub(super) fn drop_pages(at: u64, bytes: u64) {
    // `MADV_DONTNEED_LOCKED` (include/uapi/asm-generic/mman-common.h).
    const DONTNEED_LOCKED: i32 = 24;
    // SAFETY: the pages are shared memory, which keeps its contents.
    unsafe {
        libc::madvise(
            std::ptr::with_exposed_provenance_mut(usize::try_from(at).unwrap_or(0)),
            usize::try_from(bytes).unwrap_or(0),
            DONTNEED_LOCKED,
        )
    };
}

/// A shared page once more, at another address: writes to it need not wait where it is blocked.
struct Alias(*mut u8);

// SAFETY: the page is written to bytewise, and what reads it expects anything.
unsafe impl Send for Alias {}
// SAFETY: as above.
unsafe impl Sync for Alias {}

impl Alias {
    fn of(page: u64) -> Result<Self, rustix::io::Errno> {
        let old = std::ptr::with_exposed_provenance_mut(usize::try_from(page).unwrap_or(0));
        // SAFETY: an old size of 0 maps shared memory again, and changes nothing.
        let new = unsafe { libc::mremap(old, 0, PAGE_SIZE, libc::MREMAP_MAYMOVE) };
        if new == libc::MAP_FAILED {
            return Err(rustix::io::Errno::NOMEM);
        }
        Ok(Self(new.cast()))
    }

    fn write(&self, bytes: &[u8]) {
        for (offset, &byte) in bytes.iter().enumerate().take(PAGE_SIZE) {
            // SAFETY: within the page, which stays mapped.
            unsafe { self.0.add(offset).write_volatile(byte) };
        }
    }
}

impl Drop for Alias {
    fn drop(&mut self) {
        // SAFETY: mapped by `of`.
        unsafe { libc::munmap(self.0.cast(), PAGE_SIZE) };
    }
}
