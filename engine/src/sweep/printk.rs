//! The kernel's own messages, read from the ring in its memory.
//!
//! In a trial nobody reads `/dev/kmsg`, and the console is quiet: an NMI that nobody claims is
//! reported at the highest urgency, and each character would cost an exit.
//!
//! Layouts, all of kernel/printk/printk_ringbuffer.h (7.3), little-endian:
//!
//! | of | bytes | what |
//! |---|---|---|
//! | `printk_ringbuffer` | 0 | `u32` binary logarithm of the number of descriptors |
//! | | 8, 16 | addresses of the descriptors and of the `printk_info`s |
//! | | 24 | ID of the newest descriptor; each message has the next one |
//! | | 48, 56 | `u32` binary logarithm of the text's size, and its address |
//! | `prb_desc` (24) | 0 | the ID of its message, and its state in the upper two bits |
//! | | 8 | where the text's block begins, in bytes ever written; 1: the text was lost, 3: an empty line |
//! | | 16 | where the next one does |
//! | block | 0 | the descriptor's ID; the text follows |
//! | `printk_info` | 0, 8 | sequence number, time in ns |
//! | | 16, 19 | `u16` length of the text, level in the upper three bits |

use unwindlab_abi::LOG_GAP;
use unwindlab_vmm::Memory;

use super::error::SweepError;
use crate::driver::{Driver, word as word_of};

/// Bytes of a `printk_ringbuffer` that are looked at.
const HEAD: usize = 88;
/// Sizes that a `printk_info` has, without and with CONFIG_PRINTK_EXECUTION_CTX.
const INFO_SIZES: [u64; 2] = [88, 112];
const DESC_SIZE: u64 = 24;
/// The most messages that are read.
const MAX_MESSAGES: u64 = 512;
/// The bits of an ID (`DESC_ID_MASK`). The first ID is near the end of their range, so that they wrap early.
const ID_MASK: u64 = u64::MAX >> 2;
/// States of a descriptor (`enum desc_state`) in which its message can be read.
const COMMITTED: u64 = 1;
const FINALIZED: u64 = 2;
/// What stands in the place of a text's block (`EMPTY_LINE_LPOS`).
const EMPTY_LINE: u64 = 3;
const PAGE: u64 = 4096;

/// How far the ring was written; nothing where it cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Printed(Option<Newest>);

/// The newest message that a ring had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Newest {
    /// The ring's guest-physical address, which lies in one page.
    ring: u64,
    /// The message's ID.
    message: u64,
}

/// A ring's sizes, places and newest message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ring {
    descs: u64,
    infos: u64,
    head: u64,
    count: u64,
    text: u64,
    size: u64,
}

impl Ring {
    fn read(memory: &Memory, at: u64) -> Option<Self> {
        let mut bytes = [0; HEAD];
        memory.read(at, &mut bytes).ok()?;
        let word = |at: usize| {
            let eight = bytes.get(at..at + 8)?;
            Some(u64::from_le_bytes(eight.try_into().ok()?))
        };
        let power = |at: usize| 1_u64.checked_shl(u32::try_from(word(at)? & 0xffff_ffff).ok()?);
        Some(Self {
            descs: word(8)?,
            infos: word(16)?,
            head: word(24)?,
            count: power(0)?,
            text: word(56)?,
            size: power(48)?,
        })
    }
}

impl Printed {
    /// The ring of a guest of which this vCPU stands in the kernel. `pointer` leads to it; nothing
    /// where the kernel's symbols do not tell it.
    pub(super) fn of(
        driver: &mut Driver,
        index: u8,
        pointer: Option<u64>,
    ) -> Result<Option<Self>, SweepError> {
        let Some(pointer) = pointer else {
            return Ok(None);
        };
        let vcpu = driver.vcpu(index)?;
        let ring = word_of(&vcpu, pointer)?;
        let at = vcpu.translate(ring)?;
        let at = at.filter(|at| at % PAGE + HEAD as u64 <= PAGE);
        let memory = driver.machine.memory();
        Ok(Some(Self(at.and_then(|ring| {
            let message = Ring::read(memory, ring)?.head;
            Some(Newest { ring, message })
        }))))
    }

