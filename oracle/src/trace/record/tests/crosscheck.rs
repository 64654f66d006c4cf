//! The parser against a second implementation, perf-event-open's, on rings that a real kernel
//! wrote (see fixtures/README.md) and on generated records.
//!
//! That crate does without PERF_SAMPLE_IDENTIFIER: in a trailer it is last, and not reached; the
//! one in front of a sample is cut off before the crate gets the record.

use std::collections::BTreeMap;

use perf_event_open::sample::record::mmap::Mmap;
use perf_event_open::sample::record::sample::CallChain;
use perf_event_open::sample::record::{Parser, Record as Theirs, RecordId, Task, ctx::Switch};
use proptest::collection::vec;
use proptest::prelude::*;

use super::{any_bits, any_ids};
use crate::trace::fixtures;
use crate::trace::fixtures::encoder::{self, Body};
use crate::trace::framing::{RawRecord, Records};
use crate::trace::model::{
    CONTEXT_KERNEL, CONTEXT_USER, CONTEXT_USER_DEFERRED, CallchainDeferred, EventKind, Sample,
};
use crate::trace::record::layout::{Layout, Layouts};
use crate::trace::record::sample_id::{IDENTIFIER, SampleId, SampleType};
use crate::trace::record::{self, Record, record_type};

/// What perf-event-open makes of a record.
fn theirs(raw: &RawRecord<'_>, bits: u64) -> Record {
    let is_sample = raw.record_type == record_type::SAMPLE;
    let cut = if is_sample && bits & IDENTIFIER != 0 {
        8
    } else {
        0
    };
    let bytes = encoder::record(raw.record_type, raw.misc, &Body(raw.body[cut..].to_vec()));
    // Their parser wants 8-byte alignment, which a Vec<u8> need not have.
    let mut room = vec![0; bytes.len() + 8];
    let start = room.as_ptr().align_offset(8);
    let aligned = &mut room[start..start + bytes.len()];
    aligned.copy_from_slice(&bytes);
    let parser = Parser {
        sample_id_all: true,
        sample_type: bits & !IDENTIFIER,
        read_format: 0,
        user_regs: 0,
        intr_regs: 0,
        branch_sample_type: 0,
    };
    // SAFETY: the bytes are 8-byte aligned, and hold a record whose lengths and counts are true:
    // a kernel or the tests' encoder wrote it, and `compare` had this crate's own parser, which
    // checks bounds, read all of it before.
    let (_, theirs, size) = unsafe { parser.parse(&*aligned) };
    assert_eq!(size, usize::from(raw.size) - cut);
    let (id, kind) = translate(theirs);
    Record { id, kind }
}

fn sample_id(id: Option<&RecordId>) -> SampleId {
    let id = id.expect("sample_id_all");
    SampleId {
        pid: id.task.as_ref().map(|task| task.pid),
        tid: id.task.as_ref().map(|task| task.tid),
        time: id.time,
        id: id.id,
        cpu: id.cpu,
    }
}

fn text(text: &std::ffi::CStr) -> String {
    text.to_string_lossy().into_owned()
}

