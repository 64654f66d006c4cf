//! Writes a trial's rings as perf would have: records as they are, which `perf script` and `perf report` merge.
//!
//! An event of a tracepoint stands as one of a number (`PERF_TYPE_RAW`): perf opens a file with a tracepoint only if the
//! kernel's description of it is in the file. Its name says what it was.

use unwindlab_abi::attr::flag;
use unwindlab_abi::plan::{EventSource, EventSpec};

use super::header::feature;
use super::walk::own::ID_INDEX;
use crate::trace::Recording;
use crate::trace::model::MISC_USER;
use crate::trace::record::record_type;
use crate::trace::record::sample_id::{IDENTIFIER, SampleType, TID};

/// Bytes of an attr up to `sample_max_stack` (`PERF_ATTR_SIZE_VER5`).
const ATTR: usize = 112;
/// Bytes of `struct perf_file_header`.
const HEADER: usize = 104;
/// Bytes of a section's offset and size.
const SECTION: usize = 16;

/// The program of the workload, for the names of its functions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MappedProgram {
    /// The path of an ELF file.
    pub path: String,
    /// Where its code was.
    pub start: u64,
    /// Bytes of it.
    pub len: u64,
    /// Where the code is in the file.
    pub offset: u64,
}

/// Why a recording has no form that perf opens.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoPerfData {
    /// The harness traced nothing.
    #[error("the trial had no events of perf")]
    NoEvents,
    /// perf tells events by the identifier.
    #[error("its events differ in sample_type and not all have PERF_SAMPLE_IDENTIFIER")]
    Ambiguous,
    /// perf cannot find out of which event a record is.
    #[error("not all events have sample_id_all")]
    NoTrailer,
    /// A record would be longer than a record can be.
    #[error("the path of the program is too long")]
    LongPath,
}

/// Writes the file of a trial.
///
/// # Errors
/// [`NoPerfData`].
pub fn write(
    recording: &Recording,
    program: Option<&MappedProgram>,
) -> Result<Vec<u8>, NoPerfData> {
    let specs = recording.tracing.as_ref().map_or(&[][..], |it| &it.events);
    let attrs: Vec<(&EventSpec, Vec<u64>)> = (0..)
        .zip(specs)
        .map(|(number, spec)| {
            let ids = recording.events.iter().filter(|it| it.spec == number);
            (spec, ids.map(|it| it.id).collect::<Vec<u64>>())
        })
        .filter(|(_, ids)| !ids.is_empty())
        .collect();
    let (first, _) = attrs.first().ok_or(NoPerfData::NoEvents)?;
    let clears = |it: &EventSpec| it.details.clear & flag::SAMPLE_ID_ALL != 0;
    if attrs.iter().any(|(it, _)| clears(it)) {
        return Err(NoPerfData::NoTrailer);
    }
    let unlike = |it: &EventSpec| it.sample_type != first.sample_type;
    let named = |it: &EventSpec| it.sample_type & IDENTIFIER != 0;
    if attrs.iter().any(|(it, _)| unlike(it)) && !attrs.iter().all(|(it, _)| named(it)) {
        return Err(NoPerfData::Ambiguous);
    }

    let mut data = id_index(recording);
    data.extend(made_up(recording, first.sample_type, program)?);
    for ring in &recording.ring_bytes {
        data.extend(&ring.bytes);
    }
    Ok(file(recording, &attrs, &data))
}

fn file(recording: &Recording, attrs: &[(&EventSpec, Vec<u64>)], data: &[u8]) -> Vec<u8> {
    let features = features(recording, attrs);
    let ids: usize = attrs.iter().map(|(_, ids)| 8 * ids.len()).sum();
    let attrs_at = HEADER + ids;
    let attrs_len = attrs.len() * (ATTR + SECTION);
    let data_at = attrs_at + attrs_len;
    let map = features.iter().fold(0, |map, (bit, _)| map | 1 << bit);

    let mut out = b"PERFILE2".to_vec();
    let lens = [
        HEADER,
        ATTR + SECTION,
        attrs_at,
        attrs_len,
        data_at,
        data.len(),
        0,
        0,
    ];
    words(&mut out, &lens.map(|it| it as u64));
    words(&mut out, &[map, 0, 0, 0]);
    for (_, ids) in attrs {
        words(&mut out, ids);
    }
    let mut at = HEADER;
    for (spec, ids) in attrs {
        out.extend(attr(spec));
        words(&mut out, &[at as u64, 8 * ids.len() as u64]);
        at += 8 * ids.len();
    }
    out.extend(data);
    let mut at = out.len() + features.len() * SECTION;
    for (_, section) in &features {
        words(&mut out, &[at as u64, section.len() as u64]);
        at += section.len();
    }
    features.iter().for_each(|(_, section)| out.extend(section));
    out
}

fn words(out: &mut Vec<u8>, words: &[u64]) {
    out.extend(words.iter().flat_map(|it| it.to_le_bytes()));
}

