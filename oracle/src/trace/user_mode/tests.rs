use proptest::prelude::*;
use unwindlab_abi::mailbox::PAGE_SIZE;
use unwindlab_abi::user_mode::{
    Asked, COUNTERS, Counter, KERNEL_FRAMES, REQUEST_BYTES, RESULT_FRAMES, RESULT_HEAD,
    RESULT_PAGES, RESULT_SLOTS, RING_BYTES, UnwinderKind, UserModeAnnounce, request, result,
};

use super::{UserModeLog, decode};
use crate::trace::flat_memory::Flat;

fn record(nonce: u64, asked: u64, frames: &[u64]) -> Vec<u8> {
    let mut words = [0; REQUEST_BYTES / 8];
    words[request::NONCE] = nonce;
    words[request::TASK] = 33 << 32 | 34;
    words[request::ASKED] = asked;
    words[request::STACK_BYTES] = 8 * frames.len() as u64;
    words[6..6 + frames.len()].copy_from_slice(frames);
    let header = (REQUEST_BYTES as u64).to_le_bytes();
    let words = words.iter().flat_map(|it| it.to_le_bytes());
    header.into_iter().chain(words).collect()
}

#[test]
fn requests_and_results_are_read_back() {
    let mut answer = vec![0; RESULT_HEAD];
    (answer[result::NONCE], answer[result::TID]) = (7, 34);
    (answer[result::FRAMES], answer[result::DONE]) = (2, 1);
    answer.extend([0x10, 0x20]);
    let log = UserModeLog {
        ring: [record(7, 1, &[1, 2]), record(7, 2, &[])].concat(),
        results: vec![answer, vec![0; RESULT_HEAD]],
        taken: 2,
        ..UserModeLog::default()
    };
    let (trace, complaints) = decode(&log);
    assert_eq!(complaints, [""; 0]);
    assert_eq!(trace.requests[0].kernel, [1, 2]);
    assert_eq!((trace.requests[0].pid, trace.requests[0].tid), (33, 34));
    assert_eq!(trace.requests[1].asked, Asked::Again);
    assert_eq!(trace.results[0].frames, [0x10, 0x20]);
    assert_eq!((trace.results.len(), trace.unfinished), (1, 1));
}

#[test]
fn what_makes_no_sense_is_said() {
    let wrong = |ring: Vec<u8>| {
        let log = UserModeLog {
            ring,
            ..UserModeLog::default()
        };
        decode(&log).1.concat()
    };
    assert!(wrong(vec![1; 4]).contains("cut off"));
    assert!(wrong(record(7, 9, &[])).contains("did 9"));
    let mut busy = record(7, 1, &[]);
    busy[3] |= 0x80;
    assert!(wrong(busy).contains("never finished"));
    let mut long = record(7, 1, &[]);
    long[2] = 0xff;
    assert!(wrong(long).contains("beyond the end"));
}

proptest! {
    #[test]
    fn any_bytes_decode(
        ring in proptest::collection::vec(any::<u8>(), 0..2000),
        results in proptest::collection::vec(proptest::collection::vec(any::<u64>(), 0..20), 0..4),
    ) {
        let log = UserModeLog { ring, results, ..UserModeLog::default() };
        let (trace, _) = decode(&log);
        prop_assert!(trace.requests.len() <= 8);
    }
}

/// Guest memory of eight pages: counters, the ring's position, two of its pages, the results' control page, and three slots.
struct Guest(Vec<u8>);

impl Guest {
    fn new() -> Self {
        Self(vec![0; 8 * PAGE_SIZE])
    }

    fn put(mut self, page: usize, words: &[u64]) -> Self {
        let bytes: Vec<u8> = words.iter().flat_map(|it| it.to_le_bytes()).collect();
        self.0[page * PAGE_SIZE..][..bytes.len()].copy_from_slice(&bytes);
        self
    }

    fn read(self) -> UserModeLog {
        let page = |number: u64| number * PAGE_SIZE as u64;
        let announce = UserModeAnnounce {
            counters: page(0),
            producer: page(1),
            ring: [page(2), page(3)].repeat(RING_BYTES / PAGE_SIZE / 2),
            results: [4, 5, 6, 7].map(page).to_vec(),
            handler: 0x5000,
            unwinder: UnwinderKind::EhFrame,
        };
        UserModeLog::read(&Flat(self.0), &announce)
    }
}

