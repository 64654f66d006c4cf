//! The reader against a kernel played by the test, honest and hostile.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::trace::fixtures::encoder::{Body, record};

const CONTROL: u64 = 0x7000;

/// Guest memory of a few pages, wherever they are.
struct Guest {
    pages: RefCell<HashMap<u64, Vec<u8>>>,
    head_loads: Cell<usize>,
}

impl Guest {
    fn new(announce: &RingAnnounce) -> Self {
        let all = announce.data_pages.iter().chain([&announce.control_page]);
        let pages = all.map(|&page| (page, vec![0; PAGE_SIZE])).collect();
        Self {
            pages: RefCell::new(pages),
            head_loads: Cell::new(0),
        }
    }

    fn word(&self, gpa: u64) -> u64 {
        let mut word = [0; 8];
        self.read(gpa, &mut word).expect("mapped");
        u64::from_le_bytes(word)
    }

    fn write(&self, gpa: u64, bytes: &[u8]) -> Result<(), NotGuestMemory> {
        let (page, at) = (gpa & !0xfff, (gpa & 0xfff) as usize);
        let mut pages = self.pages.borrow_mut();
        let page = pages.get_mut(&page).ok_or(NotGuestMemory(gpa))?;
        let into = page.get_mut(at..at + bytes.len());
        into.ok_or(NotGuestMemory(gpa))?.copy_from_slice(bytes);
        Ok(())
    }
}

impl GuestRead for Guest {
    fn read(&self, gpa: u64, into: &mut [u8]) -> Result<(), NotGuestMemory> {
        let (page, at) = (gpa & !0xfff, (gpa & 0xfff) as usize);
        let pages = self.pages.borrow();
        let page = pages.get(&page).ok_or(NotGuestMemory(gpa))?;
        // No read of the reader may cross a page: the next one is somewhere else.
        let from = page.get(at..at + into.len()).ok_or(NotGuestMemory(gpa))?;
        into.copy_from_slice(from);
        Ok(())
    }

    fn load(&self, gpa: u64) -> Result<u64, NotGuestMemory> {
        if gpa == CONTROL + DATA_HEAD {
            self.head_loads.set(self.head_loads.get() + 1);
        }
        let mut word = [0; 8];
        self.read(gpa, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    fn store(&self, gpa: u64, word: u64) -> Result<(), NotGuestMemory> {
        self.write(gpa, &word.to_le_bytes())
    }
}

/// The kernel's side of a ring: byte by byte, so that it shares nothing with the reader.
struct Kernel<'a> {
    guest: &'a Guest,
    pages: &'a [u64],
    head: u64,
}

impl Kernel<'_> {
    /// Writes a record if there is room.
    fn write(&mut self, record: &[u8]) -> bool {
        let size = self.pages.len() as u64 * 4096;
        let tail = self.guest.word(CONTROL + 1032);
        if self.head - tail + record.len() as u64 > size {
            return false;
        }
        for &byte in record {
            let at = self.head % size;
            let gpa = self.pages[(at / 4096) as usize] + at % 4096;
            self.guest.write(gpa, &[byte]).expect("mapped");
            self.head += 1;
        }
        self.guest.store(CONTROL + 1024, self.head).expect("mapped");
        true
    }
}

/// A ring over pages in any order, with gaps between them.
fn any_ring() -> impl Strategy<Value = RingAnnounce> {
    let pages = |order| (Just((1..=1_u64 << order).collect::<Vec<_>>()), any::<u64>());
    let pages = (0_u32..4).prop_flat_map(pages);
    let announce = |(mut pages, salt): (Vec<u64>, u64)| {
        pages.sort_by_key(|page| page.wrapping_mul(salt | 1));
        RingAnnounce {
            ring: 3,
            cpu: 1,
            control_page: CONTROL,
            data_pages: pages.iter().map(|page| page * 0x10_000).collect(),
            backward: false,
        }
    };
    pages.prop_map(announce)
}

fn ring(pages: u64) -> RingAnnounce {
    RingAnnounce {
        ring: 3,
        cpu: 1,
        control_page: CONTROL,
        data_pages: (1..=pages).map(|page| page * 0x10_000).collect(),
        backward: false,
    }
}

