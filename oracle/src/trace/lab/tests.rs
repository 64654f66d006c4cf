use proptest::prelude::*;
use unwindlab_abi::lab::{
    HEAD_OFFSET, MAGIC, MAX_LOG_PAGES, SLOT_BYTES, SLOT_FRAMES, SLOTS_OFFSET, VERSION, kind,
};
use unwindlab_abi::mailbox::PAGE_SIZE;

use super::decode::{decode, hash};
use super::reader::{may_be_log, slot};
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

#[test]
fn each_kind_of_record_is_read() {
    let mut log = Log::default();
    let words = [5_u64, 6, 7].map(u64::to_le_bytes).concat();
    let before = u64::MAX.to_le_bytes();
    let put: &[(usize, &[u8])] = &[(36, &[9, 0, 0, 0]), (40, &words)];
    let interrupt: &[(usize, &[u8])] = &[(40, &words), (40, &before)];
    for (kind, put) in [
        (kind::TARGET, put),
        (kind::CALLED, put),
        (kind::RETURN, put),
        (kind::RETURN, interrupt),
        (kind::RETURN, &[]),
        (kind::MIGRATE, put),
        (kind::EXIT, put),
        (kind::FREE, put),
        (kind::REGISTERED, put),
        (kind::CANCEL, put),
        (kind::CANCELLED, put),
        (kind::START, put),
        (kind::STOP, put),
    ] {
        log.push(kind, put);
    }
    let (trace, complaints) = decode(&log.log());
    assert_eq!(complaints, [""; 0]);
    let kinds: Vec<LabKind> = trace.events.into_iter().map(|it| it.kind).collect();
    let returned = |entered, ip, interrupt| LabKind::Return {
        entered,
        ip,
        interrupt,
    };
    let expected = [
        LabKind::Target { tgid: 6, parent: 7 },
        LabKind::Called { callback: 6 },
        returned(6, 7, false),
        returned(6, 7, true),
        returned(0, 0, false),
        LabKind::Migrate { from: 6, to: 7 },
        LabKind::Exit,
        LabKind::Free,
        LabKind::Registered { ret: 9 },
        LabKind::Cancel,
        LabKind::Cancelled,
        LabKind::Start,
        LabKind::Stop,
    ];
    assert_eq!(kinds, expected);
}

#[test]
fn a_request_that_was_refused_has_no_cookie() {
    let cookie = |ret: i32| {
        let mut log = Log::default();
        log.push(2, &[(36, &ret.to_le_bytes()), (40, &[7])]);
        decode(&log.log()).0.events[0].cookie()
    };
    assert_eq!((cookie(0), cookie(1)), (Some(7), Some(7)));
    assert_eq!(cookie(-1), None);
}

#[test]
fn an_empty_stack_is_not_the_one_that_a_callback_left_out() {
    let mut log = Log::default();
    log.callback(1, &STACK, true);
    log.callback(1, &[], false);
    log.callback(1, &STACK, false);
    let (trace, _) = decode(&log.log());
    assert_eq!(trace.frames(&trace.events[2]), Some(&STACK[..]));
}

#[test]
fn frames_that_may_be_cut_off_are_no_complaint() {
    let complaints = |cut: &dyn Fn(&mut LabLog)| {
        let mut log = Log::default();
        log.callback(1, &STACK, true);
        let last = log.0.len() - SLOT_BYTES + 24;
        log.0[last] ^= 1;
        log.push(13, &[]);
        let mut log = log.log();
        cut(&mut log);
        decode(&log).1.len()
    };
    assert_eq!(complaints(&|_| ()), 1);
    assert_eq!(complaints(&|log| log.head += 1), 0);
    let unfinished = |log: &mut LabLog| {
        let last = log.bytes.len() - SLOT_BYTES;
        log.bytes[last + 4..last + 8].fill(0);
    };
    assert_eq!(complaints(&unfinished), 0);
}

