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
//! | `prb_desc` (24) | 8 | where the text's block begins, in bytes ever written; odd: no text |
//! | | 16 | where the next one does |
//! | block | 0 | the descriptor's ID; the text follows |
//! | `printk_info` | 0, 8 | sequence number, time in ns |
//! | | 16, 19 | `u16` length of the text, level in the upper three bits |

use unwindlab_vmm::Memory;

use super::error::SweepError;
use crate::driver::{Driver, word as word_of};

/// Bytes of a `printk_ringbuffer` that are looked at.
const HEAD: usize = 88;
/// Sizes that a `printk_info` has, without and with CONFIG_PRINTK_EXECUTION_CTX.
const INFO_SIZES: [u64; 2] = [88, 112];
const DESC_SIZE: u64 = 24;
/// The most messages of one trial that are read: the newest.
const MAX_MESSAGES: u64 = 512;
const PAGE: u64 = 4096;

/// The ring as it stood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Printed {
    /// Its guest-physical address, which lies in one page.
    at: u64,
    ring: Ring,
}

/// Its sizes, places and newest message.
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
        Ok(at.and_then(|at| {
            let ring = Ring::read(memory, at)?;
            Some(Self { at, ring })
        }))
    }

    /// What was printed since, a line each as dmesg prints it: `<level>[seconds] text`. The vCPU
    /// must stand in the kernel. What cannot be read is left out.
    pub(super) fn since(&self, driver: &mut Driver, index: u8) -> Result<String, SweepError> {
        let ring = Ring::read(driver.machine.memory(), self.at);
        let Some(ring) = ring.filter(|ring| ring.head != self.ring.head) else {
            return Ok(String::new());
        };
        let vcpu = driver.vcpu(index)?;
        let read = |address: u64, into: &mut [u8]| vcpu.read_virt(address, into).ok();
        Ok(ring.since(self.ring.head, &read))
    }
}

/// Fills a buffer from an address of the kernel on.
type ReadVirt<'a> = &'a dyn Fn(u64, &mut [u8]) -> Option<()>;

/// All messages of the ring at a guest-physical address.
#[must_use]
pub fn printed(memory: &Memory, at: u64, read: ReadVirt<'_>) -> String {
    let ring = Ring::read(memory, at);
    let ring = ring.map(|ring| ring.since(0, read));
    ring.unwrap_or_default()
}

fn word(read: ReadVirt<'_>, address: u64) -> Option<u64> {
    let mut word = [0; 8];
    read(address, &mut word)?;
    Some(u64::from_le_bytes(word))
}

impl Ring {
    /// The messages behind the one with this ID.
    fn since(&self, last: u64, read: ReadVirt<'_>) -> String {
        let new = self.head.wrapping_sub(last);
        let new = new.min(self.count).min(MAX_MESSAGES);
        let ids = (0..new).rev().map(|back| self.head.wrapping_sub(back));
        let text = info_size(read, self).map(|size| {
            let lines = ids.filter_map(|id| message(read, self, id, size));
            lines.collect::<String>()
        });
        text.unwrap_or_default()
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

fn message(virt: ReadVirt<'_>, ring: &Ring, id: u64, size: u64) -> Option<String> {
    let read = |address: u64| word(virt, address);
    let desc = ring.descs.wrapping_add((id % ring.count) * DESC_SIZE);
    let (begin, next) = (read(desc.wrapping_add(8))?, read(desc.wrapping_add(16))?);
    if begin % 2 != 0 {
        return None;
    }
    // A block that would be cut by the end of the buffer lies at its start.
    let wraps = begin / ring.size != next.wrapping_sub(1) / ring.size;
    let block = ring
        .text
        .wrapping_add(if wraps { 0 } else { begin % ring.size });
    let info = info(ring, id, size);
    let time = read(info.wrapping_add(8))?;
    let [low, high, _, flags, ..] = read(info.wrapping_add(16))?.to_le_bytes();
    let mut text = vec![0; usize::from(u16::from_le_bytes([low, high]))];
    virt(block.wrapping_add(8), &mut text)?;
    let (level, seconds, rest) = (flags >> 5, time / 1_000_000_000, time / 1000 % 1_000_000);
    let text = String::from_utf8_lossy(&text);
    Some(format!("<{level}>[{seconds:5}.{rest:06}] {text}\n"))
}