    /// What was printed since, a line each as dmesg prints it: `<level>[seconds] text`. The vCPU
    /// must stand in the kernel. In front of them stands [`LOG_GAP`] if one of them cannot be read.
    pub(super) fn since(&self, driver: &mut Driver, index: u8) -> Result<String, SweepError> {
        let memory = driver.machine.memory();
        let now = { self.0 }.and_then(|then| Some((then.message, Ring::read(memory, then.ring)?)));
        let Some((last, ring)) = now else {
            return Ok(LOG_GAP.to_owned());
        };
        if ring.head == last {
            return Ok(String::new());
        }
        let vcpu = driver.vcpu(index)?;
        let read = |address: u64, into: &mut [u8]| vcpu.read_virt(address, into).ok();
        let (mut text, is_whole) = ring.since(last, MAX_MESSAGES, &read);
        if !is_whole {
            text.insert_str(0, LOG_GAP);
        }
        Ok(text)
    }
}

/// Fills a buffer from an address of the kernel on.
type ReadVirt<'a> = &'a dyn Fn(u64, &mut [u8]) -> Option<()>;

/// The newest messages of the ring at a guest-physical address, as far as they can be read.
#[must_use]
pub fn printed(memory: &Memory, at: u64, read: ReadVirt<'_>) -> String {
    let ring = Ring::read(memory, at);
    let text = ring.map(|ring| {
        let before = ring.head.wrapping_sub(MAX_MESSAGES);
        ring.since(before, MAX_MESSAGES, read).0
    });
    text.unwrap_or_default()
}

fn word(read: ReadVirt<'_>, address: u64) -> Option<u64> {
    let mut word = [0; 8];
    read(address, &mut word)?;
    Some(u64::from_le_bytes(word))
}

impl Ring {
    /// The first `most` messages behind the one with this ID that are still there, and whether these are all: what a
    /// kernel says first tells most.
    fn since(&self, last: u64, most: u64, read: ReadVirt<'_>) -> (String, bool) {
        let new = self.head.wrapping_sub(last) & ID_MASK;
        let kept = new.min(self.count);
        let mut is_whole = kept == new && kept <= most;
        let Some(size) = info_size(read, self) else {
            return (String::new(), false);
        };
        let mut text = String::new();
        for back in (kept.saturating_sub(most)..kept).rev() {
            let id = self.head.wrapping_sub(back) & ID_MASK;
            match message(read, self, id, size) {
                Some(line) => text.push_str(&line),
                None => is_whole = false,
            }
        }
        (text, is_whole)
    }
}

/// The size with which the newest message's sequence number is one more than that of the message
/// before.
fn info_size(read: ReadVirt<'_>, ring: &Ring) -> Option<u64> {
    INFO_SIZES.into_iter().find(|size| {
        let number = |id: u64| word(read, info(ring, id, *size));
        let before = number(ring.head.wrapping_sub(1));
        before.is_some_and(|before| number(ring.head) == Some(before.wrapping_add(1)))
    })
}

fn info(ring: &Ring, id: u64, size: u64) -> u64 {
    ring.infos
        .wrapping_add((id % ring.count).wrapping_mul(size))
}

