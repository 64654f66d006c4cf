//! Reading a perf ring buffer out of guest memory while the guest runs.
//!
//! Layout and protocol are those of `struct perf_event_mmap_page` (include/uapi/linux/
//! perf_event.h, Linux 7.2): `u64 data_head` at byte 1024 counts all bytes ever written and never
//! wraps back; `u64 data_tail` at 1032 counts those read. Byte `n` of the stream is at `n % size`
//! of the data area. The kernel publishes `data_head` only after whole records
//! (`perf_output_put_handle`), and drops records rather than overwrite what is not read yet.
//!
//! A ring of events with `write_backward` is written from its end on: `data_head` counts down from
//! 0, and the newest record is at `data_head` (`__perf_output_begin`, kernel/events/ring_buffer.c).
//! Its records are kept oldest first, as if it had been written forwards. (Where the kernel tells of
//! a loss, that record comes behind the one with which it shares its space.)
//!
//! None of this is trusted: where the guest lies, the ring is marked corrupt, and what was read
//! before stays valid.

use unwindlab_abi::mailbox::PAGE_SIZE;
use unwindlab_abi::message::RingAnnounce;

use super::framing::{FramingError, Records};
use super::recording::RingBytes;

/// Byte of `data_head` in the control page.
pub const DATA_HEAD: u64 = 1024;
/// Byte of `data_tail` in the control page.
pub const DATA_TAIL: u64 = 1032;
/// Data pages a ring may have (16 MiB); far above what a scenario asks for.
pub const MAX_DATA_PAGES: usize = 4096;
/// Bytes kept of one ring over a whole trial; if the guest writes more, the ring is not read on.
pub const MAX_RING_BYTES: usize = 64 << 20;

/// An access that guest memory does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("guest-physical address {0:#x} is not in the guest's memory")]
pub struct NotGuestMemory(pub u64);

/// What a ring reader needs of guest memory. Addresses are guest-physical; the words are
/// little-endian and 8-byte aligned, and vCPUs may be accessing all of it at the same time.
pub trait GuestRead {
    /// Copies `into.len()` bytes from `gpa`.
    ///
    /// # Errors
    /// [`NotGuestMemory`] if not all of it is RAM.
    fn read(&self, gpa: u64, into: &mut [u8]) -> Result<(), NotGuestMemory>;

    /// Loads a word in one access, before any [`read`](Self::read) that follows (acquire).
    ///
    /// # Errors
    /// [`NotGuestMemory`] if it is not RAM.
    fn load(&self, gpa: u64) -> Result<u64, NotGuestMemory>;

    /// Stores a word in one access, after any [`read`](Self::read) that precedes it (release).
    ///
    /// # Errors
    /// [`NotGuestMemory`] if it is not RAM.
    fn store(&self, gpa: u64, word: u64) -> Result<(), NotGuestMemory>;
}

/// Why a ring cannot be read, or not any further. Each is the guest's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum RingError {
    /// Data pages are not a power of two of at most [`MAX_DATA_PAGES`].
    #[error("{0} data pages announced, which is no power of two up to {MAX_DATA_PAGES}")]
    PageCount(usize),
    /// A page address is not page-aligned.
    #[error("page at {0:#x} is not page-aligned")]
    PageAddress(u64),
    /// Part of the ring is outside guest memory.
    #[error(transparent)]
    Memory(#[from] NotGuestMemory),
    /// `data_head` went back to before what was read.
    #[error("data_head {head:#x} is behind data_tail {tail:#x}")]
    HeadBehindTail { head: u64, tail: u64 },
    /// `data_head` is further ahead than the ring is long.
    #[error("data_head {head:#x} is more than the ring's {size:#x} bytes ahead of {tail:#x}")]
    HeadTooFar { head: u64, tail: u64, size: u64 },
    /// `data_head` or the initial `data_tail` is not at a record's boundary.
    #[error("position {0:#x} is no multiple of 8")]
    UnalignedPosition(u64),
    /// The bytes between tail and head are no records.
    #[error("stream position {position:#x}: {error}")]
    Framing { position: u64, error: FramingError },
    /// The guest wrote more than [`MAX_RING_BYTES`].
    #[error("more than {MAX_RING_BYTES} bytes of records; shorten the trial")]
    TooMuch,
}

