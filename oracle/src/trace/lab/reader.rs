//! Reads the lab client's log out of guest memory, even of a guest that hangs.

use serde::{Deserialize, Serialize};
use unwindlab_abi::lab::{HEAD_OFFSET, MAGIC, MAX_LOG_PAGES, SLOT_BYTES, SLOTS_OFFSET, VERSION};
use unwindlab_abi::mailbox::PAGE_SIZE;

use crate::trace::ring::{GuestRead, NotGuestMemory};

/// The log's bytes, as they stood when the trial was over.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabLog {
    /// Slots requested, including those beyond the capacity.
    pub head: u64,
    /// Slots that the log has.
    pub capacity: u64,
    /// The slots up to the head.
    pub bytes: Vec<u8>,
    /// Why nothing could be read, if so.
    pub corrupt: Option<String>,
}

/// Why a log cannot be read. Each is the guest's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum LabLogError {
    /// A log cannot have this number of pages.
    #[error("{0} pages announced; a log has 2 to {max}", max = MAX_LOG_PAGES + 1)]
    Pages(usize),
    /// The control page is not that of a log.
    #[error("its control page says {0:#x}, version {1}")]
    Control(u32, u32),
    /// The pages do not hold this number of slots.
    #[error("{slots} slots in {pages} pages")]
    Slots { slots: u64, pages: usize },
    /// Part of it is outside guest memory.
    #[error(transparent)]
    Memory(#[from] NotGuestMemory),
}

/// Whether so many pages, the control page included, can be a log.
#[must_use]
pub fn may_be_log(pages: usize) -> bool {
    (2..=MAX_LOG_PAGES as usize + 1).contains(&pages)
}

impl LabLog {
    /// Reads the log in these pages, from this slot on. [`LabLog::corrupt`] says why it cannot be
    /// read, if it cannot.
    #[must_use]
    pub fn read_from<M: GuestRead + ?Sized>(memory: &M, pages: &[u64], first: u64) -> Self {
        read(memory, pages, first).unwrap_or_else(|error| Self {
            corrupt: Some(error.to_string()),
            ..Self::default()
        })
    }

    /// How many slots from the first on are completely written.
    #[must_use]
    pub fn finished(&self) -> u64 {
        let (slots, _) = self.bytes.as_chunks::<SLOT_BYTES>();
        let unfinished = |slot: &[u8; SLOT_BYTES]| slot.get(4..8) == Some([0; 4].as_slice());
        let finished = slots.iter().position(unfinished).unwrap_or(slots.len());
        finished as u64
    }

    /// The whole log, from an earlier reading and one from slot `first` on.
    #[must_use]
    pub fn join(earlier: &Self, first: u64, later: Self) -> Self {
        let kept = usize::try_from(first).map_or(usize::MAX, |it| it.saturating_mul(SLOT_BYTES));
        let mut bytes = earlier.bytes.get(..kept).unwrap_or(&earlier.bytes).to_vec();
        bytes.extend(later.bytes);
        Self { bytes, ..later }
    }
}

/// Kind and CPU of a slot, if it is completely written, while the guest runs. The pages are those
/// of the log, the control page first.
#[must_use]
pub fn slot<M: GuestRead + ?Sized>(memory: &M, pages: &[u64], number: u64) -> Option<(u8, u8)> {
    let in_page = (PAGE_SIZE / SLOT_BYTES) as u64;
    let page = usize::try_from(number / in_page).ok()?.checked_add(1)?;
    let within = number % in_page * SLOT_BYTES as u64;
    let at = pages.get(page)?.checked_add(within)?;
    // The commit word, in the upper half of the first, holds the low half of the slot's number,
    // plus one.
    let [kind, _, _, _, commit @ ..] = memory.load(at).ok()?.to_le_bytes();
    let [_, _, _, _, cpu, ..] = memory.load(at.checked_add(24)?).ok()?.to_le_bytes();
    let expected = number.wrapping_add(1).to_le_bytes();
    (expected.starts_with(&commit) && commit != [0; 4]).then_some((kind, cpu))
}

fn read<M: GuestRead + ?Sized>(
    memory: &M,
    pages: &[u64],
    first: u64,
) -> Result<LabLog, LabLogError> {
    let (control, data) = match pages {
        [control, data @ ..] if may_be_log(pages.len()) => (*control, data),
        _ => return Err(LabLogError::Pages(pages.len())),
    };
    let [magic, version] = split(memory.load(control)?);
    if (magic, version) != (MAGIC, VERSION) {
        return Err(LabLogError::Control(magic, version));
    }
    let slots = memory.load(control + SLOTS_OFFSET as u64)?;
    let hold = (data.len() * (PAGE_SIZE / SLOT_BYTES)) as u64;
    if slots != hold {
        let pages = pages.len();
        return Err(LabLogError::Slots { slots, pages });
    }
    let head = memory.load(control + HEAD_OFFSET as u64)?;
    let used = head.min(slots);
    let mut bytes = Vec::new();
    for (&page, begin) in data.iter().zip((0..used).step_by(PAGE_SIZE / SLOT_BYTES)) {
        let mut slots = [0; PAGE_SIZE];
        memory.read(page, &mut slots)?;
        let (slots, _) = slots.as_chunks::<SLOT_BYTES>();
        let wanted = (begin..used).zip(slots).filter(|(slot, _)| *slot >= first);
        bytes.extend(wanted.flat_map(|(_, slot)| *slot));
    }
    Ok(LabLog {
        head,
        capacity: slots,
        bytes,
        corrupt: None,
    })
}

fn split(word: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = word.to_le_bytes();
    [
        u32::from_le_bytes([a, b, c, d]),
        u32::from_le_bytes([e, f, g, h]),
    ]
}
