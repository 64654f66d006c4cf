//! Buffers of instances in guest memory.
//!
//! Nobody reads them in the guest, and they do not overwrite, so that their sub-buffers are filled one after the
//! other. What does not fit is dropped: that needs a last sub-buffer that is full (`rb_move_tail`,
//! kernel/trace/ring_buffer.c, 7.3).

use unwindlab_abi::tracefs::{SUB_BUFFER, TracefsBuffer};

use super::log::{TracefsHeld, TracefsPages};
use super::page;
use crate::trace::ring::{GuestRead, NotGuestMemory};

/// How far a buffer is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Position {
    /// Full sub-buffers.
    full: usize,
    /// Bytes of events in the one behind them.
    bytes: usize,
}

impl Position {
    /// Where the last sub-buffer that holds something is the one of this number (the first one where none does), and
    /// this is its word of committed bytes.
    #[must_use]
    pub fn at(number: usize, committed: u64) -> Self {
        Self {
            full: number,
            bytes: page::committed(committed),
        }
    }

    /// The same in one number: a sub-buffer counts as [`SUB_BUFFER`] bytes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        page::offset(self.full, self.bytes)
    }

    /// Guest-physical addresses of the words that say how many bytes of each sub-buffer are committed.
    #[must_use]
    pub fn words(buffer: &TracefsBuffer) -> Vec<u64> {
        let pages = buffer.pages.iter();
        let words = pages.map(|page| page.saturating_add(page::COMMITTED));
        words.collect()
    }

    /// How far a buffer is written now.
    ///
    /// # Errors
    /// [`NotGuestMemory`].
    pub fn of<M: GuestRead + ?Sized>(
        memory: &M,
        buffer: &TracefsBuffer,
    ) -> Result<Self, NotGuestMemory> {
        let mut position = Self::default();
        for (number, word) in Self::words(buffer).into_iter().enumerate() {
            let next = Self::at(number, memory.load(word)?);
            if next.bytes == 0 {
                break;
            }
            position = next;
        }
        Ok(position)
    }
}

impl TracefsHeld {
    /// What is in these buffers behind these positions; from the start for those that have none.
    ///
    /// # Errors
    /// [`NotGuestMemory`].
    pub fn read<M: GuestRead + ?Sized>(
        memory: &M,
        buffers: &[TracefsBuffer],
        behind: &[Position],
    ) -> Result<Self, NotGuestMemory> {
        let mut held = Self::default();
        let behind = behind.iter().copied();
        for (buffer, from) in buffers
            .iter()
            .zip(behind.chain(std::iter::repeat(Position::default())))
        {
            let (bytes, has_room) = sub_buffers(memory, &buffer.pages, from.full)?;
            held.pages.push(TracefsPages {
                instance: buffer.instance,
                life: 0,
                cpu: buffer.cpu,
                bytes,
                first: from.full,
                skip: from.bytes,
                is_full: !has_room,
            });
            // Nobody knows how many.
            let lost = if has_room { 0 } else { u64::MAX };
            held.lost.push((buffer.instance, 0, lost));
        }
        Ok(held)
    }
}

/// Those that hold something from a number on, and whether there is one that holds nothing.
fn sub_buffers<M: GuestRead + ?Sized>(
    memory: &M,
    pages: &[u64],
    from: usize,
) -> Result<(Vec<u8>, bool), NotGuestMemory> {
    let mut bytes = Vec::new();
    for &page in pages.iter().skip(from) {
        let mut sub_buffer = [0; SUB_BUFFER];
        memory.read(page, &mut sub_buffer)?;
        if page::is_empty(&sub_buffer) {
            return Ok((bytes, true));
        }
        bytes.extend_from_slice(&sub_buffer);
    }
    Ok((bytes, false))
}