/// A message; nothing where it was overwritten, is still being written, or had no room.
fn message(virt: ReadVirt<'_>, ring: &Ring, id: u64, size: u64) -> Option<String> {
    let read = |address: u64| word(virt, address);
    let desc = ring
        .descs
        .wrapping_add((id % ring.count).wrapping_mul(DESC_SIZE));
    let state = read(desc)?;
    if state & ID_MASK != id || ![COMMITTED, FINALIZED].contains(&(state >> 62)) {
        return None;
    }
    let (begin, next) = (read(desc.wrapping_add(8))?, read(desc.wrapping_add(16))?);
    if begin % 2 != 0 {
        return (begin == EMPTY_LINE).then(String::new);
    }
    // A block that would be cut by the end of the buffer lies at its start.
    let wraps = begin / ring.size != next.wrapping_sub(1) / ring.size;
    let block = ring
        .text
        .wrapping_add(if wraps { 0 } else { begin % ring.size });
    if read(block)? != id {
        return None;
    }
    let info = info(ring, id, size);
    let time = read(info.wrapping_add(8))?;
    let [low, high, _, flags, ..] = read(info.wrapping_add(16))?.to_le_bytes();
    let mut text = vec![0; usize::from(u16::from_le_bytes([low, high]))];
    virt(block.wrapping_add(8), &mut text)?;
    let (level, seconds, rest) = (flags >> 5, time / 1_000_000_000, time / 1000 % 1_000_000);
    let text = String::from_utf8_lossy(&text);
    Some(format!("<{level}>[{seconds:5}.{rest:06}] {text}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DESCS: u64 = 0x1000;
    const INFOS: u64 = 0x2000;
    const TEXT: u64 = 0x3000;
    const COUNT: u64 = 8;
    const SIZE: u64 = 1024;
    /// The one before the first message (`DESC0_ID`).
    const FIRST: u64 = ID_MASK - COUNT;

    /// The memory of a kernel that has printed these messages.
    struct Kernel {
        bytes: Vec<u8>,
        head: u64,
        next: u64,
    }

    impl Kernel {
        fn new() -> Self {
            let bytes = vec![0; 0x4000];
            let (head, next) = (FIRST, 0);
            Self { bytes, head, next }
        }

        fn put(&mut self, address: u64, value: &[u8]) {
            let at = usize::try_from(address).unwrap();
            self.bytes[at..at + value.len()].copy_from_slice(value);
        }

        fn word(&mut self, address: u64, value: u64) {
            self.put(address, &value.to_le_bytes());
        }

        fn print(&mut self, text: &str) {
            self.head = (self.head + 1) & ID_MASK;
            let (slot, block) = (self.head % COUNT, 64);
            let desc = DESCS + slot * DESC_SIZE;
            self.word(desc, FINALIZED << 62 | self.head);
            self.word(desc + 8, self.next);
            self.word(desc + 16, self.next + block);
            self.word(TEXT + self.next % SIZE, self.head);
            self.put(TEXT + self.next % SIZE + 8, text.as_bytes());
            self.next += block;
            let info = INFOS + slot * INFO_SIZES[0];
            self.word(info, self.head.wrapping_sub(FIRST) & ID_MASK);
            self.word(info + 8, 2_000_001_000);
            self.word(info + 16, text.len() as u64 | 4 << 29);
        }

        fn since(&self, last: u64) -> (String, bool) {
            self.first_since(last, COUNT)
        }

        fn first_since(&self, last: u64, most: u64) -> (String, bool) {
            let ring = Ring {
                descs: DESCS,
                infos: INFOS,
                head: self.head,
                count: COUNT,
                text: TEXT,
                size: SIZE,
            };
            ring.since(last, most, &|address, into| {
                let at = usize::try_from(address).ok()?;
                into.copy_from_slice(self.bytes.get(at..at.checked_add(into.len())?)?);
                Some(())
            })
        }
    }

    fn lines(numbers: std::ops::RangeInclusive<u64>) -> String {
        let line = |number| format!("<4>[    2.000001] message {number}\n");
        numbers.map(line).collect()
    }

    #[test]
    fn all_messages_are_there_until_one_is_overwritten() {
        let mut kernel = Kernel::new();
        (1..=2).for_each(|number| kernel.print(&format!("message {number}")));
        let begun = kernel.head;
        // The IDs wrap among them.
        (3..=2 + COUNT).for_each(|number| kernel.print(&format!("message {number}")));
        assert_eq!(kernel.since(begun), (lines(3..=2 + COUNT), true));
        kernel.print("message 11");
        assert_eq!(kernel.since(begun), (lines(4..=11), false));
        assert_eq!(kernel.first_since(begun, 3), (lines(4..=6), false));
        assert_eq!(
            kernel.first_since(kernel.head - 3, 3),
            (lines(9..=11), true)
        );
    }

    #[test]
    fn a_message_that_cannot_be_read_is_missing() {
        let last = FIRST + 3;
        let desc = DESCS + last % COUNT * DESC_SIZE;
        let spoil = |address, value, expected| {
            let mut kernel = Kernel::new();
            (1..=4).for_each(|number| kernel.print(&format!("message {number}")));
            assert_eq!(kernel.since(FIRST), (lines(1..=4), true));
            kernel.word(address, value);
            let without = format!("{}{}", lines(1..=2), lines(4..=4));
            assert_eq!(
                kernel.since(FIRST),
                (without, expected),
                "{address:#x} {value:#x}"
            );
        };
        // Of another message, still being written, free again.
        spoil(desc, FINALIZED << 62 | (last - COUNT), false);
        spoil(desc, last, false);
        spoil(desc, 3 << 62 | last, false);
        // It had no room; an empty line has no text that could be lost.
        spoil(desc + 8, 1, false);
        spoil(desc + 8, EMPTY_LINE, true);
        // Its text was overwritten.
        spoil(TEXT + 2 * 64, last + 1, false);
    }
}
