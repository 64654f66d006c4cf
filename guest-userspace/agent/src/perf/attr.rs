//! `struct perf_event_attr`, as far as this program fills it.
//!
//! Layout: include/uapi/linux/perf_event.h of Linux 7.2, up to `PERF_ATTR_SIZE_VER5` (112
//! bytes); a kernel takes the rest as zero. Linux 7.0 has the two `defer_*` bits; an older
//! kernel refuses an attr that has one set (there they are `__reserved_1`, which must be zero).

use unwindlab_abi::{AttrDetails, EventSource, EventSpec, Watch};

/// `PERF_TYPE_HARDWARE`.
pub const TYPE_HARDWARE: u32 = 0;
/// `PERF_TYPE_SOFTWARE`.
pub const TYPE_SOFTWARE: u32 = 1;
/// `PERF_TYPE_TRACEPOINT`.
pub const TYPE_TRACEPOINT: u32 = 2;
/// `PERF_TYPE_BREAKPOINT`.
pub const TYPE_BREAKPOINT: u32 = 5;
// include/uapi/linux/hw_breakpoint.h. The length of `HW_BREAKPOINT_X` is that of a long.
const HW_BREAKPOINT_R: u32 = 1;
const HW_BREAKPOINT_W: u32 = 2;
const HW_BREAKPOINT_X: (u32, u64) = (4, 8);
/// `PERF_COUNT_SW_DUMMY`.
pub const COUNT_SW_DUMMY: u64 = 9;

/// Bits of the flag word at offset 40.
pub mod flag {
    /// `disabled`: off until `PERF_EVENT_IOC_ENABLE`.
    pub const DISABLED: u64 = 1 << 0;
    /// `inherit`: tasks that those it counts make are counted too.
    pub const INHERIT: u64 = 1 << 1;
    /// `mmap`: mmap records.
    pub const MMAP: u64 = 1 << 8;
    /// `comm`: comm records.
    pub const COMM: u64 = 1 << 9;
    /// `task`: fork and exit records.
    pub const TASK: u64 = 1 << 13;
    /// `watermark`: the wake-up field counts bytes.
    pub const WATERMARK: u64 = 1 << 14;
    /// `sample_id_all`: identity fields at the end of every record.
    pub const SAMPLE_ID_ALL: u64 = 1 << 18;
    /// `exclude_callchain_user`.
    pub const EXCLUDE_CALLCHAIN_USER: u64 = 1 << 22;
    /// `mmap2`: the longer mmap records.
    pub const MMAP2: u64 = 1 << 23;
    /// `context_switch`: switch records.
    pub const CONTEXT_SWITCH: u64 = 1 << 26;
    /// `defer_callchain`: ask for the user chain later.
    pub const DEFER_CALLCHAIN: u64 = 1 << 38;
    /// `defer_output`: receive `PERF_RECORD_CALLCHAIN_DEFERRED`.
    pub const DEFER_OUTPUT: u64 = 1 << 39;
}

/// `struct perf_event_attr`. Fields without documentation stay zero.
#[repr(C)]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as in the kernel's header")]
pub struct PerfEventAttr {
    /// `PERF_TYPE_*`.
    pub kind: u32,
    /// Bytes of this struct.
    pub size: u32,
    /// Which event of the type.
    pub config: u64,
    /// A sample every so many events; 0 for none.
    pub sample_period: u64,
    /// `PERF_SAMPLE_*` bits.
    pub sample_type: u64,
    pub read_format: u64,
    /// [`flag`] bits.
    pub flags: u64,
    /// Bytes in the buffer before a wake-up.
    pub wakeup_watermark: u32,
    pub bp_type: u32,
    /// `bp_addr` of a breakpoint.
    pub config1: u64,
    /// `bp_len` of a breakpoint.
    pub config2: u64,
    pub branch_sample_type: u64,
    pub sample_regs_user: u64,
    pub sample_stack_user: u32,
    pub clockid: i32,
    pub sample_regs_intr: u64,
    pub aux_watermark: u32,
    /// Frames of a chain at most; 0 for `kernel.perf_event_max_stack`.
    pub sample_max_stack: u16,
    pub reserved_2: u16,
}

impl PerfEventAttr {
    /// A disabled event that wakes no reader.
    ///
    /// The kernel cuts the watermark to the buffer's size (`ring_buffer_init` in
    /// kernel/events/ring_buffer.c), so a wake-up, which costs an `irq_work` and with it an
    /// interrupt, comes once a full buffer's worth of records and no more often.
    #[must_use]
    pub fn quiet(kind: u32, config: u64) -> Self {
        Self {
            kind,
            size: SIZE,
            config,
            flags: flag::DISABLED | flag::SAMPLE_ID_ALL | flag::WATERMARK,
            wakeup_watermark: u32::MAX,
            ..Self::default()
        }
    }

