//! The memory that the agent shares with the host: progress counters, commands and their answers.

use unwindlab_abi::command::CommandWords;
use unwindlab_abi::mailbox::PAGE_SIZE;
use unwindlab_abi::shared;
use unwindlab_vmm::{AccessError, Memory};

/// An address that is never RAM: where the area is before the agent has announced it.
const NOWHERE: u64 = u64::MAX - 64;

/// The area; its pages are guest-physical addresses.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedArea {
    /// Empty before they are announced.
    pages: Vec<u64>,
}

impl SharedArea {
    /// The area that the agent announced; none where it has more pages than any area.
    pub(super) fn announced(pages: Vec<u64>) -> Option<Self> {
        (pages.len() <= shared::PAGES).then_some(Self { pages })
    }

    /// Tells every workload thread to end at its next iteration.
    pub fn stop_workload(&self, memory: &Memory) -> Result<(), AccessError> {
        match self.word(shared::STOP_OFFSET) {
            Some(at) => memory.write(at, &1_u32.to_le_bytes()),
            None => Ok(()),
        }
    }

    /// Gives a command to the agent's helper, which waits for the number: that is written last.
    pub fn give_command(
        &self,
        memory: &Memory,
        number: u64,
        words: CommandWords,
    ) -> Result<(), AccessError> {
        let at = self.word(shared::COMMAND_OFFSET).unwrap_or(NOWHERE);
        let all = [words.what, words.thread, words.argument];
        for (at, word) in (at + 8..).step_by(8).zip(all) {
            memory.write(at, &word.to_le_bytes())?;
        }
        memory.store_u64(at, number)
    }

    /// The errno of command `number`, 0 on success; `None` while the helper is not done with it.
    pub fn command_errno(&self, memory: &Memory, number: u64) -> Option<u64> {
        let at = self.word(shared::ANSWER_OFFSET)?;
        let done = memory.load_u64(at).ok()? == number;
        done.then(|| memory.load_u64(at + 8).ok())?
    }

    /// The progress counter of a workload thread.
    pub(super) fn progress(&self, memory: &Memory, thread: u32) -> Option<u64> {
        let at = self.word(shared::progress_offset(thread))?;
        let mut word = [0; 8];
        memory.read(at, &mut word).ok()?;
        Some(u64::from_le_bytes(word))
    }

    /// Where a word of the area is in guest-physical memory.
    fn word(&self, offset: usize) -> Option<u64> {
        let page = self.pages.get(offset / PAGE_SIZE)?;
        Some(page + (offset % PAGE_SIZE) as u64)
    }
}