/// The kernel's side of a ring that is written backwards (`__perf_output_begin`): the head goes
/// down by the record's length, and the record lies from there on.
fn write_backwards(guest: &Guest, pages: &[u64], record: &[u8]) -> bool {
    let size = pages.len() as u64 * 4096;
    let (head, tail) = (guest.word(CONTROL + 1024), guest.word(CONTROL + 1032));
    if tail.wrapping_sub(head) + record.len() as u64 > size {
        return false;
    }
    let head = head.wrapping_sub(record.len() as u64);
    for (at, &byte) in (0..).zip(record) {
        let at = head.wrapping_add(at) % size;
        let gpa = pages[(at / 4096) as usize] + at % 4096;
        guest.write(gpa, &[byte]).expect("mapped");
    }
    guest.store(CONTROL + 1024, head).expect("mapped");
    true
}

fn start_at(guest: &Guest, position: u64) {
    guest.store(CONTROL + 1024, position).expect("mapped");
    guest.store(CONTROL + 1032, position).expect("mapped");
}

proptest! {
    /// Oldest first, as a ring that is written forwards.
    #[test]
    fn backwards_nothing_is_lost_or_torn(announce in any_ring(),
                                         steps in vec((0_usize..600, any::<bool>()), 1..120)) {
        let announce = RingAnnounce { backward: true, ..announce };
        let guest = Guest::new(&announce);
        let mut reader = RingReader::new(&announce).expect("well-formed");
        let mut expected = Vec::new();
        for (step, (length, drains)) in steps.into_iter().enumerate() {
            let record = record(9, 0, &Body::default().u64s(&vec![step as u64; length]));
            if write_backwards(&guest, &announce.data_pages, &record) {
                expected.extend(record);
            }
            if drains {
                prop_assert!(reader.drain(&guest).is_ok());
                let (head, tail) = (guest.word(CONTROL + 1024), guest.word(CONTROL + 1032));
                prop_assert_eq!(head, tail);
            }
        }
        prop_assert!(reader.drain(&guest).is_ok());
        let later = reader.from_here().finish();
        let read = reader.finish();
        prop_assert_eq!(later.begin, expected.len() as u64);
        prop_assert_eq!((read.begin, read.corrupt), (0, None));
        prop_assert_eq!(read.bytes, expected);
    }

    #[test]
    fn nothing_is_lost_or_torn(announce in any_ring(), start in 0_u64..1 << 40,
                               steps in vec((0_usize..600, any::<bool>()), 1..120)) {
        let guest = Guest::new(&announce);
        let start = start * 8;
        start_at(&guest, start);
        let mut kernel = Kernel { guest: &guest, pages: &announce.data_pages, head: start };
        let mut reader = RingReader::new(&announce).expect("valid");
        let (mut written, mut count, mut counted) = (Vec::new(), 0, 0);
        for (number, (words, drain)) in steps.into_iter().enumerate() {
            let body = Body::default().u64s(&vec![number as u64; words]);
            let bytes = record(9, 0, &body);
            if kernel.write(&bytes) {
                written.extend(bytes);
                count += 1;
            }
            if drain {
                counted += reader.drain(&guest).expect("honest");
                prop_assert_eq!(guest.word(CONTROL + 1032), kernel.head);
            }
        }
        counted += reader.drain(&guest).expect("honest");
        prop_assert_eq!(counted, count);
        let read = reader.finish();
        prop_assert_eq!(read, RingBytes { ring: 3, begin: start, bytes: written, corrupt: None });
    }

    #[test]
    fn any_guest_is_survived(announce in any_ring(), content in vec(any::<u64>(), 512),
                             heads in vec(any::<u64>(), 1..8), near: bool) {
        let guest = Guest::new(&announce);
        for &page in &announce.data_pages {
            guest.write(page, &Body::default().u64s(&content).0).expect("mapped");
        }
        let size = announce.data_pages.len() * PAGE_SIZE;
        let mut reader = RingReader::new(&announce).expect("valid");
        for head in heads {
            let before = reader.bytes().len();
            let head = if near { head % (2 * size as u64) } else { head };
            guest.store(CONTROL + 1024, head).expect("mapped");
            let drained = reader.drain(&guest);
            prop_assert!(reader.bytes().len() - before <= size);
            prop_assert_eq!(drained.is_err(), reader.corrupt().is_some() && drained != Ok(0));
            prop_assert!(Records::new(reader.bytes()).all(|record| record.is_ok()));
        }
    }
}

#[test]
fn head_is_read_once_and_not_after_corruption() {
    let announce = ring(1);
    let guest = Guest::new(&announce);
    let mut reader = RingReader::new(&announce).expect("valid");
    assert_eq!(reader.drain(&guest), Ok(0));
    assert_eq!(guest.head_loads.get(), 1);
    guest.store(CONTROL + 1024, 1 << 20).expect("mapped");
    assert!(reader.drain(&guest).is_err());
    assert_eq!(guest.head_loads.get(), 2);
    guest.store(CONTROL + 1024, 0).expect("mapped");
    assert_eq!(reader.drain(&guest), Ok(0));
    assert_eq!(guest.head_loads.get(), 2);
}

