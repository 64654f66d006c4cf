//! Decodes the bytes of the log. All of it is hostile input: what makes no sense is reported and
//! left out.

use std::collections::BTreeMap;

use unwindlab_abi::lab::{LabContext, SLOT_BYTES, SLOT_FRAMES, kind};

use super::{LabClient, LabEvent, LabFlags, LabKind, LabLog, LabTrace};

/// Complaints kept; the rest are counted.
const MAX_COMPLAINTS: usize = 8;
/// The client of a record about none.
const NO_CLIENT: u16 = 0xffff;

/// Decodes a log. Returns the records, and complaints about what makes no sense.
#[must_use]
pub fn decode(log: &LabLog) -> (LabTrace, Vec<String>) {
    let mut decoder = Decoder::default();
    if let Some(reason) = &log.corrupt {
        decoder.complain(reason);
    }
    for (number, slot) in (0_u64..).zip(log.bytes.as_chunks::<SLOT_BYTES>().0) {
        decoder.slot(number, &Slot(slot));
    }
    decoder.trace.lost = log.head.saturating_sub(log.capacity);
    decoder.finish()
}

/// The 64 bytes of a slot, little-endian.
struct Slot<'a>(&'a [u8; SLOT_BYTES]);

impl Slot<'_> {
    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        let bytes = self.0.get(at..).and_then(<[u8]>::first_chunk);
        bytes.copied().unwrap_or([0; N])
    }

    fn u8(&self, at: usize) -> u8 {
        u8::from_le_bytes(self.bytes(at))
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.bytes(at))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes(at))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes(at))
    }
}

/// A callback whose frames follow, or are those of an earlier one.
#[derive(Debug)]
struct Open {
    /// Index in the trace's events.
    event: usize,
    task: u32,
    hash: u64,
    frames: Vec<u64>,
}

#[derive(Debug, Default)]
struct Decoder {
    trace: LabTrace,
    /// Callbacks by slot.
    callbacks: BTreeMap<u64, Open>,
    complaints: Vec<String>,
    more: usize,
}

impl Decoder {
    fn complain(&mut self, what: &dyn std::fmt::Display) {
        if self.complaints.len() < MAX_COMPLAINTS {
            self.complaints.push(format!("lab log: {what}"));
        } else {
            self.more += 1;
        }
    }

    fn slot(&mut self, number: u64, slot: &Slot<'_>) {
        // The commit word holds the low half of the slot's number, plus one.
        let expected = number.wrapping_add(1).to_le_bytes();
        match slot.bytes::<4>(4) {
            [0, 0, 0, 0] => {
                self.trace.unfinished += 1;
                return;
            }
            commit if expected.starts_with(&commit) => {}
            _ => return self.complain(&format_args!("slot {number} belongs elsewhere")),
        }
        if slot.u8(0) == kind::FRAMES {
            return self.frames(number, slot);
        }
        let Some(kind) = kind_of(slot) else {
            let kind = slot.u8(0);
            return self.complain(&format_args!("slot {number} is of unknown kind {kind}"));
        };
        let Some(&context) = LabContext::ALL.get(usize::from(slot.u8(1))) else {
            return self.complain(&format_args!("slot {number} is of an unknown context"));
        };
        let client = (slot.u16(30) != NO_CLIENT).then(|| LabClient {
            number: slot.u16(30),
            generation: slot.u32(32),
        });
        let task = slot.u32(20);
        if let LabKind::Callback { .. } = kind {
            let open = Open {
                event: self.trace.events.len(),
                task,
                hash: slot.u64(56),
                frames: Vec::new(),
            };
            self.callbacks.insert(number, open);
        }
        self.trace.events.push(LabEvent {
            slot: number,
            time: slot.u64(8),
            cpu: slot.u16(28),
            tid: slot.u32(16),
            task,
            entry: slot.u32(24),
            context,
            flags: flags(slot.u16(2)),
            client,
            kind,
        });
    }