/// Reads one ring, from its announcement to the end of the trial.
#[derive(Debug, Clone)]
pub struct RingReader {
    ring: u32,
    control_page: u64,
    data_pages: Vec<u64>,
    /// Bytes of the data area, a power of two.
    size: u64,
    backward: bool,
    /// Stream position up to which all was read; the guest's own word is not read again.
    tail: Option<u64>,
    /// Stream position of the first byte kept; 0 before anything was read.
    begin: u64,
    bytes: Vec<u8>,
    /// How many records those are.
    records: usize,
    corrupt: Option<RingError>,
}

impl RingReader {
    /// A reader that has read nothing yet.
    ///
    /// # Errors
    /// [`RingError::PageCount`], [`RingError::PageAddress`].
    pub fn new(announce: &RingAnnounce) -> Result<Self, RingError> {
        let pages = announce.data_pages.len();
        if !pages.is_power_of_two() || pages > MAX_DATA_PAGES {
            return Err(RingError::PageCount(pages));
        }
        let mut addresses = announce.data_pages.iter().chain([&announce.control_page]);
        if let Some(&page) = addresses.find(|page| !page.is_multiple_of(PAGE_SIZE as u64)) {
            return Err(RingError::PageAddress(page));
        }
        Ok(Self {
            ring: announce.ring,
            control_page: announce.control_page,
            data_pages: announce.data_pages.clone(),
            size: (pages * PAGE_SIZE) as u64,
            backward: announce.backward,
            tail: None,
            begin: 0,
            bytes: Vec::new(),
            records: 0,
            corrupt: None,
        })
    }

    /// Reads all records that the guest has published, and lets it reuse their space. Returns the
    /// number of records. Reads `data_head` once.
    ///
    /// # Errors
    /// [`RingError`] when the ring is found corrupt. It is not read any more from then on, and
    /// every later call returns 0.
    pub fn drain<M: GuestRead + ?Sized>(&mut self, memory: &M) -> Result<usize, RingError> {
        if self.corrupt.is_some() {
            return Ok(0);
        }
        self.try_drain(memory)
            .inspect_err(|error| self.corrupt = Some(*error))
    }

    /// A reader of the same ring that continues where this one is, with nothing read so far.
    #[must_use]
    pub fn from_here(&self) -> Self {
        Self {
            bytes: Vec::new(),
            records: 0,
            data_pages: self.data_pages.clone(),
            begin: self.forwards(self.tail.unwrap_or(0)),
            ..*self
        }
    }

    /// The records read so far, in a row, without the wrap.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many records were read so far.
    #[must_use]
    pub const fn records(&self) -> usize {
        self.records
    }

    /// Why the ring is not read any more, if it is not.
    #[must_use]
    pub const fn corrupt(&self) -> Option<RingError> {
        self.corrupt
    }

    /// What the trial's recording keeps.
    #[must_use]
    pub fn finish(self) -> RingBytes {
        RingBytes {
            ring: self.ring,
            begin: self.begin,
            bytes: self.bytes,
            corrupt: self.corrupt.map(|error| error.to_string()),
        }
    }