fn translate(theirs: Theirs) -> (SampleId, EventKind) {
    match theirs {
        Theirs::Sample(sample) => {
            let chain = sample.call_chain.map(|parts| flatten(&parts));
            let kind = EventKind::Sample(Sample {
                ip: sample.code_addr.map(|(ip, _)| ip),
                period: sample.period,
                raw: sample.raw,
                chain,
                regs_user: None,
                user_abi: 0,
                stack_user: None,
                asker: None,
            });
            (sample_id(Some(&sample.record_id)), kind)
        }
        Theirs::CallChainDeferred(deferred) => {
            let (cookie, ips) = (deferred.cookie, deferred.call_chain);
            let nr = ips.len() as u64;
            let kind = EventKind::CallchainDeferred(CallchainDeferred { cookie, nr, ips });
            (sample_id(deferred.record_id.as_ref()), kind)
        }
        Theirs::LostRecords(lost) => {
            let (id, count) = (lost.id, lost.lost_records);
            let kind = EventKind::Lost { id, lost: count };
            (sample_id(lost.record_id.as_ref()), kind)
        }
        Theirs::LostSamples(lost) => {
            let kind = EventKind::LostSamples {
                lost: lost.lost_samples,
            };
            (sample_id(lost.record_id.as_ref()), kind)
        }
        Theirs::CtxSwitch(switch) => {
            let pair = |task: Task| (task.pid, task.tid);
            let kind = match switch.info {
                Switch::OutTo { task, preempt } => EventKind::Switch {
                    out: true,
                    preempt,
                    other: task.map(pair),
                },
                Switch::InFrom(task) => EventKind::Switch {
                    out: false,
                    preempt: false,
                    other: task.map(pair),
                },
            };
            (sample_id(switch.record_id.as_ref()), kind)
        }
        Theirs::Mmap(mmap) => {
            let Mmap {
                addr,
                len,
                page_offset,
                ref file,
                ..
            } = *mmap;
            let (pgoff, filename) = (page_offset, text(file));
            let kind = EventKind::Mmap {
                addr,
                len,
                pgoff,
                filename,
            };
            (sample_id(mmap.record_id.as_ref()), kind)
        }
        Theirs::Comm(comm) => {
            let (exec, name) = (comm.by_execve, text(&comm.comm));
            let kind = EventKind::Comm { comm: name, exec };
            (sample_id(comm.record_id.as_ref()), kind)
        }
        Theirs::Fork(fork) => {
            let (task, parent) = (fork.task, fork.parent_task);
            let kind = EventKind::Fork {
                pid: task.pid,
                ppid: parent.pid,
                tid: task.tid,
                ptid: parent.tid,
            };
            (sample_id(fork.record_id.as_ref()), kind)
        }
        Theirs::Exit(exit) => {
            let (task, parent) = (exit.task, exit.parent_task);
            let kind = EventKind::Exit {
                pid: task.pid,
                ppid: parent.pid,
                tid: task.tid,
                ptid: parent.tid,
            };
            (sample_id(exit.record_id.as_ref()), kind)
        }
        Theirs::Throttle(throttle) => {
            let (on, id) = (true, throttle.id);
            let kind = EventKind::Throttle { on, id };
            (sample_id(throttle.record_id.as_ref()), kind)
        }
        Theirs::Unthrottle(throttle) => {
            let (on, id) = (false, throttle.id);
            let kind = EventKind::Throttle { on, id };
            (sample_id(throttle.record_id.as_ref()), kind)
        }
        other => panic!("not decoded by this crate: {other:?}"),
    }
}

fn flatten(parts: &[CallChain]) -> Vec<u64> {
    let mut chain = Vec::new();
    for part in parts {
        let (marker, ips) = match part {
            CallChain::Kernel(ips) => (CONTEXT_KERNEL, ips.as_slice()),
            CallChain::User(ips) => (CONTEXT_USER, ips.as_slice()),
            CallChain::UserDeferred { cookie } => {
                (CONTEXT_USER_DEFERRED, std::slice::from_ref(cookie))
            }
            other => panic!("not in these rings: {other:?}"),
        };
        chain.push(marker);
        chain.extend(ips);
    }
    chain
}

/// Both parsers on one record. What this crate fills in from a body (pid and tid of a comm, say)
/// where `sample_type` does not ask for it, theirs leaves out of the id.
fn compare(raw: &RawRecord<'_>, bits: u64) {
    let sample_type = SampleType::new(bits).expect("supported");
    let ours = record::parse(raw, sample_type).expect("whole");
    let mut theirs = theirs(raw, bits);
    if let EventKind::Switch {
        out: false,
        preempt,
        ..
    } = &mut theirs.kind
    {
        // Theirs knows preemption only for the task that leaves.
        *preempt = raw.misc & 1 << 14 != 0;
    }
    assert_eq!(ours.kind, theirs.kind);
    for (ours, theirs) in [(ours.id.pid, theirs.id.pid), (ours.id.tid, theirs.id.tid)] {
        assert!(theirs.is_none() || ours == theirs);
    }
    assert!(theirs.id.time.is_none() || ours.id.time == theirs.id.time);
    assert!(theirs.id.id.is_none() || ours.id.id == theirs.id.id);
}

