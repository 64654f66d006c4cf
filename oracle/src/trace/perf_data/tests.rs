//! Files written by hand, from the kernel's headers and not from the reader.

use proptest::prelude::*;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use super::*;
use crate::trace::Event;
use crate::trace::fixtures::RESET_PERF_DATA;
use crate::trace::record::sample_id::{CALLCHAIN, CPU, IDENTIFIER, IP, TID, TIME};
use unwindlab_abi::attr::flag;
use unwindlab_abi::plan::EventSource;

const SAMPLE_TYPE: u64 = IP | TID | TIME | CPU | CALLCHAIN | IDENTIFIER;
const KERNEL_IP: u64 = 0xffff_ffff_8100_0400;

/// Bytes of a machine.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bytes {
    big: bool,
    pub(crate) bytes: Vec<u8>,
}

impl Bytes {
    fn of(big: bool) -> Self {
        let bytes = Vec::new();
        Self { big, bytes }
    }

    fn u16(mut self, value: u16) -> Self {
        let bytes = if self.big {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        };
        self.bytes.extend(bytes);
        self
    }

    fn u32(mut self, value: u32) -> Self {
        let bytes = if self.big {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        };
        self.bytes.extend(bytes);
        self
    }

    fn u64(mut self, value: u64) -> Self {
        let bytes = if self.big {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        };
        self.bytes.extend(bytes);
        self
    }

    fn u64s(self, values: &[u64]) -> Self {
        values.iter().fold(self, |bytes, &value| bytes.u64(value))
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self
    }

    fn text(self, text: &str) -> Self {
        let padded = (text.len() + 1).next_multiple_of(64);
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(padded, 0);
        self.u32(u32::try_from(padded).unwrap()).raw(&bytes)
    }
}

/// A recording of two events, a software clock that defers and a dummy that receives, on two CPUs.
#[derive(Debug, Clone)]
pub(super) struct File {
    big: bool,
    sample_type: u64,
    records: Vec<u8>,
    /// Its command line, if it has one.
    pub(super) command: Option<&'static [&'static str]>,
    /// CPUs that are on.
    pub(super) online: u32,
    /// The thread of each event.
    pub(super) tid: u64,
    /// A feature that perf writes for a folder.
    pub(super) is_of_folder: bool,
}

impl File {
    pub(super) fn new(big: bool) -> Self {
        Self {
            big,
            sample_type: SAMPLE_TYPE,
            records: Vec::new(),
            command: Some(&["perf", "record", "-a"]),
            online: 2,
            tid: u64::MAX,
            is_of_folder: false,
        }
    }

    fn w(&self) -> Bytes {
        Bytes::of(self.big)
    }

    pub(super) fn record(&mut self, kind: u32, misc: u16, body: &Bytes) {
        let size = u16::try_from(body.bytes.len() + 8).unwrap();
        let record = self.w().u32(kind).u16(misc).u16(size).raw(&body.bytes);
        self.records.extend(record.bytes);
    }

    fn trailer(&self, body: Bytes, tid: u32, time: u64, cpu: u32, id: u64) -> Bytes {
        body.u32(1000).u32(tid).u64(time).u32(cpu).u32(0).u64(id)
    }

    pub(super) fn sample(&mut self, tid: u32, time: u64, cpu: u32, cookie: u64) {
        let chain = [
            (-128_i64).cast_unsigned(),
            KERNEL_IP,
            (-640_i64).cast_unsigned(),
            cookie,
        ];
        let body = self
            .w()
            .u64(10 + u64::from(cpu))
            .u64(KERNEL_IP)
            .u32(1000)
            .u32(tid)
            .u64(time);
        let body = body.u32(cpu).u32(0).u64(chain.len() as u64).u64s(&chain);
        self.record(9, 1, &body);
    }

    fn deferred(&mut self, tid: u32, time: u64, cpu: u32, cookie: u64) {
        let body = self.w().u64(cookie).u64(2).u64s(&[0x40_1000, 0x40_2000]);
        let body = self.trailer(body, tid, time, cpu, 20 + u64::from(cpu));
        self.record(22, 2, &body);
    }

    fn round(&mut self) {
        self.record(68, 0, &self.w());
    }

    fn attr(&self, kind: u32, config: u64, flags: u64) -> Bytes {
        let mut word = (flags | flag::SAMPLE_ID_ALL).to_le_bytes();
        if self.big {
            word = word.map(u8::reverse_bits);
        }
        let attr = self
            .w()
            .u32(kind)
            .u32(136)
            .u64(config)
            .u64(1)
            .u64(self.sample_type)
            .u64(0);
        let attr = attr.raw(&word).raw(&[0; 60]).u16(7).raw(&[0; 26]);
        assert_eq!(attr.bytes.len(), 136);
        attr
    }

