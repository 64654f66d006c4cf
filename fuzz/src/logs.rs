//! What else a guest writes for the host: logs in its memory, and texts.

use unwindlab_abi::lab::{HEAD_OFFSET, MAGIC, SLOT_BYTES, SLOTS_OFFSET, VERSION};
use unwindlab_abi::mailbox::PAGE_SIZE;
use unwindlab_abi::tracefs::{SUB_BUFFER, TracefsBuffer, TracefsPart};
use unwindlab_abi::user_mode::{COUNTERS, RESULT_PAGES, RING_BYTES, UserModeAnnounce};
use unwindlab_oracle::trace::lab::reader::{LabLog, slot};
use unwindlab_oracle::trace::tracefs::{Position, TracefsHeld};
use unwindlab_oracle::trace::user_mode::UserModeLog;
use unwindlab_oracle::trace::{Recording, lab, script, tracefs as instances, user_mode as results};

use crate::memory::Pages;
use crate::recordings::{self, Base, like};
use crate::take::Input;

/// The log of the lab client: where to begin, the head, the control page's first words if they are not right; then the slots.
pub(crate) fn lab_log(data: &[u8]) {
    let mut input = Input(data);
    let (kind, first, head) = (input.u8(), input.u8(), input.u16());
    let slots = input.0;
    let pages = slots.len().div_ceil(PAGE_SIZE).max(1);
    let memory = Pages::new((pages + 1) * PAGE_SIZE);
    let held = (pages * (PAGE_SIZE / SLOT_BYTES)) as u64;
    let magic = u64::from(MAGIC) | u64::from(VERSION) << 32;
    memory.put(0, &(magic ^ u64::from(kind & 1)).to_le_bytes());
    memory.put(
        SLOTS_OFFSET,
        &(held ^ u64::from(kind >> 1 & 1)).to_le_bytes(),
    );
    memory.put(HEAD_OFFSET, &u64::from(head).to_le_bytes());
    memory.put(PAGE_SIZE, slots);
    let mut pages: Vec<u64> = (0..=pages).map(|page| (page * PAGE_SIZE) as u64).collect();
    if kind & 4 != 0 {
        pages.push(u64::MAX - 7);
    }
    for number in 0..u64::from(first) {
        let _ = slot(&memory, &pages, number);
    }
    let log = LabLog::read_from(&memory, &pages, u64::from(first));
    assert!(log.finished() * SLOT_BYTES as u64 <= log.bytes.len() as u64);
    let _ = lab::decode::decode(&log);
    let earlier = LabLog::read_from(&memory, &pages, 0);
    let joined = LabLog::join(&earlier, u64::from(first), log);
    if kind & 7 == 0 && u64::from(first) <= u64::from(head) {
        assert_eq!(joined, earlier, "a log in two pieces is another");
    }
    recordings::judge(&Recording {
        lab: Some(joined),
        ..like(Base::Lab)
    });
}

/// Results of unwinding in user mode: how much was produced and taken, the ring, the slots.
pub(crate) fn user_mode(data: &[u8]) {
    let mut input = Input(data);
    let (produced, taken) = (input.u64(), input.u64());
    let ring = input.piece();
    let slots = input.0;
    let memory = Pages::new(8 * PAGE_SIZE);
    let at = |page: usize| (page * PAGE_SIZE) as u64;
    memory.put(0, &produced.to_le_bytes());
    memory.put(64, ring.get(..8 * COUNTERS).unwrap_or_default());
    memory.put(PAGE_SIZE, ring);
    memory.put(3 * PAGE_SIZE, &taken.to_le_bytes());
    memory.put(4 * PAGE_SIZE, slots);
    // The same pages again and again: a log is as large as it always is.
    let announce = UserModeAnnounce {
        producer: 0,
        counters: 64,
        ring: (0..RING_BYTES / PAGE_SIZE)
            .map(|page| at(1 + page % 2))
            .collect(),
        results: [at(3)]
            .into_iter()
            .chain((1..RESULT_PAGES).map(|page| at(4 + page % 4)))
            .collect(),
        ..UserModeAnnounce::default()
    };
    assert!(UserModeLog::may_be(&announce));
    let log = UserModeLog::read(&memory, &announce);
    let _ = results::decode(&log);
    recordings::judge(&Recording {
        user_mode: Some(log),
        ..like(Base::UserMode)
    });
}

/// Buffers of instances of tracefs: which way, another format file, then the sub-buffers in guest memory, or what an agent
/// sends of them.
pub(crate) fn tracefs(data: &[u8]) {
    let recording = with_tracefs(data);
    let _ = recording.tracefs.as_ref().map(instances::decode);
    recordings::judge(&recording);
}

fn with_tracefs(data: &[u8]) -> Recording {
    let mut input = Input(data);
    let kind = input.u8();
    let text = input.piece();
    let base = like(Base::Tracefs);
    let mut log = base.tracefs.clone().unwrap_or_default();
    if let Some(format) = log.formats.get_mut(usize::from(kind & 3)) {
        format.1 = String::from_utf8_lossy(text).into_owned();
    }
    if kind & 4 == 0 {
        let pages = input.0.len().div_ceil(SUB_BUFFER).max(1);
        let memory = Pages::new(pages * SUB_BUFFER);
        memory.put(0, input.0);
        // One that is not there, where asked for.
        let beyond = usize::from(kind >> 3 & 1);
        let buffer = TracefsBuffer {
            instance: 0,
            cpu: 0,
            pages: (0..pages + beyond)
                .map(|page| (page * SUB_BUFFER) as u64)
                .collect(),
        };
        let position = Position::of(&memory, &buffer);
        assert!(beyond == 1 || position.is_ok());
        let behind: Vec<Position> = position
            .ok()
            .filter(|_| kind & 16 != 0)
            .into_iter()
            .collect();
        log.held = TracefsHeld::read(&memory, &[buffer], &behind).unwrap_or_default();
    } else {
        log.held = TracefsHeld::default();
        let mut rest = input.0;
        while let Ok((part, parts)) = postcard::take_from_bytes::<TracefsPart>(rest) {
            rest = parts;
            if !log.add(part) {
                break;
            }
        }
    }
    Recording {
        tracefs: Some(log),
        ..base
    }
}

/// What the distribution's perf prints.
pub(crate) fn perf_script(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for sample in script::parse(&text).unwrap_or_default() {
        let (kernel, user) = sample.parts();
        assert_eq!(kernel.len() + user.len(), sample.chain.len());
    }
    recordings::judge(&Recording {
        perf_script: Some(text.into_owned()),
        ..like(Base::Perf)
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use unwindlab_oracle::trace::tracefs::TracefsKind;

    /// Where a format file is missing, nothing is decoded, and nothing is fuzzed.
    #[test]
    fn the_corpus_of_tracefs_has_each_kind_of_event() {
        for seed in [
            &include_bytes!("../corpus/tracefs/tracefs-basic")[..],
            include_bytes!("../corpus/tracefs/tracefs-basic-sent"),
        ] {
            let log = with_tracefs(seed).tracefs.unwrap_or_default();
            let (trace, complaints) = instances::decode(&log);
            assert!(complaints.is_empty(), "{complaints:?}");
            let has = |kind: fn(&TracefsKind) -> bool| trace.events.iter().any(|it| kind(&it.kind));
            assert!(has(|it| matches!(it, TracefsKind::Request { .. })));
            assert!(has(|it| matches!(it, TracefsKind::Stack { .. })));
            assert!(has(|it| *it == TracefsKind::MayEnd));
            assert!(has(|it| *it == TracefsKind::Cleared));
        }
    }
}