#[test]
fn a_log_is_read_from_its_pages_up_to_what_was_written() {
    let slot = |frames: u64| {
        let mut words: Vec<u64> = (100..).take(PAGE_SIZE / 8).collect();
        words[result::FRAMES] = frames;
        words
    };
    let ring: Vec<u64> = (0..PAGE_SIZE as u64 / 4).collect();
    let (first, second) = ring.split_at(PAGE_SIZE / 8);
    let log = Guest::new()
        .put(0, &[11, 12, 13, 14, 15, 16, 17, 18, 19])
        .put(1, &[PAGE_SIZE as u64 + 24])
        .put(2, first)
        .put(3, second)
        .put(4, &[2])
        .put(5, &slot(3))
        .put(6, &slot(u64::MAX))
        .put(7, &slot(1))
        .read();
    assert_eq!(log.corrupt, None);
    assert_eq!((log.handler, log.unwinder), (0x5000, UnwinderKind::EhFrame));
    assert_eq!(log.counters, [11, 12, 13, 14, 15, 16, 17, 18]);
    let written: Vec<u8> = ring.iter().flat_map(|it| it.to_le_bytes()).collect();
    assert_eq!(log.ring, written[..PAGE_SIZE + 24]);
    assert_eq!(log.taken, 2);
    // A slot has no more frames than a page has room for.
    assert_eq!(
        log.results,
        [slot(3)[..RESULT_HEAD + 3].to_vec(), slot(u64::MAX)]
    );
}

#[test]
fn a_ring_may_be_full_and_not_fuller() {
    let read = |produced: usize| Guest::new().put(1, &[produced as u64]).read();
    let full = read(RING_BYTES);
    assert_eq!((full.ring.len(), full.corrupt), (RING_BYTES, None));
    let fuller = read(RING_BYTES + 1);
    assert_eq!(fuller.ring, [0; 0]);
    assert!(fuller.corrupt.unwrap().contains("bytes in a ring"));
}

#[test]
fn pages_of_another_number_are_no_log() {
    let may_be = |ring: usize, results: usize| {
        UserModeLog::may_be(&UserModeAnnounce {
            counters: 0,
            producer: 0,
            ring: vec![0; ring],
            results: vec![0; results],
            handler: 0,
            unwinder: UnwinderKind::default(),
        })
    };
    let ring = RING_BYTES / PAGE_SIZE;
    assert!(may_be(ring, RESULT_PAGES));
    assert!(!may_be(ring - 1, RESULT_PAGES));
    assert!(!may_be(ring, RESULT_PAGES + 1));
}

#[test]
fn counters_and_how_it_was_set_up_are_kept() {
    let mut counters = vec![0; COUNTERS];
    counters[Counter::Samples as usize] = 5;
    counters[Counter::Refused as usize] = 6;
    counters[Counter::Full as usize] = 7;
    let log = UserModeLog {
        handler: 0x5000,
        unwinder: UnwinderKind::EhFrame,
        counters,
        taken: RESULT_SLOTS as u64 + 4,
        ..UserModeLog::default()
    };
    let (trace, _) = decode(&log);
    assert_eq!(
        (trace.handler, trace.unwinder),
        (0x5000, UnwinderKind::EhFrame)
    );
    assert_eq!((trace.samples, trace.refused, trace.full), (5, 6, 7));
    assert_eq!(trace.no_slot, 4);
}

#[test]
fn a_request_that_was_discarded_is_none() {
    let mut discarded = record(7, 1, &[]);
    discarded[3] |= 0x40;
    let log = UserModeLog {
        ring: [discarded, record(8, 1, &[])].concat(),
        ..UserModeLog::default()
    };
    let (trace, complaints) = decode(&log);
    assert_eq!(complaints, [""; 0]);
    let nonces: Vec<u64> = trace.requests.iter().map(|it| it.nonce).collect();
    assert_eq!(nonces, [8]);
}

#[test]
fn a_stack_has_no_more_frames_than_there_is_room_for() {
    let kernel = |frames: u64| {
        let mut ring = record(7, 1, &[1; KERNEL_FRAMES]);
        ring[8 + 8 * request::STACK_BYTES..][..8].copy_from_slice(&(8 * frames).to_le_bytes());
        let log = UserModeLog {
            ring,
            ..UserModeLog::default()
        };
        let (trace, complaints) = decode(&log);
        (
            trace.requests.first().map(|it| it.kernel.len()),
            complaints.len(),
        )
    };
    assert_eq!(kernel(KERNEL_FRAMES as u64), (Some(KERNEL_FRAMES), 0));
    assert_eq!(kernel(KERNEL_FRAMES as u64 + 1), (None, 1));
    assert_eq!(kernel(u64::MAX / 8), (Some(0), 0), "an errno");

    let user = |frames: usize| {
        let mut words = vec![0; RESULT_HEAD];
        words[result::FRAMES] = frames as u64;
        words[result::DONE] = 1;
        words[result::CODE] = 5 << 32 | u64::from((-2_i32).cast_unsigned());
        let log = UserModeLog {
            results: vec![words],
            ..UserModeLog::default()
        };
        decode(&log)
    };
    let (trace, complaints) = user(RESULT_FRAMES);
    assert_eq!(complaints, [""; 0]);
    assert_eq!((trace.results[0].code, trace.results[0].more), (-2, 5));
    assert!(user(RESULT_FRAMES + 1).1.concat().contains("a result of"));
}