    fn attrs(&self) -> [(Bytes, [u64; 2]); 2] {
        [
            (
                self.attr(1, 0, flag::DEFER_CALLCHAIN | flag::INHERIT),
                [10, 11],
            ),
            (
                self.attr(1, 9, flag::DEFER_OUTPUT | flag::TASK | flag::MMAP2),
                [20, 21],
            ),
        ]
    }

    pub(super) fn id_index(&self, cpus: &[u64]) -> Bytes {
        let mut body = self.w().u64(2 * cpus.len() as u64);
        for (id, idx) in [(10, 0), (20, 1)] {
            for (at, &cpu) in (0..).zip(cpus) {
                body = body.u64s(&[id + at, idx, cpu, self.tid]);
            }
        }
        body
    }

    fn features(&self) -> Vec<(u64, Vec<u8>)> {
        let desc = self.attrs().into_iter().zip(["clock", "dummy:u"]);
        let desc = desc.fold(self.w().u32(2).u32(136), |out, ((attr, ids), name)| {
            out.raw(&attr.bytes).u32(2).text(name).u64s(&ids)
        });
        let mut features = vec![
            (4, self.w().text("7.3.4-test").bytes),
            (6, self.w().text("x86_64").bytes),
            (7, self.w().u32(2).u32(self.online).bytes),
        ];
        if let Some(words) = self.command {
            let count = self.w().u32(u32::try_from(words.len()).unwrap());
            let command = words.iter().fold(count, |out, word| out.text(word));
            features.push((11, command.bytes));
        }
        features.push((12, desc.bytes));
        features.extend(self.is_of_folder.then(|| (24, self.w().u64(1).bytes)));
        features
    }

    /// As a file.
    pub(super) fn file(&self) -> Vec<u8> {
        let attrs_at: u64 = 104 + 32;
        let data_at = attrs_at + 2 * (136 + 16);
        let magic: &[u8] = if self.big { b"2ELIFREP" } else { b"PERFILE2" };
        let map = self
            .features()
            .iter()
            .fold(0, |map, (bit, _)| map | 1 << bit);
        let header = self.w().raw(magic).u64(104).u64(136 + 16);
        let header = header.u64s(&[
            attrs_at,
            2 * (136 + 16),
            data_at,
            self.records.len() as u64,
            0,
            0,
            map,
            0,
            0,
            0,
        ]);
        let mut out = header.u64s(&[10, 11, 20, 21]);
        for (at, (attr, _)) in (0..).zip(self.attrs()) {
            out = out.raw(&attr.bytes).u64(104 + at * 16).u64(16);
        }
        out = out.raw(&self.records);
        let mut at = out.bytes.len() as u64 + self.features().len() as u64 * 16;
        for (_, section) in self.features() {
            out = out.u64(at).u64(section.len() as u64);
            at += section.len() as u64;
        }
        self.features()
            .iter()
            .fold(out, |out, (_, section)| out.raw(section))
            .bytes
    }

    /// As perf writes to a pipe.
    fn pipe(&self) -> Vec<u8> {
        let magic: &[u8] = if self.big { b"2ELIFREP" } else { b"PERFILE2" };
        let mut out = Self::new(self.big);
        for (attr, ids) in self.attrs() {
            out.record(64, 0, &attr.u64s(&ids));
        }
        for (bit, section) in self.features().into_iter().filter(|(bit, _)| *bit < 12) {
            out.record(80, 0, &self.w().u64(bit).raw(&section));
        }
        out.record(78, 0, &self.w().u64(2).u64(20).raw(b"dummy:u\0"));
        // Tracing data, and AUX data: bytes behind a record.
        out.record(66, 0, &self.w().u32(8).u32(0));
        out.records.extend([9; 8]);
        out.record(71, 0, &self.w().u64s(&[16, 0, 0, 0, 0]));
        out.records.extend([9; 16]);
        let header = self.w().raw(magic).u64(16).raw(&out.records);
        header.raw(&self.records).bytes
    }
}

pub(super) fn read(bytes: &[u8]) -> Result<PerfData, PerfDataError> {
    PerfData::read(bytes, Limits::default())
}

const A: u64 = 3 << 32 | 1;
const B: u64 = 3 << 32 | 2;

