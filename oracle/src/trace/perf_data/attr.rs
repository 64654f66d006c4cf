//! `struct perf_event_attr`, as perf writes it.

use unwindlab_abi::attr::{AttrDetails, flag};
use unwindlab_abi::plan::{EventSource, EventSpec};

use super::{Endian, PerfDataError, shown};
use crate::trace::record::fields::Fields;

/// Bytes of the first published attr (`PERF_ATTR_SIZE_VER0`).
pub(super) const SMALLEST: usize = 64;
/// Bytes of the flag word, behind the fields of a fixed order.
const FLAGS: std::ops::Range<usize> = 40..48;
/// `freq`: the period is a frequency.
const FREQ: u64 = 1 << 10;
/// `aux_output` and the fields of a sample that only a counter of the CPU has, by name.
const UNREAD: [(u64, &str); 2] = [
    (1 << 11, "-b and --call-graph lbr"),
    (1 << 20, "--aux-sample"),
];

/// What a filter is not known to be.
const UNKNOWN_FILTER: &str = "not known";

/// An attr, and the ids of its events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Attr {
    pub kind: u32,
    pub config: u64,
    pub period: u64,
    pub sample_type: u64,
    pub read_format: u64,
    pub flags: u64,
    pub branch_sample_type: u64,
    pub regs_user: u64,
    pub stack_user: u32,
    pub clockid: i32,
    pub regs_intr: u64,
    pub max_stack: u16,
    pub ids: Vec<u64>,
    pub name: String,
}

impl Attr {
    /// Reads one; fields that an older perf did not write are 0. `None`: too short.
    pub fn read(bytes: &[u8], endian: Endian) -> Option<Self> {
        let flags = *bytes.get(FLAGS)?.first_chunk::<8>()?;
        // Bit fields are laid out from the other end there (`swap_bitfield`, tools/perf/util/session.c).
        let flags = match endian {
            Endian::Little => flags,
            Endian::Big => flags.map(u8::reverse_bits),
        };
        let mut fields = Fields::new(bytes, endian);
        let (kind, _size) = fields.pair()?;
        let [config, period, sample_type, read_format] =
            [fields.u64()?, fields.u64()?, fields.u64()?, fields.u64()?];
        // The flags, the wake-up, and what depends on the type.
        fields.bytes(32)?;
        let mut later = || -> Option<(u64, u64, u32, u32, u64)> {
            Some((
                fields.u64()?,
                fields.u64()?,
                fields.u32()?,
                fields.u32()?,
                fields.u64()?,
            ))
        };
        let (branch_sample_type, regs_user, stack_user, clockid, regs_intr) =
            later().unwrap_or_default();
        let _aux_watermark = fields.u32();
        Some(Self {
            kind,
            config,
            period,
            sample_type,
            read_format,
            flags: u64::from_le_bytes(flags),
            branch_sample_type,
            regs_user,
            stack_user,
            clockid: clockid.cast_signed(),
            regs_intr,
            max_stack: fields.u16().unwrap_or(0),
            ids: Vec::new(),
            name: String::new(),
        })
    }

    /// Bytes of an attr that says it has so many (0: the first published one).
    pub fn size(bytes: &[u8], endian: Endian) -> Option<usize> {
        let (_, size) = Fields::new(bytes, endian).pair()?;
        let size = usize::try_from(size).ok()?;
        match size {
            0 => Some(SMALLEST),
            size if size < SMALLEST || !size.is_multiple_of(8) => None,
            size => Some(size),
        }
    }

    pub const fn has(&self, bits: u64) -> bool {
        self.flags & bits != 0
    }

    /// Why no record of its event can be taken apart.
    pub fn unsuitable(&self) -> Result<(), PerfDataError> {
        let unread = UNREAD.iter().find(|(bit, _)| self.sample_type & bit != 0);
        let what = match unread {
            Some((_, option)) => format!("samples with what {option} adds are not read"),
            None if self.has(flag::WRITE_BACKWARD) => {
                "a ring that is written backwards shows no order of its records".to_owned()
            }
            None => return Ok(()),
        };
        Err(PerfDataError::Unsuitable {
            what,
            instead: "record without -b, --call-graph lbr, --aux-sample and --overwrite",
        })
    }

    /// As the plan of a trial would say it. `everything`: each occurrence gave a sample, for all that the
    /// command line says. `one_clock`: all events have the same clock.
    pub fn spec(
        &self,
        number: usize,
        everything: bool,
        of_tasks: bool,
        one_clock: bool,
    ) -> EventSpec {
        let mut set = self.flags & !(flag::DEFER_CALLCHAIN | flag::DEFER_OUTPUT);
        if one_clock {
            set &= !flag::USE_CLOCKID;
        }
        let all = everything && self.period == 1 && !self.has(FREQ);
        let name = match self.name.as_str() {
            "" => format!("event {number}"),
            name => shown(name),
        };
        EventSpec {
            filter: (!all).then(|| UNKNOWN_FILTER.to_owned()),
            sample_period: if self.has(FREQ) { 0 } else { self.period },
            sample_type: self.sample_type,
            max_stack: self.max_stack,
            defer_callchain: self.has(flag::DEFER_CALLCHAIN),
            defer_output: self.has(flag::DEFER_OUTPUT),
            task: self.has(flag::TASK),
            comm: self.has(flag::COMM),
            mmap: self.has(flag::MMAP | flag::MMAP2),
            context_switch: self.has(flag::CONTEXT_SWITCH),
            inherit: of_tasks && self.has(flag::INHERIT),
            exclude_callchain_user: self.has(flag::EXCLUDE_CALLCHAIN_USER),
            details: AttrDetails {
                set,
                clear: if self.has(flag::SAMPLE_ID_ALL) {
                    0
                } else {
                    flag::SAMPLE_ID_ALL
                },
                read_format: self.read_format,
                branch_sample_type: self.branch_sample_type,
                regs_user: self.regs_user,
                regs_intr: self.regs_intr,
                stack_user: self.stack_user,
                clockid: self.clockid,
                ..AttrDetails::default()
            },
            ..EventSpec::blank(&name, self.source())
        }
    }

