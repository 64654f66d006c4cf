//! Reads what `perf record` wrote, a file or what it writes to a pipe, and writes such files.
//!
//! The formats are those of tools/perf (`util/header.h`, `util/session.c`, `lib/perf/include/perf/event.h`, Linux
//! 7.3). perf writes the kernel's records as they are, `PERF_RECORD_CALLCHAIN_DEFERRED` too: `perf script` and
//! `perf report` merge when they read. Nothing of a file is trusted. The crate linux-perf-data sorts by time alone,
//! and so loses the order of records that nest in each other on one CPU.
//!
//! - `attr`: the attributes of the events; `header`: header and feature sections
//! - `walk`: the records of the data section; `inflate`: compressed ones
//! - `order`: the records of all CPUs, merged into a [`Trace`]
//! - [`write`](mod@write): the other way, a trial's rings as a file

mod attr;
#[cfg(test)]
mod command_tests;
mod header;
mod inflate;
mod order;
#[cfg(test)]
pub(crate) mod tests;
mod walk;
pub mod write;

use super::Trace;
use super::model::EventKind;
use super::record::fields::Endian;
use header::Start;
use walk::Walk;

/// How much of a file is read.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes that compressed records may have unpacked.
    pub inflated: u64,
    /// Records of the kernel.
    pub records: usize,
    /// Events, each of them once for each CPU.
    pub events: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            inflated: 1 << 30,
            records: 8 << 20,
            events: 4 << 20,
        }
    }
}

/// Why nothing of a file can be judged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum PerfDataError {
    /// It does not begin as one.
    #[error("not a perf.data file")]
    NotPerfData,
    /// Its header or its attributes make no sense.
    #[error("damaged: {0}")]
    Damaged(String),
    /// It holds more than is read.
    #[error("more than {limit} {what}, which is all that is read")]
    TooMuch { what: &'static str, limit: u64 },
    /// It was recorded in a way from which nothing follows.
    #[error("{what}; {instead}")]
    Unsuitable { what: String, instead: &'static str },
}

/// A recording, and what its file says of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PerfData {
    /// What was recorded, in order.
    pub trace: Trace,
    /// The machine (`x86_64`); empty where the file does not say.
    pub arch: String,
    /// The command line of perf.
    pub command: String,
    /// Where the kernel's `_text` was: it is moved at each boot.
    pub kernel_text: Option<u64>,
    /// The file was cut short, or is damaged from somewhere on: why.
    pub cut: Option<String>,
    /// Records of the kernel that are in the trace.
    pub records: usize,
    /// Records of the kernel that could not be used, of each kind: how many.
    pub left_out: Vec<(&'static str, usize)>,
}

impl PerfData {
    /// Reads a file. Its records stand in the trace as those of one ring for each CPU.
    ///
    /// # Errors
    /// [`PerfDataError`] where nothing of it can be judged.
    pub fn read(bytes: &[u8], limits: Limits) -> Result<Self, PerfDataError> {
        let Start {
            endian,
            attrs,
            features,
            data,
            cut,
        } = header::read(bytes)?;
        let mut walk = Walk::new(endian, limits, attrs, features);
        walk.cut = cut;
        walk.all(data)?;
        order::finish(walk)
    }
}

impl PerfData {
    /// Puts the addresses of the kernel where the linker put them, if the file says where its text was.
    pub fn link_kernel(&mut self, linked: u64) -> bool {
        /// The kernel's image and its modules lie in this space (`__START_KERNEL_map`, x86).
        const SPACE: u64 = 1 << 30;
        let Some(text) = self.kernel_text else {
            return false;
        };
        let image = text..text.saturating_add(SPACE);
        let link = |ip: &mut u64| {
            if image.contains(ip) {
                *ip = ip.wrapping_sub(text).wrapping_add(linked);
            }
        };
        for event in &mut self.trace.events {
            if let EventKind::Sample(sample) = &mut event.kind {
                sample.ip.iter_mut().for_each(link);
                sample.chain.iter_mut().flatten().for_each(link);
            }
        }
        true
    }
}

/// Text of a file that is shown: without control characters, and not endless.
fn shown(text: &str) -> String {
    const LONGEST: usize = 512;
    let plain = text.chars().filter(|it| !it.is_control());
    plain.take(LONGEST).collect()
}

/// The bytes `from..from + len` of a file.
fn slice(bytes: &[u8], from: u64, len: u64) -> Option<&[u8]> {
    let from = usize::try_from(from).ok()?;
    let end = from.checked_add(usize::try_from(len).ok()?)?;
    bytes.get(from..end)
}