/// Two CPUs, whose records do not stand in the order of time.
pub(super) fn two_cpus(big: bool) -> File {
    of_two_cpus(File::new(big))
}

/// The same in a file that is another one else.
pub(super) fn of_two_cpus(mut file: File) -> File {
    let index = file.id_index(&[0, 1]);
    file.record(69, 0, &index);
    // perf makes up the mappings of the kernel and of tasks that were there before.
    let name = b"[kernel.kallsyms]_text\0\0";
    let text = file
        .w()
        .u32(u32::MAX)
        .u32(0)
        .u64s(&[0xffff_ffff_9a00_0000, 1 << 24, 0])
        .raw(name);
    let text = file.trailer(text, 0, 0, 0, 0);
    file.record(1, 1, &text);
    file.sample(7, 100, 0, A);
    file.deferred(7, 130, 0, A);
    file.round();
    file.sample(8, 110, 1, B);
    file.deferred(8, 120, 1, B);
    file.round();
    file
}

fn told(data: &PerfData) -> Vec<(u32, Option<u64>, Option<u64>)> {
    let events = data.trace.events.iter();
    events.map(|it| (it.cpu, it.time, it.cookie())).collect()
}

#[test]
fn records_of_two_cpus_are_merged_and_named() {
    for bytes in [
        two_cpus(false).file(),
        two_cpus(true).file(),
        two_cpus(false).pipe(),
        two_cpus(true).pipe(),
    ] {
        let data = read(&bytes).unwrap();
        let order = [(0, 100, A), (1, 110, B), (1, 120, B), (0, 130, A)];
        let order = order.map(|(cpu, time, cookie)| (cpu, Some(time), Some(cookie)));
        assert_eq!(told(&data), order);
        assert_eq!((data.cut, data.records, data.left_out), (None, 4, vec![]));
        assert_eq!(data.kernel_text, Some(0xffff_ffff_9a00_0000));
        assert_eq!(
            (data.trace.release.as_str(), data.arch.as_str()),
            ("7.3.4-test", "x86_64")
        );
        assert_eq!(
            (data.trace.vcpus, data.command.as_str()),
            (2, "perf record -a")
        );
        let recorded = data.trace.recorded.unwrap();
        assert!(recorded.every_cpu && !recorded.alone);
        assert_eq!(recorded.steady, Some((110, 120)));
        let specs = &data.trace.tracing.as_ref().unwrap().events;
        assert!(specs[0].defer_callchain && !specs[0].defer_output && !specs[0].inherit);
        assert!(specs[1].defer_output && specs[1].task && specs[1].mmap);
        assert_eq!((specs[1].name.as_str(), specs[1].max_stack), ("dummy:u", 7));
        assert_eq!(specs[1].source, EventSource::Dummy);
        let of = |at: usize| data.trace.session[data.trace.events[at].event.unwrap()].clone();
        assert_eq!((of(0).spec, of(0).cpu, of(0).id), (0, 0, 10));
        assert_eq!((of(2).spec, of(2).cpu, of(2).id), (1, 1, 21));
        let EventKind::CallchainDeferred(chain) = &data.trace.events[2].kind else {
            panic!("an answer");
        };
        assert_eq!(chain.ips, [0x40_1000, 0x40_2000]);
    }
}

/// The records of the kernel in pieces of a stream.
fn compressed(kind: u32, ended: bool) -> File {
    let plain = two_cpus(false);
    let mut stream = compress_to_vec(plain.records.as_slice(), CompressionLevel::Fastest);
    if !ended {
        // perf flushes: there is no last block. The writer here makes one block, and a checksum.
        let head = super::inflate::tests::head_len(&stream);
        stream[4] &= !4;
        stream[head] &= !1;
        stream.truncate(stream.len() - 4);
    }
    let mut file = File::new(false);
    for piece in stream.chunks(40) {
        let body = match kind {
            81 => file.w().raw(piece),
            _ => file
                .w()
                .u64(piece.len() as u64)
                .raw(piece)
                .raw(&[0; 8][..piece.len().next_multiple_of(8) - piece.len()]),
        };
        file.record(kind, 0, &body);
    }
    file
}

