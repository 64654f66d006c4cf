//! Reads ring buffer and results out of guest memory, even of a guest that hangs.

use unwindlab_abi::mailbox::PAGE_SIZE;
use unwindlab_abi::user_mode::{
    COUNTERS, RESULT_FRAMES, RESULT_HEAD, RESULT_PAGES, RING_BYTES, UserModeAnnounce, result,
};

use super::UserModeLog;
use crate::trace::ring::{GuestRead, NotGuestMemory};

impl UserModeLog {
    /// Whether so many pages can be what it says.
    #[must_use]
    pub fn may_be(announce: &UserModeAnnounce) -> bool {
        announce.ring.len() == RING_BYTES / PAGE_SIZE && announce.results.len() == RESULT_PAGES
    }

    /// Reads what was written. [`UserModeLog::corrupt`] says why it could not be read to its end.
    #[must_use]
    pub fn read<M: GuestRead + ?Sized>(memory: &M, announce: &UserModeAnnounce) -> Self {
        let mut log = Self {
            handler: announce.handler,
            unwinder: announce.unwinder,
            ..Self::default()
        };
        log.corrupt = log.fill(memory, announce).err();
        log
    }

    fn fill<M: GuestRead + ?Sized>(
        &mut self,
        memory: &M,
        announce: &UserModeAnnounce,
    ) -> Result<(), String> {
        let outside = |error: NotGuestMemory| error.to_string();
        for counter in (0..).step_by(8).take(COUNTERS) {
            let counter = memory.load(announce.counters + counter);
            self.counters.push(counter.map_err(outside)?);
        }
        // Nobody consumes, so the position is also the number of bytes.
        let produced = memory.load(announce.producer).map_err(outside)?;
        let produced = usize::try_from(produced).unwrap_or(usize::MAX);
        if produced > RING_BYTES {
            return Err(format!("{produced} bytes in a ring of {RING_BYTES}"));
        }
        for &page in announce.ring.iter().take(produced.div_ceil(PAGE_SIZE)) {
            let mut bytes = [0; PAGE_SIZE];
            memory.read(page, &mut bytes).map_err(outside)?;
            self.ring.extend(bytes);
        }
        self.ring.truncate(produced);
        let Some((&control, slots)) = announce.results.split_first() else {
            return Ok(());
        };
        self.taken = memory.load(control).map_err(outside)?;
        let taken = usize::try_from(self.taken).unwrap_or(usize::MAX);
        for &slot in slots.iter().take(taken) {
            let word = |index: usize| memory.load(slot + 8 * index as u64).map_err(outside);
            let frames = usize::try_from(word(result::FRAMES)?).unwrap_or(usize::MAX);
            let words = RESULT_HEAD + frames.min(RESULT_FRAMES);
            let words = (0..words).map(word).collect::<Result<Vec<u64>, String>>();
            self.results.push(words?);
        }
        Ok(())
    }
}