    /// What it counts. Of a PMU that is not the CPU's nothing is assumed.
    fn source(&self) -> EventSource {
        /// `PERF_COUNT_SW_DUMMY`.
        const DUMMY: u64 = 9;
        match (self.kind, self.config, self.name.split_once(':')) {
            // PERF_TYPE_HARDWARE, HW_CACHE, RAW
            (0 | 3 | 4, config, _) => EventSource::Hardware(config),
            (1, DUMMY, _) => EventSource::Dummy,
            (2, _, Some((system, name))) => EventSource::Tracepoint {
                system: system.to_owned(),
                name: name.split(':').next().unwrap_or_default().to_owned(),
            },
            (_, config, _) => EventSource::Software(config),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(flags: u64) -> EventSpec {
        let attr = Attr {
            flags: flags | flag::SAMPLE_ID_ALL,
            period: 1,
            ..Attr::default()
        };
        attr.spec(0, true, true, false)
    }

    #[test]
    fn a_flag_is_what_the_plan_calls_it() {
        type Field = fn(&EventSpec) -> bool;
        let fields: [(u64, Field); 9] = [
            (flag::DEFER_CALLCHAIN, |it| it.defer_callchain),
            (flag::DEFER_OUTPUT, |it| it.defer_output),
            (flag::TASK, |it| it.task),
            (flag::COMM, |it| it.comm),
            (flag::MMAP, |it| it.mmap),
            (flag::MMAP2, |it| it.mmap),
            (flag::CONTEXT_SWITCH, |it| it.context_switch),
            (flag::INHERIT, |it| it.inherit),
            (flag::EXCLUDE_CALLCHAIN_USER, |it| it.exclude_callchain_user),
        ];
        for (bit, field) in fields {
            assert!(field(&spec(bit)), "{bit:#x}");
            assert!(
                !field(&spec(!bit & !(flag::MMAP | flag::MMAP2))),
                "{bit:#x}"
            );
        }
    }

    #[test]
    fn an_event_of_all_cpus_is_not_inherited() {
        let attr = Attr {
            flags: flag::INHERIT,
            ..Attr::default()
        };
        assert!(attr.spec(0, true, true, false).inherit);
        assert!(!attr.spec(0, true, false, false).inherit);
    }

    /// Without each occurrence a sample, what none is shown of may have happened all the same.
    #[test]
    fn each_occurrence_gave_a_sample_only_of_period_1() {
        let filter = |everything, period, flags| {
            let attr = Attr {
                flags,
                period,
                ..Attr::default()
            };
            let spec = attr.spec(0, everything, true, false);
            (spec.filter, spec.sample_period)
        };
        let unknown = || Some(UNKNOWN_FILTER.to_owned());
        assert_eq!(filter(true, 1, 0), (None, 1));
        assert_eq!(filter(false, 1, 0), (unknown(), 1));
        assert_eq!(filter(true, 2, 0), (unknown(), 2));
        assert_eq!(filter(true, 1, FREQ), (unknown(), 0));
    }

    #[test]
    fn the_details_are_those_of_the_attr() {
        let attr = Attr {
            flags: flag::DEFER_CALLCHAIN | flag::DEFER_OUTPUT | flag::USE_CLOCKID | flag::COMM,
            read_format: 1,
            branch_sample_type: 2,
            regs_user: 3,
            regs_intr: 4,
            stack_user: 5,
            clockid: 6,
            ..Attr::default()
        };
        let expected = AttrDetails {
            set: flag::USE_CLOCKID | flag::COMM,
            clear: flag::SAMPLE_ID_ALL,
            read_format: 1,
            branch_sample_type: 2,
            regs_user: 3,
            regs_intr: 4,
            stack_user: 5,
            clockid: 6,
            ..AttrDetails::default()
        };
        assert_eq!(attr.spec(0, true, true, false).details, expected);
        let one_clock = attr.spec(0, true, true, true).details;
        assert_eq!(one_clock.set, flag::COMM);
        assert_eq!(spec(0).details.clear, 0);
    }

    #[test]
    fn a_ring_that_is_written_backwards_is_unsuitable() {
        let unsuitable = |flags| {
            let attr = Attr {
                flags,
                ..Attr::default()
            };
            attr.unsuitable().is_err()
        };
        assert!(unsuitable(flag::WRITE_BACKWARD));
        assert!(!unsuitable(flag::SAMPLE_ID_ALL));
    }

    #[test]
    fn an_attr_is_not_smaller_than_the_first_and_of_whole_words() {
        let size = |size: u32| {
            let bytes = [[0; 4], size.to_le_bytes()].concat();
            Attr::size(&bytes, Endian::Little)
        };
        assert_eq!(
            (size(0), size(64), size(72)),
            (Some(64), Some(64), Some(72))
        );
        assert_eq!((size(56), size(63), size(65)), (None, None, None));
    }
}