#[test]
fn compressed_records_are_unpacked() {
    let plain = read(&two_cpus(false).file()).unwrap();
    for (kind, ended) in [(81, true), (81, false), (83, true), (83, false)] {
        let data = read(&compressed(kind, ended).file()).unwrap();
        assert_eq!(data, plain, "{kind} {ended}");
    }
    let few = Limits {
        inflated: 64,
        ..Limits::default()
    };
    let error = PerfData::read(&compressed(81, true).file(), few).unwrap_err();
    assert!(matches!(error, PerfDataError::TooMuch { limit: 64, .. }));
    // A piece is missing: nothing is known to be complete.
    let mut short = compressed(81, false);
    short.records.truncate(60);
    let data = read(&short.file()).unwrap();
    assert!(data.cut.is_some() && data.records == 0);
}

#[test]
fn of_a_file_that_is_cut_short_only_what_is_complete_counts() {
    let mut file = two_cpus(false);
    file.sample(8, 140, 1, B);
    let whole = file.file();
    let data_at = 104 + 32 + 2 * 152;
    let end = data_at + file.records.len();
    let data = read(&whole[..end - 8]).unwrap();
    assert_eq!(
        data.cut.as_deref(),
        Some("the file is shorter than its header says")
    );
    // All that came before the first round's latest record: another CPU may have more behind it.
    let times: Vec<_> = { data.trace.events.iter() }
        .map(|it| it.time.unwrap())
        .collect();
    assert_eq!(times, [100, 110, 120, 130]);
    let first_round = two_cpus(false).records.len() - 8;
    assert_eq!(read(&whole[..data_at + first_round]).unwrap().records, 0);
    // perf was killed: the header says 0 bytes.
    let mut killed = whole.clone();
    killed[48..56].fill(0);
    killed.truncate(end);
    let data = read(&killed).unwrap();
    assert_eq!(data.cut.as_deref(), Some("perf did not end its file"));
    assert_eq!(data.records, 4);
    // And the same of a pipe.
    let pipe = file.pipe();
    assert_eq!(read(&pipe[..pipe.len() - 8]).unwrap().records, 4);
}

#[test]
fn losses_at_the_end_are_losses_at_any_time() {
    let mut file = two_cpus(false);
    let lost = file.trailer(file.w().u64(3), 0, 0, 0, 10);
    file.record(13, 0, &lost);
    let data = read(&file.file()).unwrap();
    let lost = data
        .trace
        .events
        .iter()
        .filter(|it| matches!(it.kind, EventKind::LostSamples { lost: 3 }));
    assert_eq!(
        lost.map(|it| (it.cpu, it.time, it.position))
            .collect::<Vec<_>>(),
        [(0, None, 0), (1, None, 0)]
    );
}

#[test]
fn what_cannot_be_taken_apart_counts_as_lost() {
    let mut file = two_cpus(false);
    let unknown = file.trailer(file.w().u64s(&[5 << 32 | 1, 0]), 7, 125, 0, 99);
    file.record(22, 2, &unknown);
    let short = file.w().u64s(&[10, 0]);
    file.record(9, 1, &short);
    let data = read(&file.file()).unwrap();
    let left_out: usize = data.left_out.iter().map(|(_, count)| count).sum();
    assert_eq!((left_out, data.records), (2, 4));
    let first = &data.trace.events[0];
    assert_eq!(
        (&first.kind, first.time),
        (&EventKind::LostSamples { lost: 2 }, None)
    );
}

#[test]
fn a_recording_without_an_order_is_refused_with_an_option_that_helps() {
    let says = |file: &File, option: &str| {
        let error = read(&file.file()).unwrap_err().to_string();
        assert!(error.contains(option), "{error}");
    };
    let mut nowhere = File::new(false);
    nowhere.sample_type &= !CPU;
    let body = nowhere
        .w()
        .u64(10)
        .u64(KERNEL_IP)
        .u32(1000)
        .u32(7)
        .u64(100)
        .u64(0);
    nowhere.record(9, 1, &body);
    says(&nowhere, "--sample-cpu");
    let mut threads = two_cpus(false);
    threads.records.clear();
    let index = threads.id_index(&[u64::MAX]);
    threads.record(69, 0, &index);
    says(&threads, "--per-thread");
    let mut branches = File::new(false);
    branches.sample_type |= 1 << 11;
    says(&branches, "-b");
}

