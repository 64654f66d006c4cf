//! Each record type: written by the test's encoder, read by the parser, compared.

mod crosscheck;
mod fields;

use proptest::collection::vec;
use proptest::prelude::*;

use super::sample_id::*;
use super::{Record, RecordError, parse};
use crate::trace::fixtures::encoder::{self, Body, Ids};
use crate::trace::framing::Records;
use crate::trace::model::{CallchainDeferred, EventKind, Sample};

/// The bits whose fields the encoder writes; the others are in `fields.rs`.
const ENCODED: u64 =
    IP | TID | TIME | ADDR | CALLCHAIN | ID | CPU | PERIOD | STREAM_ID | RAW | IDENTIFIER;

/// Any subset of the encoded bits.
pub(crate) fn any_bits() -> impl Strategy<Value = u64> {
    any::<u64>().prop_map(|bits| bits & ENCODED)
}

pub(crate) fn any_ids() -> impl Strategy<Value = Ids> {
    let words = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
    let more = (any::<u64>(), any::<u64>(), any::<u32>());
    (words, more, any::<u32>(), any::<u32>()).prop_map(|(a, b, pid, tid)| Ids {
        identifier: a.0,
        ip: a.1,
        time: a.2,
        addr: a.3,
        stream_id: b.0,
        period: b.1,
        cpu: b.2,
        pid,
        tid,
    })
}

/// A file or task name: no NUL, valid UTF-8.
fn any_name(longest: usize) -> impl Strategy<Value = String> {
    vec(prop::char::range(' ', 'ÿ'), 0..longest).prop_map(String::from_iter)
}

fn decode(bytes: &[u8], bits: u64) -> Result<Record, RecordError> {
    let mut records = Records::new(bytes);
    let raw = records.next().expect("a record").expect("whole");
    assert!(records.next().is_none());
    parse(&raw, SampleType::new(bits).expect("supported"))
}

/// What the trailer must come out as; `own` is the body's pid, tid and time, where it has them.
fn id_of(bits: u64, ids: &Ids, own: (Option<(u32, u32)>, Option<u64>)) -> SampleId {
    let has = |bit| bits & bit != 0;
    let task = if has(TID) {
        Some((ids.pid, ids.tid))
    } else {
        own.0
    };
    SampleId {
        pid: task.map(|task| task.0),
        tid: task.map(|task| task.1),
        time: if has(TIME) { Some(ids.time) } else { own.1 },
        id: (has(ID) || has(IDENTIFIER)).then_some(ids.identifier),
        cpu: has(CPU).then_some(ids.cpu),
    }
}

const NOTHING: (Option<(u32, u32)>, Option<u64>) = (None, None);

