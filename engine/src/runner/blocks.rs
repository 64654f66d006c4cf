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

/// Whether the kernel's walk of this thread waits, and another thread has not come on since it began to.
pub fn another_stands_still(driver: &Driver, thread: u32) -> bool {
    let mut blocks = driver.session.recording.blocks.iter();
    let waits = |it: &&Block| it.thread == thread && it.in_kernel && it.records_after.is_empty();
    let Some(block) = blocks.rfind(waits) else {
        return false;
    };
    let threads = driver.session.recording.threads.iter();
    let others = threads.zip(block.progress_before.iter().zip(driver.progress()));
    { others }.any(|(it, (before, now))| it.thread != thread && now <= *before)
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