    fn frames(&mut self, number: u64, slot: &Slot<'_>) {
        let (count, first) = (usize::from(slot.u8(1)), slot.u32(16));
        let open = self.callbacks.get_mut(&slot.u64(8));
        let fits = |open: &&mut Open| u32::try_from(open.frames.len()) == Ok(first);
        match open.filter(fits) {
            Some(open) if count <= SLOT_FRAMES => {
                let frames = (0..count).map(|n| slot.u64(24 + 8 * n));
                open.frames.extend(frames);
            }
            _ => self.complain(&format_args!("slot {number} has frames of no callback")),
        }
    }

    /// Gives every callback its frames: its own, or the last ones logged for its task if the client
    /// left them out. The hash proves either.
    fn finish(mut self) -> (LabTrace, Vec<String>) {
        let mut known: BTreeMap<Vec<u64>, usize> = BTreeMap::new();
        let mut last: BTreeMap<u32, (u64, usize)> = BTreeMap::new();
        for (slot, open) in std::mem::take(&mut self.callbacks) {
            let Some(event) = self.trace.events.get_mut(open.event) else {
                continue;
            };
            let LabKind::Callback { nr, stack, .. } = &mut event.kind else {
                continue;
            };
            let own = *nr == open.frames.len() as u64 && hash(&open.frames) == open.hash;
            if own {
                let fresh = known.len();
                let index = *known.entry(open.frames).or_insert(fresh);
                *stack = Some(index);
                if *nr > 0 {
                    last.insert(open.task, (open.hash, index));
                }
            } else if open.frames.is_empty() {
                let before = last.get(&open.task).filter(|(hash, _)| *hash == open.hash);
                *stack = before.map(|(_, index)| *index);
            } else {
                last.remove(&open.task);
                // The log may be full, or the guest may have stopped in the middle.
                if self.trace.lost == 0 && self.trace.unfinished == 0 {
                    self.complain(&format_args!("the frames of slot {slot} are not its own"));
                }
            }
        }
        let mut stacks: Vec<(usize, Vec<u64>)> = known.into_iter().map(|(s, n)| (n, s)).collect();
        stacks.sort_unstable();
        self.trace.stacks = stacks.into_iter().map(|(_, stack)| stack).collect();
        if self.more > 0 {
            self.complaints
                .push(format!("lab log: {} more like these", self.more));
        }
        (self.trace, self.complaints)
    }
}

/// The client's `lab_frames_hash()`.
pub(super) fn hash(frames: &[u64]) -> u64 {
    frames.iter().fold(0xcbf2_9ce4_8422_2325, |hash, frame| {
        (hash ^ frame).wrapping_mul(0x100_0000_01b3)
    })
}

fn kind_of(slot: &Slot<'_>) -> Option<LabKind> {
    let ret = i32::from_le_bytes(slot.bytes(36));
    let (cookie, a, b) = (slot.u64(40), slot.u64(48), slot.u64(56));
    let short = |word: u64| u32::try_from(word).ok();
    Some(match slot.u8(0) {
        kind::TARGET => LabKind::Target {
            tgid: short(a)?,
            parent: short(b)?,
        },
        kind::REQUEST => LabKind::Request {
            ret,
            cookie,
            begin: a,
            ip: b,
        },
        kind::CALLBACK => LabKind::Callback {
            cookie,
            nr: a,
            stack: None,
        },
        kind::CALLED => LabKind::Called { callback: a },
        kind::RETURN => LabKind::Return {
            entered: a,
            ip: b,
            interrupt: cookie.cast_signed() < 0,
        },
        kind::MIGRATE => LabKind::Migrate { from: a, to: b },
        kind::EXIT => LabKind::Exit,
        kind::FREE => LabKind::Free,
        kind::REGISTERED => LabKind::Registered { ret },
        kind::CANCEL => LabKind::Cancel,
        kind::CANCELLED => LabKind::Cancelled,
        kind::START => LabKind::Start,
        kind::STOP => LabKind::Stop,
        _ => return None,
    })
}

fn flags(bits: u16) -> LabFlags {
    let has = |bit: u16| bits & bit != 0;
    LabFlags {
        exiting: has(1),
        leaving: has(2),
        user: has(4),
        nested: has(8),
        cancelled: has(16),
        irqs_off: has(32),
        worker: has(64),
    }
}