proptest! {
    #[test]
    fn samples(bits in any_bits(), ids in any_ids(), chain in vec(any::<u64>(), 0..140),
               raw in vec(any::<u8>(), 0..40)) {
        let has = |bit| bits & bit != 0;
        let kind = EventKind::Sample(Sample {
            ip: has(IP).then_some(ids.ip),
            period: has(PERIOD).then_some(ids.period),
            raw: has(RAW).then(|| encoder::padded_raw(&raw)),
            regs_user: None,
            user_abi: 0,
            stack_user: None,
            asker: None,
            chain: has(CALLCHAIN).then_some(chain.clone()),
        });
        let bytes = encoder::sample(bits, &ids, &chain, &raw);
        let id = id_of(bits, &ids, NOTHING);
        prop_assert_eq!(decode(&bytes, bits), Ok(Record { id, kind }));
    }

    #[test]
    fn deferred_chains(bits in any_bits(), ids in any_ids(), cookie: u64,
                       ips in vec(any::<u64>(), 0..511)) {
        let bytes = encoder::deferred(cookie, &ips, bits, &ids);
        let nr = ips.len() as u64;
        let kind = EventKind::CallchainDeferred(CallchainDeferred { cookie, nr, ips });
        let id = id_of(bits, &ids, NOTHING);
        prop_assert_eq!(decode(&bytes, bits), Ok(Record { id, kind }));
    }

    #[test]
    fn deferred_chains_that_claim_too_much(bits in any_bits(), ids in any_ids(), nr: u64,
                                           ips in vec(any::<u64>(), 0..20)) {
        let body = Body::default().u64(7).u64(nr).u64s(&ips);
        let bytes = encoder::side_band(22, 2, body, bits, &ids);
        let there = usize::try_from(nr).unwrap_or(usize::MAX).min(ips.len());
        let ips = ips[..there].to_vec();
        let kind = EventKind::CallchainDeferred(CallchainDeferred { cookie: 7, nr, ips });
        prop_assert_eq!(decode(&bytes, bits).map(|record| record.kind), Ok(kind));
    }

    #[test]
    fn lost(bits in any_bits(), ids in any_ids(), event: u64, lost: u64) {
        let bytes = encoder::side_band(2, 0, Body::default().u64(event).u64(lost), bits, &ids);
        let (id, kind) = (id_of(bits, &ids, NOTHING), EventKind::Lost { id: event, lost });
        prop_assert_eq!(decode(&bytes, bits), Ok(Record { id, kind }));

        let bytes = encoder::side_band(13, 0, Body::default().u64(lost), bits, &ids);
        let kind = EventKind::LostSamples { lost };
        prop_assert_eq!(decode(&bytes, bits), Ok(Record { id, kind }));
    }

    #[test]
    fn switches(bits in any_bits(), ids in any_ids(), out: bool, preempt: bool,
                other in any::<(u32, u32)>()) {
        let misc = u16::from(out) << 13 | u16::from(preempt) << 14 | 1;
        let id = id_of(bits, &ids, NOTHING);
        let bytes = encoder::side_band(14, misc, Body::default(), bits, &ids);
        let kind = EventKind::Switch { out, preempt, other: None };
        prop_assert_eq!(decode(&bytes, bits), Ok(Record { id, kind }));

        let body = Body::default().u32(other.0).u32(other.1);
        let bytes = encoder::side_band(15, misc, body, bits, &ids);
        let kind = EventKind::Switch { out, preempt, other: Some(other) };
        prop_assert_eq!(decode(&bytes, bits), Ok(Record { id, kind }));
    }

    #[test]
    fn mmaps(bits in any_bits(), ids in any_ids(), task in any::<(u32, u32)>(), place in any::<[u64; 3]>(),
             extra in any::<[u64; 4]>(), filename in any_name(60)) {
        let [addr, len, pgoff] = place;
        let id = id_of(bits, &ids, (Some(task), None));
        let kind = EventKind::Mmap { addr, len, pgoff, filename: filename.clone() };
        let front = Body::default().u32(task.0).u32(task.1).u64s(&place);

        let body = front.clone().text(filename.as_bytes());
        let bytes = encoder::side_band(1, 2, body, bits, &ids);
        prop_assert_eq!(decode(&bytes, bits), Ok(Record { id, kind: kind.clone() }));

        let body = front.u64s(&extra).text(filename.as_bytes());
        let bytes = encoder::side_band(10, 2, body, bits, &ids);
        prop_assert_eq!(decode(&bytes, bits), Ok(Record { id, kind }));
    }

    #[test]
    fn comms(bits in any_bits(), ids in any_ids(), task in any::<(u32, u32)>(), exec: bool,
             comm in any_name(16)) {
        let body = Body::default().u32(task.0).u32(task.1).text(comm.as_bytes());
        let bytes = encoder::side_band(3, u16::from(exec) << 13, body, bits, &ids);
        let id = id_of(bits, &ids, (Some(task), None));
        let kind = EventKind::Comm { comm, exec };
        prop_assert_eq!(decode(&bytes, bits), Ok(Record { id, kind }));
    }

    #[test]
    fn forks_and_exits(bits in any_bits(), ids in any_ids(), family in any::<[u32; 4]>(), time: u64) {
        let [pid, ppid, tid, ptid] = family;
        let body = Body::default().u32(pid).u32(ppid).u32(tid).u32(ptid).u64(time);
        let bytes = encoder::side_band(7, 0, body.clone(), bits, &ids);
        let kind = EventKind::Fork { pid, ppid, tid, ptid };
        let id = id_of(bits, &ids, (None, Some(time)));
        prop_assert_eq!(decode(&bytes, bits), Ok(Record { id, kind }));

        let bytes = encoder::side_band(4, 0, body, bits, &ids);
        let kind = EventKind::Exit { pid, ppid, tid, ptid };
        let id = id_of(bits, &ids, (Some((pid, tid)), Some(time)));
        prop_assert_eq!(decode(&bytes, bits), Ok(Record { id, kind }));
    }

    #[test]
    fn throttles(bits in any_bits(), ids in any_ids(), on: bool, words in any::<[u64; 3]>()) {
        let record_type = if on { 5 } else { 6 };
        let body = Body::default().u64s(&words);
        let bytes = encoder::side_band(record_type, 0, body, bits, &ids);
        let kind = EventKind::Throttle { on, id: words[1] };
        let id = id_of(bits, &ids, (None, Some(words[0])));
        prop_assert_eq!(decode(&bytes, bits), Ok(Record { id, kind }));
    }

    #[test]
    fn unknown_types_keep_their_trailer(bits in any_bits(), ids in any_ids(), body in vec(any::<u64>(), 0..8)) {
        let body = Body::default().u64s(&body);
        let bytes = encoder::side_band(9999, 0, body, bits, &ids);
        let kind = EventKind::Other { record_type: 9999 };
        let id = id_of(bits, &ids, NOTHING);
        prop_assert_eq!(decode(&bytes, bits), Ok(Record { id, kind }));
    }

    #[test]
    fn any_body_is_survived(record_type in 0_u32..25, misc: u16, bits in any_bits(),
                            words in vec(any::<u64>(), 0..64)) {
        let bytes = encoder::record(record_type, misc, &Body::default().u64s(&words));
        let _ = decode(&bytes, bits);
    }

    #[test]
    fn a_body_cut_short_is_an_error(bits in any_bits(), ids in any_ids(),
                                    chain in vec(any::<u64>(), 0..9), drop in 1_usize..4) {
        let mut bytes = encoder::sample(bits | IDENTIFIER | CALLCHAIN, &ids, &chain, &[]);
        let left = (bytes.len() - 8).saturating_sub(8 * drop);
        bytes.truncate(8 + left);
        let body = Body(bytes.split_off(8));
        let bytes = encoder::record(9, 0, &body);
        let error = decode(&bytes, bits | IDENTIFIER | CALLCHAIN);
        prop_assert_eq!(error, Err(RecordError::TooShort { what: "sample" }));
    }
}

