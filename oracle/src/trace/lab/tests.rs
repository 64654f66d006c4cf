use proptest::prelude::*;
use unwindlab_abi::lab::{HEAD_OFFSET, MAGIC, SLOT_BYTES, SLOTS_OFFSET, VERSION};
use unwindlab_abi::mailbox::PAGE_SIZE;

use super::decode::{decode, hash};
use super::{LabKind, LabLog};
use crate::trace::flat_memory::Flat;

/// A log in the making.
#[derive(Default)]
struct Log(Vec<u8>);

impl Log {
    fn push(&mut self, kind: u8, put: &[(usize, &[u8])]) -> u64 {
        let number = self.0.len() / SLOT_BYTES;
        let mut slot = [0; SLOT_BYTES];
        slot[0] = kind;
        slot[4..8].copy_from_slice(&u32::try_from(number + 1).unwrap().to_le_bytes());
        slot[30..32].fill(0xff);
        for (at, bytes) in put {
            slot[*at..*at + bytes.len()].copy_from_slice(bytes);
        }
        self.0.extend(slot);
        number as u64
    }

    fn callback(&mut self, task: u32, frames: &[u64], with_frames: bool) {
        let (nr, hash) = (
            (frames.len() as u64).to_le_bytes(),
            hash(frames).to_le_bytes(),
        );
        let slot = self.push(3, &[(20, &task.to_le_bytes()), (48, &nr), (56, &hash)]);
        for (n, part) in (0_u32..).zip(frames.chunks(5)).filter(|_| with_frames) {
            let bytes: Vec<u8> = part.iter().flat_map(|f| f.to_le_bytes()).collect();
            self.push(
                5,
                &[
                    (1, &[u8::try_from(part.len()).unwrap()]),
                    (8, &slot.to_le_bytes()),
                    (16, &(5 * n).to_le_bytes()),
                    (24, &bytes),
                ],
            );
        }
    }

    fn log(&self) -> LabLog {
        let slots = (self.0.len() / SLOT_BYTES) as u64;
        LabLog {
            head: slots,
            capacity: slots,
            bytes: self.0.clone(),
            corrupt: None,
        }
    }
}

const STACK: [u64; 7] = [1, 2, 3, 4, 5, 6, 7];

#[test]
fn frames_are_those_of_their_callback_or_of_the_one_before() {
    let mut log = Log::default();
    log.callback(1, &STACK, true);
    log.callback(2, &STACK[1..], true);
    log.callback(1, &STACK, false);
    log.callback(1, &[], false);
    // Never logged for this task.
    log.callback(3, &STACK, false);
    let (trace, complaints) = decode(&log.log());
    assert_eq!(complaints, [""; 0]);
    let frames: Vec<_> = trace.events.iter().map(|e| trace.frames(e)).collect();
    let (all, tail, none) = (Some(&STACK[..]), Some(&STACK[1..]), Some(&[][..]));
    assert_eq!(frames, [all, tail, all, none, None]);
}

#[test]
fn frames_that_are_not_what_was_hashed_are_told() {
    let mut log = Log::default();
    log.callback(1, &STACK, true);
    let last = log.0.len() - SLOT_BYTES + 24;
    log.0[last] ^= 1;
    let (trace, complaints) = decode(&log.log());
    assert_eq!(trace.frames(&trace.events[0]), None);
    assert_eq!(
        complaints,
        ["lab log: the frames of slot 0 are not its own"]
    );
}

#[test]
fn a_request_is_read_field_by_field() {
    let mut log = Log::default();
    log.push(
        2,
        &[
            (1, &[3]),
            (2, &[0b1_0110, 0]),
            (8, &9_u64.to_le_bytes()),
            (16, &101_u32.to_le_bytes()),
            (20, &1_u32.to_le_bytes()),
            (24, &7_u32.to_le_bytes()),
            (28, &[1, 0, 4, 0]),
            (32, &2_u32.to_le_bytes()),
            (36, &(-22_i32).to_le_bytes()),
            (40, &0x3_0000_0001_u64.to_le_bytes()),
            (48, &5_u64.to_le_bytes()),
            (56, &0x40_u64.to_le_bytes()),
        ],
    );
    let (trace, complaints) = decode(&log.log());
    assert_eq!(complaints, [""; 0]);
    let event = &trace.events[0];
    let kind = LabKind::Request {
        ret: -22,
        cookie: 0x3_0000_0001,
        begin: 5,
        ip: 0x40,
    };
    assert_eq!(event.kind, kind);
    assert_eq!((event.time, event.cpu, event.tid), (9, 1, 101));
    assert_eq!((event.task, event.entry), (1, 7));
    assert_eq!(event.client.unwrap().to_string(), "4.2");
    assert_eq!(event.context.name(), "nmi");
    let flags = event.flags;
    assert!(flags.leaving && flags.user && flags.cancelled);
    assert!(!flags.exiting && !flags.nested);
}