/// A length that a header has 4 bytes for; what is longer is cut before.
fn count(out: &mut Vec<u8>, count: usize) {
    out.extend(u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
}

/// `struct perf_event_attr`.
fn attr(spec: &EventSpec) -> Vec<u8> {
    // `PERF_TYPE_*`
    const HARDWARE: u32 = 0;
    const SOFTWARE: u32 = 1;
    const RAW: u32 = 4;
    let bits = [
        (spec.inherit, flag::INHERIT),
        (spec.mmap, flag::MMAP | flag::MMAP2),
        (spec.comm, flag::COMM),
        (spec.task, flag::TASK),
        (spec.context_switch, flag::CONTEXT_SWITCH),
        (spec.exclude_callchain_user, flag::EXCLUDE_CALLCHAIN_USER),
        (spec.defer_callchain, flag::DEFER_CALLCHAIN),
        (spec.defer_output, flag::DEFER_OUTPUT),
    ];
    let flags = { bits.iter() }.filter(|(is_set, _)| *is_set);
    let flags = flags.fold(flag::SAMPLE_ID_ALL, |flags, (_, bit)| flags | bit);
    let (kind, config) = match spec.source {
        EventSource::Hardware(config) => (HARDWARE, config),
        EventSource::Software(config) => (SOFTWARE, config),
        EventSource::Dummy => (SOFTWARE, 9),
        _ => (RAW, 0),
    };
    let details = &spec.details;
    let mut out = kind.to_le_bytes().to_vec();
    count(&mut out, ATTR);
    words(
        &mut out,
        &[
            config,
            spec.sample_period,
            spec.sample_type,
            details.read_format,
            flags | details.set,
            0,
            0,
            0,
            details.branch_sample_type,
            details.regs_user,
            u64::from(details.stack_user),
            details.regs_intr,
            u64::from(spec.max_stack) << 32,
        ],
    );
    out
}

/// `PERF_RECORD_ID_INDEX`: the CPU of each event.
fn id_index(recording: &Recording) -> Vec<u8> {
    /// Entries of a record, which has less than 64 KiB.
    const ENTRIES: usize = 1000;
    let mut out = Vec::new();
    for part in recording.events.chunks(ENTRIES) {
        let size = u16::try_from(8 + 8 + 32 * part.len()).unwrap_or(0);
        out.extend(ID_INDEX.to_le_bytes());
        out.extend([0, 0]);
        out.extend(size.to_le_bytes());
        words(&mut out, &[part.len() as u64]);
        for open in part {
            words(
                &mut out,
                &[open.id, open.ring.into(), open.cpu.into(), u64::MAX],
            );
        }
    }
    out
}

/// The records that perf makes up for tasks that were there before: their names, and where their program was.
fn made_up(
    recording: &Recording,
    sample_type: u64,
    program: Option<&MappedProgram>,
) -> Result<Vec<u8>, NoPerfData> {
    let trailer = SampleType::new(sample_type).map_or(0, SampleType::trailer_len);
    let mut out = Vec::new();
    let mut record = |kind: u32, misc: u16, pid: u32, tid: u32, body: &[u8], text: &str| {
        let mut bytes = [pid.to_le_bytes(), tid.to_le_bytes()].concat();
        bytes.extend(body);
        bytes.extend(text.as_bytes());
        bytes.push(0);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let ids = bytes.len();
        bytes.resize(ids + trailer, 0);
        // It comes first. Of a sample type that nobody knows, no trailer is known either.
        if trailer > 0 && sample_type & TID != 0 {
            let task = [pid.to_le_bytes(), tid.to_le_bytes()].concat();
            bytes.splice(ids..ids + 8, task);
        }
        let size = u16::try_from(bytes.len() + 8).map_err(|_| NoPerfData::LongPath)?;
        out.extend(kind.to_le_bytes());
        out.extend(misc.to_le_bytes());
        out.extend(size.to_le_bytes());
        out.extend(bytes);
        Ok(())
    };
    for thread in &recording.threads {
        record(
            record_type::COMM,
            0,
            thread.pid,
            thread.tid,
            &[],
            "workload",
        )?;
    }
    let mut pids: Vec<u32> = recording.threads.iter().map(|it| it.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    for pid in pids {
        if let Some(program) = program {
            let mut place = Vec::new();
            words(&mut place, &[program.start, program.len, program.offset]);
            record(
                record_type::MMAP,
                MISC_USER,
                pid,
                pid,
                &place,
                &program.path,
            )?;
        }
    }
    Ok(out)
}

fn features(recording: &Recording, attrs: &[(&EventSpec, Vec<u64>)]) -> Vec<(u64, Vec<u8>)> {
    let text = |out: &mut Vec<u8>, text: &str| {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize((bytes.len() + 1).next_multiple_of(64), 0);
        count(out, bytes.len());
        out.extend(bytes);
    };
    let of = |value: &str| {
        let mut out = Vec::new();
        text(&mut out, value);
        out
    };
    let cpus = recording.vcpus.to_le_bytes();
    let mut events = Vec::new();
    count(&mut events, attrs.len());
    count(&mut events, ATTR);
    for (spec, ids) in attrs {
        events.extend(attr(spec));
        count(&mut events, ids.len());
        text(&mut events, &spec.name);
        words(&mut events, ids);
    }
    vec![
        (feature::OSRELEASE, of(&recording.release)),
        (feature::ARCH, of("x86_64")),
        (feature::NRCPUS, [cpus, cpus].concat()),
        (feature::EVENT_DESC, events),
    ]
}

#[cfg(test)]
mod tests;