#[test]
fn a_sample_with_bytes_left_over_is_an_error() {
    let body = Body::default().u64(1).u64(2);
    let bytes = encoder::record(9, 0, &body);
    assert_eq!(
        decode(&bytes, IDENTIFIER),
        Err(RecordError::LeftOver { left: 8 })
    );
}

#[test]
fn a_chain_longer_than_memory_is_an_error() {
    for nr in [2, u64::MAX, u64::MAX / 8 + 1, 1 << 61] {
        let bytes = encoder::record(9, 0, &Body::default().u64(nr).u64(0));
        let error = decode(&bytes, CALLCHAIN);
        assert_eq!(error, Err(RecordError::TooShort { what: "sample" }));
    }
}

#[test]
fn unsupported_bits_are_named() {
    // PERF_SAMPLE_BRANCH_STACK and PERF_SAMPLE_AUX.
    let error = SampleType::new(IP | 1 << 11 | 1 << 20).expect_err("unsupported");
    assert_eq!(error, UnsupportedSampleType(0x10_0800));
    assert!(error.to_string().contains("0x100800"));
}

#[test]
fn a_record_that_is_too_short_is_named() {
    for (kind, name) in [
        (1_u32, "mmap record"),
        (2, "lost record"),
        (3, "comm record"),
        (4, "exit record"),
        (5, "throttle record"),
        (6, "throttle record"),
        (7, "fork record"),
        (9, "sample"),
        (10, "mmap2 record"),
        (13, "lost-samples record"),
        (14, "switch record"),
        (15, "switch record"),
        (22, "callchain-deferred record"),
        (99, "record"),
    ] {
        let header = [u64::from(kind) | 8 << 48].map(u64::to_le_bytes).concat();
        let error = decode(&header, TID).unwrap_err().to_string();
        assert_eq!(error, format!("{name} ends before its fields do"));
    }
}
