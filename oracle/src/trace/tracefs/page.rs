//! Sub-buffers of the kernel's ring buffer (`struct buffer_data_page` and `struct ring_buffer_event`,
//! include/linux/ring_buffer.h, 7.3; `events/header_page` and `events/header_event` say the same).
//!
//! A sub-buffer begins with its time and the number of bytes that are committed. Each event has a word:
//! five bits of type or length, 27 bits of time since the one before.

use unwindlab_abi::tracefs::SUB_BUFFER;

/// Time, and committed bytes.
const HEADER: usize = 16;
/// The bits of the commit word that are a number of bytes; above them are flags for lost events.
const COMMIT: u64 = 0xf_ffff;
const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;
/// Bits of an absolute time; those above it are of the event before.
const STAMP_BITS: u32 = 59;

/// Offset of the word that says how much is committed.
pub(super) const COMMITTED: u64 = 8;

/// The place in a buffer of a place behind the header of its sub-buffer of this number.
pub(super) fn offset(sub_buffer: usize, at: usize) -> u64 {
    let offset = sub_buffer.saturating_mul(SUB_BUFFER).saturating_add(at);
    u64::try_from(offset).unwrap_or(u64::MAX)
}

/// The bytes of events that the word at [`COMMITTED`] tells.
pub(super) fn committed(word: u64) -> usize {
    usize::try_from(word & COMMIT).unwrap_or(usize::MAX)
}

/// Whether nothing was written into a sub-buffer.
pub(super) fn is_empty(page: &[u8]) -> bool {
    word64(page, 8).is_none_or(|word| committed(word) == 0)
}

/// One event, not interpreted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RawEvent<'p> {
    /// Nanoseconds.
    pub time: u64,
    /// Where it begins behind the header of its sub-buffer.
    pub start: usize,
    /// Its bytes there.
    pub size: usize,
    /// What it holds.
    pub data: &'p [u8],
}

/// The events of a sub-buffer behind its first `skip` bytes of them, up to the first that makes no sense, and
/// why that does not.
pub(super) fn events(page: &[u8], skip: usize) -> (Vec<RawEvent<'_>>, Option<String>) {
    let mut events = Vec::new();
    let (Some(mut time), Some(commit)) = (word64(page, 0), word64(page, 8)) else {
        return (events, Some("a sub-buffer has no header".to_owned()));
    };
    let end = committed(commit);
    let Some(data) = HEADER
        .checked_add(end)
        .and_then(|end| page.get(HEADER..end))
    else {
        return (
            events,
            Some(format!("{end} bytes are committed, more than there are")),
        );
    };
    let mut at = 0;
    while at < data.len() {
        match one(data, at, &mut time) {
            Some((event, next)) if next > at => {
                events.extend(event.filter(|_| at >= skip));
                at = next;
            }
            _ => {
                return (
                    events,
                    Some(format!("the event at {at} of {end} bytes makes no sense")),
                );
            }
        }
    }
    (events, None)
}

/// The event at an offset, if it is not only a time or a gap, and where the next one is.
fn one<'p>(data: &'p [u8], at: usize, time: &mut u64) -> Option<(Option<RawEvent<'p>>, usize)> {
    let word = word32(data, at)?;
    let (kind, delta) = (word & 31, u64::from(word >> 5));
    let body = at.checked_add(4)?;
    match kind {
        // The rest of the sub-buffer is empty.
        PADDING if delta == 0 => Some((None, data.len())),
        PADDING => {
            *time = time.wrapping_add(delta);
            let length = usize::try_from(word32(data, body)?).ok()?;
            Some((None, body.checked_add(length)?))
        }
        TIME_EXTEND => {
            let more = u64::from(word32(data, body)?) << 27;
            *time = time.wrapping_add(more | delta);
            Some((None, body.checked_add(4)?))
        }
        TIME_STAMP => {
            let stamp = u64::from(word32(data, body)?) << 27 | delta;
            *time = (*time >> STAMP_BITS << STAMP_BITS) | stamp;
            Some((None, body.checked_add(4)?))
        }
        _ => {
            *time = time.wrapping_add(delta);
            let (start, next) = match kind {
                // The next word is the length, itself included.
                0 => {
                    let length = usize::try_from(word32(data, body)?).ok()?;
                    let next = body.checked_add(length.checked_next_multiple_of(4)?)?;
                    (body.checked_add(4)?, next)
                }
                words => (body, body.checked_add(usize::try_from(words).ok()? * 4)?),
            };
            let held = data.get(start..next)?;
            let time = *time;
            let event = RawEvent {
                time,
                start: at,
                size: next.checked_sub(at)?,
                data: held,
            };
            Some((Some(event), next))
        }
    }
}

fn word32(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    bytes.try_into().ok().map(u32::from_le_bytes)
}

fn word64(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(8)?)?;
    bytes.try_into().ok().map(u64::from_le_bytes)
}
