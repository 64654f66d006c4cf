//! The fields of a sample whose presence or length depends on more than `sample_type`.

use proptest::prelude::*;
use unwindlab_abi::attr::flag;
use unwindlab_abi::{EventSource, EventSpec};

use crate::trace::fixtures::encoder::{self, Body};
use crate::trace::framing::Records;
use crate::trace::model::EventKind;
use crate::trace::record::sample_id::*;
use crate::trace::record::{Record, RecordError, parse};

fn sampler() -> EventSpec {
    EventSpec {
        sample_period: 1,
        ..EventSpec::blank("sampler", EventSource::Dummy)
    }
}

/// What a sample is written from.
#[derive(Debug, Clone)]
struct Written {
    bits: u64,
    read_format: u64,
    events: u64,
    regs_user: (u64, bool),
    regs_intr: (u64, bool),
    stack: u64,
}

fn with(written: &Written, clear: u64) -> SampleType {
    let mut spec = sampler();
    spec.sample_type = written.bits;
    spec.details.read_format = written.read_format;
    spec.details.regs_user = written.regs_user.0;
    spec.details.regs_intr = written.regs_intr.0;
    spec.details.clear = clear;
    SampleType::of(&spec).expect("supported")
}

/// The body in the order of the comment at `PERF_RECORD_SAMPLE` in
/// include/uapi/linux/perf_event.h, Linux 7.3; each word is another number.
fn body(written: &Written) -> (Body, Vec<u64>) {
    let has = |bits: u64| written.bits & bits != 0;
    let mut next = 100;
    let mut words = |count: u64| -> Vec<u64> {
        let from = next;
        next += count;
        (from..next).collect()
    };
    let mut body = Body::default();
    let before = [IDENTIFIER, IP, TID, TIME, ADDR, ID, STREAM_ID, CPU, PERIOD];
    for _ in before.iter().filter(|&&bit| has(bit)) {
        body = body.u64s(&words(1));
    }
    if has(READ) {
        let format = |bit: u64| u64::from(written.read_format & bit != 0);
        let (times, each) = (format(1) + format(2), 1 + format(4) + format(16));
        body = if written.read_format & 8 == 0 {
            body.u64s(&words(1 + times + each - 1))
        } else {
            let group = body.u64(written.events).u64s(&words(times));
            group.u64s(&words(written.events * each))
        };
    }
    if has(CALLCHAIN) {
        body = body.u64(2).u64s(&words(2));
    }
    let mut registers = |body: Body, (mask, there): (u64, bool)| match there {
        true => {
            let regs = words(mask.count_ones().into());
            (body.u64(2).u64s(&regs), regs)
        }
        false => (body.u64(0), Vec::new()),
    };
    let mut user = Vec::new();
    if has(REGS_USER) {
        (body, user) = registers(body, written.regs_user);
    }
    if has(STACK_USER) {
        body = body.u64(written.stack * 8);
        if written.stack > 0 {
            body = body
                .u64s(&vec![7; usize::try_from(written.stack).expect("small")])
                .u64(8);
        }
    }
    for bit in [WEIGHT, DATA_SRC, TRANSACTION] {
        body = if has(bit) { body.u64(bit) } else { body };
    }
    if has(REGS_INTR) {
        (body, _) = registers(body, written.regs_intr);
    }
    for bit in [PHYS_ADDR, CGROUP, DATA_PAGE_SIZE, CODE_PAGE_SIZE] {
        body = if has(bit) { body.u64(bit) } else { body };
    }
    (body, user)
}

fn read(bytes: &[u8], with: SampleType) -> Result<Record, RecordError> {
    let raw = Records::new(bytes)
        .next()
        .expect("a record")
        .expect("whole");
    parse(&raw, with)
}

fn any_written() -> impl Strategy<Value = Written> {
    let registers = || {
        (
            any::<u64>().prop_map(|mask| mask & 0xff_ffff),
            any::<bool>(),
        )
    };
    let parts = (
        any::<u64>(),
        0_u64..32,
        0_u64..5,
        registers(),
        registers(),
        0_u64..9,
    );
    parts.prop_map(
        |(bits, read_format, events, regs_user, regs_intr, stack)| Written {
            bits: bits & SUPPORTED & !RAW,
            read_format,
            events,
            regs_user,
            regs_intr,
            stack,
        },
    )
}

proptest! {
    #[test]
    fn a_sample_of_any_attributes_is_read_to_its_last_byte(written in any_written()) {
        let (body, user) = body(&written);
        let bytes = encoder::record(9, 1, &body);
        let record = read(&bytes, with(&written, 0)).expect("parsed");
        let EventKind::Sample(sample) = record.kind else { panic!("a sample") };
        let wanted = (written.bits & REGS_USER != 0).then_some(user);
        prop_assert_eq!(sample.regs_user, wanted);
        // A word more or less is noticed.
        let long = encoder::record(9, 1, &body.clone().u64(0));
        prop_assert_eq!(read(&long, with(&written, 0)), Err(RecordError::LeftOver { left: 8 }));
        if written.bits != 0 {
            let len = u16::try_from(bytes.len()).expect("small") - 8;
            let short = [&bytes[..6], &len.to_le_bytes(), &bytes[8..bytes.len() - 8]].concat();
            prop_assert!(read(&short, with(&written, 0)).is_err());
        }
    }
}

#[test]
fn without_sample_id_all_no_record_has_a_trailer() {
    let written = Written {
        bits: TID | TIME | IDENTIFIER,
        read_format: 0,
        events: 0,
        regs_user: (0, false),
        regs_intr: (0, false),
        stack: 0,
    };
    let bytes = encoder::record(22, 2, &Body::default().u64s(&[3 << 32 | 1, 2, 0x40, 0x50]));
    let record = read(&bytes, with(&written, flag::SAMPLE_ID_ALL)).expect("parsed");
    let EventKind::CallchainDeferred(chain) = record.kind else {
        panic!("a record 22");
    };
    assert_eq!(
        (chain.ips, record.id),
        (vec![0x40, 0x50], SampleId::default())
    );
    // With one, its three words leave no room for cookie and count.
    assert!(read(&bytes, with(&written, 0)).is_err());
}

#[test]
fn times_of_another_clock_are_not_compared() {
    let mut spec = sampler();
    spec.sample_type = TIME;
    let bytes = encoder::record(9, 1, &Body::default().u64(77));
    let time = |spec: &EventSpec| {
        read(&bytes, SampleType::of(spec).expect("supported"))
            .expect("parsed")
            .id
            .time
    };
    assert_eq!(time(&spec), Some(77));
    spec.details.set = flag::USE_CLOCKID;
    assert_eq!(time(&spec), None);
}