#[test]
fn what_is_no_recording_says_so() {
    assert_eq!(read(b"").unwrap_err(), PerfDataError::NotPerfData);
    assert_eq!(read(b"PERFFILE").unwrap_err(), PerfDataError::NotPerfData);
    let file = two_cpus(false).file();
    for len in 8..440 {
        assert!(read(&file[..len]).is_err(), "{len}");
    }
    // Attributes that claim more than there is, or nothing.
    for (at, value) in [
        (8, 105),
        (16, 0),
        (16, 63),
        (24, u64::MAX),
        (32, 0),
        (32, u64::MAX),
        (40, u64::MAX),
    ] {
        let mut wrong = file.clone();
        wrong[at..at + 8].copy_from_slice(&u64::to_le_bytes(value));
        assert!(
            matches!(read(&wrong).unwrap_err(), PerfDataError::Damaged(_)),
            "{at}"
        );
    }
    let few = Limits {
        records: 3,
        ..Limits::default()
    };
    assert!(matches!(
        PerfData::read(&file, few).unwrap_err(),
        PerfDataError::TooMuch { limit: 3, .. }
    ));
}

/// Sections of ids that overlap would be copied for each attribute.
#[test]
fn a_file_has_no_more_ids_than_it_has_room_for() {
    let mut file = two_cpus(false).file();
    // What the second attribute says of its ids.
    let second = 104 + 32 + 152 + 136;
    let len = (file.len() as u64 - 104) / 8 * 8;
    let words = [104, len].map(u64::to_le_bytes).concat();
    // Those of the first are there, too.
    file[second..second + 16].copy_from_slice(&words);
    assert_eq!(read(&file).unwrap().records, 4);
    file[second - 152..second - 136].copy_from_slice(&words);
    let error = read(&file).unwrap_err().to_string();
    assert_eq!(error, "damaged: attribute 1 makes no sense");
}

#[test]
fn each_event_is_there_once_for_each_cpu_and_no_more_than_are_read() {
    let file = two_cpus(false).file();
    let limits = |events| Limits {
        events,
        ..Limits::default()
    };
    let data = PerfData::read(&file, limits(4)).unwrap();
    let session = { data.trace.session.iter() }.map(|it| (it.spec, it.cpu, it.id));
    let all = [(0, 0, 10), (0, 1, 11), (1, 0, 20), (1, 1, 21)];
    assert_eq!(session.collect::<Vec<_>>(), all);
    let error = PerfData::read(&file, limits(3)).unwrap_err().to_string();
    assert_eq!(
        error,
        "more than 3 events of one CPU, which is all that is read"
    );
}

#[test]
fn what_perf_itself_wrote_is_read() {
    let mut data = read(RESET_PERF_DATA).unwrap();
    assert_eq!((data.cut.as_deref(), data.left_out.len()), (None, 0));
    assert_eq!(data.trace.release, "7.3.4+deb13-cloud-amd64");
    let cookies: Vec<u64> = { data.trace.events.iter() }
        .filter_map(Event::cookie)
        .collect();
    assert_eq!(cookies.len(), 20);
    assert_eq!(cookies[..4], [3 << 32 | 1, 3 << 32 | 1, 3 << 32 | 1, 0]);
    let specs = &data.trace.tracing.as_ref().unwrap().events;
    let told: Vec<_> = { specs.iter() }
        .map(|it| (it.name.as_str(), it.defer_callchain, it.defer_output))
        .collect();
    assert_eq!(told, [("cycles", true, false), ("dummy:u", false, true)]);
    // The kernel was where it was linked; had it been elsewhere, its addresses would move, and those of users not.
    let (text, before) = (data.kernel_text.unwrap(), data.trace.clone());
    assert!(data.link_kernel(text));
    assert_eq!(data.trace, before);
    assert!(data.link_kernel(text + 0x1000));
    let EventKind::Sample(was) = &before.events[0].kind else {
        panic!("a sample");
    };
    let EventKind::Sample(sample) = &data.trace.events[0].kind else {
        panic!("a sample");
    };
    assert_eq!(sample.kernel_chain()[0], was.kernel_chain()[0] + 0x1000);
    assert_eq!(sample.cookie(), was.cookie());
    assert_eq!(data.trace.events[1], before.events[1]);
}

proptest! {
    #[test]
    fn no_bytes_are_too_much(
        changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..8),
        cut in any::<usize>(),
        which in 0..5_usize,
    ) {
        let mut bytes = match which {
            0 => two_cpus(false).file(),
            1 => two_cpus(true).file(),
            2 => two_cpus(false).pipe(),
            3 => two_cpus(true).pipe(),
            _ => compressed(81, false).file(),
        };
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        bytes.truncate(bytes.len() - cut % 64);
        if let Ok(data) = read(&bytes) {
            for (at, event) in data.trace.events.iter().enumerate() {
                prop_assert_eq!(event.index, at);
            }
        }
    }
}