#[test]
fn what_was_not_finished_is_counted_and_what_cannot_be_is_told() {
    let mut log = Log::default();
    log.push(13, &[]);
    log.push(13, &[(4, &[0, 0, 0, 0])]);
    log.push(13, &[(4, &[1, 0, 0, 0])]);
    log.push(99, &[]);
    log.push(13, &[(1, &[4])]);
    log.push(5, &[(8, &[77])]);
    let mut log = log.log();
    log.head += 3;
    let (trace, complaints) = decode(&log);
    assert_eq!(
        (trace.events.len(), trace.unfinished, trace.lost),
        (1, 1, 3)
    );
    assert_eq!(
        complaints,
        [
            "lab log: slot 2 belongs elsewhere",
            "lab log: slot 3 is of unknown kind 99",
            "lab log: slot 4 is of an unknown context",
            "lab log: slot 5 has frames of no callback",
        ]
    );
}

fn memory(magic: u32, slots: u64, head: u64, log: &[u8]) -> Flat {
    let mut bytes = vec![0; 3 * PAGE_SIZE];
    bytes[..4].copy_from_slice(&magic.to_le_bytes());
    bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
    bytes[SLOTS_OFFSET..SLOTS_OFFSET + 8].copy_from_slice(&slots.to_le_bytes());
    bytes[HEAD_OFFSET..HEAD_OFFSET + 8].copy_from_slice(&head.to_le_bytes());
    bytes[PAGE_SIZE..PAGE_SIZE + log.len()].copy_from_slice(log);
    Flat(bytes)
}

const PAGES: [u64; 3] = [0, 0x1000, 0x2000];

#[test]
fn a_log_is_read_from_its_pages_up_to_the_head() {
    let mut log = Log::default();
    log.push(13, &[]);
    log.push(14, &[]);
    let read = LabLog::read_from(&memory(MAGIC, 128, 1, &log.0), &PAGES, 0);
    assert_eq!((read.head, read.capacity, read.corrupt), (1, 128, None));
    assert_eq!(read.bytes, log.0[..SLOT_BYTES]);
    let full = LabLog::read_from(&memory(MAGIC, 128, 1000, &log.0), &PAGES, 0);
    assert_eq!(full.bytes.len(), 128 * SLOT_BYTES);
    assert_eq!(decode(&full).0.lost, 872);
}

#[test]
fn what_is_no_log_is_corrupt() {
    for (memory, pages) in [
        (memory(1, 128, 1, &[]), &PAGES[..]),
        (memory(MAGIC, 64, 1, &[]), &PAGES),
        (memory(MAGIC, 128, 1, &[]), &PAGES[..1]),
        (memory(MAGIC, 128, 1, &[]), &[0, 0x9000, 0x2000]),
    ] {
        let log = LabLog::read_from(&memory, pages, 0);
        assert!(log.corrupt.is_some());
        assert_eq!(decode(&log).1.len(), 1);
    }
}

proptest! {
    #[test]
    fn no_bytes_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..1024),
        committed: bool,
        head: u64,
        capacity: u64,
    ) {
        let mut bytes = bytes;
        if committed {
            for (number, slot) in (1_u32..).zip(bytes.chunks_exact_mut(SLOT_BYTES)) {
                slot[0] %= 16;
                slot[1] %= 8;
                slot[4..8].copy_from_slice(&number.to_le_bytes());
                // Frames find callbacks, callbacks share tasks.
                slot[9..16].fill(0);
                slot[8] %= 16;
                slot[17..24].fill(0);
            }
        }
        let slots = bytes.len() / SLOT_BYTES;
        let log = LabLog { head, capacity, bytes, corrupt: None };
        let (trace, _) = decode(&log);
        prop_assert!(trace.events.len() <= slots);
        for event in &trace.events {
            let _ = trace.frames(event);
        }
    }
}