#[test]
fn heads_that_cannot_be() {
    let size = 4096;
    let cases = [
        (
            64,
            56,
            RingError::HeadBehindTail { head: 56, tail: 64 },
            "behind",
        ),
        (
            64,
            64 + size + 8,
            RingError::HeadTooFar {
                head: 64 + size + 8,
                tail: 64,
                size,
            },
            "ahead",
        ),
        (64, 68, RingError::UnalignedPosition(68), "multiple of 8"),
        (60, 64, RingError::UnalignedPosition(60), "multiple of 8"),
    ];
    for (tail, head, expected, words) in cases {
        let announce = ring(1);
        let guest = Guest::new(&announce);
        start_at(&guest, tail);
        guest.store(CONTROL + 1024, head).expect("mapped");
        let mut reader = RingReader::new(&announce).expect("valid");
        assert_eq!(reader.drain(&guest), Err(expected));
        // The kernel is not told that anything was read.
        assert_eq!(guest.word(CONTROL + 1032), tail);
        let corrupt = reader.finish().corrupt.expect("a reason");
        assert!(corrupt.contains(words), "{corrupt}");
    }
}

#[test]
fn records_before_a_bad_one_are_kept() {
    let good = record(9, 0, &Body::default().u64(1));
    for size in [0_u16, 4, 12, 4096] {
        let announce = ring(1);
        let guest = Guest::new(&announce);
        let mut kernel = Kernel {
            guest: &guest,
            pages: &announce.data_pages,
            head: 0,
        };
        assert!(kernel.write(&good));
        let mut bad = good.clone();
        bad[6..8].copy_from_slice(&size.to_le_bytes());
        assert!(kernel.write(&bad));
        let mut reader = RingReader::new(&announce).expect("valid");
        let error = reader.drain(&guest).expect_err("bad size");
        assert!(
            matches!(error, RingError::Framing { position: 0, .. }),
            "{error}"
        );
        let read = reader.finish();
        assert_eq!(read.bytes, good);
        assert!(
            read.corrupt
                .is_some_and(|why| why.contains(&size.to_string()))
        );
    }
}

#[test]
fn announcements_that_cannot_be() {
    let refused = |announce: &RingAnnounce| RingReader::new(announce).expect_err("refused");
    assert_eq!(refused(&ring(0)), RingError::PageCount(0));
    assert_eq!(refused(&ring(3)), RingError::PageCount(3));
    assert_eq!(refused(&ring(8192)), RingError::PageCount(8192));
    let mut announce = ring(1);
    announce.data_pages[0] += 8;
    assert_eq!(refused(&announce), RingError::PageAddress(0x10_008));
}

#[test]
fn pages_outside_memory_are_an_error() {
    let announce = ring(2);
    let guest = Guest::new(&announce);
    guest.pages.borrow_mut().remove(&0x20_000);
    guest.store(CONTROL + 1024, 8192).expect("mapped");
    let mut reader = RingReader::new(&announce).expect("valid");
    let error = RingError::Memory(NotGuestMemory(0x20_000));
    assert_eq!(reader.drain(&guest), Err(error));
    assert!(reader.bytes().is_empty());

    let mut nowhere = ring(1);
    nowhere.control_page = !0xfff;
    let mut reader = RingReader::new(&nowhere).expect("aligned");
    assert!(matches!(reader.drain(&guest), Err(RingError::Memory(_))));
}

#[test]
fn a_guest_without_end_is_stopped() {
    let announce = ring(4096);
    let guest = Guest::new(&announce);
    // The whole ring is one long row of records, so each new lap is good again.
    let page = vec![record(9, 0, &Body::default().u64s(&[0; 511])); 1].concat();
    for &at in &announce.data_pages {
        guest.write(at, &page).expect("mapped");
    }
    let mut reader = RingReader::new(&announce).expect("valid");
    let lap = 4096 * PAGE_SIZE;
    for lap_number in 1..=MAX_RING_BYTES / lap {
        let head = (lap_number * lap) as u64;
        guest.store(CONTROL + 1024, head).expect("mapped");
        assert_eq!(reader.drain(&guest), Ok(4096));
    }
    let head = (MAX_RING_BYTES + PAGE_SIZE) as u64;
    guest.store(CONTROL + 1024, head).expect("mapped");
    assert_eq!(reader.drain(&guest), Err(RingError::TooMuch));
    assert_eq!(reader.bytes().len(), MAX_RING_BYTES);
}
