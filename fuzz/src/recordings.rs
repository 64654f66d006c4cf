//! Whole recordings: decoded, judged and printed.

use std::collections::BTreeMap;

use unwindlab_oracle::invariant::finding::{Findings, Resolver};
use unwindlab_oracle::invariant::{Check, Evidence, INVARIANTS};
use unwindlab_oracle::trace::canonical::canonical;
use unwindlab_oracle::trace::perf_data::write::write;
use unwindlab_oracle::trace::perf_data::{Limits, PerfData};
use unwindlab_oracle::trace::{Recording, SnapshotStyle, Trace};

thread_local! {
    /// Read once: that takes longer than a judgement.
    static FINDINGS: Option<Findings> = Findings::embedded().ok();
}

/// A kernel of which nothing is known.
struct Nothing;

impl Resolver for Nothing {
    fn function(&self, _: u64) -> Option<String> {
        None
    }

    fn has(&self, _: &str) -> bool {
        true
    }
}

/// A recording, postcard-encoded as between the two halves of the harness.
pub(crate) fn packed(data: &[u8]) {
    if let Ok((recording, _)) = postcard::take_from_bytes::<Recording>(data) {
        judge(&recording);
    }
}

/// A recording as JSON.
pub(crate) fn json(data: &[u8]) {
    let Ok(recording) = serde_json::from_slice::<Recording>(data) else {
        return;
    };
    judge(&recording);
    let text = serde_json::to_vec(&recording).unwrap_or_default();
    let again = serde_json::from_slice::<Recording>(&text);
    assert_eq!(
        again.ok().as_ref(),
        Some(&recording),
        "written and read, it is another"
    );
}

/// Decodes and judges a recording, as a run does.
pub(crate) fn judge(recording: &Recording) {
    let trace = Trace::decode(recording);
    judge_trace(&trace);
    for style in [SnapshotStyle::Events, SnapshotStyle::Shapes] {
        let text = canonical(&trace, style, &|_| None);
        assert!(text.ends_with('\n'), "a snapshot without an end");
    }
    if let Ok(written) = write(recording, None) {
        perf_data(&written);
    }
}

/// What perf wrote: a file or a pipe.
pub(crate) fn perf_data(data: &[u8]) {
    let limits = Limits {
        inflated: 1 << 20,
        records: 1 << 16,
        events: 1 << 16,
    };
    let Ok(mut read) = PerfData::read(data, limits) else {
        return;
    };
    let mut positions = BTreeMap::new();
    for (at, event) in read.trace.events.iter().enumerate() {
        assert_eq!(event.index, at);
        let before = positions.insert(event.ring, event.position);
        assert!(
            before.is_none_or(|it| it < event.position),
            "out of the order of its ring"
        );
        assert_eq!(
            read.trace.rings.get(event.ring_index).map(|it| it.ring),
            Some(event.ring)
        );
    }
    for alone in [false, true] {
        if let Some(recorded) = &mut read.trace.recorded {
            recorded.alone = alone;
        }
        judge_trace(&read.trace);
    }
    let moved = read.link_kernel(0xffff_ffff_8100_0000);
    assert_eq!(moved, read.kernel_text.is_some());
}

/// Judges a trace.
fn judge_trace(trace: &Trace) {
    let evidence = Evidence::new(trace);
    for invariant in INVARIANTS {
        let Check::Violated(violations) = invariant.check(&evidence) else {
            continue;
        };
        assert!(
            !violations.is_empty(),
            "{} falls for no reason",
            invariant.id
        );
        for violation in &violations {
            let in_trace = |at: &usize| *at < trace.events.len();
            assert!(violation.events.iter().all(in_trace), "{}", invariant.id);
            FINDINGS.with(|it| {
                let found = it.as_ref();
                found.map(|it| it.match_finding(violation, &evidence, &Nothing))
            });
        }
    }
}

/// Real recordings, which the bytes of a target get into.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Base {
    Perf,
    Lab,
    UserMode,
    Tracefs,
}

/// A real recording, to be changed.
pub(crate) fn like(base: Base) -> Recording {
    let bytes: &[u8] = match base {
        Base::Perf => include_bytes!("../corpus/recording-json/nmi-in-syscall"),
        Base::Lab => include_bytes!("../corpus/recording-json/lab-nmi-request"),
        Base::UserMode => include_bytes!("../corpus/recording-json/bpf-at-once"),
        Base::Tracefs => include_bytes!("../corpus/recording-json/tracefs-basic"),
    };
    let read = serde_json::from_slice::<Recording>(bytes);
    assert!(read.is_ok(), "the seed of {base:?} is no recording");
    read.unwrap_or_default()
}