#[test]
fn both_parsers_agree_on_recorded_rings() {
    let recording = fixtures::debian_7_2();
    let specs = &recording.tracing.as_ref().expect("events").events;
    let mut types = BTreeMap::new();
    for ring in &recording.ring_bytes {
        let tracing = recording.tracing.as_ref();
        let layouts = Layouts::new(ring.ring, &recording.events, tracing).expect("decodable");
        for raw in Records::new(&ring.bytes) {
            let raw = raw.expect("the kernel's own records");
            let layout = layouts.of(&raw).expect("long enough");
            let (Layout::Uniform(with) | Layout::Identified(with)) = layout else {
                panic!("{layout:?}");
            };
            let bits = specs.iter().map(|spec| spec.sample_type);
            let bits = bits.filter(|&bits| SampleType::new(bits) == Ok(with));
            compare(&raw, bits.max().expect("one of the specs"));
            *types.entry(raw.record_type).or_insert(0) += 1;
        }
    }
    // All that the fixture is said to hold was really compared.
    let found: Vec<u32> = types.into_keys().collect();
    assert_eq!(found, [1, 2, 3, 4, 5, 6, 7, 9, 10, 14, 15, 22]);
}

fn any_chain() -> impl Strategy<Value = Vec<u64>> {
    let part = |marker: u64| {
        vec(0_u64..CONTEXT_KERNEL - 8192, 0..60).prop_map(move |ips| {
            let mut part = vec![marker];
            part.extend(ips);
            part
        })
    };
    let deferred = any::<u64>().prop_map(|cookie| vec![CONTEXT_USER_DEFERRED, cookie]);
    let user = prop_oneof![part(CONTEXT_USER), deferred, Just(vec![])];
    (part(CONTEXT_KERNEL), user).prop_map(|parts| [parts.0, parts.1].concat())
}

/// The bodies of all side-band records, by type.
fn any_side_band() -> impl Strategy<Value = (u32, Body)> {
    let words = |count| vec(any::<u64>(), count).prop_map(|w| Body::default().u64s(&w));
    let named = |count: usize| {
        let name = vec(1_u8..128, 0..40);
        (words(count), name).prop_map(|(body, name)| body.text(&name))
    };
    let deferred = vec(any::<u64>(), 0..511).prop_map(|ips| {
        let body = Body::default().u64(1 << 32 | 1);
        body.u64(ips.len() as u64).u64s(&ips)
    });
    prop_oneof![
        (Just(1), named(4)),
        (Just(2), words(2)),
        (Just(3), named(1)),
        (Just(4), words(3)),
        (Just(5), words(3)),
        (Just(6), words(3)),
        (Just(7), words(3)),
        (Just(10), named(8)),
        (Just(13), words(1)),
        (Just(14), words(0)),
        (Just(15), words(1)),
        (Just(22), deferred),
    ]
}

proptest! {
    #[test]
    fn both_parsers_agree_on_generated_samples(
        bits in any_bits(), ids in any_ids(), chain in any_chain(), raw in vec(any::<u8>(), 0..40),
    ) {
        let bytes = encoder::sample(bits, &ids, &chain, &raw);
        let raw = Records::new(&bytes).next().expect("one").expect("whole");
        compare(&raw, bits);
    }

    #[test]
    fn both_parsers_agree_on_generated_side_band(
        bits in any_bits(), ids in any_ids(), misc: u16, (record_type, body) in any_side_band(),
    ) {
        // Bit 14 of MMAP2 turns device and inode into a build id, whose length theirs trusts.
        let misc = if record_type == 10 { misc & !(1 << 14) } else { misc };
        let bytes = encoder::side_band(record_type, misc, body, bits, &ids);
        let raw = Records::new(&bytes).next().expect("one").expect("whole");
        compare(&raw, bits);
    }
}