    fn try_drain<M: GuestRead + ?Sized>(&mut self, memory: &M) -> Result<usize, RingError> {
        let tail = match self.tail {
            Some(tail) => tail,
            // A ring may have been used before it was announced, so it need not start at 0.
            None => {
                let tail = aligned(memory.load(self.control_page + DATA_TAIL)?)?;
                self.begin = self.forwards(tail);
                tail
            }
        };
        self.tail = Some(tail);
        let head = aligned(memory.load(self.control_page + DATA_HEAD)?)?;
        let new = self.distance(tail, head)?;
        if new == 0 {
            return Ok(0);
        }
        let start = self.bytes.len();
        if new > MAX_RING_BYTES.saturating_sub(start) {
            return Err(RingError::TooMuch);
        }
        self.bytes.resize(start + new, 0);
        let from = if self.backward { head } else { tail };
        if let Err(error) = self.copy(memory, from, start) {
            self.bytes.truncate(start);
            return Err(error.into());
        }
        let records = self.keep_whole_records(from, start)?;
        self.records += records;
        if self.backward {
            self.oldest_first(start);
        }
        self.tail = Some(head);
        memory.store(self.control_page + DATA_TAIL, head)?;
        Ok(records)
    }

    /// The position in a stream that counts up.
    fn forwards(&self, position: u64) -> u64 {
        match self.backward {
            true => position.wrapping_neg(),
            false => position,
        }
    }

    /// Reverses the order of the records from `start` on, which are whole.
    fn oldest_first(&mut self, start: usize) {
        let newest_first = self.bytes.split_off(start);
        let mut records = Records::new(&newest_first);
        let mut ends = Vec::new();
        while records.next().is_some_and(|record| record.is_ok()) {
            ends.push(records.offset());
        }
        let mut end = newest_first.len();
        for begin in ends.into_iter().rev().skip(1).chain([0]) {
            let record = newest_first.get(begin..end).unwrap_or_default();
            self.bytes.extend_from_slice(record);
            end = begin;
        }
    }

    /// Bytes from tail to head. Both are free-running 64-bit counts, which no guest makes wrap by
    /// honest writing.
    fn distance(&self, tail: u64, head: u64) -> Result<usize, RingError> {
        let new = self
            .forwards(head)
            .checked_sub(self.forwards(tail))
            .ok_or(RingError::HeadBehindTail { head, tail })?;
        let size = self.size;
        let too_far = RingError::HeadTooFar { head, tail, size };
        if new > size {
            return Err(too_far);
        }
        usize::try_from(new).map_err(|_| too_far)
    }

    /// Fills `self.bytes[start..]` from stream position `from`, page by page.
    fn copy<M: GuestRead + ?Sized>(
        &mut self,
        memory: &M,
        from: u64,
        start: usize,
    ) -> Result<(), NotGuestMemory> {
        // The remainder is less than the size of the data area, so it always fits.
        let first = usize::try_from(from % self.size).unwrap_or_default();
        let mut within = first % PAGE_SIZE;
        let mut rest = self.bytes.get_mut(start..).unwrap_or_default();
        for &page in self.data_pages.iter().cycle().skip(first / PAGE_SIZE) {
            let piece = rest.len().min(PAGE_SIZE - within);
            let (into, later) = rest.split_at_mut(piece);
            memory.read(page + within as u64, into)?;
            if later.is_empty() {
                break;
            }
            (rest, within) = (later, 0);
        }
        Ok(())
    }

    /// Counts the records from `start` on; after an error, keeps only those before it.
    fn keep_whole_records(&mut self, position: u64, start: usize) -> Result<usize, RingError> {
        let mut records = Records::new(self.bytes.get(start..).unwrap_or_default());
        let mut count = 0;
        while let Some(record) = records.next() {
            match record {
                Ok(_) => count += 1,
                Err(error) => {
                    // Backwards, what is older lies behind the bad one.
                    let whole = if self.backward { 0 } else { records.offset() };
                    self.bytes.truncate(start + whole);
                    return Err(RingError::Framing { position, error });
                }
            }
        }
        Ok(count)
    }
}

fn aligned(position: u64) -> Result<u64, RingError> {
    if position.is_multiple_of(8) {
        Ok(position)
    } else {
        Err(RingError::UnalignedPosition(position))
    }
}

#[cfg(test)]
mod tests;
