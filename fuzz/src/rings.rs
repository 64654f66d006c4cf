//! Perf rings, and the records in them.

use unwindlab_abi::mailbox::PAGE_SIZE;
use unwindlab_abi::message::RingAnnounce;
use unwindlab_oracle::trace::Recording;
use unwindlab_oracle::trace::framing::Records;
use unwindlab_oracle::trace::recording::RingBytes;
use unwindlab_oracle::trace::ring::{DATA_HEAD, DATA_TAIL, GuestRead as _, RingReader};

use crate::memory::Pages;
use crate::recordings::{self, Base};
use crate::take::Input;

/// A ring whose control page and data change between the times that it is read.
///
/// One byte: number of pages, direction; the tail; then again and again the head, where to write in the data, and what.
pub(crate) fn ring(data: &[u8]) {
    let mut input = Input(data);
    let kind = input.u8();
    let pages = usize::from(kind & 7);
    let memory = Pages::new((2 + pages) * PAGE_SIZE);
    let at = |page: usize| (page * PAGE_SIZE) as u64;
    let announce = RingAnnounce {
        ring: 0,
        cpu: 0,
        control_page: at(0),
        // One page that is not there, where asked for.
        data_pages: (1..=pages)
            .map(|page| at(page + usize::from(kind & 8) * page))
            .collect(),
        backward: kind & 16 != 0,
    };
    let Ok(mut reader) = RingReader::new(&announce) else {
        assert!(!pages.is_power_of_two(), "{pages} pages are refused");
        return;
    };
    let (head, tail) = (place(DATA_HEAD), place(DATA_TAIL));
    memory.put(tail, &input.u64().to_le_bytes());
    while !input.is_empty() {
        memory.put(head, &input.u64().to_le_bytes());
        let at = PAGE_SIZE + usize::from(input.u16());
        memory.put(at, input.piece());
        let kept = reader.bytes().len();
        let was_corrupt = reader.corrupt().is_some();
        let read = reader.drain(&memory);
        assert!(reader.bytes().len() >= kept, "what was read is lost");
        assert!(
            !was_corrupt || reader.bytes().len() == kept,
            "a corrupt ring is read on"
        );
        assert_eq!(
            read.is_err() && !was_corrupt,
            !was_corrupt && reader.corrupt().is_some()
        );
        if read.is_ok() && !was_corrupt {
            assert_eq!(memory.load(DATA_TAIL), memory.load(DATA_HEAD));
        }
    }
    assert!(
        Records::new(reader.bytes()).all(|record| record.is_ok()),
        "half a record is kept"
    );
    let read = reader.finish();
    judge(vec![read]);
}

fn place(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

fn judge(ring_bytes: Vec<RingBytes>) {
    recordings::judge(&Recording {
        ring_bytes,
        ..recordings::like(Base::Perf)
    });
}

/// The bytes of two rings: a length, the first; the rest is the second's.
pub(crate) fn records(data: &[u8]) {
    let mut input = Input(data);
    let first = input.piece().to_vec();
    let second = input.0.to_vec();
    let rings = [first, second].into_iter().zip(0..);
    let rings = rings.map(|(bytes, ring)| RingBytes {
        ring,
        begin: 0,
        bytes,
        corrupt: None,
    });
    judge(rings.collect());
}
