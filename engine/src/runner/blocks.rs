//! Waits for a page of a thread's stack: how far everybody was when one began, and when it ended.

use unwindlab_oracle::trace::recording::Block;

use crate::driver::Driver;

/// Somebody waits for a page of the thread's stack. `in_iteration`: the thread itself does, in the
/// kernel; its own code does not touch the stack between its two marks.
pub fn begin(driver: &mut Driver, thread: u32, in_iteration: bool) {
    driver.drain();
    let block = Block {
        thread,
        in_kernel: in_iteration,
        progress_before: driver.progress(),
        progress_after: Vec::new(),
        records_before: driver.session.ring_records(),
        records_after: Vec::new(),
    };
    driver.session.recording.blocks.push(block);
}

/// The release's delay is over: the progress of the other threads counts from here. One that is held up may have made progress
/// before it asked.
pub fn count_from_here(driver: &mut Driver, thread: u32) {
    let progress = driver.progress();
    let recording = &mut driver.session.recording;
    let Some(block) = { recording.blocks.iter_mut() }.rfind(|it| is_open(it, thread)) else {
        return;
    };
    let counters = block.progress_before.iter_mut().zip(progress);
    for (it, (before, now)) in recording.threads.iter().zip(counters) {
        if it.thread != thread {
            *before = now;
        }
    }
}

/// Whether the kernel's walk of this thread waits, and another thread has made no progress.
pub fn another_stands_still(driver: &Driver, thread: u32) -> bool {
    let recording = &driver.session.recording;
    let Some(block) = { recording.blocks.iter() }.rfind(|it| is_open(it, thread)) else {
        return false;
    };
    let counters = block.progress_before.iter().zip(driver.progress());
    { recording.threads.iter().zip(counters) }
        .any(|(it, (before, now))| it.thread != thread && now <= *before)
}

fn is_open(block: &Block, thread: u32) -> bool {
    block.thread == thread && block.in_kernel && block.records_after.is_empty()
}

/// The page is about to be released.
pub fn end(driver: &mut Driver, thread: u32) {
    driver.drain();
    let progress = driver.progress();
    let records = driver.session.ring_records();
    let blocks = driver.session.recording.blocks.iter_mut();
    if let Some(block) = { blocks }.rfind(|it| it.thread == thread) {
        block.progress_after = progress;
        block.records_after = records;
    }
}