#[test]
fn a_slot_has_so_many_frames_and_no_more() {
    let complaints = |count: usize| {
        let mut log = Log::default();
        let slot = log.push(3, &[]);
        let count = u8::try_from(count).unwrap();
        log.push(5, &[(1, &[count]), (8, &slot.to_le_bytes())]);
        decode(&log.log()).1.concat()
    };
    assert!(!complaints(SLOT_FRAMES).contains("frames of no callback"));
    assert!(complaints(SLOT_FRAMES + 1).contains("frames of no callback"));
}

#[test]
fn of_many_complaints_the_first_are_kept_and_the_others_counted() {
    let complaints = |wrong: usize| {
        let mut log = Log::default();
        (0..wrong).for_each(|_| {
            log.push(99, &[]);
        });
        decode(&log.log()).1
    };
    assert_eq!(complaints(8).len(), 8);
    let more = complaints(11);
    assert_eq!(more.len(), 9);
    assert_eq!(more[8], "lab log: 3 more like these");
}

#[test]
fn a_log_has_a_control_page_and_room_for_slots() {
    let most = MAX_LOG_PAGES as usize + 1;
    assert_eq!(
        [1, 2, most, most + 1].map(may_be_log),
        [false, true, true, false]
    );
    let alone = LabLog::read_from(&memory(MAGIC, 0, 0, &[]), &PAGES[..1], 0);
    assert!(alone.corrupt.unwrap().contains("1 pages announced"));
}

#[test]
fn a_log_that_is_read_in_two_parts_is_the_same() {
    let mut log = Log::default();
    (0..100).for_each(|_| {
        log.push(13, &[]);
    });
    let memory = memory(MAGIC, 128, 100, &log.0);
    let whole = LabLog::read_from(&memory, &PAGES, 0);
    let later = LabLog::read_from(&memory, &PAGES, 70);
    assert_eq!(later.bytes.len(), 30 * SLOT_BYTES);
    assert_eq!(LabLog::join(&whole, 70, later), whole);
}

#[test]
fn slots_are_finished_up_to_the_first_that_is_not() {
    let mut log = Log::default();
    assert_eq!(log.log().finished(), 0);
    log.push(13, &[]);
    log.push(13, &[]);
    assert_eq!(log.log().finished(), 2);
    log.push(13, &[(4, &[0; 4])]);
    log.push(13, &[]);
    assert_eq!(log.log().finished(), 2);
}

/// What is read while the guest runs: the kind and the CPU, once the commit word is there.
#[test]
fn a_slot_is_read_when_it_is_written() {
    let mut log = Log::default();
    (0..66).for_each(|_| {
        log.push(13, &[]);
    });
    log.push(2, &[(28, &[3, 0])]);
    log.push(2, &[(4, &[0; 4])]);
    log.push(2, &[(4, &[1, 0, 0, 0])]);
    let memory = memory(MAGIC, 128, 70, &log.0);
    assert_eq!(slot(&memory, &PAGES, 0), Some((13, 0)));
    assert_eq!(slot(&memory, &PAGES, 66), Some((2, 3)));
    assert_eq!(slot(&memory, &PAGES, 67), None);
    assert_eq!(slot(&memory, &PAGES, 68), None);
    assert_eq!(slot(&memory, &PAGES, u64::MAX), None);
    // Its pages may lie anywhere.
    let Flat(mut bytes) = memory;
    let second = bytes.split_off(2 * PAGE_SIZE);
    bytes.splice(PAGE_SIZE..PAGE_SIZE, second);
    let pages = [0, 0x2000, 0x1000];
    assert_eq!(slot(&Flat(bytes.clone()), &pages, 0), Some((13, 0)));
    assert_eq!(slot(&Flat(bytes.clone()), &pages, 66), Some((2, 3)));
    assert_eq!(slot(&Flat(bytes), &PAGES, 66), None);
}