    /// The event that a spec describes; `kind` and `config` are its resolved source.
    #[must_use]
    pub fn from_spec(spec: &EventSpec, kind: u32, config: u64) -> Self {
        let bits = [
            (spec.mmap, flag::MMAP | flag::MMAP2),
            (spec.inherit, flag::INHERIT),
            (spec.comm, flag::COMM),
            (spec.task, flag::TASK),
            (spec.exclude_callchain_user, flag::EXCLUDE_CALLCHAIN_USER),
            (spec.context_switch, flag::CONTEXT_SWITCH),
            (spec.defer_callchain, flag::DEFER_CALLCHAIN),
            (spec.defer_output, flag::DEFER_OUTPUT),
        ];
        let mut attr = Self::quiet(kind, config);
        attr.sample_period = spec.sample_period;
        attr.sample_type = spec.sample_type;
        attr.sample_max_stack = spec.max_stack;
        if let EventSource::Breakpoint { address, watch } = spec.source {
            attr.break_at(address, watch);
        }
        for (is_set, bit) in bits {
            if is_set {
                attr.flags |= bit;
            }
        }
        attr.add(&spec.details);
        attr
    }

    /// Sets the address and the accesses of a breakpoint.
    pub fn break_at(&mut self, address: u64, watch: Watch) {
        self.config1 = address;
        (self.bp_type, self.config2) = match watch {
            Watch::Execute => HW_BREAKPOINT_X,
            Watch::Write(bytes) => (HW_BREAKPOINT_W, bytes.into()),
            Watch::ReadWrite(bytes) => (HW_BREAKPOINT_R | HW_BREAKPOINT_W, bytes.into()),
        };
    }

    /// Adds the rest of a spec's attr.
    fn add(&mut self, details: &AttrDetails) {
        self.flags = (self.flags | details.set) & !details.clear;
        self.read_format = details.read_format;
        self.branch_sample_type = details.branch_sample_type;
        self.sample_regs_user = details.regs_user;
        self.sample_regs_intr = details.regs_intr;
        self.sample_stack_user = details.stack_user;
        self.clockid = details.clockid;
        if let Some(wakeup) = details.wakeup {
            self.wakeup_watermark = wakeup;
        }
    }
}

/// `PERF_ATTR_SIZE_VER5`.
const SIZE: u32 = 112;
const _: () = assert!(size_of::<PerfEventAttr>() == SIZE as usize);

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use unwindlab_abi::EventSource;

    use super::*;

    #[test]
    fn layout_is_the_kernels() {
        assert_eq!(offset_of!(PerfEventAttr, config), 8);
        assert_eq!(offset_of!(PerfEventAttr, sample_period), 16);
        assert_eq!(offset_of!(PerfEventAttr, sample_type), 24);
        assert_eq!(offset_of!(PerfEventAttr, flags), 40);
        assert_eq!(offset_of!(PerfEventAttr, wakeup_watermark), 48);
        assert_eq!(offset_of!(PerfEventAttr, bp_type), 52);
        assert_eq!(offset_of!(PerfEventAttr, config1), 56);
        assert_eq!(offset_of!(PerfEventAttr, branch_sample_type), 72);
        assert_eq!(offset_of!(PerfEventAttr, sample_regs_user), 80);
        assert_eq!(offset_of!(PerfEventAttr, clockid), 92);
        assert_eq!(offset_of!(PerfEventAttr, sample_regs_intr), 96);
        assert_eq!(offset_of!(PerfEventAttr, aux_watermark), 104);
        assert_eq!(offset_of!(PerfEventAttr, sample_max_stack), 108);
    }

    #[test]
    fn a_spec_sets_its_bits_and_no_others() {
        let mut spec = EventSpec {
            sample_period: 3,
            sample_type: 0x27,
            max_stack: 9,
            ..EventSpec::blank("nmi", EventSource::Dummy)
        };
        let base = flag::DISABLED | flag::SAMPLE_ID_ALL | flag::WATERMARK;
        let attr = PerfEventAttr::from_spec(&spec, TYPE_SOFTWARE, COUNT_SW_DUMMY);
        assert_eq!((attr.kind, attr.size, attr.config), (1, 112, 9));
        assert_eq!((attr.sample_period, attr.sample_type), (3, 0x27));
        assert_eq!((attr.sample_max_stack, attr.flags), (9, base));
        spec.defer_callchain = true;
        spec.context_switch = true;
        let attr = PerfEventAttr::from_spec(&spec, TYPE_SOFTWARE, COUNT_SW_DUMMY);
        assert_eq!(attr.flags, base | 1 << 38 | 1 << 26);
        assert_eq!((attr.bp_type, attr.config1, attr.config2), (0, 0, 0));
        spec.details.set = 1 << 28;
        spec.details.clear = flag::SAMPLE_ID_ALL;
        spec.details.wakeup = Some(1);
        spec.details.regs_user = 0xff;
        let attr = PerfEventAttr::from_spec(&spec, TYPE_SOFTWARE, COUNT_SW_DUMMY);
        let bits = flag::DISABLED | flag::WATERMARK | 1 << 38 | 1 << 28 | 1 << 26;
        assert_eq!((attr.flags, attr.wakeup_watermark), (bits, 1));
        assert_eq!(attr.sample_regs_user, 0xff);
        for (watch, bp_type, bytes) in [
            (Watch::Execute, 4, 8),
            (Watch::Write(4), 2, 4),
            (Watch::ReadWrite(1), 3, 1),
        ] {
            let address = 0x1000;
            spec.source = EventSource::Breakpoint { address, watch };
            let attr = PerfEventAttr::from_spec(&spec, TYPE_BREAKPOINT, 0);
            assert_eq!((attr.kind, attr.bp_type), (5, bp_type));
            assert_eq!((attr.config1, attr.config2), (address, bytes));
        }
    }
}
